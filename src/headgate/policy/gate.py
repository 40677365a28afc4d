"""A policy bound to a store, which decides for requests.

`Gate` for threads, `AsyncGate` for asyncio. All rules that apply to a request are decided together,
all or none, in one call of the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path as FilePath
from threading import RLock
from typing import Any

from headgate import core
from headgate.clock import Clock, check_clock
from headgate.costs import Cost
from headgate.decision import Decision, NamedLimit, OnStoreError
from headgate.drive import answered
from headgate.errors import ConfigError, kind_of
from headgate.forks import InOneProcess, ProcessLock
from headgate.holding import Extension, Hold, Reserved, Settlement, lease_of, remember_of
from headgate.operation import Operation
from headgate.policy.compiled import ALL_RULES, Policy, Rule
from headgate.policy.gate_acquiring import AsyncGateAcquiring, GateAcquiring
from headgate.policy.gate_holds import GateHolds, HoldLines
from headgate.policy.held_groups import HeldGroups, groups_suffix, requests_alone
from headgate.policy.policy_file import check_path
from headgate.policy.resolver import Resolved, Resolver
from headgate.policy.rule_costs import GROUP_COSTS, GroupCosts
from headgate.policy.rule_lines import place_lines
from headgate.policy.rule_waits import RuleWaits
from headgate.policy.store_fit import check_fit, check_holds
from headgate.policy.subject import Subject
from headgate.reservation import AsyncReservation, Reservation, reserved_or_given_back
from headgate.stores.guard.choice import fallback_state_of, guarded, with_fallback
from headgate.stores.guard.deferred_limits import bind_or_defer
from headgate.stores.guard.fallback import check_on_store_error
from headgate.stores.guard.store import GuardedStore
from headgate.stores.protocol import Store, StoreStats, warm_up, warm_up_async
from headgate.stores.url import store_of
from headgate.waiting.steps import FOREVER_US

AnyPolicy = Policy | Mapping[str, Any] | str | FilePath
"""A policy, its values, or the path of its file."""


def read_policy(policy: AnyPolicy) -> Policy:
    """Return a policy from the path of a file or from values.

    Raises PolicyError, OSError for a file that cannot be read, and ConfigError for text that cannot be a path.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, Mapping | str | PathLike):
        raise ConfigError(f"a policy is the path of a file, its values or a Policy, not {kind_of(policy)}")
    from headgate.policy.compiler import compile_policy  # needs the extra `policy`; a Policy does not
    from headgate.policy.load import build_policy, load_policy

    if isinstance(policy, Mapping):
        return compile_policy(build_policy(policy))
    try:
        return compile_policy(load_policy(policy))
    except OSError as error:
        check_path(policy, error)
        raise


def native_gate(resolver: Any, store: Store) -> Any:
    """The native gate of a resolver's policy; None where a Python function gives identities, and on the Python core.

    A resolver is a `Resolver`, or any object that has a `policy` and binds limits as `Resolver.bound_for` does.

    The native gate returns None for what it leaves to Python: a subject that is no plain `Request`, or text and costs
    of unusual types.
    """
    if core.native is None or getattr(store, "core", "") == "python":
        return None
    return core.native.NativeGate.of(resolver)


