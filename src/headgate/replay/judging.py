"""What a policy would have done: every entry is judged at its own moment by the engine itself."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headgate.costs import ReadCosts
from headgate.decision import Decision
from headgate.keys import encode_key
from headgate.policy.compiled import Policy, Rule
from headgate.policy.gate import Gate
from headgate.policy.identity import Parts
from headgate.policy.request import Request
from headgate.policy.resolver import Settled
from headgate.replay.entries import Entry, LogCost
from headgate.replay.rates_only import limits_text, rates_of
from headgate.stores.memory import MOST_KEYS, MemoryStore

MINUTE_US = 60_000_000

STEPS_S = (1, 2, 10, 30, 60, 120, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800, 1209600, 4838400, 38707200)
"""Round lengths of time in seconds; each divides the next."""


class Series:
    """Counts over time, in steps of STEPS_S that grow so that there are never too many of them.

    Steps in which nothing happened are none: what lies weeks apart is kept as finely as what is not.
    """

    MOST = 1024

    def __init__(self) -> None:
        self._level = 0
        self.step_us = STEPS_S[0] * 1_000_000
        self.counts: dict[int, list[int]] = {}

    def add(self, time_us: int, passed: int, refused: int) -> None:
        """Count requests of a moment."""
        index = time_us // self.step_us
        counts = self.counts.get(index)
        if counts is None:
            self.counts[index] = [passed, refused]
            while len(self.counts) > self.MOST and self._level + 1 < len(STEPS_S):
                self._widen()
        else:
            counts[0] += passed
            counts[1] += refused

    def _widen(self) -> None:
        self._level += 1
        ratio = STEPS_S[self._level] // STEPS_S[self._level - 1]
        self.step_us *= ratio
        narrow, self.counts = self.counts, {}
        for index, (passed, refused) in narrow.items():
            counts = self.counts.setdefault(index // ratio, [0, 0])
            counts[0] += passed
            counts[1] += refused


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


@dataclass(slots=True)
class _RulesTogether:
    """The rules that were asked together. What passes quietly is counted here and handed on in sums."""

    rules: tuple[RuleResult, ...]
    places: tuple[int, ...]
    """Where each rule's key is among those of a decision, which has one for each unit that the rule's limits count."""

    quiet: int = 0
    keys: dict[tuple[Parts | None, ...], int] = field(default_factory=dict)


class Judge:
    """A policy, asked for one entry after another, none earlier than the one before it."""

    def __init__(self, policy: Policy, name: str) -> None:
        # Room for every key there may be: a replay must not forget what the real thing might.
        store = MemoryStore(max_keys=MOST_KEYS, on_full="refuse")
        rates, left_out = rates_of(policy)
        self._gate = Gate(rates, store=store)
        self._request = Request()
        self._rules = {
            rule.name: RuleResult(rule.name, rule.shadow, limits_text(rule), rule.by)
            for rule in rates.rules
            if any(rule.limits.values())
        }
        self._rules_together: dict[object, _RulesTogether] = {}
        self._result = Result(name, list(self._rules.values()), left_out=left_out)
        self._since_us = 0
        self.first_us: int | None = None
        self.last_us: int | None = None
        self._quiet = 0
        self.refusal = Refusal(0, ())
        """The last request that was refused."""

    def judged(self, entries: Iterable[Entry]) -> Iterator[bool]:
        """Judge entries in turn; whether each would have passed."""
        request, decide_at, rules_together = self._request, self._gate.decide_at, self._rules_together
        since_us = until_us = time_us = passed_cost = 0
        passed_costs = self._result.cost_allowed
        for time_us, client, method, path, host, headers, cost in entries:
            if not since_us <= time_us < until_us:
                self._hand_on()
                if self.first_us is None:
                    self.first_us = time_us
                step_us = self._result.series.step_us
                self._since_us = since_us = time_us // step_us * step_us
                until_us = since_us + step_us
            request.method = method
            request.path = path
            request.headers = headers
            request.client_ip = client
            request.host = host
            told = cost if isinstance(cost, int) else ReadCosts(cost)
            decision, (bound, operation, rules, _) = decide_at(request, time_us, told)
            keys: Any = operation.keys
            name = tuple([rule.name for rule in rules]) if type(bound) is Settled else bound
            together = rules_together.get(name)
            if together is None:
                together = self._together(rules)
                rules_together[name] = together
            seen = together.keys
            seen[keys] = seen.get(keys, 0) + 1
            if decision.refusals:
                self._refused(decision, together, keys, time_us, cost)
            else:
                together.quiet += 1
                self._quiet += 1
                if isinstance(cost, int):
                    passed_cost += cost
                else:
                    passed_costs.update(cost)
            yield decision.allowed
        if passed_cost:
            passed_costs[""] += passed_cost
        if self.first_us is not None:
            self.last_us = time_us

    def finish(self) -> Result:
        """The result of all that was judged."""
        self._hand_on()
        for together in self._rules_together.values():
            by = [rule.by for rule in together.rules]
            for every, count in together.keys.items():
                keys = [every[place] for place in together.places]
                for rule, key in zip(together.rules, keys, strict=True):
                    rule.hits[key] += count
                for counted in set(zip(by, keys, strict=True)):
                    self._result.hits[counted] += count
        return self._result

    def _hand_on(self) -> None:
        """Add what passed quietly in the last step of time to the results."""
        time_us = self._since_us
        if self._quiet:
            self._result.allowed += self._quiet
            self._result.series.add(time_us, self._quiet, 0)
            self._quiet = 0
        for together in self._rules_together.values():
            if together.quiet:
                for rule in together.rules:
                    rule.matched += together.quiet
                    rule.series.add(time_us, together.quiet, 0)
                together.quiet = 0

    def _together(self, rules: Sequence[Rule]) -> _RulesTogether:
        """These rules, each once."""
        places = {rule.name: place for place, rule in reversed(list(enumerate(rules)))}
        names = dict.fromkeys(rule.name for rule in rules)
        return _RulesTogether(tuple([self._rules[name] for name in names]), tuple([places[name] for name in names]))

    def _refused(
        self, decision: Decision, together: _RulesTogether, every: tuple[Parts | None, ...], time_us: int, cost: LogCost
    ) -> None:
        """Count a decision in which some rule refused, if only a shadow rule."""
        keys = [every[place] for place in together.places]
        refusing = {reading.rule for reading in decision.refusals}
        self._result.allowed += decision.allowed
        self._result.denied += not decision.allowed
        costs = self._result.cost_allowed if decision.allowed else self._result.cost_denied
        costs.update({"": cost} if isinstance(cost, int) else cost)
        self._result.series.add(time_us, decision.allowed, not decision.allowed)
        for rule, key in zip(together.rules, keys, strict=True):
            refuses = rule.name in refusing
            rule.matched += 1
            rule.series.add(time_us, not refuses, refuses)
            if refuses:
                rule.refused += 1
                rule.refusals[key] += 1
                rule.refused_minutes[time_us // MINUTE_US] += 1
        if not decision.allowed:
            by = zip(together.rules, keys, strict=True)
            self.refusal = Refusal(
                time_us, tuple([(rule, key) for rule, key in by if rule.name in refusing and not rule.shadow])
            )


def _top(counts: Counter[Parts | None], most: int) -> list[tuple[str, int]]:
    ranked = heapq.nsmallest(most, counts.items(), key=lambda item: (-item[1], item[0] or ()))
    return [(key_text(key), count) for key, count in ranked]


def key_text(key: Parts | None) -> str:
    """A key as people read it."""
    return encode_key(key) if key else "(no identity)"
