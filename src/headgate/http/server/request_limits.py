"""Plain limits for requests: which key is counted, under which limits, and which part of the cost counts in the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from typing import Any, Literal, NamedTuple

from headgate.amounts import unit_named
from headgate.clock import SYSTEM_CLOCK
from headgate.costs import Cost, Counted
from headgate.decision import Decision, NamedLimit, OnStoreError, Reading
from headgate.drive import answered, begun, check_asyncio
from headgate.errors import ArgumentError, ConfigError, check_flag
from headgate.http.server.counted_keys import (
    SEVERAL,
    NetworkPair,
    address_rules,
    is_repeated,
    parts_of,
    usable,
    wide_rules,
    within,
)
from headgate.http.server.held_request import NEEDS_ASYNCIO, HeldRequest, await_reservation, lease_us_of
from headgate.http.server.ipv6_aggregate import WideLimiter
from headgate.http.server.options import Response, cost_of, function_of, in_any_case, one_of
from headgate.http.server.plain_rule import PlainRule
from headgate.http.server.web_gates import NOWHERE, plain_web_gate
from headgate.keys import Key, check_cost
from headgate.limiter import AnyLimits, AsyncLimiter, Limiter
from headgate.limits import check_rates
from headgate.policy.client_address import UNIX
from headgate.policy.gate import native_gate
from headgate.policy.request import Repeated, Request
from headgate.stores.guard.choice import guarded
from headgate.stores.guard.fallback import check_on_store_error
from headgate.stores.guard.fallback_limits import FallbackLimits
from headgate.stores.protocol import Store, warm_up_async
from headgate.stores.url import open_store
from headgate.waiting.departure import ClientLeft, Departure
from headgate.waiting.steps import timeout_us

log = logging.getLogger("headgate")
_MOST_LIMITERS = 1024
"""The most limits of a function whose limiters are kept."""

_MOST_ADDRESSES = 65536
_LONGEST_REMEMBERED = 256
_ANONYMOUS = ("anonymous",)
_DEFAULT = "default"
RequestOutcome = Decision | Awaitable[Decision | None] | None
"""A decision, or an awaitable of one; None where a request is not limited."""


class Charge(NamedTuple):
    """The charge of a request, to be settled or taken back later."""

    limiter: Any
    key: Any
    cost: Cost
    requested_us: int
    held: HeldRequest | None = None
    """The hold to free when the request has ended, where a limit counts requests in flight."""


class RequestLimits:
    """Decides on requests by limiters, all on one store. `options` are `headgate.http.server.options.Options`."""

    def __init__(
        self, options: dict[str, Any], *, asynchronous: bool, routed: bool, keeps_charges: bool = False
    ) -> None:
        if "ruleset" in options:
            raise ConfigError("ruleset goes with a policy, which has the rules")
        self._asynchronous = asynchronous
        self._exempt = function_of(options, "exempt")
        self._key = function_of(options, "key")
        self._missing = one_of(options, "missing", "address", "anonymous", "refuse")
        self._refuse_repeated = one_of(options, "repeated", "count", "refuse") == "refuse"
        self._counts = function_of(options, "counts")
        self._routed = routed
        self._keeps_charges = keeps_charges or self._counts is not None
        self._wait = _wait_s(options)
        self.waits = bool(self._wait)
        """Whether requests may wait in line."""

        self._name = options.get("name", "")
        self._shadow = check_flag("shadow", options.get("shadow", False))
        self._given_clock = options.get("clock")
        self._clock = options.get("clock", SYSTEM_CLOCK)
        self._scope: Any = options.get("scope", _endpoint_counter) if routed else None
        if routed and not isinstance(self._scope, str) and not callable(self._scope):
            raise ConfigError(f"scope is text or a function of the request, not {self._scope!r:.40}")
        if iscoroutinefunction(self._scope):
            raise ConfigError("scope cannot be a coroutine function: nothing awaits its result")
        store: Any = options.get("store", "memory://")
        if not isinstance(options.get("store", ""), str | Store):
            raise ConfigError(f"store is a URL or a store, not {store!r:.40}")
        self.owned: Store | None = open_store(store) if isinstance(store, str) else None
        """The store, if it was opened here."""
        self._store: Any = store if self.owned is None else self.owned
        self._on_store_error: OnStoreError | Literal[""] = check_on_store_error(options.get("on_store_error"))
        # All limiters of the store share its guard.
        self._guarded_store = guarded(self._store) if self._on_store_error else self._store
        self._limiters: dict[Any, Any] = {}
        self._holding: set[int] = set()
        """The limiters of requests in flight, by `id`."""

        self._lease_us = lease_us_of(options)
        self._given_limits = options["limits"]
        self._address = address_rules(options)
        self._wide = wide_rules(options, self._address)
        self._address_key = lru_cache(_MOST_ADDRESSES)(self._key_of_address)
        limits, tier = options["limits"], function_of(options, "tier")
        self._limits_of: Any = _tiered(limits, tier) if isinstance(limits, Mapping) else limits
        if tier is not None and not isinstance(limits, Mapping):
            raise ConfigError("tier chooses among limits: give them as a mapping from tier to limits")
        self._fixed_limiter: Any = None if callable(self._limits_of) else self._limiter(self._limits_of)
        # Limits that cannot be used raise an error now.
        tier_limits = (
            limits.values() if isinstance(limits, Mapping) else () if self._fixed_limiter is None else (limits,)
        )
        limiters = [self._limiter(entry) for entry in tier_limits if entry is not None]
        self._units = frozenset(unit for limiter in limiters for unit in limiter.counted.units)
        """The units that the limits of any tier count."""

        self._cost = cost_of(options, partial(self._check_cost, limiters))
        functions = (self._exempt, self._key, self._cost, self._limits_of)
        is_awaited = any(map(iscoroutinefunction, functions))
        if is_awaited and not asynchronous:
            raise ConfigError("a coroutine function needs an asyncio application")
        if iscoroutinefunction(self._counts):
            raise ConfigError("counts cannot be a coroutine function: the response has been sent already")
        for entry in tier_limits:
            if entry is not None:
                self._limiter(entry, wide=self._wide is not None)
        # Limiters on one store share a counter by their name, or by the text of their limits.
        self._shared_as = (
            f"limiter/{self._name}" if self._name else self._fixed_limiter and self._fixed_limiter.definitions[0].scope
        )
        self._decide_fixed: Any = self._fixed_limiter and (
            self._fixed_limiter.ask if asynchronous else self._fixed_limiter.hit
        )
        self.decide: Callable[[Request], RequestOutcome] = self._decide_async if is_awaited else self._decide
        """Decides on a request."""

        self.holds = bool(self._holding)
        """Whether requests are held until their responses have ended."""

        if self.holds and (self._wait or self._wide is not None):
            raise ConfigError("limits on requests in flight cannot be combined with wait or ipv6_wide")
        choosers = (self._exempt, self._key, self._counts)
        self._is_data = (
            all(function is None for function in choosers)
            and (not routed or isinstance(self._scope, str) or self._scope is _endpoint_counter)
            and not (self.holds or self._wait or self._wide)
        )
        """Whether no function determines who is counted, with which key, and under which name."""

    def settle_steps(
        self, charge: Charge, request: Request | None, decision: Decision, response: Response
    ) -> Generator[Any, Any, None]:
        """Settle a charge by what `counts` returns; `request` is None only where there is no such function.

        Yields calls that may have to be awaited. Raises StoreError.
        """
        limiter, key, cost, requested_us, held = charge
        if self._counts is None:
            if held is not None:
                yield from held.free()
            return
        try:
            charged = limiter.counted.read(cost)
            settled = _settled(limiter.counted, self._counts(request, in_any_case(response)), charged)
        except Exception:  # the response is sent: only the log can report it
            log.exception("counts failed: the request counts as it was charged")
            if held is not None:
                yield from held.free()
            return
        as_read = limiter.counted.as_read
        if held is not None:
            yield from held.free(as_read(settled))
            return
        unused = [max(0, before - now) for before, now in zip(charged, settled, strict=True)]
        more = [max(0, now - before) for before, now in zip(charged, settled, strict=True)]
        if any(unused):
            ago_us = max(0, self._clock.now_us() - requested_us)
            yield limiter.give_back(key, as_read(unused), ago_us, decision)
        if any(more) and not (yield limiter.hit(key, as_read(more))).allowed:
            remaining = _remaining(limiter.counted.units, (yield limiter.peek(key, as_read([0] * len(more)))))
            most = [min(units, rest) for units, rest in zip(more, remaining, strict=True)]
            if any(most):
                yield limiter.hit(key, as_read(most))

    def web_gate(self, kind: type[Request], *, writes_fields: bool | None, websockets: bool) -> Any:
        """Return the native gate; None where a Python function takes part in every decision.

        The parts that it reads are alike in requests of any `kind`; see `headgate.http.server.web_gates`.
        """
        if (
            self._fixed_limiter is None
            or not self._is_data
            or not self._fixed_limiter.counted.is_plain
            or type(self._cost) is not int
        ):
            return None
        bound = self._fixed_limiter.bound
        if isinstance(bound, FallbackLimits) and self._on_store_error != "local":
            bound = bound.bound  # it raises StoreError, and the adapter knows what was chosen
        rule = PlainRule(bound, self._fixed_limiter.definitions, self._address, within=self._routed)
        gate = native_gate(rule, self._store)
        if gate is None:
            return None
        scope = (self._scope or NOWHERE) if isinstance(self._scope, str) else ""
        return plain_web_gate(
            gate,
            cost=self._cost,
            writes_fields=writes_fields,
            asynchronous=self._asynchronous,
            websockets=websockets,
            endpoint=scope,
        )

    def may_share(self, other: RequestLimits) -> bool:
        """Whether these limits share a counter with those of another place if both count under one endpoint.

        Limits that a function chooses may be any limits, and two stores outside this process's memory may be the same.
        Limits with one `scope` share it on purpose.
        """
        if self._scope is not other._scope or self._scope not in (None, _endpoint_counter):
            return False
        if self._store is not other._store and (self._store.in_process or other._store.in_process):
            return False
        return self._shared_as is None or other._shared_as is None or self._shared_as == other._shared_as

    def charge_of(self, key: Key, requested_us: int) -> Charge:
        """Return the charge of a request that was decided natively."""
        return Charge(self._fixed_limiter, key, self._cost, requested_us)

    async def warm_up(self) -> None:
        """Have the store connect before the first request; a failure is logged."""
        if self._holding or self._wait or self._store.blocking:
            check_asyncio(NEEDS_ASYNCIO)
        await warm_up_async(self._store)

    @property
    def store(self) -> Store:
        """The store of the states."""
        store: Store = self._store
        return store

    @property
    def shares_store(self) -> bool:
        """Whether others may use the store, too."""
        return self.owned is None or not self.owned.in_process

    @property
    def definitions(self) -> tuple[NamedLimit, ...] | None:
        """The limits, where every request has the same ones."""
        return None if self._fixed_limiter is None or self._wide is not None else self._fixed_limiter.definitions

    def take_back_steps(self, charge: Charge, decision: Decision) -> Generator[Any, Any, None]:
        """Give back the whole charge; yields calls that may have to be awaited. Raises StoreError."""
        limiter, key, cost, requested_us, held = charge
        if held is not None:
            yield from held.free(0)
            return
        charged = limiter.counted.read(cost)
        if any(charged):
            ago_us = max(0, self._clock.now_us() - requested_us)
            yield limiter.give_back(key, limiter.counted.as_read(charged), ago_us, decision)

    def _decide(self, request: Request) -> RequestOutcome:
        if request.method == "OPTIONS" and _is_preflight(request):
            return None
        if self._exempt is not None and self._exempt(request):
            return None
        limits = self._limits_of(request) if self._fixed_limiter is None else self._limits_of
        if limits is None:
            return None
        key = self._key(request) if self._key is not None else None
        cost: Any = self._cost(request) if callable(self._cost) else self._cost
        pending: RequestOutcome = self._decide_key(request, limits, key, cost)
        return pending

    async def _decide_async(self, request: Request) -> Decision | None:
        """`_decide` where functions have to be awaited."""
        if request.method == "OPTIONS" and _is_preflight(request):
            return None
        if self._exempt is not None and await answered(self._exempt(request)):
            return None
        limits = await answered(self._limits_of(request)) if self._fixed_limiter is None else self._limits_of
        if limits is None:
            return None
        key = await answered(self._key(request)) if self._key is not None else None
        cost: Any = await answered(self._cost(request)) if callable(self._cost) else self._cost
        return await answered(self._decide_key(request, limits, key, cost))

    def _decide_key(self, request: Request, limits: AnyLimits, key: Key | None, cost: Any) -> Any:
        counted: Any = None
        if key is not None:
            if is_repeated(key):
                if self._refuse_repeated:
                    return self._refused(limits)
                key = tuple(SEVERAL if type(part) is Repeated else part for part in parts_of(key))
            counted = usable(key)
        if counted is None:
            if self._key is None or self._missing == "address":
                counted = self._client(request)
            elif self._missing == "anonymous":
                counted = _ANONYMOUS
            else:
                return self._refused(limits)
        counted = self._scoped(request, counted)
        if type(counted) is NetworkPair:
            limiter = self._limiter(limits, wide=True)
            decide = limiter.hit
        elif self._fixed_limiter is not None:
            limiter, decide = self._fixed_limiter, self._decide_fixed
        else:
            limiter = self._limiter(limits)
            decide = limiter.ask if self._asynchronous else limiter.hit
        if type(cost) is not int:
            cost = self._counted_here(limiter.counted, cost)
        if self._holding and id(limiter) in self._holding:
            return self._hold(request, limiter, counted, cost)
        if self._keeps_charges:
            request.charge = Charge(limiter, counted, cost, self._clock.now_us())
        return self._acquire(request, limits, limiter, counted, cost) if self._wait else decide(counted, cost)

    def _acquire(self, request: Request, limits: AnyLimits, limiter: Any, counted: Any, cost: Any) -> Any:
        """Let a request wait for its turn, no longer than its client waits, where that is known."""
        if self._asynchronous:
            check_asyncio(NEEDS_ASYNCIO)
        remaining: float | None = getattr(request, "time_remaining", None)
        timeout = self._wait if remaining is None else min(self._wait, max(remaining, 0.0))
        departure: Departure | None = getattr(request, "departure", None)
        if departure is not None and not self._asynchronous:
            try:
                return limiter.acquire_for(departure, counted, cost, timeout)
            except ClientLeft:
                return self._refused(limits)
        acquiring = limiter.acquire(counted, cost, timeout=timeout)
        return acquiring if departure is None else self._acquire_for(departure, acquiring, limits)

    async def _acquire_for(self, departure: Departure, acquiring: Any, limits: AnyLimits) -> Decision:
        """Await the decision for a client; if it leaves meanwhile, its request leaves the line, and is refused."""
        pending = begun(acquiring)
        try:
            await asyncio.sleep(0)  # most requests need not wait: then nothing is received for them
            if not pending.done():
                departure.begin(pending.cancel)
            decision: Decision = await pending
            return decision
        except asyncio.CancelledError:
            pending.cancel()
            task = asyncio.current_task()
            if not departure.gone or (task is not None and task.cancelling()):
                raise
            return self._refused(limits)
        finally:
            departure.end()

    def _hold(self, request: Request, limiter: Any, counted: Any, cost: Any) -> Any:
        """Hold a request until it is settled or taken back."""
        if self._asynchronous:
            check_asyncio(NEEDS_ASYNCIO)
        reserving = limiter.reserve(counted, cost, lease_us=self._lease_us)
        if self._asynchronous:
            return self._hold_async(request, reserving, limiter, counted, cost)
        return self._record_hold(request, reserving, limiter, counted, cost)

    async def _hold_async(self, request: Request, reserving: Any, limiter: Any, counted: Any, cost: Any) -> Decision:
        reservation = await (await_reservation(reserving) if self._store.blocking else reserving)
        return self._record_hold(request, reservation, limiter, counted, cost)

    def _record_hold(self, request: Request, reservation: Any, limiter: Any, counted: Any, cost: Any) -> Decision:
        if reservation:
            held = HeldRequest(reservation, asynchronous=self._asynchronous)
            request.charge = Charge(limiter, counted, cost, self._clock.now_us(), held)
        decision: Decision = reservation.decision
        return decision

    def _check_cost(self, limiters: Sequence[Any], cost: Any) -> None:
        """Raise ArgumentError for a cost that limits of one tier or another cannot take."""
        for limiter in limiters:
            limiter.counted.read(self._counted_here(limiter.counted, cost))
        if not limiters and not isinstance(cost, Mapping):
            check_cost(cost)

    def _counted_here(self, counted: Counted, cost: Any) -> Any:
        """Return a cost without the units that only limits of other tiers count."""
        if not isinstance(cost, Mapping) or self._fixed_limiter is not None:
            return cost
        elsewhere = self._units.difference(counted.units)
        return {name: amount for name, amount in cost.items() if unit_named(name) not in elsewhere}

    def _scoped(self, request: Request, counted: Any) -> Any:
        """Return the key within the scope in which a request counts."""
        if self._scope is None:
            return counted
        scope: Any = self._scope(request) if callable(self._scope) else self._scope
        return within(scope or NOWHERE, counted)

    def _client(self, request: Request) -> Key | NetworkPair:
        """Return the key of a client's address; a header longer than addresses are is not cached."""
        header = self._address.header
        sent = request.headers.get(header, "") if header else ""
        if len(sent) > _LONGEST_REMEMBERED:
            return self._key_of_address(request.client_ip, sent)
        return self._address_key(request.client_ip, sent)

    def _key_of_address(self, peer: str, header: str) -> Key | NetworkPair:
        if not isinstance(peer, str) or not peer.isascii():
            peer = ""  # not an address: a socket's name, perhaps
        key = ("ip", self._address.client(peer, header) or UNIX)
        if self._wide is None or ":" not in key[1]:
            return key
        return NetworkPair(key, ("ip", self._wide[0].client(peer, header)))

    def _refused(self, limits: AnyLimits) -> Decision:
        """Return the refusal of a request without a key or a client: its quota is 0. Shadow limits let it pass."""
        definitions = self._limiter(limits).definitions
        readings = [Reading(False, 0, 0, None, 0, 0) for _ in definitions]
        binding = None if self._shadow else 0
        return Decision(definitions, readings, allowed=self._shadow, binding=binding)

    def _limiter(self, limits: AnyLimits, *, wide: bool = False) -> Any:
        """Return the limiter of these limits, made at their first use."""
        cache_key = (limits if isinstance(limits, str) else repr(limits), wide)
        limiter = self._limiters.get(cache_key)
        if limiter is not None:
            return limiter
        if callable(self._given_limits) and len(self._limiters) >= _MOST_LIMITERS:
            # The store keeps the states: should the oldest limits be needed again, they go on with them.
            oldest, *_ = self._limiters  # in one step, as another thread may add limiters
            self._limiters.pop(oldest, None)
        if wide and self._wide is not None:
            limiter = WideLimiter(
                self._limiter(limits).limits,
                self._wide[1],
                store=self._guarded_store,
                name=self._name,
                shadow=self._shadow,
                clock=self._given_clock,
                asynchronous=self._asynchronous,
                on_store_error=self._on_store_error,
            )
        else:
            kind = AsyncLimiter if self._asynchronous else Limiter
            limiter = kind(
                limits,
                store=self._guarded_store,
                name=self._name,
                clock=self._given_clock,
                shadow=self._shadow,
                on_store_error=self._on_store_error or None,
            )
            if any(not limit.is_rate for limit in limiter.limits):
                if callable(self._given_limits):
                    check_rates(limiter.limits)
                limiter.id_of(("anyone",), "any")  # ConfigError where the store does not hold
                self._holding.add(id(limiter))
        self._limiters[cache_key] = limiter
        return limiter


