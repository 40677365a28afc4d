"""What a call holds of each limit, and what counts of it in the end: tokens and money, each rule by its way to hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headgate.amounts import REQUESTS
from headgate.errors import ArgumentError
from headgate.llm.price import Price
from headgate.llm.usage import Usage
from headgate.policy.compiled import Rule
from headgate.policy.llm_settings import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    TOKENS,
    UNCACHED_INPUT_TOKENS,
    USD,
    AtEnd,
    HoldMode,
)
from headgate.policy.rule_costs import GroupAmounts, GroupCosts
from headgate.units import LARGEST

_MOST_PLANS = 4096


class UnknownPriceError(ArgumentError):
    """A limit counts money, and the model of a call has no price that is known."""

    code = "unknown-price"


class Plan(NamedTuple):
    """What is known in advance of calls that the same rules apply to."""

    rules: tuple[Rule, ...]
    groups: tuple[tuple[HoldMode, str], ...]
    """How each group holds, and what it counts."""

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
        groups: tuple[tuple[HoldMode, str], ...] = tuple(
            (rule.hold, unit) for rule, unit in zip(rules, units, strict=True)
        )
        slices = [rule for rule in rules if rule.hold == "slices"]
        modes: tuple[HoldMode, ...] = tuple(dict.fromkeys(mode for mode, _ in groups))
        plan = Plan(
            rules,
            groups,
            modes,
            any(unit == USD for _, unit in groups),
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

    __slots__ = ("_output", "held", "input", "model", "plan", "plans", "price")

    plan: Plan
    held: tuple[int, ...]

    def __init__(
        self, plans: Plans, model: str, input_tokens: int, output: Callable[[HoldMode], int], price: Price | None
    ) -> None:
        self.plans = plans
        self.model = model
        self.input = input_tokens
        self._output = output
        self.price = price
        self.plan = _NO_RULES
        self.held = ()

    def costs(self, rules: tuple[Rule, ...], units: tuple[str, ...]) -> tuple[int, ...]:
        """The cost of each group. Raises UnknownPriceError."""
        self.plan = plan = self.plans.of(rules, units)
        if plan.counts_money and self.price is None:
            raise UnknownPriceError(
                f"the price of the model {self.model!r} is not known, and a limit counts usd: give it one in "
                "llm.prices, or say in llm.unknown_price what it costs"
            )
        amounts = {mode: self._amounts(self._output(mode)) for mode in plan.modes}
        self.held = tuple([amounts[mode][unit] for mode, unit in plan.groups])
        return self.held

    def output(self) -> int:
        """The most output that any of its rules holds."""
        return max([self._output(mode) for mode in self.plan.modes], default=0)

    def more(self, tokens: int) -> GroupAmounts:
        """What a further slice of so many tokens of output takes."""
        table = {unit: min(amount, LARGEST) for unit, amount in self._made(tokens).items()}
        return GroupAmounts([table.get(unit, 0) if mode == "slices" else 0 for mode, unit in self.plan.groups])

    def add(self, more: GroupAmounts) -> None:
        """Note that a further slice is held."""
        self.held = tuple([own + (other or 0) for own, other in zip(self.held, more, strict=True)])

    def exact(self, usage: Usage, cost: int) -> GroupAmounts:
        """What a call took of each group that used so much and cost so many billionths."""
        amounts = {
            REQUESTS: 1,
            INPUT_TOKENS: usage.input,
            UNCACHED_INPUT_TOKENS: usage.input - usage.cache_read,
            OUTPUT_TOKENS: usage.output,
            TOKENS: usage.input + usage.output,
            USD: cost,
        }
        return GroupAmounts([min(amounts[unit], LARGEST) for _, unit in self.plan.groups])

    def at_least(self, usage: Usage, cost: int) -> GroupAmounts:
        """`exact`, but nothing that is held is given back."""
        exact = self.exact(usage, cost)
        return GroupAmounts([max(own or 0, held) for own, held in zip(exact, self.held, strict=True)])

    def request_alone(self) -> GroupAmounts:
        """What counts of a call that a provider refused: that it was made."""
        return GroupAmounts([1 if unit == REQUESTS else 0 for _, unit in self.plan.groups])

    def nothing(self) -> GroupAmounts:
        """What counts of a call that was never sent."""
        return GroupAmounts([0] * len(self.plan.groups))

    def _amounts(self, output: int) -> dict[str, int]:
        cost = self.price.most(self.input, output) if self.price is not None and self.plan.counts_money else 0
        amounts = {
            REQUESTS: 1,
            INPUT_TOKENS: self.input,
            UNCACHED_INPUT_TOKENS: self.input,
            OUTPUT_TOKENS: output,
            TOKENS: self.input + output,
            USD: cost,
        }
        return amounts if max(amounts.values()) <= LARGEST else {unit: min(n, LARGEST) for unit, n in amounts.items()}

    def _made(self, output: int) -> dict[str, int]:
        cost = 0
        if self.price is not None and self.plan.counts_money:
            cost = self.price.most(self.input, output) - self.price.most(self.input, 0)
        return {OUTPUT_TOKENS: output, TOKENS: output, USD: cost}
