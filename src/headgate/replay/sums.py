"""Sums of judged requests, by rule and step of time; the native `ReplayJudge` computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headgate.policy.identity import Parts
from headgate.replay.series import MINUTE_US, Series

By = tuple[str, ...]
"""The identities that a rule counts by."""

SeriesSums = tuple[int, dict[int, list[int]]]
"""(index in `STEPS_S`, [passed, refused] by step)."""

RuleSums = tuple[int, int, dict[int, int], SeriesSums, dict[Parts, int], dict[Parts, int]]
"""(matched, refused, refusals by minute, series of its requests, requests by key, refusals by key) of a rule."""

AllSums = tuple[int, int, tuple[int, int], SeriesSums, int | None, int | None, list[RuleSums]]
"""(allowed, denied, (costs allowed, costs denied), the series, the first time, the last time, the rules)."""


class _RuleSums:
    """The counts of one rule."""

    __slots__ = ("matched", "refused", "refused_minutes", "series")

    def __init__(self) -> None:
        self.matched = self.refused = 0
        self.refused_minutes: Counter[int] = Counter()
        self.series = Series()


class Sums:
    """Sums of the requests passed to `note`, none of them earlier than the one before it."""

    def __init__(self, rules: int) -> None:
        self._rules = [_RuleSums() for _ in range(rules)]
        self._series = Series()
        self._since_us = self._until_us = 0
        self._first_us: int | None = None
        self._last_us: int | None = None
        self._allowed = self._denied = 0
        self._costs = [0, 0]
        self._unrefused: dict[tuple[int, ...], int] = {}
        """The requests of the current step that no rule refused, by their rules."""

    def note(self, time_us: int, rules: tuple[int, ...], refusing: Sequence[bool], allowed: bool, cost: int) -> None:
        """Count a request: the indexes of its rules in the policy, and whether each refuses."""
        if not self._since_us <= time_us < self._until_us:
            self._flush_step()
            if self._first_us is None:
                self._first_us = time_us
            step_us = self._series.step_us
            self._since_us = time_us // step_us * step_us
            self._until_us = self._since_us + step_us
        self._last_us = time_us
        self._costs[not allowed] += cost
        if True in refusing:
            self._add_refused(time_us, rules, refusing, allowed)
        else:
            self._unrefused[rules] = self._unrefused.get(rules, 0) + 1

    def sums(self) -> AllSums:
        """All sums. The dicts by key are empty: the judge counts by key."""
        self._flush_step()
        rules: list[RuleSums] = [
            (rule.matched, rule.refused, rule.refused_minutes, _series_sums(rule.series), {}, {})
            for rule in self._rules
        ]
        allowed, denied = self._costs
        costs = allowed, denied
        return self._allowed, self._denied, costs, _series_sums(self._series), self._first_us, self._last_us, rules

    def requests_by_key(self, by: Sequence[By], kinds: Sequence[int]) -> dict[tuple[By, Parts], int]:
        """Requests by identities and key: none here, see `sums`. `kinds` has each rule's index in `by`."""
        return {}

    def _flush_step(self) -> None:
        """Add the requests of the last step that no rule refused to the sums."""
        unrefused = sum(self._unrefused.values())
        if unrefused:
            self._allowed += unrefused
            self._series.add(self._since_us, unrefused, 0)
        for rules, requests in self._unrefused.items():
            for index in rules:
                rule = self._rules[index]
                rule.matched += requests
                rule.series.add(self._since_us, requests, 0)
        self._unrefused.clear()

    def _add_refused(self, time_us: int, rules: tuple[int, ...], refusing: Sequence[bool], allowed: bool) -> None:
        self._allowed += allowed
        self._denied += not allowed
        self._series.add(time_us, allowed, not allowed)
        for index, refuses in zip(rules, refusing, strict=True):
            rule = self._rules[index]
            rule.matched += 1
            rule.series.add(time_us, not refuses, refuses)
            if refuses:
                rule.refused += 1
                rule.refused_minutes[time_us // MINUTE_US] += 1


def _series_sums(series: Series) -> SeriesSums:
    return series.level, series.counts
