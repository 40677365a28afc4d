"""What the order of jobs in memory is made of: jobs that wait, the lanes they wait in, the accounts they count for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Waiting(NamedTuple):
    """A job in a lane."""

    id: str
    tokens: int
    submitted_us: int


class Turn(NamedTuple):
    """A job whose turn it is, and how its lane stood."""

    job: Waiting
    since_us: int
    score: int
    refusals: int
    promised_us: int


@dataclass(slots=True)
class Account:
    """What a user has had, and what of it waits."""

    counter: int
    waiting: int = 0
    running: int = 0
    lanes: dict[str, Lane] = field(default_factory=dict)


@dataclass(slots=True)
class Lane:
    """Jobs in a row.

    A lane that is parked has the moment at which it may ask again. `refusals` counts those at promised moments.
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
