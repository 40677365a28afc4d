"""What is known in advance of calls: which rules apply to those of one caller to one model, their keys and prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.llm.call_costs import Plan
from headgate.llm.call_subject import CallSubject, check_caller, check_model
from headgate.llm.entry import Caller
from headgate.llm.model_table import most_output
from headgate.llm.price import Price
from headgate.llm.price_spans import PriceSpan, PriceSpans
from headgate.llm.terms import Terms
from headgate.llm.web_searches import least_searches
from headgate.policy.compiled import ALL_RULES
from headgate.policy.llm_settings import LlmSettings
from headgate.policy.resolver import Resolved, Resolver
from headgate.policy.subject import Subject

_MOST_KNOWN = 2048
_LONGEST_KNOWN = 512
_MOST_PLANS = 4096

Asking = tuple[str, str, str, str, str, str]
"""(the model, the key, the user, the team, the organisation, the tier) of a call."""


class KnownCall:
    """What is known of calls of one caller to one model, under one policy.

    `resolved` are the rules that apply, their limits and keys, as `resolver` found them; `keyed` holds and settles
    amounts of them at once, where the store does so without I/O, and None where it is to be asked in another way.
    """

    __slots__ = ("_dearest", "_prices", "_usual", "caller", "keyed", "lease_us", "least_searches", "model",
                 "most_output", "plan", "resolved", "resolver", "who")  # fmt: skip

    def __init__(
        self,
        model: str,
        caller: Caller,
        resolver: Resolver,
        resolved: Resolved,
        plan: Plan,
        prices: PriceSpans,
        *,
        lease_us: int,
        keyed: Any,
    ) -> None:
        self.model = model
        self.caller = caller
        self.who = caller.key or caller.user
        """By what it is learned from."""

        self.most_output = most_output(model)
        """The most that the model makes, None where that is not known."""

        self.least_searches = least_searches(model)
        """How often each call searches the web, whatever its body says."""

        self.resolver = resolver
        self.resolved = resolved
        self.lease_us = lease_us
        self.keyed = keyed
        self.plan = plan
        self._prices = prices
        self._dearest = self._usual = PriceSpan(0, 0, None)

    def dearest(self, at_us: int, terms: Terms) -> Price | None:
        """The highest price that can apply to a call that is made at a moment; None where none is known."""
        if terms:
            return self._prices.dearest(self.model, at_us, terms)
        start_us, end_us, price = self._dearest
        if not start_us <= at_us < end_us:
            self._dearest = span = self._prices.dearest_span(self.model, at_us)
            return span.price
        return price

    def price(self, at_us: int, terms: Terms, model: str = "") -> Price | None:
        """The price of a call that was admitted at a moment, under the policy that admitted it.

        `model` is another one that answered in its place.
        """
        if terms or (model and model != self.model):
            return self._prices.price(model or self.model, at_us, terms)
        start_us, end_us, price = self._usual
        if start_us <= at_us < end_us:
            return price
        self._usual = span = self._prices.span(self.model, at_us)
        return span.price


class KnownCalls:
    """What is known of calls under one policy, by caller and model. Bounded; of many callers the latest."""

    def __init__(self, gate: Any, settings: LlmSettings, prices: PriceSpans) -> None:
        self.settings = settings
        self.resolver: Resolver = gate.resolver
        self.waits = self.resolver.policy.waits
        self.known: dict[Asking, KnownCall] = {}
        """Those that were met of late; `_older` has those met before."""

        self._gate = gate
        self._prices = prices
        self._older: dict[Asking, KnownCall] = {}
        self._plans: dict[int, Plan] = {}
        self.is_alike = self.resolver.policy.looks_at_calls_alone
        """Whether a call is known by its caller and its model, whatever HTTP request it came in."""

    def of(self, asking: Asking, request: Subject | None) -> KnownCall:
        """What is known of a call that is not among `known`. Raises ArgumentError for what cannot be one."""
        model, *who = asking
        check_model(model)
        check_caller(*who)
        found = self._older.get(asking) if self.is_alike else None
        if found is None:
            found = self.of_several(asking, (), request)
        if self.is_alike and sum(map(len, asking)) <= _LONGEST_KNOWN:
            if len(self.known) >= _MOST_KNOWN:
                self._older, self.known = self.known, {}
            self.known[asking] = found
        return found

    def of_several(self, asking: Asking, others: Sequence[str], request: Subject | None) -> KnownCall:
        """What is known of a call that other models than its own may answer: the rules for any of them apply."""
        model, *who = asking
        check_model(model)
        caller = check_caller(*who)
        subject: Any = CallSubject(caller, model, request, others)
        resolved = self.resolver.resolve(subject, 1, ALL_RULES)
        plan, lease_us = self._plan(resolved), self.settings.lease_us
        keyed = None if self.waits else self._gate.keyed(resolved, plan.held_places, plan.used_places, lease_us)
        return KnownCall(model, caller, self.resolver, resolved, plan, self._prices, lease_us=lease_us, keyed=keyed)

    def _plan(self, resolved: Resolved) -> Plan:
        """The plan of the rules that apply, remembered."""
        _, _, rules, units = resolved
        plan = self._plans.get(id(rules))
        if plan is None or plan.rules is not rules:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[id(rules)] = Plan(rules, units)
        return plan
