"""Sums of what was judged, by rule and step of time; the native `ReplayJudge` gives the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headgate.policy.identity import Parts
from headgate.replay.series import MINUTE_US, Series

By = tuple[str, ...]
"""The identities that a rule counts by."""

SeriesSums = tuple[int, dict[int, list[int]]]
"""(which of `STEPS_S`, [passed, refused] by step)."""

RuleSums = tuple[int, int, dict[int, int], SeriesSums, dict[Parts, int], dict[Parts, int]]
"""(matched, refused, refusals by minute, their series, requests by key, refusals by key) of a rule."""

AllSums = tuple[int, int, tuple[int, int], SeriesSums, int | None, int | None, list[RuleSums]]
"""(allowed, denied, (costs allowed, costs denied), the series, the first moment, the last one, the rules)."""


class _RuleSums:
    """What one rule did."""

    __slots__ = ("matched", "refused", "refused_minutes", "series")

    def __init__(self) -> None:
        self.matched = self.refused = 0
        self.refused_minutes: Counter[int] = Counter()
        self.series = Series()


class Sums:
    """Sums of the requests that are noted, none of them earlier than the one before it."""

    def __init__(self, rules: int) -> None:
        self._rules = [_RuleSums() for _ in range(rules)]
        self._series = Series()
        self._since_us = self._until_us = 0
        self._first_us: int | None = None
        self._last_us: int | None = None
        self._allowed = self._denied = 0
        self._costs = [0, 0]
        self._quiet: dict[tuple[int, ...], int] = {}
        """Requests of this step that no rule refused, by their rules."""

    def note(self, time_us: int, rules: tuple[int, ...], refusing: Sequence[bool], allowed: bool, cost: int) -> None:
        """Count a request, by the places of its rules in the policy and whether each refuses."""
        if not self._since_us <= time_us < self._until_us:
            self._hand_on()
            if self._first_us is None:
                self._first_us = time_us
            step_us = self._series.step_us
            self._since_us = time_us // step_us * step_us
            self._until_us = self._since_us + step_us
        self._last_us = time_us
        self._costs[not allowed] += cost
        if True in refusing:
            self._refused(time_us, rules, refusing, allowed)
        else:
            self._quiet[rules] = self._quiet.get(rules, 0) + 1

    def sums(self) -> AllSums:
        """All of it. Which keys there were is known by what judges."""
        self._hand_on()
        rules: list[RuleSums] = [
            (rule.matched, rule.refused, rule.refused_minutes, _told(rule.series), {}, {}) for rule in self._rules
        ]
        allowed, denied = self._costs
        costs = allowed, denied
        return self._allowed, self._denied, costs, _told(self._series), self._first_us, self._last_us, rules

    def counted(self, by: Sequence[By], kinds: Sequence[int]) -> dict[tuple[By, Parts], int]:
        """Requests by what they were counted by and as; see `sums`. `kinds` are the places in `by` of each rule's."""
        return {}

    def _hand_on(self) -> None:
        """Add what passed quietly in the last step to the sums."""
        quiet = sum(self._quiet.values())
        if quiet:
            self._allowed += quiet
            self._series.add(self._since_us, quiet, 0)
        for rules, requests in self._quiet.items():
            for place in rules:
                rule = self._rules[place]
                rule.matched += requests
                rule.series.add(self._since_us, requests, 0)
        self._quiet.clear()

    def _refused(self, time_us: int, rules: tuple[int, ...], refusing: Sequence[bool], allowed: bool) -> None:
        self._allowed += allowed
        self._denied += not allowed
        self._series.add(time_us, allowed, not allowed)
        for place, refuses in zip(rules, refusing, strict=True):
            rule = self._rules[place]
            rule.matched += 1
            rule.series.add(time_us, not refuses, refuses)
            if refuses:
                rule.refused += 1
                rule.refused_minutes[time_us // MINUTE_US] += 1


def _told(series: Series) -> SeriesSums:
    return series.level, series.counts
