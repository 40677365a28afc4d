"""`acquire` of gates, in both colours: a request waits in line for the rules of a policy that let it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, overload

from headgate.clock import Clock
from headgate.costs import Cost
from headgate.decision import Decision
from headgate.drive import answered
from headgate.errors import ArgumentError
from headgate.holding import Hold, Reserved, lease_of, remember_of
from headgate.policy.compiled import ALL_RULES, Policy
from headgate.policy.gate_holds import GateHolds
from headgate.policy.resolver import Resolved, Resolver, Settled
from headgate.policy.rule_waits import RuleWaits, Waiting
from headgate.policy.subject import Subject
from headgate.reservation import AsyncReservation, Reservation, reserved_or_given_back
from headgate.stores.protocol import Store
from headgate.waiting.departure import Departure
from headgate.waiting.run import run, run_async
from headgate.waiting.steps import Holding, timeout_us

_NAME_BYTES = 16


class _GateAcquiring:
    """The parts that both colours share: a policy on a store, and the requests that wait for it."""

    _resolver: Resolver
    _holds: Any
    _waits: RuleWaits
    _waiting_clock: Clock
    store: Store

    def _with_gate_id(
        self, policy: Policy, resolved: Resolved, cost: Cost, reserved: Reserved
    ) -> tuple[GateHolds, Reserved]:
        raise NotImplementedError

    def watch_waiting(self, listener: Callable[[int], object]) -> None:
        """Call a listener with the number of requests that wait in line, whenever it changes; on any thread."""
        self._waits.listeners.append(listener)

    def bound_waiting(self, most: int, why: str) -> None:
        """Let at most `most` requests wait in line, whatever the policy says; the log gives `why` as the reason."""
        self._waits.bound(most, why)

    @staticmethod
    def _hold(lease: float | None, lease_us: int | None, id: str | bytes | None, remember: float | None) -> Hold | None:
        """The hold that a caller's options request; None where they request none."""
        if lease is None and lease_us is None and id is None and remember is None:
            return None
        return Hold(id, lease_of(lease, lease_us), remember_of(remember))

    @staticmethod
    def _check_lease(resolved: Resolved) -> None:
        """Raise ArgumentError for a request that a rule counts while it is in flight, as it has no lease."""
        if any(rule.in_flight for rule in resolved[2]):
            raise ArgumentError(
                "a rule counts what is in flight, and what is acquired without a lease never ends: "
                "acquire(request, lease=60) waits for a place, and gives a reservation that frees it"
            )

    @staticmethod
    def _waiting(
        policy: Policy, resolved: Resolved, most_us: int, hold: Hold | None, departure: Departure | None
    ) -> Waiting | None:
        """The request as one that may wait; None where none of its rules lets it wait."""
        bound, operation, rules, _ = resolved
        for rule in rules:
            if rule.wait_us and not isinstance(bound, Settled):
                break
        else:
            return None
        holding = None
        if hold is not None:
            named_hold = hold if hold.name is not None else hold._replace(name=os.urandom(_NAME_BYTES))
            holding = Holding(named_hold, bound.id_of(operation.keys[0], named_hold.name), hold.name is not None)
        return Waiting(policy, resolved, most_us, holding, departure or Departure())


class GateAcquiring(_GateAcquiring):
    """`acquire` for threads."""

    @overload
    def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> Decision: ...
    @overload
    def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease: float,
        id: str | bytes | None = None,
        lease_us: int | None = None,
        remember: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> Reservation: ...
    @overload
    def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease_us: int,
        id: str | bytes | None = None,
        remember: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> Reservation: ...
    @overload
    def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        id: str | bytes,
        remember: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> Reservation: ...
    @overload
    def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        remember: float,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> Reservation: ...

    def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        id: str | bytes | None = None,
        lease_us: int | None = None,
        remember: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> Decision | Reservation:
        """`hit`, but wait in line for as long as the `wait` of each rule allows, and at most `timeout` seconds.

        With `lease`, `id` or `remember` the request is held, as by `reserve`; rules that count requests in flight need
        that. The request is refused at once, and consumes nothing, where a rule without `wait` refuses it, where the
        turn that a rule promises comes too late, or where `departure` reports that its client has disconnected. The
        delay that a queue gives is left to the caller to wait for, as after a hit. Blocks only this thread.
        """
        most_us, hold = timeout_us(timeout), self._hold(lease, lease_us, id, remember)
        resolver = self._resolver
        resolved = resolver.prepare(request, cost, ruleset)
        if hold is None:
            self._check_lease(resolved)
        return self._take(resolver.policy, resolved, cost, most_us, hold, departure)

    def acquire_or_hold(
        self,
        request: Subject,
        cost: Cost,
        lease_us: int,
        *,
        ruleset: str = ALL_RULES,
        timeout: float | None = None,
        departure: Departure | None = None,
    ) -> Decision | Reservation:
        """`acquire`, with a lease where a rule applies that counts requests in flight.

        For callers that see the end of the request, such as middlewares.
        """
        resolver = self._resolver
        resolved = resolver.prepare(request, cost, ruleset)
        hold = Hold(None, lease_us) if any(rule.in_flight for rule in resolved[2]) else None
        return self._take(resolver.policy, resolved, cost, timeout_us(timeout), hold, departure)

    def _take(
        self,
        policy: Policy,
        resolved: Resolved,
        cost: Cost,
        most_us: int,
        hold: Hold | None,
        departure: Departure | None,
    ) -> Decision | Reservation:
        bound, operation, _, _ = resolved
        waiting, answer = None, None
        if self._waits.lines or hold is not None:
            waiting = self._waiting(policy, resolved, most_us, hold, departure)
        else:
            answer = bound.decide(operation)
            if not answer:
                waiting = self._waiting(policy, resolved, most_us, hold, departure)
        if waiting is not None:
            answer = run(self._waits.steps(waiting, answer), bound, self._waiting_clock)
        elif answer is None:
            answer = bound.decide(operation) if hold is None else bound.reserve(operation, hold)
        if hold is None:
            decision: Decision = answer
            return decision
        return Reservation(*self._with_gate_id(policy, resolved, cost, answer), hold.lease_us)


