"""API keys: which are valid, and how often an address may guess.

After `MAX_WRONG` wrong keys within `WINDOW` seconds, an address has to wait. Until then even a valid key gets a 429,
since any other response would show which guess is right. Exempt are keys that this address has used before, so that a
neighbour behind the same address cannot lock out a client at work. Both tables are bounded; the entry that was not used
for the longest time leaves first.
"""

import hmac
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from allyouneed.serve.clients import key_client
from allyouneed.serve.errors import INVALID_KEY, MISSING_KEY, Refusal

MAX_WRONG = 10  # keys of one address in `WINDOW` seconds
WINDOW = 60.0
MAX_ENTRIES = 4096  # of each table
Key = TypeVar("Key")
Value = TypeVar("Value")


class Keys:
    """The check of API keys. `valid` returns the valid ones; none: no key is required."""

    def __init__(self, valid: Callable[[], Sequence[str]]) -> None:
        self._valid = valid
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()  # times of the last wrong keys by address
        self._used: OrderedDict[tuple[str, str], None] = OrderedDict()  # addresses with the clients that they are

    @property
    def required(self) -> bool:
        """True if requests must send a key."""
        return bool(self._valid())

    def find(self, given: Sequence[str]) -> str | None:
        """Return the first valid key, or None. Takes the same time whether or not a key matches."""
        valid = [key.encode() for key in self._valid()]
        matches = [
            True in [hmac.compare_digest(key, one.encode("utf-8", "surrogatepass")) for key in valid] for one in given
        ]
        return given[matches.index(True)] if True in matches else None

    def check(self, address: str, given: Sequence[str]) -> str:
        """Return the client of a valid key among the given ones, or refuse with 401 or 429."""
        key, seconds = self.find(given), self._seconds_to_wait(address)
        client = None if key is None else key_client(key)
        if client is not None and (seconds == 0 or (address, client) in self._used):
            _put(self._used, (address, client), None)
            return client
        if not given:
            raise _refusal("an API key is required", MISSING_KEY)
        if seconds:
            message = f"too many wrong API keys from {address}; try again in {seconds} seconds"
            raise Refusal(429, message, code="too_many_wrong_keys", retry=seconds)
        times = self._wrong.get(address) or deque(maxlen=MAX_WRONG)
        times.extend([time.monotonic()] * len(set(given)))
        _put(self._wrong, address, times)
        raise _refusal("the API key is invalid", INVALID_KEY)

    def _seconds_to_wait(self, address: str) -> int:
        times = self._wrong.get(address)
        if times is None or len(times) < MAX_WRONG:
            return 0
        return max(0, math.ceil(times[0] + WINDOW - time.monotonic()))


def _refusal(found: str, code: str) -> Refusal:
    message = f"{found}: send Authorization: Bearer KEY, or the field api_key of /translate"
    return Refusal(401, message, code=code)


def _put(table: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    """Store an entry as the newest one, and remove the oldest one if the table is full."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > MAX_ENTRIES:
        table.popitem(last=False)
