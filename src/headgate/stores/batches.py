"""What a store has that decides checks of the front door in batches: `Store.decides_batches` says so.

See docs/decisions/0071-checks-in-batches.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headgate.clock import Clock

Failing = Callable[[Exception], tuple[int, bytes]]
"""What tells of an error: a status, and the body of a problem."""

Done = Callable[[BaseException | None], object]
"""Called once, with an error where something unexpected came in between."""


class DecidesBatches(Protocol):
    """A store that is waited for."""

    def decide_batch(self, guard: Any, batch: Any, clock: Clock | None, failure: Failing, done: Done) -> None:
        """Decide the checks of a native `CheckBatch` on this event loop, as limits behind this guard decide each.

        `clock` replaces the store's own, `failure` gives the response to what fails. `done` is called when all is
        decided, which may be at once.
        """