class AsyncGateAcquiring(_GateAcquiring):
    """`acquire` for asyncio."""

    @overload
    async def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> Decision: ...
    @overload
    async def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease: float,
        id: str | bytes | None = None,
        lease_us: int | None = None,
        remember: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> AsyncReservation: ...
    @overload
    async def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease_us: int,
        id: str | bytes | None = None,
        remember: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> AsyncReservation: ...
    @overload
    async def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        id: str | bytes,
        remember: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> AsyncReservation: ...
    @overload
    async def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        remember: float,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> AsyncReservation: ...

    async def acquire(
        self,
        request: Subject,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        id: str | bytes | None = None,
        lease_us: int | None = None,
        remember: float | None = None,
        ruleset: str = ALL_RULES,
        departure: Departure | None = None,
    ) -> Decision | AsyncReservation:
        """See `Gate.acquire`; a cancelled call leaves the line, and gives back what it was charged at that moment."""
        most_us, hold = timeout_us(timeout), self._hold(lease, lease_us, id, remember)
        resolver = self._resolver
        resolved = resolver.prepare(request, cost, ruleset)
        if hold is None:
            self._check_lease(resolved)
        decided: Decision | AsyncReservation = await answered(
            self._take(resolver.policy, resolved, cost, most_us, hold, departure)
        )
        return decided

    def acquire_or_hold(
        self,
        request: Subject,
        cost: Cost,
        lease_us: int,
        *,
        ruleset: str = ALL_RULES,
        timeout: float | None = None,
        departure: Departure | None = None,
    ) -> Decision | Awaitable[Decision | AsyncReservation]:
        """See `Gate.acquire_or_hold`; the decision, or an awaitable where the call waits for I/O or in line."""
        resolver = self._resolver
        resolved = resolver.prepare(request, cost, ruleset)
        hold = Hold(None, lease_us) if any(rule.in_flight for rule in resolved[2]) else None
        answer: Decision | Awaitable[Decision | AsyncReservation]
        answer = self._take(resolver.policy, resolved, cost, timeout_us(timeout), hold, departure)
        return answer

    def _take(
        self,
        policy: Policy,
        resolved: Resolved,
        cost: Cost,
        most_us: int,
        hold: Hold | None,
        departure: Departure | None,
    ) -> Any:
        bound, operation, _, _ = resolved
        waiting, answer = None, None
        if self._waits.lines or hold is not None or self.store.blocking:
            waiting = self._waiting(policy, resolved, most_us, hold, departure)
        else:
            answer = bound.decide(operation)
            if not answer:
                waiting = self._waiting(policy, resolved, most_us, hold, departure)
        answering: Any
        if waiting is not None:
            answering = run_async(self._waits.steps(waiting, answer), bound, self._waiting_clock)
        elif hold is None:
            return bound.decide(operation) if answer is None else answer
        else:
            answering = reserved_or_given_back(bound.reserve(operation, hold), hold, self._holds.commit)
        return answering if hold is None else self._held(policy, resolved, cost, answering, hold)

    async def _held(
        self, policy: Policy, resolved: Resolved, cost: Cost, answering: Any, hold: Hold
    ) -> AsyncReservation:
        return AsyncReservation(*self._with_gate_id(policy, resolved, cost, await answered(answering)), hold.lease_us)
