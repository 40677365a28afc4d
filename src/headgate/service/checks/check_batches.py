"""Checks of the front door on a store that waits for I/O: taken in batches, and decided on the event loop.

The door's threads prepare checks and write the responses; in between, the store decides them here. While a batch is
under way, new checks are gathered for the next one; a check that arrives alone waits for no other.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from headgate import core
from headgate.policy.gate import AsyncGate
from headgate.service.checks.native_checks import late_checks
from headgate.service.http.problems import failure_response

MOST_IN_A_BATCH = 1000
"""About the number of checks that are taken at once; a body has no more."""


class CheckBatches:
    """Has the store of a gate decide the checks of the front door."""

    def __init__(self, gate: AsyncGate) -> None:
        assert core.native is not None
        self._gate = gate
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._queue = core.native.CheckQueue(self._event)
        self._is_taking = False
        """Whether a batch is being started; it may finish at once."""

        self._is_finished = False
        """Whether the last batch has finished."""

    def checks(self, tally: Any) -> Any:
        """The native checks of the policy in force, counted in `tally`; None where only Python can answer.

        Checks that were queued under the previous policy are decided by that policy.
        """
        return late_checks(self._gate, self._queue, tally)

    def open(self) -> None:
        """Decide checks from now on, on this event loop."""
        asyncio.get_running_loop().add_reader(self._event, self._on_ready)

    def close(self) -> None:
        """Stop deciding checks."""
        asyncio.get_running_loop().remove_reader(self._event)
        os.close(self._event)

    def _on_ready(self) -> None:
        os.eventfd_read(self._event)
        self.take()

    def take(self) -> None:
        """Have the queued checks decided, unless a batch is under way: then they are in the next one."""
        self._decide_all(self._queue.take(MOST_IN_A_BATCH))

    def _decide_all(self, batch: Any) -> None:
        """Have a batch decided, and the batches that are queued when it finishes."""
        self._is_taking = True
        try:
            while batch is not None:
                self._is_finished = False
                self._decide(batch)
                batch = self._queue.take_more(MOST_IN_A_BATCH) if self._is_finished else None
        finally:
            self._is_taking = False

    def _decide(self, batch: Any) -> None:
        def finish(error: BaseException | None) -> None:
            if error is not None:
                failure = _failure(error)
                for place in batch.open():
                    batch.failed(place, *failure)
            batch.finish()
            self._is_finished = True
            if not self._is_taking:
                self._decide_all(self._queue.take_more(MOST_IN_A_BATCH))

        guarded: Any = self._gate.guarded_store
        try:
            guarded.decide_batch(batch, self._gate.clock, _failure, finish)
        except Exception as error:  # before the store was called: a started batch reports its own errors
            finish(error)


def _failure(error: BaseException) -> tuple[int, bytes]:
    response = failure_response(error if isinstance(error, Exception) else RuntimeError("it was cancelled"))
    return response.status, response.body
