"""Calls of threads that wait for a connection, and how many connections are opened for them at once.

Opening one takes processor time on both hosts, above all over TLS. If each call of a burst opened its own, none would
be open in time: a few are opened at once, and calls take turns on the open ones. Where the network is slow, many take
no longer than one: with each 10 ms that a call has waited, twice as many are opened at once.
"""

from __future__ import annotations

import threading
from typing import Any

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.stores.redis.errors import mark_unsent

OPENED_AT_ONCE = 8
OPENED_AT_ONCE_OVER_TLS = 2
STEP_US = 10_000
_MOST_STEPS = 16


def openings_at_once(initial: int, waited_us: int) -> int:
    """How many connections may be opened at once where a call has waited for this long."""
    return initial << min(_MOST_STEPS, max(0, waited_us) // STEP_US)


def remaining_s(deadline_us: int) -> float:
    """The seconds left until a deadline; negative once it has passed."""
    return (deadline_us - SYSTEM_CLOCK.now_us()) / US_PER_SECOND


class Waiter:
    """A call that waits for a connection, until its deadline."""

    __slots__ = ("connection", "deadline_us", "error", "served", "since_us")

    def __init__(self, deadline_us: int) -> None:
        self.since_us = SYSTEM_CLOCK.now_us()
        self.deadline_us = deadline_us
        self.served = threading.Event()
        self.connection: Any = None
        self.error: BaseException | None = None

    def serve(self, connection: Any, error: BaseException | None = None) -> None:
        self.connection, self.error = connection, error
        self.served.set()

    def result(self) -> Any:
        """The connection, None where there is none; raises, and then forgets, the error that prevented opening one."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise mark_unsent(error)
            finally:
                del error  # see `without_frames`
        return self.connection
