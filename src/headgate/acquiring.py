"""Waiting for what a limiter limits: `acquire`, in both colours."""

from __future__ import annotations

from typing import Any, overload

from headgate.clock import Clock
from headgate.costs import Cost, Counted
from headgate.decision import Decision, NamedLimit
from headgate.holding import Hold, lease_of, remember_of
from headgate.keys import Key
from headgate.reservation import AsyncReservation, Reservation
from headgate.waiting.departure import Departure
from headgate.waiting.freed import check_has_lease
from headgate.waiting.lines import WaitingLines
from headgate.waiting.run import run, run_async
from headgate.waiting.steps import WaitSteps, timeout_us


class _Acquiring:
    """What both colours are made of: limits that are bound to a store, and their lines."""

    definitions: tuple[NamedLimit, ...]
    counted: Counted
    _bound: Any
    _clock: Clock
    _lines: WaitingLines

    @property
    def _holds(self) -> Any:
        raise NotImplementedError

    def _taking(self, key: Key, cost: Cost, timeout: float | None) -> WaitSteps:
        costs, most_us = self.counted.read(cost), timeout_us(timeout)
        check_has_lease(self.definitions)
        return self._lines.steps(key, costs, most_us)

    def _holding(
        self,
        key: Key,
        cost: Cost,
        timeout: float | None,
        lease: float | None,
        lease_us: int | None,
        id: str | bytes | None,
        remember: float | None,
    ) -> tuple[WaitSteps, int]:
        """(the steps of waiting, the lease) of what is to be held."""
        own_us = lease_of(lease, lease_us)
        holding = self._lines.holding(key, Hold(id, own_us, remember_of(remember)))
        return self._lines.steps(key, self.counted.read(cost), timeout_us(timeout), holding), own_us


class Acquiring(_Acquiring):
    """`acquire` for threads."""

    @overload
    def acquire(self, key: Key, cost: Cost = 1, *, timeout: float | None = None) -> Decision: ...
    @overload
    def acquire(
        self,
        key: Key,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease: float,
        lease_us: int | None = None,
        id: str | bytes | None = None,
        remember: float | None = None,
    ) -> Reservation: ...
    @overload
    def acquire(
        self,
        key: Key,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease_us: int,
        id: str | bytes | None = None,
        remember: float | None = None,
    ) -> Reservation: ...
    @overload
    def acquire(
        self,
        key: Key,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        id: str | bytes,
        remember: float | None = None,
    ) -> Reservation: ...
    @overload
    def acquire(self, key: Key, cost: Cost = 1, *, timeout: float | None = None, remember: float) -> Reservation: ...

    def acquire(
        self,
        key: Key,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        lease_us: int | None = None,
        id: str | bytes | None = None,
        remember: float | None = None,
    ) -> Decision | Reservation:
        """Take `cost` units of `key`, waiting for them in line for at most `timeout` seconds.

        With a lease, an `id` or a time to remember they are held, as by `reserve`, and the answer is a reservation:
        limits of what is in flight need that. `with limiter.acquire("user", timeout=5, lease=60) as held`.

        Refused at once, with nothing consumed, if the turn would come later than that or never; it is not known ahead
        when a place in flight will be free, so for one a caller waits until its timeout. Blocks only this thread;
        callers that wait for other keys are not in its line. Raises as `hit` and `reserve` do.
        """
        if lease is None and lease_us is None and id is None and remember is None:
            decision: Decision = run(self._taking(key, cost, timeout), self._bound, self._clock)
            return decision
        steps, own_us = self._holding(key, cost, timeout, lease, lease_us, id, remember)
        return Reservation(self._holds, run(steps, self._bound, self._clock), own_us)

    def acquire_for(self, departure: Departure, key: Key, cost: Cost, timeout: float) -> Decision:
        """`acquire` for a client that may go away meanwhile, as `departure` tells: ClientLeft then."""
        decision: Decision = run(self._taking(key, cost, timeout), self._bound, self._clock, departure)
        return decision


class AsyncAcquiring(_Acquiring):
    """`acquire` for asyncio."""

    @overload
    async def acquire(self, key: Key, cost: Cost = 1, *, timeout: float | None = None) -> Decision: ...
    @overload
    async def acquire(
        self,
        key: Key,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease: float,
        lease_us: int | None = None,
        id: str | bytes | None = None,
        remember: float | None = None,
    ) -> AsyncReservation: ...
    @overload
    async def acquire(
        self,
        key: Key,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease_us: int,
        id: str | bytes | None = None,
        remember: float | None = None,
    ) -> AsyncReservation: ...
    @overload
    async def acquire(
        self,
        key: Key,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        id: str | bytes,
        remember: float | None = None,
    ) -> AsyncReservation: ...
    @overload
    async def acquire(
        self, key: Key, cost: Cost = 1, *, timeout: float | None = None, remember: float
    ) -> AsyncReservation: ...

    async def acquire(
        self,
        key: Key,
        cost: Cost = 1,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        lease_us: int | None = None,
        id: str | bytes | None = None,
        remember: float | None = None,
    ) -> Decision | AsyncReservation:
        """See `Limiter.acquire`; cancelling it leaves the line, and gives back what was taken just then."""
        if lease is None and lease_us is None and id is None and remember is None:
            decision: Decision = await run_async(self._taking(key, cost, timeout), self._bound, self._clock)
            return decision
        steps, own_us = self._holding(key, cost, timeout, lease, lease_us, id, remember)
        return AsyncReservation(self._holds, await run_async(steps, self._bound, self._clock), own_us)
