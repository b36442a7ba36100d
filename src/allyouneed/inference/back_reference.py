"""References from a part to the module that holds it: weak, so that a model is freed with its last user.

A strong reference would make a cycle. A garbage collection that finds it stops a server for 100 milliseconds.
"""

import weakref
from typing import Generic, TypeVar

from torch import nn

Owner = TypeVar("Owner", bound=nn.Module)


class BackReference(Generic[Owner]):
    """A weak reference to the owner of a part. A copy of the owner is the owner of the copy of the part."""

    def __init__(self, owner: Owner) -> None:
        self._owner = weakref.ref(owner)

    def __call__(self) -> Owner:
        """Return the owner."""
        owner = self._owner()
        if owner is None:
            raise ReferenceError("the module that holds this part no longer exists; keep a reference to it")
        return owner

    def __reduce__(self) -> tuple[type["BackReference[Owner]"], tuple[Owner]]:
        return type(self), (self(),)
