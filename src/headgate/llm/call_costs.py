"""What a call holds of each limit, and what counts of it in the end: tokens and money, each rule by its way to hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from headgate.amounts import REQUESTS
from headgate.errors import ArgumentError
from headgate.llm.price import Price
from headgate.llm.usage import Usage
from headgate.policy.compiled import Rule
from headgate.policy.llm_settings import CALL_UNITS, USD, AtEnd, HoldMode
from headgate.policy.rule_costs import GroupAmounts
from headgate.units import LARGEST

_REQUESTS_PLACE = CALL_UNITS.index(REQUESTS)

Picked = Callable[[tuple[int, ...]], tuple[int, ...]]
"""Gives each group its own of some amounts."""


class UnknownPriceError(ArgumentError):
    """A limit counts money, and the model of a call has no price that is known."""

    code = "unknown-price"


class Plan:
    """What is known in advance of calls that the same rules apply to.

    `rules` and `units` are those of each group. `modes` are the ways in which the rules hold output, `warns` the rules
    that warn, and from what share on, in percent. `at_end` is what becomes of a stream that no slice can be held for:
    cut, if any rule says so.
    """

    __slots__ = ("_held", "_used", "at_end", "counts_money", "expected", "groups", "holds_most", "in_flight",
                 "modes", "places", "rules", "warns")  # fmt: skip

    def __init__(self, rules: tuple[Rule, ...], units: tuple[str, ...]) -> None:
        slices = [rule for rule in rules if rule.hold == "slices"]
        self.rules = rules
        self.modes: tuple[HoldMode, ...] = tuple(dict.fromkeys(rule.hold for rule in rules))
        self.places = tuple(
            (self.modes.index(rule.hold), CALL_UNITS.index(unit)) for rule, unit in zip(rules, units, strict=True)
        )
        """Of each group, which of `modes` it holds by, and which of `CALL_UNITS` it counts."""

        self.holds_most = self.modes == ("max",)
        """Whether all rules hold the most output that there can be."""

        self.groups = len(units)
        self.expected = self.modes.index("expected") if "expected" in self.modes else None
        """Which of `modes` is the one that holds what is expected."""

        self.counts_money = USD in units
        self.warns = {rule.name: rule.warn_percent for rule in rules if rule.warn_percent}
        self.in_flight = any(rule.in_flight for rule in rules)
        self.at_end: AtEnd = "cut" if any(rule.at_end == "cut" for rule in slices) else "debt"
        self._held = _picking([len(CALL_UNITS) * mode + unit for mode, unit in self.places])
        self._used = _picking([unit for _, unit in self.places])

    def held(self, sent: int, made: Sequence[int], price: Price | None, searches: int = 0) -> tuple[int, ...]:
        """What is held of each group for so much input, and so much output by each of `modes`.

        `searches` of the web cost money alone.

        `price` is the dearest that can apply; it is known where a limit counts money.
        """
        amounts: tuple[int, ...] = ()
        for output in made:
            cost = price.most(sent, output, searches) if self.counts_money and price is not None else 0
            each = (1, sent + output, sent, output, sent, cost if cost <= LARGEST else LARGEST)
            amounts = amounts + each if amounts else each
        return self._held(amounts)

    def more(self, tokens: int, sent: int, price: Price | None) -> GroupAmounts:
        """What a further slice of so many tokens of output takes of each group."""
        cost = 0
        if price is not None and self.counts_money:
            cost = price.most(sent, tokens) - price.most(sent, 0)
        made = _bounded((0, tokens, 0, tokens, 0, cost))
        return GroupAmounts([made[unit] if self.modes[mode] == "slices" else 0 for mode, unit in self.places])

    def exact(self, usage: Usage, cost: int) -> GroupAmounts:
        """What a call took of each group that used so much and cost so many billionths."""
        sent, made = usage[0], usage[1]
        both = sent + made
        amounts = (1, both, sent, made, sent - usage[2], cost)
        return GroupAmounts(self._used(amounts if cost <= LARGEST and both <= LARGEST else _bounded(amounts)))

    def request_alone(self) -> GroupAmounts:
        """What counts of a call that a provider refused: that it was made."""
        return GroupAmounts([1 if unit == _REQUESTS_PLACE else 0 for _, unit in self.places])

    def nothing(self) -> GroupAmounts:
        """What counts of a call that was never sent."""
        return GroupAmounts([0] * self.groups)


def _picking(places: Sequence[int]) -> Picked:
    """What picks these places of some amounts."""
    if len(places) > 1:
        pick: Any = itemgetter(*places)
        return pick  # type: ignore[no-any-return]
    return lambda amounts: tuple([amounts[place] for place in places])


def _bounded(amounts: tuple[int, ...]) -> tuple[int, ...]:
    """Amounts of each of `CALL_UNITS`, none above what a limit counts."""
    return amounts if max(amounts) <= LARGEST else tuple([min(amount, LARGEST) for amount in amounts])
