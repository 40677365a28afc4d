"""A replay: logs, merged in order of time, judged by one policy or by two side by side."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headgate.policy.compiled import Policy
from headgate.replay.ahead import read_ahead
from headgate.replay.entries import Block, Tally
from headgate.replay.judging import Judge, Refusals
from headgate.replay.ordering import FarOutOfOrder, ordered, sorted_on_disk
from headgate.replay.rates_only import LEFT_OUT
from headgate.replay.results import Refusal, Result, key_text
from headgate.replay.series import Series
from headgate.replay.sources import Log

Progress = Callable[[int], None]


@dataclass(slots=True)
class Difference:
    """The requests on which two policies differ: only the second one refuses them, or only the first one."""

    newly_denied: int = 0
    newly_allowed: int = 0
    series: Series = field(default_factory=Series)
    """Newly allowed requests as passed, newly denied ones as refused."""

    rules: dict[str, list[int]] = field(default_factory=dict)
    """By rule that refuses, in the second or in the first policy: [newly denied, newly allowed]."""

    keys: dict[str, list[int]] = field(default_factory=dict)
    """By refused key, likewise."""

    def add(self, refusal: Refusal, *, denied: bool) -> None:
        """Count a request that only one policy refused; `denied` if that is the second."""
        self.newly_denied += denied
        self.newly_allowed += not denied
        self.series.add(refusal.time_us, not denied, denied)
        for counts, names in (
            (self.rules, {rule.name for rule, _ in refusal.by}),
            (self.keys, {key_text(key) for _, key in refusal.by}),
        ):
            for name in names:
                counts.setdefault(name, [0, 0])[not denied] += 1

    def most(self, most: int, *, denied: bool) -> list[tuple[str, int]]:
        """The keys with the most requests that are newly denied, or newly allowed."""
        counted = [(key, counts[not denied]) for key, counts in self.keys.items() if counts[not denied]]
        return heapq.nsmallest(most, counted, key=lambda item: (-item[1], item[0]))


@dataclass(slots=True)
class Outcome:
    """The outcome of a replay. `outside` counts requests outside the requested time."""

    results: list[Result]
    unread: Tally = field(default_factory=Tally)
    first_us: int | None = None
    last_us: int | None = None
    difference: Difference | None = None
    """With two policies, how they differ."""

    outside: int = 0
    costs: tuple[str, ...] = ()
    """The units in which a log has costs; see `Log.costs`."""

    @property
    def why_none(self) -> str:
        """How the sentence "no request ..." ends, where no request was judged."""
        if self.outside:
            return "of this time"
        return "could be read" if self.unread.count or self.unread.damaged else "is in what was read"

    @property
    def left_out(self) -> list[str]:
        """Warnings about limits that a log cannot judge."""
        return [f"{each.name}: {LEFT_OUT}: {', '.join(each.left_out)}" for each in self.results if each.left_out]


class Span(NamedTuple):
    """A span of time: from `from_us` until before `to_us`."""

    from_us: int = 0
    to_us: int = 1 << 62


ALWAYS = Span()


def replay(
    logs: Sequence[Log], policies: Sequence[tuple[str, Policy]], progress: Progress, *, span: Span = ALWAYS
) -> Outcome:
    """Judge the entries of all logs in the order of their times, by one or two named policies.

    `progress` is called with each step through the logs in bytes; a negative step restarts. Only entries in `span`
    are judged.
    """
    done_bytes = 0

    def count(step: int) -> None:
        nonlocal done_bytes
        done_bytes += step
        progress(step)

    try:
        return _Replay(policies, span).run(logs, count, ordered)
    except FarOutOfOrder:
        progress(-done_bytes)
    with tempfile.TemporaryDirectory(prefix="headgate-replay-") as folder:
        return _Replay(policies, span).run(logs, progress, partial(sorted_on_disk, folder=Path(folder)))


class _Replay:
    """One pass through the logs."""

    def __init__(self, policies: Sequence[tuple[str, Policy]], span: Span) -> None:
        self._judges = [Judge(policy, name) for name, policy in policies]
        self._span = span
        self._outcome = Outcome([])

    def run(
        self,
        logs: Sequence[Log],
        progress: Progress,
        in_order: Callable[[Sequence[Iterator[Block]]], Iterator[Block]],
    ) -> Outcome:
        outcome = self._outcome
        streams = [log.entries(outcome.unread, progress) for log in logs]
        outcome.costs = tuple(dict.fromkeys(unit for log in logs for unit in log.costs))
        if self._span != ALWAYS:
            streams = [self._retain_span(stream) for stream in streams]
        if len(self._judges) == 1:
            for block in read_ahead(in_order(streams)):
                self._judges[0].judge(block)
        else:
            outcome.difference = self._compare(read_ahead(in_order(streams)))
        outcome.results = [judge.finish() for judge in self._judges]
        outcome.first_us, outcome.last_us = self._judges[0].first_us, self._judges[0].last_us
        return outcome

    def _retain_span(self, stream: Iterator[Block]) -> Iterator[Block]:
        from_us, to_us = self._span
        for block in stream:
            if isinstance(block, list):
                inside: Block = [entry for entry in block if from_us <= entry[0] < to_us]
                self._outcome.outside += len(block) - len(inside)
                yield inside
            else:
                native: Any = block
                self._outcome.outside += native.retain_within(from_us, to_us)
                yield block

    def _compare(self, blocks: Iterator[Block]) -> Difference:
        first, second = self._judges
        difference = Difference()
        for block in blocks:
            first_refusals: Refusals = []
            second_refusals: Refusals = []
            first.judge(block, first_refusals)
            second.judge(block, second_refusals)
            for one, other in zip(first_refusals, second_refusals, strict=True):
                if one is None and other is not None:
                    difference.add(other, denied=True)
                elif one is not None and other is None:
                    difference.add(one, denied=False)
        return difference
