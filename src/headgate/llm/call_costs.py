"""What a call holds of each limit, and what counts of it in the end: tokens and money, each rule by its way to hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from headgate.amounts import REQUESTS
from headgate.decision import Decision
from headgate.errors import ArgumentError
from headgate.holding import Extension
from headgate.llm.price import Price
from headgate.llm.usage import Usage
from headgate.policy.compiled import Rule
from headgate.policy.llm_settings import CALL_UNITS, OUTPUT_TOKENS, USD, AtEnd, HoldMode
from headgate.policy.rule_costs import GroupAmounts
from headgate.units import LARGEST

_REQUESTS_PLACE = CALL_UNITS.index(REQUESTS)

Counted = tuple[int, ...] | GroupAmounts | None
"""What counts of a call: of each of `CALL_UNITS`, or of each group; None for what is held."""

Picked = Callable[[tuple[int, ...]], tuple[int, ...]]
"""Gives each group its own of some amounts."""


class UnknownPriceError(ArgumentError):
    """A limit counts money, and the model of a call has no price that is known."""

    code = "unknown-price"


class Plan:
    """What is known in advance of calls that the same rules apply to.

    `rules` and `units` are those of each group. `modes` are the ways in which the rules hold output, `warns` the rules
    that warn, and from what share on, in percent. `at_end` is what becomes of a stream that no slice can be held for:
    cut, if any rule says so. Shadow rules refuse no price and cut no stream.
    """

    __slots__ = ("at_end", "counts_money", "expected", "groups", "held", "held_places", "holds_most", "in_flight",
                 "modes", "needs_price", "places", "rules", "used", "used_places", "warns")  # fmt: skip

    def __init__(self, rules: tuple[Rule, ...], units: tuple[str, ...]) -> None:
        slices = [rule for rule in rules if rule.hold == "slices" and not rule.shadow]
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
        self.needs_price = any(unit == USD and not rule.shadow for rule, unit in zip(rules, units, strict=True))
        """Whether a call of a model without a price is refused."""

        self.warns = {rule.name: rule.warn_percent for rule in rules if rule.warn_percent}
        self.in_flight = any(rule.in_flight for rule in rules)
        self.at_end: AtEnd = "cut" if any(rule.at_end == "cut" for rule in slices) else "debt"
        self.held_places = tuple(len(CALL_UNITS) * mode + unit for mode, unit in self.places)
        """Of each group, which of the amounts of `units` it holds."""

        self.used_places = tuple(unit for _, unit in self.places)
        """Of each group, which of the amounts of `used_units` counts."""

        self.held = _picking(self.held_places)
        """Gives each group its own of the amounts of `units`."""

        self.used = _picking(self.used_places)
        """Gives each group its own of the amounts of `used_units`."""

    def units(self, sent: int, made: Sequence[int], price: Price | None, searches: int = 0) -> tuple[int, ...]:
        """What is held of each of `CALL_UNITS` for so much input, and so much output by each of `modes`, one behind
        the other.

        `searches` of the web cost money alone. `price` is the dearest that can apply; it is known where a limit counts
        money, unless its rule is a shadow rule, which then counts none.
        """
        amounts: tuple[int, ...] = ()
        for output in made:
            cost = price.most(sent, output, searches) if self.counts_money and price is not None else 0
            each = (1, sent + output, sent, output, sent, cost if cost <= LARGEST else LARGEST)
            amounts = amounts + each if amounts else each
        return amounts

    def requested(self, units: tuple[int, ...], decision: Decision) -> dict[str, int]:
        """What a refused call of these `units` asked for, of each unit by the rule that refuses it."""
        asked = {
            (rule.name, CALL_UNITS[unit]): amount
            for rule, (_, unit), amount in zip(self.rules, self.places, self.held(units), strict=True)
        }
        refusing = [reading for reading in decision.refusals if not reading.shadow]
        if decision.binding is not None and decision.binding.unit != USD:  # of money a refusal names the first
            refusing.insert(0, decision.binding)
        return {
            each.unit: asked[each.rule, each.unit] for each in reversed(refusing) if (each.rule, each.unit) in asked
        }

    def more(self, added: tuple[int, ...]) -> GroupAmounts:
        """What a further slice of these `slice_units` takes of each group."""
        return GroupAmounts([added[unit] if self.modes[mode] == "slices" else 0 for mode, unit in self.places])

    def slice_units(self, tokens: int, sent: int, price: Price | None) -> tuple[int, ...]:
        """What a further slice of so many tokens of output takes of each of `CALL_UNITS`."""
        cost = 0
        if price is not None and self.counts_money:
            cost = price.most(sent, tokens) - price.most(sent, 0)
        return _bounded((0, tokens, 0, tokens, 0, cost))

    def with_more(
        self, made: tuple[int, ...], units: tuple[int, ...], added: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The output that is held by each of `modes`, and `units`, with the `slice_units` of a further slice."""
        if "slices" not in self.modes:
            return made, units
        mode = self.modes.index("slices")
        start, end = len(CALL_UNITS) * mode, len(CALL_UNITS) * (mode + 1)
        more = [own + other for own, other in zip(units[start:end], added, strict=True)]
        output = added[CALL_UNITS.index(OUTPUT_TOKENS)]
        return (*made[:mode], made[mode] + output, *made[mode + 1 :]), (*units[:start], *more, *units[end:])

    def of_groups(self, amounts: Counted) -> Any:
        """What counts of each group, in place of an amount; None for what is held."""
        return amounts if amounts is None or isinstance(amounts, GroupAmounts) else GroupAmounts(self.used(amounts))

    def request_alone(self) -> GroupAmounts:
        """What counts of a call that a provider refused: that it was made."""
        return GroupAmounts([1 if unit == _REQUESTS_PLACE else 0 for _, unit in self.places])

    def nothing(self) -> GroupAmounts:
        """What counts of a call that was never sent."""
        return GroupAmounts([0] * self.groups)


def used_units(usage: Usage, cost: int) -> tuple[int, ...]:
    """What a call took of each of `CALL_UNITS` that used so much and cost so many billionths."""
    sent, made = usage[0], usage[1]
    both = sent + made
    amounts = (1, both, sent, made, sent - usage[2], cost)
    return amounts if cost <= LARGEST and both <= LARGEST else _bounded(amounts)


def passes_uncounted(decision: Decision, extension: Extension, on_store_error: str) -> bool:
    """Whether a stream goes on though no more is held for it, since the store does not answer: not if a limit is closed
    then. `on_store_error` is the choice for limits that have none of their own.

    What was decided open holds nothing that could be extended.
    """
    if decision.degraded == "open":
        return True
    choices = [each.on_store_error or on_store_error for each in decision.definitions if not each.shadow]
    return extension.degraded == "closed" and "closed" not in choices


def _picking(places: Sequence[int]) -> Picked:
    """What picks these places of some amounts."""
    if len(places) > 1:
        pick: Any = itemgetter(*places)
        return pick  # type: ignore[no-any-return]
    return lambda amounts: tuple([amounts[place] for place in places])


def _bounded(amounts: tuple[int, ...]) -> tuple[int, ...]:
    """Amounts of each of `CALL_UNITS`, none above what a limit counts."""
    return amounts if max(amounts) <= LARGEST else tuple([min(amount, LARGEST) for amount in amounts])
