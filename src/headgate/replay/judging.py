"""What a policy would have done: every entry is judged at its own moment by the engine itself."""

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
"""Of each request how it was refused, None of one that passed."""

_Keys = tuple[Parts | None, ...]

_Told = tuple[int, tuple[tuple[int, Parts | None], ...]] | None
"""Of a request that is refused its moment, and the places of the rules that do, each with its key."""


class Judge:
    """A policy, asked for one block of entries after another, none earlier than the one before it.

    Where the native core is at hand it reads, decides and counts whole blocks, but for what only Python can read.
    """

    def __init__(self, policy: Policy, name: str) -> None:
        # Room for every key there may be: a replay must not forget what the real thing might.
        store = MemoryStore(max_keys=MOST_KEYS, on_full="refuse")
        rates, left_out = rates_of(policy)
        self._gate = Gate(rates, store=store)
        self._request = Request()
        self._results = {
            place: RuleResult(rule.name, rule.shadow, limits_text(rule), rule.by)
            for place, rule in enumerate(rates.rules)
            if any(rule.limits.values())
        }
        self._places = {rule.name: place for place, rule in enumerate(rates.rules)}
        self._result = Result(name, list(self._results.values()), left_out=left_out)
        self._native: Any = None
        self._sums: Any = Sums(len(rates.rules))
        if core.native is not None and self._gate.native is not None:
            steps_us = [step_s * 1_000_000 for step_s in STEPS_S]
            self._sums = self._native = core.native.ReplayJudge(self._gate.native, steps_us, Series.MOST)
        self._seen: dict[tuple[int, ...], dict[_Keys, list[int]]] = {}
        """By rules and keys, of what was judged here: how many requests, and how many of them each rule refused."""

        self.first_us: int | None = None
        self.last_us: int | None = None

    def judge(self, entries: Block, told: Refusals | None = None) -> None:
        """Judge entries in turn; with `told` what becomes of each is added to it."""
        native = self._native
        if native is None:
            for entry in entries:
                self._judge_one(entry, told)
            return
        block, at = self._native_block(entries), 0
        while True:
            refused: list[_Told] | None = None if told is None else []
            at = native.judge(block, at, refused)
            if told is not None and refused is not None:
                told += [None if one is None else self._refusal(*one) for one in refused]
            if at == len(block):
                return
            self._judge_one(block[at], told)
            at += 1

    def finish(self) -> Result:
        """The result of all that was judged."""
        result = self._result
        result.allowed, result.denied, costs, series, self.first_us, self.last_us, rules = self._sums.sums()
        for sums, cost in zip((result.cost_allowed, result.cost_denied), costs, strict=True):
            if cost:
                sums[""] += cost
        result.series = _series(series)
        for place, (matched, refused, minutes, series, hits, refusals) in enumerate(rules):
            rule = self._results.get(place)
            if rule is not None:
                rule.matched, rule.refused, rule.series = matched, refused, _series(series)
                rule.refused_minutes = Counter(minutes)
                rule.hits, rule.refusals = Counter(hits), Counter(refusals)
        kinds = list(dict.fromkeys(rule.by for rule in self._gate.policy.rules))
        result.hits = Counter(self._sums.counted(kinds, [kinds.index(rule.by) for rule in self._gate.policy.rules]))
        self._add_seen()
        return result

    def _judge_one(self, entry: Entry, told: Refusals | None) -> None:
        """Judge an entry by the gate of Python, as far as there is need to."""
        time_us, client, method, path, host, headers, cost = entry
        request = self._request
        request.method, request.path, request.headers, request.client_ip, request.host = (
            method, path, headers, client, host,
        )  # fmt: skip
        plain, told_costs = (cost, {}) if isinstance(cost, int) else (0, cost)
        asked = plain if isinstance(cost, int) else ReadCosts(told_costs)
        decision, (_, operation, rules, _) = self._gate.decide_at(request, time_us, asked)
        each: dict[str, Any] = {
            rule.name: key for rule, key in zip(reversed(rules), reversed(operation.keys), strict=True)
        }
        names = list(dict.fromkeys(rule.name for rule in rules))
        places, keys = tuple([self._places[name] for name in names]), tuple([each[name] for name in names])
        refusing: Sequence[bool] = ()
        if decision.refusals:
            refused = {reading.rule for reading in decision.refusals}
            refusing = [name in refused for name in names]
        self._sums.note(time_us, places, refusing, decision.allowed, plain)
        if told_costs:
            (self._result.cost_allowed if decision.allowed else self._result.cost_denied).update(told_costs)
        counts = self._seen.setdefault(places, {}).setdefault(keys, [0] * (1 + len(places)))
        counts[0] += 1
        for number, refuses in enumerate(refusing, 1):
            counts[number] += refuses
        if told is not None:
            by = [(rule, key) for rule, key, refuses in zip(places, keys, refusing, strict=False) if refuses]
            told.append(None if decision.allowed else self._refusal(time_us, by))

    @staticmethod
    def _native_block(entries: Block) -> Any:
        """Entries as the native core takes them."""
        made: Any = core.native
        return entries if isinstance(entries, made.LogBlock) else made.LogBlock(entries)

    def _refusal(self, time_us: int, by: Sequence[tuple[int, Parts | None]]) -> Refusal:
        """A request that these rules refuse, some of them shadows perhaps."""
        rules = [(self._results[place], key) for place, key in by]
        return Refusal(time_us, tuple([(rule, key) for rule, key in rules if not rule.shadow]))

    def _add_seen(self) -> None:
        """Add the keys of what was judged here."""
        for places, keys_seen in self._seen.items():
            rules = [self._results[place] for place in places]
            for keys, (requests, *refused) in keys_seen.items():
                for rule, key, refusals in zip(rules, keys, refused, strict=True):
                    rule.hits[key] += requests
                    if refusals:
                        rule.refusals[key] += refusals
                for counted in {(rule.by, key) for rule, key in zip(rules, keys, strict=True)}:
                    self._result.hits[counted] += requests


def _series(sums: SeriesSums) -> Series:
    level, counts = sums
    series = Series()
    series.level, series.counts = level, dict(sorted(counts.items()))
    return series
