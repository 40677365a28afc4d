"""The only access to time.

Every moment inside Headgate is an integer count of microseconds since the Unix epoch. The system
clock is anchored to wall time once and then follows the monotonic clock, so it never steps: if the host's clock is set
back, limiters do not refuse for that long, and if it is set forward, they do not admit more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol, runtime_checkable

from headgate import core
from headgate.errors import ConfigError

US_PER_SECOND = 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@runtime_checkable
class Clock(Protocol):
    """A source of time that a limiter obeys; `headgate.testing.ManualClock` is one for tests."""

    def now_us(self) -> int:
        """The current moment in microseconds since the Unix epoch."""
        ...

    def let_pass(self, duration_us: int) -> float:
        """Let `duration_us` pass; return the real seconds that the caller must sleep for that."""
        ...


class SystemClock:
    """Wall time at its first use in the process, carried on by the monotonic clock; never steps."""

    __slots__ = ()

    def now_us(self) -> int:
        return now_us()

    def let_pass(self, duration_us: int) -> float:
        return duration_us / US_PER_SECOND

    def __repr__(self) -> str:
        return "SystemClock()"


def check_clock(clock: object) -> Clock | None:
    """Return the clock that a caller passed, None for the store's own; raises ConfigError for anything else."""
    if clock is None or (isinstance(clock, Clock) and not isinstance(clock, type)):
        return clock
    kind = f"the class {clock.__name__}" if isinstance(clock, type) else f"a {type(clock).__name__}"
    raise ConfigError(
        "clock is an object with now_us() and let_pass(duration_us), "
        f"such as headgate.testing.ManualClock(), not {kind}"
    )


def ahead_us(clock: Clock) -> int:
    """Return by how many microseconds a clock is ahead of the host's wall time, below 0 if it is behind it.

    A clock that never steps does not follow where the host's is set, or went on while the machine was stopped.
    """
    return clock.now_us() - _wall_ns() // 1000


def utc_moment(at_us: int) -> datetime:
    """A moment in microseconds since the epoch as a datetime in UTC; raises OverflowError beyond the year 9999."""
    return _EPOCH + timedelta(microseconds=at_us)


def since_epoch_us(moment: datetime) -> int:
    """A moment that has a time zone, in microseconds since the epoch."""
    return (moment - _EPOCH) // _MICROSECOND


def _python_now_us() -> int:
    return _ANCHOR_US + monotonic_ns() // 1000


if sys.platform == "win32":
    _wall_ns, monotonic_ns = time.time_ns, time.monotonic_ns
else:
    # Not `time_ns` and `monotonic_ns`: freezegun stops those, and a wait by a stopped clock never ends.
    _wall_ns = partial(time.clock_gettime_ns, time.CLOCK_REALTIME)
    monotonic_ns = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)

_ANCHOR_US = (_wall_ns() - monotonic_ns()) // 1000
now_us: Callable[[], int] = core.native.now_us if core.native is not None else _python_now_us
"""The current moment by the system clock, for calls where every frame counts; all other code uses a `Clock`."""

SYSTEM_CLOCK = SystemClock()
