"""Judges entries by a policy: each is decided by the engine itself, at the time of the entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from headgate import core
from headgate.costs import ReadCosts
from headgate.policy.compiled import Policy
from headgate.policy.gate import Gate
from headgate.policy.identity import Parts
from headgate.policy.request import Request
from headgate.replay.entries import Block, Entry
from headgate.replay.rates_only import limits_text, rates_of
from headgate.replay.results import Refusal, Result, RuleResult
from headgate.replay.series import STEPS_S, Series
from headgate.replay.sums import SeriesSums, Sums
from headgate.stores.memory import MOST_KEYS, MemoryStore

Refusals = list[Refusal | None]
"""The refusal of each request, or None where it passed."""

_Keys = tuple[Parts | None, ...]

_NativeRefusal = tuple[int, tuple[tuple[int, Parts | None], ...]] | None
"""(the time of a refused request, ((index of a rule that refuses, its key), ...)); None where it passed."""


class Judge:
    """Judges blocks of entries by a policy. No entry may be earlier than the one before it.

    The native core, where it is available, reads, decides and counts whole blocks, except entries that only Python can
    read.
    """

    def __init__(self, policy: Policy, name: str) -> None:
        # Enough keys for any log: a replay must not evict a state, even where a real store might.
        store = MemoryStore(max_keys=MOST_KEYS, on_full="refuse")
        rates, left_out = rates_of(policy)
        self._gate = Gate(rates, store=store)
        self._request = Request()
        self._results = {
            index: RuleResult(rule.name, rule.shadow, limits_text(rule), rule.by)
            for index, rule in enumerate(rates.rules)
            if any(rule.limits.values())
        }
        self._indexes = {rule.name: index for index, rule in enumerate(rates.rules)}
        self._result = Result(name, list(self._results.values()), left_out=left_out)
        self._native: Any = None
        self._sums: Any = Sums(len(rates.rules))
        if core.native is not None and self._gate.native is not None:
            steps_us = [step_s * 1_000_000 for step_s in STEPS_S]
            self._sums = self._native = core.native.ReplayJudge(self._gate.native, steps_us, Series.MOST)
        self._python_counts: dict[tuple[int, ...], dict[_Keys, list[int]]] = {}
        """By rules and keys of requests that Python judged: their number, and how many each rule refused."""

        self.first_us: int | None = None
        self.last_us: int | None = None

    def judge(self, entries: Block, refusals: Refusals | None = None) -> None:
        """Judge entries in turn; `refusals` is a list to which the result of each is appended."""
        native = self._native
        if native is None:
            for entry in entries:
                self._judge_one(entry, refusals)
            return
        block, index = self._native_block(entries), 0
        while True:
            refused: list[_NativeRefusal] | None = None if refusals is None else []
            index = native.judge(block, index, refused)
            if refusals is not None and refused is not None:
                refusals += [None if refusal is None else self._refusal(*refusal) for refusal in refused]
            if index == len(block):
                return
            self._judge_one(block[index], refusals)
            index += 1

    def finish(self) -> Result:
        """Return the result of all judged entries."""
        result = self._result
        result.allowed, result.denied, costs, series, self.first_us, self.last_us, rules = self._sums.sums()
        for sums, cost in zip((result.cost_allowed, result.cost_denied), costs, strict=True):
            if cost:
                sums[""] += cost
        result.series = _series(series)
        for index, (matched, refused, minutes, series, hits, refusals) in enumerate(rules):
            rule = self._results.get(index)
            if rule is not None:
                rule.matched, rule.refused, rule.series = matched, refused, _series(series)
                rule.refused_minutes = Counter(minutes)
                rule.hits, rule.refusals = Counter(hits), Counter(refusals)
        kinds = list(dict.fromkeys(rule.by for rule in self._gate.policy.rules))
        result.hits = Counter(
            self._sums.requests_by_key(kinds, [kinds.index(rule.by) for rule in self._gate.policy.rules])
        )
        self._add_python_counts()
        return result

    def _judge_one(self, entry: Entry, refusals: Refusals | None) -> None:
        """Judge an entry by a gate called from Python, which decides natively where it can."""
        time_us, client, method, path, host, headers, cost = entry
        request = self._request
        request.method, request.path, request.headers, request.client_ip, request.host = (
            method, path, headers, client, host,
        )  # fmt: skip
        plain, unit_costs = (cost, {}) if isinstance(cost, int) else (0, cost)
        requested = plain if isinstance(cost, int) else ReadCosts(unit_costs)
        decision, (_, operation, rules, _) = self._gate.decide_at(request, time_us, requested)
        keys_by_rule: dict[str, Any] = {
            rule.name: key for rule, key in zip(reversed(rules), reversed(operation.keys), strict=True)
        }
        names = list(dict.fromkeys(rule.name for rule in rules))
        indexes, keys = tuple([self._indexes[name] for name in names]), tuple([keys_by_rule[name] for name in names])
        refusing: Sequence[bool] = ()
        if decision.refusals:
            refused = {reading.rule for reading in decision.refusals}
            refusing = [name in refused for name in names]
        self._sums.note(time_us, indexes, refusing, decision.allowed, plain)
        if unit_costs:
            (self._result.cost_allowed if decision.allowed else self._result.cost_denied).update(unit_costs)
        counts = self._python_counts.setdefault(indexes, {}).setdefault(keys, [0] * (1 + len(indexes)))
        counts[0] += 1
        for number, refuses in enumerate(refusing, 1):
            counts[number] += refuses
        if refusals is not None:
            by = [(rule, key) for rule, key, refuses in zip(indexes, keys, refusing, strict=False) if refuses]
            refusals.append(None if decision.allowed else self._refusal(time_us, by))

    @staticmethod
    def _native_block(entries: Block) -> Any:
        """Entries as a block of the native core."""
        native: Any = core.native
        return entries if isinstance(entries, native.LogBlock) else native.LogBlock(entries)

    def _refusal(self, time_us: int, by: Sequence[tuple[int, Parts | None]]) -> Refusal:
        """The refusal by these rules, without those that are shadow rules."""
        rules = [(self._results[index], key) for index, key in by]
        return Refusal(time_us, tuple([(rule, key) for rule, key in rules if not rule.shadow]))

    def _add_python_counts(self) -> None:
        """Add the counts by key of the requests that Python judged."""
        for indexes, counts_by_keys in self._python_counts.items():
            rules = [self._results[index] for index in indexes]
            for keys, (requests, *refused) in counts_by_keys.items():
                for rule, key, refusals in zip(rules, keys, refused, strict=True):
                    rule.hits[key] += requests
                    if refusals:
                        rule.refusals[key] += refusals
                for identity in {(rule.by, key) for rule, key in zip(rules, keys, strict=True)}:
                    self._result.hits[identity] += requests


def _series(sums: SeriesSums) -> Series:
    level, counts = sums
    series = Series()
    series.level, series.counts = level, dict(sorted(counts.items()))
    return series
