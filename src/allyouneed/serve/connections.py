"""Open connections by address: no address can occupy them all.

A connection beyond a limit takes the place of an idle one: of the same address if that is at its limit, else of the
address with the most connections. A connection is idle while no request of it is being processed and no response is
being sent; one that has been idle for less than `GRACE` seconds is kept, as its request may be on its way. If no
connection is idle, the new one is refused. The tables hold open connections only, so their size is bounded. A trusted
proxy may open all connections: they belong to its clients.
"""

import ipaddress
import resource
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import Gauge

from allyouneed.serve.clients import group_address
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import Refusal

GRACE = 1.0  # seconds
OTHER_FILES = 256  # files that a server opens besides its connections


class Connection(Protocol):
    """An open connection."""

    def evict(self) -> None:
        """Close the connection at once."""

    @property
    def sending(self) -> bool:
        """True if a part of a response has not been sent."""


@dataclass
class AddressConnections:
    """The connections of one address."""

    count: int = 0
    idle: OrderedDict[Connection, float] = field(default_factory=OrderedDict)  # since when; the longest time first


def raise_file_limit(connections: int) -> None:
    """Allow as many open files as the connections need, if the operating system permits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Connections:
    """The open connections of a server."""

    def __init__(self, config: ServeConfig, gauge: Gauge) -> None:
        self._most, self._most_per_address = config.connections, config.client_connections
        self._by_address: dict[str, AddressConnections] = {}
        self._count, self._gauge = 0, gauge
        self._proxies = [ipaddress.ip_network(one) for one in config.trust_proxy]

    def add(self, connection: Connection, peer: str) -> str:
        """Add a new connection, which is idle, or raise a Refusal. Return the address under which it is counted."""
        address = group_address(peer)
        mine = self._by_address.get(address, AddressConnections())
        most = self._most if self._is_proxy(peer) else self._most_per_address
        if mine.count >= most and not self._evict(address):
            message = f"{mine.count} connections from {address} are open; close one, or reuse them"
            raise Refusal(429, message, code="too_many_connections", retry=1)
        if self._count >= self._most and not self._evict(max(self._by_address, key=self._connections_of)):
            raise Refusal(503, "too many connections are open; try again", code="too_many_connections", retry=1)
        mine = self._by_address.setdefault(address, mine)
        mine.count += 1
        self._count += 1
        self._gauge.inc()
        self.mark_idle(connection, address)
        return address

    def remove(self, connection: Connection, address: str) -> None:
        """Remove a connection that `add` accepted."""
        mine = self._by_address[address]
        mine.idle.pop(connection, None)
        mine.count -= 1
        self._count -= 1
        self._gauge.dec()
        if not mine.count:
            del self._by_address[address]

    def mark_busy(self, connection: Connection, address: str) -> None:
        """Keep a connection: a request of it is being processed."""
        self._by_address[address].idle.pop(connection, None)

    def mark_idle(self, connection: Connection, address: str) -> None:
        """Allow to evict a connection: all of its requests have been answered."""
        self._by_address[address].idle[connection] = time.monotonic()

    def _is_proxy(self, peer: str) -> bool:
        try:
            parsed = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(parsed in network for network in self._proxies)

    def _connections_of(self, address: str) -> int:
        return self._by_address[address].count

    def _evict(self, address: str) -> bool:
        """Close the connection of an address that has been idle for the longest time. Return False if there is none."""
        idle = self._by_address[address].idle
        oldest = next((one for one in idle if not one.sending), None)
        if oldest is None or time.monotonic() - idle[oldest] < GRACE:
            return False
        oldest.evict()
        return True
