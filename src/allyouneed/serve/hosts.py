"""The `Host` header: a request must name this server.

A page of a foreign site can point a name of its own at 127.0.0.1 (DNS rebinding). For the browser, the local server
then belongs to that site, and the page may read its responses. The browser sends the foreign name as `Host`. The attack
needs a name, so IP addresses are always accepted, and names only if they are known.
"""

import ipaddress
import re

from starlette.types import Scope

from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import Refusal

ANY = "*"
HOST = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<name>[^\[\]:/@\s]+))(?::[0-9]*)?")


def check_host(scope: Scope, config: ServeConfig) -> None:
    """Refuse with 400 unless the request has one `Host` header, and that names this server."""
    found = [value for name, value in scope["headers"] if name == b"host"]
    if len(found) != 1:
        raise Refusal(400, f"Host: {len(found)} headers; send exactly one", code="invalid_host")
    match = HOST.fullmatch(found[0].decode("latin-1"))
    if match is None:
        raise Refusal(400, "Host: should be a name or an address, and perhaps a port", code="invalid_host")
    if match["v6"] is not None:
        known = _is_address(match["v6"])
    else:
        known = ANY in config.hosts or _plain(match["name"]) in _names(config) or _is_address(match["name"])
    if not known:
        name = (match["v6"] or match["name"])[:100]
        message = f"Host: {name!r} is no name of this server; to accept it, start the server with --allow-host NAME"
        raise Refusal(400, message, code="invalid_host")


def _names(config: ServeConfig) -> list[str]:
    return ["localhost", *map(_plain, (config.host, *config.hosts))]


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
