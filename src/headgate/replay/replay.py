"""A replay: logs, put in order, judged by one policy or by two side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
        _judge_alone(entries, judges[0], outcome)
    else:
        _judge_side_by_side(entries, judges[0], judges[1], outcome)
    outcome.results = [judge.finish() for judge in judges]
    return outcome


def _judge_alone(entries: Iterator[Entry], judge: Judge, outcome: Outcome) -> None:
    ask = judge.judge
    entry: Entry | None = None
    for entry in entries:
        if outcome.first_us is None:
            outcome.first_us = entry[0]
        ask(entry)
    if entry is not None:
        outcome.last_us = entry[0]


def _judge_side_by_side(entries: Iterator[Entry], one: Judge, other: Judge, outcome: Outcome) -> None:
    for entry in entries:
        if outcome.first_us is None:
            outcome.first_us = entry[0]
        outcome.last_us = entry[0]
        before, after = one.judge(entry), other.judge(entry)
        if before and not after:
            outcome.newly_denied += 1
        elif after and not before:
            outcome.newly_allowed += 1
