"""What a call holds of each limit, and what counts of it in the end: tokens and money, each rule by its way to hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headgate.amounts import REQUESTS
from headgate.errors import ArgumentError
from headgate.llm.price import Price
from headgate.llm.terms import Terms, terms_text
from headgate.llm.usage import Usage
from headgate.policy.compiled import Rule
from headgate.policy.llm_settings import CALL_UNITS, USD, AtEnd, HoldMode
from headgate.policy.rule_costs import GroupAmounts, GroupCosts
from headgate.units import LARGEST

_MOST_PLANS = 4096
_REQUESTS_PLACE = CALL_UNITS.index(REQUESTS)


class UnknownPriceError(ArgumentError):
    """A limit counts money, and the model of a call has no price that is known."""

    code = "unknown-price"


class Plan(NamedTuple):
    """What is known in advance of calls that the same rules apply to."""

    rules: tuple[Rule, ...]
    places: tuple[tuple[int, int], ...]
    """Of each group, which of `modes` it holds by, and which of `CALL_UNITS` it counts."""

    modes: tuple[HoldMode, ...]
    counts_money: bool
    warns: dict[str, int]
    """The rules that warn, and from what share on, in percent."""

    in_flight: bool
    at_end: AtEnd
    """What becomes of a stream that no slice can be held for: cut, if any rule says so."""


class Plans:
    """Plans by rules, remembered."""

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}

    def of(self, rules: tuple[Rule, ...], units: tuple[str, ...]) -> Plan:
        """The plan of these rules' groups."""
        known = self._plans.get(id(rules))
        if known is not None and known.rules is rules:
            return known
        slices = [rule for rule in rules if rule.hold == "slices"]
        modes: tuple[HoldMode, ...] = tuple(dict.fromkeys(rule.hold for rule in rules))
        plan = Plan(
            rules,
            tuple((modes.index(rule.hold), CALL_UNITS.index(unit)) for rule, unit in zip(rules, units, strict=True)),
            modes,
            USD in units,
            {rule.name: rule.warn_percent for rule in rules if rule.warn_percent},
            any(rule.in_flight for rule in rules),
            "cut" if any(rule.at_end == "cut" for rule in slices) else "debt",
        )
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[id(rules)] = plan
        return plan


_NO_RULES = Plan((), (), (), False, {}, False, "cut")


class CallCosts(GroupCosts):
    """What one call holds, by the rules that apply to it; `plan` and `held` are there when it was asked for.

    `output` gives the tokens of output that a way to hold asks for, `price` is the dearest that can apply, None where
    none is known.
    """

    __slots__ = ("_output", "_terms", "held", "input", "made", "model", "plan", "plans", "price")

    plan: Plan
    held: tuple[int, ...]

    def __init__(
        self,
        plans: Plans,
        model: str,
        input_tokens: int,
        output: Callable[[HoldMode], int],
        price: Price | None,
        terms: Terms = (),
    ) -> None:
        self.plans = plans
        self.model = model
        self.input = input_tokens
        self._output = output
        self.price = price
        self._terms = terms
        self.plan = _NO_RULES
        self.held = ()
        self.made: list[int] = []
        """The output that it holds by each way to hold of its plan."""

    def costs(self, rules: tuple[Rule, ...], units: tuple[str, ...]) -> tuple[int, ...]:
        """The cost of each group. Raises UnknownPriceError."""
        self.plan = plan = self.plans.of(rules, units)
        if plan.counts_money and self.price is None:
            asked = f" with {terms_text(self._terms)}" if self._terms else ""
            raise UnknownPriceError(
                f"the price of the model {self.model!r}{asked} is not known, and a limit counts usd: give it one in "
                "llm.prices, or say in llm.unknown_price what it costs"
            )
        self.made = [self._output(mode) for mode in plan.modes]
        amounts = [self._amounts(output) for output in self.made]
        self.held = tuple([amounts[mode][unit] for mode, unit in plan.places])
        return self.held

    def most(self) -> tuple[int, int | None]:
        """The most output that any of its rules holds, and what that costs; None where no price is known."""
        output = max(self.made) if self.made else 0
        return output, None if self.price is None else self.price.most(self.input, output)

    @property
    def estimate(self) -> int | None:
        """The output that rules hold which hold what is expected; None where there are none."""
        modes = self.plan.modes
        return self.made[modes.index("expected")] if "expected" in modes else None

    def more(self, tokens: int) -> GroupAmounts:
        """What a further slice of so many tokens of output takes."""
        plan, cost = self.plan, 0
        if self.price is not None and plan.counts_money:
            cost = self.price.most(self.input, tokens) - self.price.most(self.input, 0)
        made = _bounded((0, tokens, 0, tokens, 0, cost))
        return GroupAmounts([made[unit] if plan.modes[mode] == "slices" else 0 for mode, unit in plan.places])

    def add(self, more: GroupAmounts) -> None:
        """Note that a further slice is held."""
        self.held = tuple([own + (other or 0) for own, other in zip(self.held, more, strict=True)])

    def exact(self, usage: Usage, cost: int) -> GroupAmounts:
        """What a call took of each group that used so much and cost so many billionths."""
        sent, made = usage.input, usage.output
        amounts = _bounded((1, sent + made, sent, made, sent - usage.cache_read, cost))
        return GroupAmounts([amounts[unit] for _, unit in self.plan.places])

    def at_least(self, usage: Usage, cost: int) -> GroupAmounts:
        """`exact`, but nothing that is held is given back."""
        exact = self.exact(usage, cost)
        return GroupAmounts([max(own or 0, held) for own, held in zip(exact, self.held, strict=True)])

    def request_alone(self) -> GroupAmounts:
        """What counts of a call that a provider refused: that it was made."""
        return GroupAmounts([1 if unit == _REQUESTS_PLACE else 0 for _, unit in self.plan.places])

    def nothing(self) -> GroupAmounts:
        """What counts of a call that was never sent."""
        return GroupAmounts([0] * len(self.plan.places))

    def _amounts(self, output: int) -> tuple[int, ...]:
        """What is held of each of `CALL_UNITS` with so much output."""
        cost, sent = 0, self.input
        if self.price is not None and self.plan.counts_money:
            cost = self.price.most(sent, output)
        return _bounded((1, sent + output, sent, output, sent, cost))


def _bounded(amounts: tuple[int, ...]) -> tuple[int, ...]:
    """Amounts of each of `CALL_UNITS`, none above what a limit counts."""
    return amounts if max(amounts) <= LARGEST else tuple([min(amount, LARGEST) for amount in amounts])
