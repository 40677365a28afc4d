"""The records of the order of jobs in memory: waiting jobs, the lanes in which they wait, the accounts they charge."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Waiting(NamedTuple):
    """A job that waits in a lane."""

    id: str
    tokens: int
    submitted_us: int


class Turn(NamedTuple):
    """A job whose turn it is, and the state of its lane before."""

    job: Waiting
    since_us: int
    score: int
    refusals: int
    promised_us: int


@dataclass(slots=True)
class Account:
    """The tokens that a user has had, and its jobs that wait and run."""

    counter: int
    waiting: int = 0
    running: int = 0
    lanes: dict[str, Lane] = field(default_factory=dict)


@dataclass(slots=True)
class Lane:
    """Jobs that are served first come, first served.

    `until_us` is when a parked lane may try again, 0 for a lane that is not parked. `refusals` counts the refusals at
    promised times.
    """

    name: str
    account: str
    priority: int
    since_us: int
    jobs: deque[Waiting] = field(default_factory=deque)
    tokens: int = 0
    score: int = 0
    until_us: int = 0
    scope: str = ""
    refusals: int = 0
    promised_us: int = 0
