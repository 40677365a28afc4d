"""A child process has none of the callers that wait in its parent: it forgets them, and none of its own stands behind.

Without that a line of the parent, copied by fork(2), would never move in the child.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forgetful(Protocol):
    """What knows of callers that wait in this process."""

    def forget(self) -> None:
        """Forget all callers. No other thread runs yet; one of the parent may have held the locks."""
        ...


_made: WeakSet[Forgetful] = WeakSet()


def forgotten_in_children(made: Forgetful) -> None:
    """Have its callers forgotten in child processes from now on."""
    _made.add(made)


def _after_fork() -> None:
    for made in list(_made):
        made.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
