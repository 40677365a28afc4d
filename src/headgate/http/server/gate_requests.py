"""Asks a gate for requests: which are exempt from its policy, what they cost, and which ruleset applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, cast

from headgate.costs import read_units
from headgate.decision import Decision
from headgate.drive import answered
from headgate.errors import ConfigError
from headgate.http.server.options import AnyPolicy, cost_of, function_of
from headgate.http.server.request_limits import Asked
from headgate.keys import check_cost
from headgate.policy.compiled import ALL_RULES, Policy
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.request import Request
from headgate.stores.protocol import Store

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
"""Options that a policy says itself."""


class GateRequests:
    """Asks one gate. `told` are `headgate.http.server.options.Options`. Raises ConfigError or PolicyError."""

    def __init__(self, policy: AnyPolicy | Gate | AsyncGate, told: dict[str, Any], *, asynchronous: bool) -> None:
        self._asynchronous = asynchronous
        self._exempt = function_of(told, "exempt")
        self._ruleset = told.get("ruleset", ALL_RULES)
        self.owned: Store | None = None
        """The store, if it was opened here."""
        self._gate = self._open(policy, told)
        self._cost = cost_of(told, self._check_cost)
        later = iscoroutinefunction(self._exempt) or iscoroutinefunction(self._cost)
        if later and not asynchronous:
            raise ConfigError("a coroutine function goes before an asyncio application only")
        self.ask: Callable[[Request], Asked] = self._ask_later if later else self._ask
        """Decide for a request."""
        if self._exempt is None and self._cost == 1 and self._ruleset == ALL_RULES:
            self.ask = self._gate.ask if asynchronous else self._gate.hit

    async def warm_up(self) -> None:
        """Have the gate's store connect before the first request; where it fails, that is told in the log."""
        await self._gate.warm_up()

    def _open(self, policy: AnyPolicy | Gate | AsyncGate, told: dict[str, Any]) -> Any:
        alone = [name for name in _WITH_LIMITS if name in told]
        if alone:
            raise ConfigError(f"{alone[0]} goes with limits; a policy says it itself")
        kind, other = (AsyncGate, Gate) if self._asynchronous else (Gate, AsyncGate)
        if isinstance(policy, other):
            raise ConfigError(f"this application needs a {kind.__name__}, not a {other.__name__}")
        if isinstance(policy, kind):
            for name in ("store", "clock", "on_store_error"):
                if name in told:
                    raise ConfigError(f"{name} goes with a policy; a gate has its own")
            _check_rates(policy.policy)
            return policy
        store = told.get("store")
        own: dict[str, Any] = {name: told[name] for name in ("clock", "on_store_error") if name in told}
        gate: Any = kind(cast(AnyPolicy, policy), store=store, **own)
        if store is None or isinstance(store, str):
            self.owned = gate.store
        _check_rates(gate.policy)
        return gate

    def _check_cost(self, cost: Any) -> None:
        """Raise ArgumentError for what is no cost of a request to this policy."""
        if isinstance(cost, Mapping):
            read_units(cost, self._gate.policy.units)
        else:
            check_cost(cost)

    def _ask(self, request: Request) -> Asked:
        if self._exempt is not None and self._exempt(request):
            return None
        cost = self._cost(request) if callable(self._cost) else self._cost
        asked: Asked
        if self._asynchronous:
            asked = self._gate.ask(request, cost, ruleset=self._ruleset)
        else:
            asked = self._gate.hit(request, cost, ruleset=self._ruleset)
        return asked

    async def _ask_later(self, request: Request) -> Decision | None:
        """`_ask` where functions are to be awaited."""
        if self._exempt is not None and await answered(self._exempt(request)):
            return None
        cost = await answered(self._cost(request)) if callable(self._cost) else self._cost
        decision: Decision = await answered(self._gate.ask(request, cost, ruleset=self._ruleset))
        return decision


def _check_rates(policy: Policy) -> None:
    """Raise ConfigError for a policy of what is in flight, which nothing here would free."""
    for rule in policy.rules:
        if rule.in_flight:
            raise ConfigError(f"rule {rule.name} counts what is in flight: hold requests with Gate.reserve")
