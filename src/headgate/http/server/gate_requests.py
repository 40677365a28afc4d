"""Decides on requests by a gate: which are exempt from its policy, what they cost, and which ruleset applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, NamedTuple, cast

from headgate.costs import read_units
from headgate.decision import Decision
from headgate.drive import answered, check_asyncio, is_on_asyncio
from headgate.errors import ArgumentError, ConfigError
from headgate.http.server.held_request import NEEDS_ASYNCIO, HeldRequest, await_reservation, lease_us_of
from headgate.http.server.options import cost_of, function_of
from headgate.http.server.request_limits import Charge, RequestOutcome
from headgate.http.server.web_gates import web_gate
from headgate.keys import check_cost
from headgate.policy.compiled import ALL_RULES, Policy
from headgate.policy.gate import AnyPolicy, AsyncGate, Gate
from headgate.policy.request import Request
from headgate.stores.protocol import Store
from headgate.waiting.departure import Departure

_WITH_LIMITS = (
    "key",
    "missing",
    "repeated",
    "tier",
    "counts",
    "shadow",
    "name",
    "wait",
    "trusted_proxies",
    "trusted_hops",
    "address_header",
    "ipv6_prefix",
    "ipv6_wide",
)
"""Options that a policy has itself."""


class _PolicyInForce(NamedTuple):
    """One policy and how a gate decides by it, also while another one is put in force."""

    policy: Policy
    hit: Callable[..., Any]
    """The `hit` of `Gate.in_force`, for requests that neither wait nor are held."""


class GateRequests:
    """Decides by one gate. `options` are `headgate.http.server.options.Options`. Raises ConfigError or PolicyError."""

    def __init__(self, policy: AnyPolicy | Gate | AsyncGate, options: dict[str, Any], *, asynchronous: bool) -> None:
        self._asynchronous = asynchronous
        self._exempt = function_of(options, "exempt")
        self._ruleset = options.get("ruleset", ALL_RULES)
        self.owned: Store | None = None
        """The store, if it was opened here."""
        self._gate = self._open(policy, options)
        self._check_ruleset(self._gate.policy)
        self._cost = cost_of(options, lambda cost: _check_cost(cost, self._gate.policy))
        is_awaited = iscoroutinefunction(self._exempt) or iscoroutinefunction(self._cost)
        if is_awaited and not asynchronous:
            raise ConfigError("a coroutine function needs an asyncio application")
        self._is_awaited = is_awaited
        self._lease_us = lease_us_of(options)
        self._in_force = _PolicyInForce(*self._gate.in_force())
        self._is_on_asyncio = True
        """False once it is known that the application runs on another event loop."""

    @property
    def gate(self) -> Gate | AsyncGate:
        """The gate that decides."""
        gate: Gate | AsyncGate = self._gate
        return gate

    def check(self, policy: Policy) -> None:
        """Raise ConfigError for a policy that is incompatible with the options."""
        self._check_ruleset(policy)
        if not self._is_on_asyncio and (policy.in_flight or policy.waits):
            raise ConfigError(NEEDS_ASYNCIO)
        if not callable(self._cost):
            try:
                _check_cost(self._cost, policy)
            except ArgumentError as error:
                raise ConfigError(f"cost is {self._cost!r:.60}: {error}") from error

    @property
    def is_behind(self) -> bool:
        """Whether another policy is in force than the one that decides here."""
        return self._gate.policy is not self._in_force.policy

    @property
    def holds(self) -> bool:
        """Whether requests may be held until their responses have ended, under the policy that decides here."""
        return self._in_force.policy.in_flight

    @property
    def waits(self) -> bool:
        """Whether requests may wait in line before they are refused, under the policy that decides here."""
        return self._in_force.policy.waits

    @property
    def decide(self) -> Callable[[Request], RequestOutcome]:
        """The function that decides on a request, by the policy in force, which from now on decides here."""
        self._in_force = _PolicyInForce(*self._gate.in_force())
        if self._is_awaited:
            return self._decide_async
        every = self._exempt is None and self._cost == 1 and self._ruleset == ALL_RULES
        if every and not (self.holds or self.waits):
            return self._in_force.hit
        return self._decide

    def web_gate(self, kind: type[Request], *, writes_fields: bool | None, websockets: bool) -> Any:
        """Return the native gate of the policy in force; None where a Python function takes part in every decision.

        See `headgate.http.server.web_gates.web_gate`.
        """
        gate, cost = self._gate, self._cost
        if type(gate) not in (Gate, AsyncGate) or gate.native is None or self.holds or self.waits:
            return None
        if self._exempt is not None or type(cost) is not int:
            return None
        return web_gate(
            gate.native,
            ruleset=self._ruleset,
            cost=cost,
            kind=kind,
            writes_fields=writes_fields,
            asynchronous=self._asynchronous,
            websockets=websockets,
        )

    async def warm_up(self) -> None:
        """Have the gate's store connect before the first request; a failure is logged."""
        if self.holds or self.waits or self._gate.store.blocking:
            check_asyncio(NEEDS_ASYNCIO)
        self._is_on_asyncio = is_on_asyncio()
        await self._gate.warm_up()

    def _open(self, policy: AnyPolicy | Gate | AsyncGate, options: dict[str, Any]) -> Any:
        alone = [name for name in _WITH_LIMITS if name in options]
        if alone:
            raise ConfigError(f"{alone[0]} goes with limits; a policy defines it itself")
        kind, other = (AsyncGate, Gate) if self._asynchronous else (Gate, AsyncGate)
        if isinstance(policy, other):
            raise ConfigError(f"this application needs a {kind.__name__}, not a {other.__name__}")
        if isinstance(policy, kind):
            for name in ("store", "clock", "on_store_error"):
                if name in options:
                    raise ConfigError(f"{name} goes with a policy; a gate has its own")
            return policy
        store = options.get("store")
        own: dict[str, Any] = {name: options[name] for name in ("clock", "on_store_error") if name in options}
        gate: Any = kind(cast(AnyPolicy, policy), store=store, **own)
        if store is None or isinstance(store, str):
            self.owned = gate.store
        return gate

    def _check_ruleset(self, policy: Policy) -> None:
        if self._ruleset not in tuple(policy.rulesets):
            known = ", ".join(policy.rulesets)
            raise ConfigError(f"ruleset is one of the policy's, {known}, not {self._ruleset!r:.60}")

    def _decide(self, request: Request) -> RequestOutcome:
        if self._exempt is not None and self._exempt(request):
            return None
        cost = self._cost(request) if callable(self._cost) else self._cost
        outcome: RequestOutcome = self._decide_by_policy(request, cost)
        return outcome

    def _decide_by_policy(self, request: Request, cost: Any) -> Any:
        """Return the decision, or an awaitable of it: by the policy the request waits, is held, or is only charged."""
        policy, hit = self._in_force
        if policy.waits:
            return self._wait(request, cost)
        return self._hold(request, cost) if policy.in_flight else hit(request, cost, ruleset=self._ruleset)

    async def _decide_async(self, request: Request) -> Decision | None:
        """`_decide` where functions have to be awaited."""
        if self._exempt is not None and await answered(self._exempt(request)):
            return None
        cost = await answered(self._cost(request)) if callable(self._cost) else self._cost
        decision: Decision = await answered(self._decide_by_policy(request, cost))
        return decision

    def _hold(self, request: Request, cost: Any) -> Any:
        """Hold a request until it is settled or taken back, where a rule for requests in flight applies to it."""
        if self._asynchronous:
            check_asyncio(NEEDS_ASYNCIO)
        pending = self._gate.hit_or_hold(request, cost, self._lease_us, ruleset=self._ruleset)
        return (
            self._hold_async(request, cost, pending)
            if self._asynchronous
            else self._record_hold(request, cost, pending)
        )

    def _wait(self, request: Request, cost: Any) -> Any:
        """Decide on a request that may wait in line by a rule: no longer than its client waits, where that is known."""
        if self._asynchronous:
            check_asyncio(NEEDS_ASYNCIO)
        timeout: float | None = getattr(request, "time_remaining", None)
        departure: Departure | None = getattr(request, "departure", None)
        outcome = self._gate.acquire_or_hold(
            request,
            cost,
            self._lease_us,
            ruleset=self._ruleset,
            timeout=None if timeout is None else max(timeout, 0),
            departure=departure,
        )
        return (
            self._wait_async(request, cost, outcome)
            if hasattr(outcome, "__await__")
            else self._record_hold(request, cost, outcome)
        )

    async def _wait_async(self, request: Request, cost: Any, pending: Any) -> Decision:
        return self._record_hold(request, cost, await pending)

    async def _hold_async(self, request: Request, cost: Any, pending: Any) -> Decision:
        outcome = await (await_reservation(pending) if self._gate.store.blocking else pending)
        return self._record_hold(request, cost, outcome)

    def _record_hold(self, request: Request, cost: Any, outcome: Any) -> Decision:
        if isinstance(outcome, Decision):
            return outcome
        if outcome:
            request.charge = Charge(None, None, cost, 0, HeldRequest(outcome, asynchronous=self._asynchronous))
        decision: Decision = outcome.decision
        return decision


def _check_cost(cost: Any, policy: Policy) -> None:
    """Raise ArgumentError for a value that is not a cost of a request by a policy."""
    if isinstance(cost, Mapping):
        read_units(cost, policy.units)
    else:
        check_cost(cost)
