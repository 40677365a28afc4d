"""The interface of stores that decide checks of the front door in batches, see `Store.decides_batches`.

See docs/decisions/0071-checks-in-batches.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headgate.clock import Clock

Failing = Callable[[Exception], tuple[int, bytes]]
"""Returns the response to an error: a status, and the body of a problem."""

Done = Callable[[BaseException | None], object]
"""Called once at the end, with an error where something unexpected happened."""


class DecidesBatches(Protocol):
    """A store whose I/O callers wait for."""

    def decide_batch(self, guard: Any, batch: Any, clock: Clock | None, failure: Failing, done: Done) -> None:
        """Decide the checks of a native `CheckBatch` on this event loop, as limits behind this guard decide each.

        `clock` replaces the store's own, `failure` returns the response to an error. `done` is called when all checks
        are decided, which may be at once.
        """