class _PythonCalls:
    """Takes the place of the native `GateCalls` where Python decides."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def hit(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Any:
        return self._resolver.decide(request, cost, ruleset, True)

    def peek(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Any:
        return self._resolver.decide(request, cost, ruleset, False)


class _BoundPolicy(InOneProcess):
    """The parts that the gates of both colours share."""

    _reservation: Any

    def __init__(
        self,
        policy: AnyPolicy,
        *,
        store: str | Store | None = None,
        clock: Clock | None = None,
        on_store_error: OnStoreError | None = None,
    ) -> None:
        self._on_store_error = check_on_store_error(on_store_error)
        self._clock = check_clock(clock)
        compiled = read_policy(policy)
        chosen = compiled.store if store is None else store
        self.store = store_of(chosen)
        self._guarded_store = guarded(self.store)
        self._waiting_clock = self._clock or self.store.clock
        self._waits = RuleWaits(self.store, self._waiting_clock)
        self._hold_lines = HoldLines(self._waits.lines)
        self._fallback_state = fallback_state_of(self.store)
        self._settles: Any = None
        self._calls: Any = None
        check_holds(compiled, self._bind)
        check_fit(compiled, self.store, clock=self._clock)
        self._take_policy(compiled)
        self.before_reload: list[Callable[[Policy], object]] = []
        """Called with the new policy before each reload: if one of them raises, the old policy stays."""

        self.reloaded: list[Callable[[], object]] = []
        """Called after each reload."""

        self._reloading = ProcessLock(RLock)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._resolver.policy

    @property
    def guarded_store(self) -> Store:
        """The store behind its guard, which decides while the store does not answer."""
        return self._guarded_store

    @property
    def clock(self) -> Clock | None:
        """The clock that was passed in; None for the store's own."""
        return self._clock

    @property
    def resolver(self) -> Resolver:
        """The resolver of the policy in force: it gives the limits and keys of a request."""
        return self._resolver

    @property
    def native(self) -> Any:
        """The native gate of the policy in force; None where Python decides."""
        return self._native

    def keyed(self, resolved: Resolved, held: Sequence[int], settled: Sequence[int], lease_us: int) -> Any:
        """The native `KeyedLimits` of a resolved request, which hold and settle without waiting; leases are `lease_us`.

        `held` and `settled` are indexes into the amounts that a caller passes: for each group, the amount to hold, and
        the amount that counts in the end. None where the store has no native limits, or a rule has a `wait`: use
        `reserve_groups` there.
        """
        bound, operation, rules, units = resolved
        native = core.native
        if native is None or not isinstance(bound, native.BoundLimits) or any(rule.wait_us for rule in rules):
            return None
        return native.KeyedLimits(bound, operation.keys, groups_suffix(units), held, settled, lease_us)

    def reload(self, policy: AnyPolicy) -> None:
        """Put another policy in force, completely or not at all; quota that was used stays used.

        Raises PolicyError for a policy that cannot be used, ConfigError for one that the store cannot keep, or that
        lacks what a middleware of this gate names: its `ruleset`, a unit of its `cost`. Then the old one stays in
        force.
        """
        compiled = read_policy(policy)
        check_holds(compiled, self._bind)
        check_fit(compiled, self.store, clock=self._clock)
        with self._reloading.current:  # listeners see the same policy, even if two threads reload
            for check in list(self.before_reload):
                check(compiled)
            self._take_policy(compiled)
            for listener in list(self.reloaded):
                listener()

    def in_force(self) -> tuple[Policy, Callable[..., Any]]:
        """The policy in force, and a `hit` (in asyncio `ask`) that keeps deciding by it after any reload.

        If a subclass overrides the method, its own is returned as it is.
        """
        with self._reloading.current:
            native, resolver = self._native, self._resolver
        calls: Any = _PythonCalls(resolver) if native is None else core.native.GateCalls(native, resolver)  # type: ignore[union-attr]
        method, usual, own = self._shortcuts(calls)[0]
        return resolver.policy, own if getattr(type(self), method) is usual else getattr(self, method)

    def _take_policy(self, policy: Policy) -> None:
        resolver = Resolver(policy, self._bind, self._on_store_error)
        self._decide_by(resolver, native_gate(resolver, self.store))

    def _decide_by(self, resolver: Resolver, native: Any) -> None:
        """Decide by this policy from now on: natively, except for what the native gate leaves to Python."""
        resolver.native = native
        self._resolver, self._native = resolver, native
        if self._calls is not None:
            self._calls.take(native, resolver)
        elif native is not None:
            calls: Any = core.native
            self._calls = calls.GateCalls(native, resolver)
            for method, usual, own in self._shortcuts(self._calls):
                if getattr(type(self), method) is usual:  # a method that a subclass overrides stays
                    setattr(self, method, own)

    def _shortcuts(self, calls: Any) -> Sequence[tuple[str, Any, Any]]:
        """(name of a method, its function in this class, the native call that does the same) of the fastest calls."""
        raise NotImplementedError

    def _decide(self, request: Subject, cost: Cost, ruleset: str, commit: bool) -> Any:
        """Decide, and charge if `commit`; return an awaitable where the store waits for I/O."""
        if self._calls is None:
            return self._resolver.decide(request, cost, ruleset, commit)
        return (self._calls.hit if commit else self._calls.peek)(request, cost, ruleset=ruleset)

    def _bind(self, limits: tuple[NamedLimit, ...]) -> Any:
        return with_fallback(self.store, self._bound(limits), limits, self._clock, state=self._fallback_state)

    def _bound(self, limits: tuple[NamedLimit, ...]) -> Any:
        """The limits bound to the store; if that fails now, it is tried again on each call of the limits."""
        bind = partial(self._bind_to, limits, clock=self._clock)
        return bind_or_defer(bind) if self.store.failure == "in parts" else bind()

    @property
    def _bind_to(self) -> Callable[..., Any]:
        """The function that binds limits to the store, in this colour."""
        return self._guarded_store.bind

    def id_of(self, request: Subject, id: str | bytes, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> str:
        """The whole id of the hold of this name for a request, whether it exists or not; makes no call of the store.

        A name is unique within the key of the first rule that applies. `cost` must be the one of its `reserve`: an id
        contains the units whose amounts the caller stated.
        """
        bound, operation, rules, units = self._resolver.prepare(request, 1, ruleset)
        store_id = bound.id_of(operation.keys[0] if operation.keys else (), id)
        return _groups_of(rules, units, cost).id(store_id)

    def held_before(self, resolved: Resolved, id: str | bytes, lease_us: int) -> Any:
        """The reservation of a hold that `reserve_groups` made earlier under this id; makes no call of the store.

        It is settled by the rules that apply to the request now; that raises ArgumentError if they have changed.
        """
        bound, operation, _, _ = resolved
        store_id = bound.id_of(operation.keys[0] if operation.keys else (), id)
        reserved = Reserved(Decision((), (), allowed=True, binding=None), store_id, True)
        return self._reservation(*self._with_gate_id(self.policy, resolved, GROUP_COSTS, reserved), lease_us)

    def _with_gate_id(
        self, policy: Policy, resolved: Resolved, cost: Cost, reserved: Reserved
    ) -> tuple[GateHolds, Reserved]:
        """(the object that settles a hold of a policy, the hold with a gate's id, which contains its groups)."""
        bound, _, rules, units = resolved
        for rule in rules:
            if rule.wait_us and rule.in_flight and reserved.decision.allowed:
                self._hold_lines.add(reserved.id, place_lines(policy, resolved))
                break
        gate_id = reserved.id + groups_suffix(units) if isinstance(cost, GroupCosts) else ""
        with_gate_id = reserved._replace(id=gate_id or _groups_of(rules, units, cost).id(reserved.id))
        return GateHolds(bound, self._resolver.units, self._hold_lines), with_gate_id

    @property
    def _holds(self) -> Any:
        """Settles any hold by its id. Bound limits of no rule suffice, as the hold's record has all that is needed."""
        if self._settles is None:
            self._settles = self._bind(())
        return GateHolds(self._settles, self._resolver.units, self._hold_lines)

    def _bind_ahead(self) -> None:
        """Bind the limits of each rule, so that the store knows their sizes before the first decision."""
        if self.store.blocking:
            for rule in self.policy.rules:
                for limits in rule.limits.values():
                    self._bound(tuple(replace(limit, group=0) for limit in limits))

    def stats(self) -> StoreStats:
        """The statistics of the store."""
        return self._guarded_store.stats()

    def watch_store(self, listener: Callable[[Exception | None], object]) -> None:
        """Call a listener with an error when the store stops answering, and with None when it answers again.

        It may be called on any thread. A store in the memory of this process always answers.
        """
        breaker = self._guarded_store.breaker
        if breaker is not None:
            breaker.listeners.append(listener)

    def watch_settlements(self, listener: Callable[[int, int, int], object]) -> None:
        """Call a listener when settlements that could not reach the store are kept, sent later or lost.

        Its arguments are the number that is kept now, and the numbers just sent and just lost. Called on any thread.
        """
        if isinstance(self._guarded_store, GuardedStore):
            self._guarded_store.pending_settlements.listeners.append(listener)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy.namespace!r}, store={self.store!r})"


