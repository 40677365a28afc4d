"""What is known in advance of the calls of one caller to one model: the rules that apply, their keys, and prices."""

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

ModelAndCaller = tuple[str, str, str, str, str, str]
"""(model, key, user, team, organisation, tier) of a call."""


class KnownCall:
    """What is known of calls of one caller to one model, under one policy.

    `resolved` are the rules that apply, their limits and keys, as `resolver` resolved them. `keyed` holds and settles
    amounts under them at once where the store does so without I/O; it is None for other stores.
    """

    __slots__ = ("_dearest", "_prices", "_usual", "caller", "caller_id", "keyed", "lease_us", "least_searches",
                 "model", "most_output", "plan", "resolved", "resolver")  # fmt: skip

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
        self.caller_id = caller.key or caller.user
        """The caller as whom the usage of calls is learned: the key, else the user."""

        self.most_output = most_output(model)
        """The most tokens that the model generates in one answer; None if that is not known."""

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
        """The highest price that can apply to a call that is made at `at_us`; None if none is known."""
        if terms:
            return self._prices.dearest(self.model, at_us, terms)
        start_us, end_us, price = self._dearest
        if not start_us <= at_us < end_us:
            self._dearest = span = self._prices.dearest_span(self.model, at_us)
            return span.price
        return price

    def price(self, at_us: int, terms: Terms, model: str = "") -> Price | None:
        """The price of a call that was admitted at `at_us`, under the policy that admitted it.

        `model` is another model that answered in place of the requested one.
        """
        if terms or (model and model != self.model):
            return self._prices.price(model or self.model, at_us, terms)
        start_us, end_us, price = self._usual
        if start_us <= at_us < end_us:
            return price
        self._usual = span = self._prices.span(self.model, at_us)
        return span.price


class KnownCalls:
    """What is known of calls under one policy, by model and caller. Bounded: it forgets the oldest ones."""

    def __init__(self, gate: Any, settings: LlmSettings, prices: PriceSpans) -> None:
        self.settings = settings
        self.resolver: Resolver = gate.resolver
        self.waits = self.resolver.policy.waits
        self.known: dict[ModelAndCaller, KnownCall] = {}
        """Those added lately; `_older` has those added before."""

        self._gate = gate
        self._prices = prices
        self._older: dict[ModelAndCaller, KnownCall] = {}
        self._plans: dict[int, Plan] = {}
        self.is_request_independent = self.resolver.policy.looks_at_calls_alone
        """Whether model and caller decide everything about a call, whatever HTTP request it was made in."""

    def of(self, model_and_caller: ModelAndCaller, request: Subject | None) -> KnownCall:
        """What is known of a call that is not in `known`. Raises ArgumentError for an invalid model or caller."""
        model, *caller_fields = model_and_caller
        check_model(model)
        check_caller(*caller_fields)
        known = self._older.get(model_and_caller) if self.is_request_independent else None
        if known is None:
            known = self.of_several(model_and_caller, (), request)
        if self.is_request_independent and sum(map(len, model_and_caller)) <= _LONGEST_KNOWN:
            if len(self.known) >= _MOST_KNOWN:
                self._older, self.known = self.known, {}
            self.known[model_and_caller] = known
        return known

    def of_several(self, model_and_caller: ModelAndCaller, others: Sequence[str], request: Subject | None) -> KnownCall:
        """What is known of a call that other models than its own may answer: the rules for any of them apply."""
        model, *caller_fields = model_and_caller
        check_model(model)
        caller = check_caller(*caller_fields)
        subject: Any = CallSubject(caller, model, request, others)
        resolved = self.resolver.resolve(subject, 1, ALL_RULES)
        plan, lease_us = self._plan(resolved), self.settings.lease_us
        keyed = None if self.waits else self._gate.keyed(resolved, plan.held_places, plan.used_places, lease_us)
        return KnownCall(model, caller, self.resolver, resolved, plan, self._prices, lease_us=lease_us, keyed=keyed)

    def _plan(self, resolved: Resolved) -> Plan:
        """The plan of the rules that apply, which is cached."""
        _, _, rules, units = resolved
        plan = self._plans.get(id(rules))
        if plan is None or plan.rules is not rules:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[id(rules)] = Plan(rules, units)
        return plan
