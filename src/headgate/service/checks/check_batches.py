"""What the front door asks of a store that is waited for: taken in batches, and decided on the event loop.

The door's threads prepare checks and write the responses; this has what lies between decided by the store. While
batches are under way, what comes is gathered for the next one; a check that comes alone waits for no other.
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
"""About as many checks are taken at once; a body has no more."""


class CheckBatches:
    """Has the store of a gate decide what the front door asks."""

    def __init__(self, gate: AsyncGate) -> None:
        assert core.native is not None
        self._gate = gate
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._queue = core.native.CheckQueue(self._event)
        self._is_taking = False
        """Whether a batch is being begun; it may be finished at once."""

        self._is_finished = False
        """Whether the last batch is."""

    def checks(self, tally: Any) -> Any:
        """What the door asks under the policy in force, counting in `tally`; None where only Python can answer.

        What was asked under the policy before is decided by that.
        """
        return late_checks(self._gate, self._queue, tally)

    def open(self) -> None:
        """Decide what is asked from now on, on this event loop."""
        asyncio.get_running_loop().add_reader(self._event, self._woken)

    def close(self) -> None:
        """Decide nothing any more."""
        asyncio.get_running_loop().remove_reader(self._event)
        os.close(self._event)

    def _woken(self) -> None:
        os.eventfd_read(self._event)
        self.take()

    def take(self) -> None:
        """Have what waits decided, unless a batch is under way; what comes until it is decided is the next one."""
        self._decide_all(self._queue.take(MOST_IN_A_BATCH))

    def _decide_all(self, batch: Any) -> None:
        """Have a batch decided, and those that follow it at once."""
        self._is_taking = True
        try:
            while batch is not None:
                self._is_finished = False
                self._decide(batch)
                batch = self._queue.take_more(MOST_IN_A_BATCH) if self._is_finished else None
        finally:
            self._is_taking = False

    def _decide(self, batch: Any) -> None:
        def done(error: BaseException | None) -> None:
            if error is not None:
                told = _failure(error)
                for place in batch.open():
                    batch.failed(place, *told)
            batch.finish()
            self._is_finished = True
            if not self._is_taking:
                self._decide_all(self._queue.take_more(MOST_IN_A_BATCH))

        guarded: Any = self._gate.guarded_store
        try:
            guarded.decide_batch(batch, self._gate.clock, _failure, done)
        except Exception as error:  # before anything was asked: what was begun tells of its own errors
            done(error)


def _failure(error: BaseException) -> tuple[int, bytes]:
    response = failure_response(error if isinstance(error, Exception) else RuntimeError("it was cancelled"))
    return response.status, response.body
