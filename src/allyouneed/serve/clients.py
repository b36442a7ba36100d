"""Clients. Limits and turns are per client: a valid API key, or else an address.

The gate stores the client of a request as `scope["state"]["client"]`, and as `CURRENT_CLIENT` for code that does not
see the scope: engines give clients turns, whichever endpoint the work comes from.
"""

import hashlib
import ipaddress
from contextvars import ContextVar

from starlette.types import Scope

LOCAL = "local"  # the address of a peer without one, such as a Unix socket
CURRENT_CLIENT: ContextVar[str] = ContextVar("client", default=LOCAL)


def client_of(scope: Scope) -> str:
    """Return the client of a request: a short hash of its valid key, else the address of its peer."""
    found: str | None = scope.get("state", {}).get("client")
    return address_of(scope) if found is None else found


def address_of(scope: Scope) -> str:
    """Return the address from which a request was sent. A whole IPv6 network of /64 counts as one address."""
    peer = scope.get("client")
    return group_address(peer[0]) if peer else LOCAL


def group_address(address: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address: a single client usually owns all of it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


def key_client(key: str) -> str:
    """Return the name of the client with this key. Logs may contain it: it does not reveal the key."""
    return f"key:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