def _tiered(limits: Mapping[str, AnyLimits | None], tier: Any) -> Callable[[Request], Any]:
    """Return the function that gives the limits of a request's tier."""
    if tier is None:
        raise ConfigError("limits of several tiers need tier: a function that gives a request's tier")
    if _DEFAULT not in limits:
        raise ConfigError(f"limits of tiers name {_DEFAULT!r}, for requests of any other tier: {list(limits)!r:.80}")
    default = limits[_DEFAULT]

    def of_tier(value: Any) -> AnyLimits | None:
        try:
            return limits.get(_tier_name(value), default)
        except TypeError:  # a list, perhaps of all groups of a user, is not the name of a tier
            return default

    def limits_of(request: Request) -> AnyLimits | None:
        return of_tier(tier(request))

    async def limits_of_async(request: Request) -> AnyLimits | None:
        return of_tier(await tier(request))

    return limits_of_async if iscoroutinefunction(tier) else limits_of


def _settled(counted: Counted, reported: Any, charged: tuple[int, ...]) -> tuple[int, ...]:
    """Return how much of each unit a request takes, as `counts` has `reported` it; `charged` is what was charged."""
    if reported is True:
        return charged
    if reported is False:
        return (0,) * len(charged)
    if counted.is_plain and not isinstance(reported, Mapping):
        if (whole := int(reported)) != reported:
            raise ValueError(f"counts returned {reported!r}: return True, False, or a whole number")
        reported = whole
    return counted.read_settled(reported, charged)


def _remaining(units: Sequence[str], decision: Decision) -> list[int]:
    """Return how much the limits that count each unit have left."""
    return [min(reading.remaining for reading in decision.limits if reading.unit == unit) for unit in units]


def _wait_s(options: Mapping[str, Any]) -> float:
    wait = options.get("wait", 0)
    try:
        timeout_us(wait)
    except ArgumentError as error:
        raise ConfigError(f"wait is the number of seconds for which a request may wait in line: {error}") from error
    return wait or 0


def _tier_name(tier: Any) -> Any:
    """Return the name of a tier: the last part of a key of `headgate.http.keys`, whose first part is its source."""
    return tier[-1] if isinstance(tier, tuple) and tier else tier


def _endpoint_counter(request: Request) -> str:
    counted_as: str | None = getattr(request, "counted_as", None)
    return request.endpoint if counted_as is None else counted_as


def _is_preflight(request: Request) -> bool:
    """Whether this is a CORS preflight: a browser sends it only before a request of another origin (Fetch, 3.2.2)."""
    return "origin" in request.headers and "access-control-request-method" in request.headers
