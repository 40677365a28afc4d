"""The results of a policy for the requests of logs."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.keys import encode_key
from headgate.policy.identity import Parts
from headgate.replay.series import MINUTE_US, Series


@dataclass(slots=True)
class RuleResult:
    """The result of one rule. `refused` counts the requests that it refuses, whatever other rules decide."""

    name: str
    shadow: bool
    limits: str
    by: tuple[str, ...] = ()
    matched: int = 0
    refused: int = 0
    hits: Counter[Parts | None] = field(default_factory=Counter)
    refusals: Counter[Parts | None] = field(default_factory=Counter)
    refused_minutes: Counter[int] = field(default_factory=Counter)
    series: Series = field(default_factory=Series)

    @property
    def allowed(self) -> int:
        return self.matched - self.refused

    @property
    def keys(self) -> int:
        """The number of different keys."""
        return len(self.hits)

    def busiest(self, most: int) -> list[tuple[str, int]]:
        """The keys with the most requests."""
        return _top(self.hits, most)

    def most_refused(self, most: int) -> list[tuple[str, int]]:
        """The keys that were refused most often."""
        return _top(self.refusals, most)

    def worst_minute(self) -> tuple[int, int] | None:
        """(its start in microseconds, refusals) of the minute with the most refusals."""
        if not self.refused_minutes:
            return None
        minute, count = max(self.refused_minutes.items(), key=lambda item: (item[1], -item[0]))
        return minute * MINUTE_US, count


class BusyKey(NamedTuple):
    """A key, the identities that it is counted by, its requests, and how many of them each rule refused."""

    key: str
    by: tuple[str, ...]
    requests: int
    refusals: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Result:
    """The result of a policy for all entries. Costs are sums of those in the log, not of costs set by rules."""

    name: str
    rules: list[RuleResult]
    allowed: int = 0
    denied: int = 0
    cost_allowed: Counter[str] = field(default_factory=Counter)
    """By unit; "" where the log has costs without a unit."""

    cost_denied: Counter[str] = field(default_factory=Counter)
    left_out: tuple[str, ...] = ()
    """Limits that a log cannot judge, each with its rule: concurrency limits."""

    series: Series = field(default_factory=Series)
    hits: Counter[tuple[tuple[str, ...], Parts | None]] = field(default_factory=Counter)
    """Requests by (identities, key), each once, whatever the number of rules that count it."""

    @property
    def requests(self) -> int:
        return self.allowed + self.denied

    def busiest(self, most: int) -> list[BusyKey]:
        """The keys with the most requests, each once, whatever the number of rules that count by it."""
        ranking = heapq.nsmallest(most, self.hits.items(), key=lambda item: (-item[1], item[0][1] or (), item[0][0]))
        busy_keys = []
        for (by, key), count in ranking:
            counts = [(rule.name, rule.refusals.get(key, 0)) for rule in self.rules if rule.by == by]
            busy_keys.append(BusyKey(key_text(key), by, count, tuple(pair for pair in counts if pair[1])))
        return busy_keys


class Refusal(NamedTuple):
    """A request that a policy refused: its time, and the rules that refused it, each with its key."""

    time_us: int
    by: tuple[tuple[RuleResult, Parts | None], ...]


def _top(counts: Counter[Parts | None], most: int) -> list[tuple[str, int]]:
    ranking = heapq.nsmallest(most, counts.items(), key=lambda item: (-item[1], item[0] or ()))
    return [(key_text(key), count) for key, count in ranking]


def key_text(key: Parts | None) -> str:
    """The text of a key, for people."""
    return encode_key(key) if key else "(no identity)"
