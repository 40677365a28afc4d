"""What a policy would have done with the requests of logs."""

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
    """What one rule did. `refused` counts what it refused by itself, whatever other rules said."""

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
        """How many different keys were counted."""
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
    """A key, by which identities it is counted, its requests, and how many of them each rule refused."""

    key: str
    by: tuple[str, ...]
    requests: int
    refusals: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Result:
    """What a policy would have done with all entries. Costs are sums of what the log says, before any rule's own."""

    name: str
    rules: list[RuleResult]
    allowed: int = 0
    denied: int = 0
    cost_allowed: Counter[str] = field(default_factory=Counter)
    """By unit; "" where the log says a cost without one."""

    cost_denied: Counter[str] = field(default_factory=Counter)
    left_out: tuple[str, ...] = ()
    """Limits that a log cannot judge, each with its rule: those of what is in flight."""

    series: Series = field(default_factory=Series)
    hits: Counter[tuple[tuple[str, ...], Parts | None]] = field(default_factory=Counter)
    """Requests by what they were counted by and as, each once, whatever the number of rules."""

    @property
    def requests(self) -> int:
        return self.allowed + self.denied

    def busiest(self, most: int) -> list[BusyKey]:
        """The keys with the most requests, each once, whatever the number of rules that count by it."""
        ranked = heapq.nsmallest(most, self.hits.items(), key=lambda item: (-item[1], item[0][1] or (), item[0][0]))
        found = []
        for (by, key), count in ranked:
            counts = [(rule.name, rule.refusals.get(key, 0)) for rule in self.rules if rule.by == by]
            found.append(BusyKey(key_text(key), by, count, tuple(pair for pair in counts if pair[1])))
        return found


class Refusal(NamedTuple):
    """A request that a policy refused: when, and by which rules, each with its key."""

    time_us: int
    by: tuple[tuple[RuleResult, Parts | None], ...]


def _top(counts: Counter[Parts | None], most: int) -> list[tuple[str, int]]:
    ranked = heapq.nsmallest(most, counts.items(), key=lambda item: (-item[1], item[0] or ()))
    return [(key_text(key), count) for key, count in ranked]


def key_text(key: Parts | None) -> str:
    """A key as people read it."""
    return encode_key(key) if key else "(no identity)"
