"""A replay: logs, put in order, judged by one policy or by two side by side."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import tee
from pathlib import Path

from headgate.policy.rules import Policy
from headgate.replay.entries import Entry, Tally
from headgate.replay.judging import Judge, Result
from headgate.replay.ordering import FarOutOfOrder, ordered, sorted_on_disk
from headgate.replay.sources import Log

Progress = Callable[[int], None]


@dataclass(slots=True)
class Outcome:
    """What came of a replay.

    `newly_denied` and `newly_allowed` count requests on which the second policy differs from the first.
    """

    results: list[Result]
    unread: Tally = field(default_factory=Tally)
    first_us: int | None = None
    last_us: int | None = None
    newly_denied: int = 0
    newly_allowed: int = 0


def replay(logs: Sequence[Log], policies: Sequence[tuple[str, Policy]], progress: Progress) -> Outcome:
    """Judge the entries of all logs in the order of their times, by one or two named policies.

    `progress` is told of each step through the logs in bytes; a negative step is a new beginning.
    """
    told = 0

    def count(step: int) -> None:
        nonlocal told
        told += step
        progress(step)

    tally = Tally()
    try:
        return _judge(ordered([log.entries(tally, count) for log in logs]), policies, tally)
    except FarOutOfOrder:
        progress(-told)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="headgate-replay-") as folder:
        return _judge(sorted_on_disk([log.entries(tally, progress) for log in logs], Path(folder)), policies, tally)


def _judge(entries: Iterator[Entry], policies: Sequence[tuple[str, Policy]], tally: Tally) -> Outcome:
    judges = [Judge(policy, name) for name, policy in policies]
    outcome = Outcome([], tally)
    if len(judges) == 1:
        deque(judges[0].judged(entries), maxlen=0)
    else:
        one, other = tee(entries)
        for before, after in zip(judges[0].judged(one), judges[1].judged(other), strict=True):
            outcome.newly_denied += before and not after
            outcome.newly_allowed += after and not before
    outcome.results = [judge.finish() for judge in judges]
    outcome.first_us, outcome.last_us = judges[0].first_us, judges[0].last_us
    return outcome
