"""The amounts that a call holds under each limit, and those that finally count: tokens and money, by rule and mode."""

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

SettledAmounts = tuple[int, ...] | GroupAmounts | None
"""The amounts that count when a call is settled: by `CALL_UNITS`, or by group; None for what is held."""

AmountPicker = Callable[[tuple[int, ...]], tuple[int, ...]]
"""Picks the amount of each group out of a tuple of amounts."""


class UnknownPriceError(ArgumentError):
    """A limit counts money, and the price of the model of a call is not known."""

    code = "unknown-price"


class Plan:
    """What is known in advance of calls to which the same rules apply.

    `rules` and `units` are those of each group. `modes` are the hold modes of the rules: how they hold output. `warns`
    are the shares in percent from which on rules warn, by rule. `at_end` is what happens to a stream for which no
    further slice can be held: it is cut if any rule says so. Shadow rules neither require a price nor cut a stream.
    """

    __slots__ = ("at_end", "counts_money", "expected", "extends_lease", "groups", "held", "held_places", "holds_most",
                 "in_flight", "modes", "needs_price", "places", "rules", "used", "used_places", "warns")  # fmt: skip

    def __init__(self, rules: tuple[Rule, ...], units: tuple[str, ...]) -> None:
        slices = [rule for rule in rules if rule.hold == "slices" and not rule.shadow]
        self.rules = rules
        self.modes: tuple[HoldMode, ...] = tuple(dict.fromkeys(rule.hold for rule in rules))
        self.places = tuple(
            (self.modes.index(rule.hold), CALL_UNITS.index(unit)) for rule, unit in zip(rules, units, strict=True)
        )
        """For each group, the index of its mode in `modes`, and that of its unit in `CALL_UNITS`."""

        self.holds_most = self.modes == ("max",)
        """Whether all rules hold the most output that the call can have."""

        self.groups = len(units)
        self.expected = self.modes.index("expected") if "expected" in self.modes else None
        """The index in `modes` of the mode that holds the expected output; None if no rule has it."""

        self.counts_money = USD in units
        self.needs_price = any(unit == USD and not rule.shadow for rule, unit in zip(rules, units, strict=True))
        """Whether a call of a model without a price is refused."""

        self.warns = {rule.name: rule.warn_percent for rule in rules if rule.warn_percent}
        self.in_flight = any(rule.in_flight for rule in rules)
        self.extends_lease = self.in_flight or "slices" in self.modes
        """Whether a lease must not end before its call: it has a place in flight, or further slices are to be held."""

        self.at_end: AtEnd = "cut" if any(rule.at_end == "cut" for rule in slices) else "debt"
        self.held_places = tuple(len(CALL_UNITS) * mode + unit for mode, unit in self.places)
        """For each group, the index of the amount that it holds in the amounts of `units`."""

        self.used_places = tuple(unit for _, unit in self.places)
        """For each group, the index of the amount that counts in those of `used_units`."""

        self.held = _picking(self.held_places)
        """Picks each group's amount out of those of `units`."""

        self.used = _picking(self.used_places)
        """Picks each group's amount out of those of `used_units`."""

    def units(self, sent: int, outputs: Sequence[int], price: Price | None, searches: int = 0) -> tuple[int, ...]:
        """The amounts to hold by `CALL_UNITS`, for the first of `modes`, then for the next, and so on.

        `sent` are the tokens of input, `outputs` the tokens of output by mode. `searches` of the web cost money alone.
        `price` is the dearest that can apply; it is known where a limit counts money, unless the rule is a shadow rule,
        which then counts no money.
        """
        amounts: tuple[int, ...] = ()
        for output in outputs:
            cost = price.most(sent, output, searches) if self.counts_money and price is not None else 0
            of_mode = (1, sent + output, sent, output, sent, cost if cost <= LARGEST else LARGEST)
            amounts = amounts + of_mode if amounts else of_mode
        return amounts

    def requested(self, units: tuple[int, ...], decision: Decision) -> dict[str, int]:
        """The amounts that a refused call of these `units` requested, by unit, as the refusing rule holds them."""
        requested = {
            (rule.name, CALL_UNITS[unit]): amount
            for rule, (_, unit), amount in zip(self.rules, self.places, self.held(units), strict=True)
        }
        refusing = [reading for reading in decision.refusals if not reading.shadow]
        if decision.binding is not None and decision.binding.unit != USD:  # a refusal names the first limit of money
            refusing.insert(0, decision.binding)
        return {
            refusal.unit: requested[refusal.rule, refusal.unit]
            for refusal in reversed(refusing)
            if (refusal.rule, refusal.unit) in requested
        }

    def more(self, added: tuple[int, ...]) -> GroupAmounts:
        """The amounts of a further slice of these `slice_units`, by group."""
        return GroupAmounts([added[unit] if self.modes[mode] == "slices" else 0 for mode, unit in self.places])

    def slice_units(self, tokens: int, sent: int, price: Price | None) -> tuple[int, ...]:
        """The amounts of a further slice of `tokens` of output, by `CALL_UNITS`. `sent` are the tokens of input."""
        cost = 0
        if price is not None and self.counts_money:
            cost = price.most(sent, tokens) - price.most(sent, 0)
        return _bounded((0, tokens, 0, tokens, 0, cost))

    def with_more(
        self, outputs: tuple[int, ...], units: tuple[int, ...], added: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """`outputs`, held by `modes`, and `units`, each with the `slice_units` of a further slice added."""
        if "slices" not in self.modes:
            return outputs, units
        mode = self.modes.index("slices")
        start, end = len(CALL_UNITS) * mode, len(CALL_UNITS) * (mode + 1)
        more = [held + extra for held, extra in zip(units[start:end], added, strict=True)]
        output = added[CALL_UNITS.index(OUTPUT_TOKENS)]
        return (
            (*outputs[:mode], outputs[mode] + output, *outputs[mode + 1 :]),
            (*units[:start], *more, *units[end:]),
        )

    def of_groups(self, amounts: SettledAmounts) -> Any:
        """The amounts that count, by group; None for what is held."""
        return amounts if amounts is None or isinstance(amounts, GroupAmounts) else GroupAmounts(self.used(amounts))

    def request_alone(self) -> GroupAmounts:
        """The amounts that count for a call that a provider refused: one request, and nothing else."""
        return GroupAmounts([1 if unit == _REQUESTS_PLACE else 0 for _, unit in self.places])

    def nothing(self) -> GroupAmounts:
        """The amounts that count for a call that was never sent: none."""
        return GroupAmounts([0] * self.groups)


def used_units(usage: Usage, cost: int) -> tuple[int, ...]:
    """The amounts of a call by `CALL_UNITS`, from its usage and its cost in billionths."""
    sent, output = usage[0], usage[1]
    both = sent + output
    amounts = (1, both, sent, output, sent - usage[2], cost)
    return amounts if cost <= LARGEST and both <= LARGEST else _bounded(amounts)


def passes_uncounted(decision: Decision, extension: Extension, on_store_error: str) -> bool:
    """Whether a stream continues without a further hold because the store does not answer: not if a limit is closed.

    `on_store_error` is the choice for limits that have none of their own. A call that was passed open, without the
    store, holds nothing that could be extended.
    """
    if decision.degraded == "open":
        return True
    choices = [limit.on_store_error or on_store_error for limit in decision.definitions if not limit.shadow]
    return extension.degraded == "closed" and "closed" not in choices


def _picking(places: Sequence[int]) -> AmountPicker:
    """Make a function that picks the amounts at these indices."""
    if len(places) > 1:
        pick: Any = itemgetter(*places)
        return pick  # type: ignore[no-any-return]
    return lambda amounts: tuple([amounts[place] for place in places])


def _bounded(amounts: tuple[int, ...]) -> tuple[int, ...]:
    """The amounts by `CALL_UNITS`, each at most what a limit can count."""
    return amounts if max(amounts) <= LARGEST else tuple([min(amount, LARGEST) for amount in amounts])