class Gate(_BoundPolicy, GateAcquiring):
    """A policy bound to a store; safe under threads.

    `policy` is the path of a policy file, its values as a mapping, or a Policy. `store` (a URL or a
    store) replaces the one that the policy names, `on_store_error` the policy's choice for rules without
    their own. Raises PolicyError with all errors of the policy.
    """

    _reservation = Reservation

    def _shortcuts(self, calls: Any) -> Sequence[tuple[str, Any, Any]]:
        return [("hit", Gate.hit, calls.hit), ("peek", Gate.peek, calls.peek)]

    def hit(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """Decide for a request and charge it: `cost` times the cost of each rule, all rules or none.

        `cost` is a whole number from 0 to 2**52; multiplied by a rule's own cost it counts as 2**52 at most. Or it is a
        mapping from unit to number: `requests` is the number of such requests, 1 if it is not named; amounts of other
        units are charged in place of the rules' own costs. A unit that no limit of the policy counts raises
        ArgumentError.
        Only the rules of `ruleset` apply. The decision's `rule` is that of the binding limit. A request that no rule
        applies to, or that is exempt, passes with `limits` empty. Where a rule counts requests in flight, a hit would
        never end: that raises ArgumentError, and `reserve` holds such a request.
        """
        decision: Decision = self._decide(request, cost, ruleset, commit=True)
        return decision

    def peek(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """Decide for a request and change nothing."""
        decision: Decision = self._decide(request, cost, ruleset, commit=False)
        return decision

    def reserve(
        self,
        request: Subject,
        cost: Cost = 1,
        lease: float = 60,
        id: str | bytes | None = None,
        lease_us: int | None = None,
        remember: float | None = None,
        *,
        ruleset: str = ALL_RULES,
    ) -> Reservation:
        """Hold a request: charge it now like a hit, by all rules that apply or none, and settle actual amounts later.

        `id` is a name for the hold within the key of the first rule that applies; all else as in `Limiter.reserve`. A
        request that no rule applies to, or that is exempt, is held and settled without a store.
        """
        chosen_lease_us = lease_of(lease, lease_us)
        hold = Hold(id, chosen_lease_us, remember_of(remember))
        return self._reserve(self._resolver.prepare(request, cost, ruleset), cost, hold)

    def reserve_groups(self, resolver: Resolver, resolved: Resolved, costs: tuple[int, ...], hold: Hold) -> Reservation:
        """Hold a resolved request at a cost for each group; wait in line where a rule has a `wait`."""
        with_costs = _with_costs(resolved, costs)
        if not resolver.policy.waits:
            return self._reserve(with_costs, GROUP_COSTS, hold)
        held: Any = self._take(resolver.policy, with_costs, GROUP_COSTS, FOREVER_US, hold, None)
        return held  # type: ignore[no-any-return]

    def hit_or_hold(
        self, request: Subject, cost: Cost, lease_us: int, *, ruleset: str = ALL_RULES
    ) -> Decision | Reservation:
        """`hit`, or `reserve` where a rule applies that counts requests in flight.

        For callers that see the end of the request, such as middlewares.
        """
        resolved = self._resolver.prepare(request, cost, ruleset)
        if any(rule.in_flight for rule in resolved[2]):
            return self._reserve(resolved, cost, Hold(None, lease_us))
        decision: Decision = resolved[0].decide(resolved[1])
        return decision

    def _reserve(self, resolved: Resolved, cost: Cost, hold: Hold) -> Reservation:
        reserved = resolved[0].reserve(resolved[1], hold)
        return Reservation(*self._with_gate_id(self.policy, resolved, cost, reserved), hold.lease_us)

    def commit(self, id: str, actual: Cost | None = None) -> Settlement:
        """Settle a hold of any gate on this store, by its whole id; None settles the amounts that are held.

        `actual` is given as costs are: a number is a number of requests, each at the rules' own costs when it was held;
        a mapping may name the actual amounts of other units. Units that are not named stay as they were held. The
        policy may have changed since. `after` is empty: a reservation's own `commit` reports the limits afterwards.
        Raises as `Limiter.commit` does.
        """
        settlement: Settlement = self._holds.commit(id, actual)
        return settlement

    def cancel(self, id: str) -> Settlement:
        """Settle a hold as if it had never been made: `commit` with 0."""
        return self.commit(id, 0)

    def extend(self, id: str, lease: float = 60, more: Cost = 0, *, lease_us: int | None = None) -> Extension:
        """Let a lease end `lease` seconds from now, and hold `more` in addition; see `Limiter.extend`."""
        extension: Extension = self._holds.extend(id, lease_of(lease, lease_us), (more,))
        return extension

    @property
    def decide_at(self) -> Callable[[Subject, int, Cost], tuple[Decision, Resolved]]:
        """A function that decides a request at a given time, in microseconds since the epoch; for replays.

        It returns the decision and the resolved request, and uses the policy that was in force when the function was
        made.
        """
        native, resolve = self._native, self._resolver.resolve

        def decide_at(request: Subject, now_us: int, cost: Cost) -> tuple[Decision, Resolved]:
            if native is not None and (native_answer := native.decide_at(request, now_us, cost, ALL_RULES)) is not None:
                decided: tuple[Decision, Resolved] = native_answer
                return decided
            resolved = resolve(request, cost, ALL_RULES)
            bound, operation, _, _ = resolved
            return bound.decide(Operation(operation.keys, operation.costs, now_us=now_us)), resolved

        return decide_at

    def warm_up(self) -> None:
        """Connect the store before the first request; a failure is logged."""
        self._bind_ahead()
        warm_up(self.store)

    def close(self) -> None:
        """Close the store."""
        self._fallback_state.pending_settlements.close()
        self._guarded_store.close()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGate(_BoundPolicy, AsyncGateAcquiring):
    """`Gate` for asyncio: the same names, awaited."""

    _reservation = AsyncReservation

    def _shortcuts(self, calls: Any) -> Sequence[tuple[str, Any, Any]]:
        return [("ask", AsyncGate.ask, calls.hit)]

    @property
    def _bind_to(self) -> Callable[..., Any]:
        return self._guarded_store.bind_async

    async def hit(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """See `Gate.hit`."""
        decision: Decision = await answered(self.ask(request, cost, ruleset=ruleset))
        return decision

    async def peek(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision:
        """See `Gate.peek`."""
        decision: Decision = await answered(self._decide(request, cost, ruleset, commit=False))
        return decision

    async def ping(self) -> None:
        """Raise StoreError if the store does not answer."""
        await self.store.ping_async()

    def ask(self, request: Subject, cost: Cost = 1, *, ruleset: str = ALL_RULES) -> Decision | Awaitable[Decision]:
        """`hit` without a coroutine of its own: the decision, or an awaitable where the store waits for I/O."""
        decision: Decision | Awaitable[Decision] = self._decide(request, cost, ruleset, commit=True)
        return decision

    async def reserve(
        self,
        request: Subject,
        cost: Cost = 1,
        lease: float = 60,
        id: str | bytes | None = None,
        lease_us: int | None = None,
        remember: float | None = None,
        *,
        ruleset: str = ALL_RULES,
    ) -> AsyncReservation:
        """See `Gate.reserve`: `async with await gate.reserve(request) as held`."""
        chosen_lease_us = lease_of(lease, lease_us)
        hold = Hold(id, chosen_lease_us, remember_of(remember))
        return await self._reserve(self._resolver.prepare(request, cost, ruleset), cost, hold)

    async def reserve_groups(
        self, resolver: Resolver, resolved: Resolved, costs: tuple[int, ...], hold: Hold
    ) -> AsyncReservation:
        """See `Gate.reserve_groups`."""
        with_costs = _with_costs(resolved, costs)
        if not resolver.policy.waits:
            return await self._reserve(with_costs, GROUP_COSTS, hold)
        held: AsyncReservation = await answered(
            self._take(resolver.policy, with_costs, GROUP_COSTS, FOREVER_US, hold, None)
        )
        return held

    async def hit_or_hold(
        self, request: Subject, cost: Cost, lease_us: int, *, ruleset: str = ALL_RULES
    ) -> Decision | AsyncReservation:
        """See `Gate.hit_or_hold`."""
        resolved = self._resolver.prepare(request, cost, ruleset)
        if any(rule.in_flight for rule in resolved[2]):
            return await self._reserve(resolved, cost, Hold(None, lease_us))
        decision: Decision = await answered(resolved[0].decide(resolved[1]))
        return decision

    async def _reserve(self, resolved: Resolved, cost: Cost, hold: Hold) -> AsyncReservation:
        reserved = await reserved_or_given_back(resolved[0].reserve(resolved[1], hold), hold, self._holds.commit)
        return AsyncReservation(*self._with_gate_id(self.policy, resolved, cost, reserved), hold.lease_us)

    async def commit(self, id: str, actual: Cost | None = None) -> Settlement:
        """See `Gate.commit`."""
        settlement: Settlement = await answered(self._holds.commit(id, actual))
        return settlement

    async def cancel(self, id: str) -> Settlement:
        """See `Gate.cancel`."""
        return await self.commit(id, 0)

    async def extend(self, id: str, lease: float = 60, more: Cost = 0, *, lease_us: int | None = None) -> Extension:
        """See `Gate.extend`."""
        extension: Extension = await answered(self._holds.extend(id, lease_of(lease, lease_us), (more,)))
        return extension

    async def warm_up(self) -> None:
        """See `Gate.warm_up`."""
        self._bind_ahead()
        await warm_up_async(self.store)

    async def close(self) -> None:
        """Close the store."""
        self._fallback_state.pending_settlements.close()
        await self._guarded_store.aclose()

    async def __aenter__(self) -> AsyncGate:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _with_costs(resolved: Resolved, costs: tuple[int, ...]) -> Resolved:
    """The resolved request with another cost for each group; where no rule applies there are no groups."""
    bound, operation, rules, units = resolved
    return bound, Operation(operation.keys, costs), rules, units


def _groups_of(rules: tuple[Rule, ...], units: tuple[str, ...], cost: Cost) -> HeldGroups:
    """The groups of a hold of this cost, by the rule and the unit of each group."""
    if isinstance(cost, GroupCosts):
        return requests_alone(units)
    return HeldGroups.of(units, [rule.cost_in(unit) for rule, unit in zip(rules, units, strict=True)], cost)
