"""What the supervisor knows of one worker: its process, whether it answers, when it is started again."""

from __future__ import annotations

import signal
import socket
from dataclasses import dataclass

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND

_STEADY_US = 10 * US_PER_SECOND
"""A worker that lived this long did not die of what its predecessor died of."""

FIRST_DELAY_US = 200_000
_LONGEST_DELAY_US = 5 * US_PER_SECOND


@dataclass(slots=True)
class Worker:
    """One worker, through all processes that are started for it."""

    number: int
    listener: socket.socket
    pid: int = 0
    """0 while it does not run."""

    answers: bool = False
    started_us: int = 0
    due_us: int | None = 0
    """When it is to be started; None while it runs."""

    deaths: int = 0
    """How often in a row it died young."""

    beats: int = 0
    missed: int = 0
    """How often in a row its heartbeat was not seen to go on."""

    is_to_reload: bool = False
    """Whether a SIGHUP came that no process of it has answered since."""

    kill_at_us: int | None = None
    """When it is killed, as it hangs."""

    def count_death(self) -> int:
        """How long to wait before it is started again, in microseconds: 0, then ever longer while it dies young."""
        lived_us = SYSTEM_CLOCK.now_us() - self.started_us
        self.deaths = 1 if lived_us >= _STEADY_US else self.deaths + 1
        if self.deaths == 1:
            return 0
        return min(FIRST_DELAY_US << min(self.deaths - 2, 10), _LONGEST_DELAY_US)


def how_ended(code: int) -> str:
    """How a process ended, from its exit code; a negative one is a signal's."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
