"""Waiting for a turn of a limiter: `acquire`, in both colours."""

from __future__ import annotations

from typing import Any, overload

from headgate.clock import Clock
from headgate.costs import Cost, Counted
from headgate.decision import Decision, NamedLimit
from headgate.drive import check_asyncio
from headgate.holding import Hold, lease_of, remember_of
from headgate.keys import Key
from headgate.reservation import AsyncReservation, Reservation
from headgate.waiting.departure import Departure
from headgate.waiting.freed import check_has_lease
from headgate.waiting.lines import WaitingLines
from headgate.waiting.run import run, run_async
from headgate.waiting.steps import WaitSteps, timeout_us


class _Acquiring:
    """The common part of both colours: limits that are bound to a store, and their lines."""

    definitions: tuple[NamedLimit, ...]
    counted: Counted
    _bound: Any
    _clock: Clock
    _lines: WaitingLines

    @property
    def _holds(self) -> Any:
        raise NotImplementedError

    def _charge_steps(self, key: Key, cost: Cost, timeout: float | None) -> WaitSteps:
        costs, max_wait_us = self.counted.read(cost), timeout_us(timeout)
        check_has_lease(self.definitions)
        return self._lines.steps(key, costs, max_wait_us)

    def _hold_steps(
        self,
        key: Key,
        cost: Cost,
        timeout: float | None,
        lease: float | None,
        lease_us: int | None,
        id: str | bytes | None,
        remember: float | None,
    ) -> tuple[WaitSteps, int]:
        """(the steps of waiting, the lease in microseconds) of a hold."""
        given_lease_us = lease_of(lease, lease_us)
        holding = self._lines.holding(key, Hold(id, given_lease_us, remember_of(remember)))
        return self._lines.steps(key, self.counted.read(cost), timeout_us(timeout), holding), given_lease_us


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
        """Charge `cost` units of `key`, waiting for them in line for at most `timeout` seconds.

        With a lease, an `id` or a time to remember they are held, as by `reserve`, and the result is a reservation:
        limits of what is in flight need that. `with limiter.acquire("user", timeout=5, lease=60) as held`.

        Refused at once, with nothing consumed, if the turn would come later than that or never. It is not known
        beforehand when a place in flight will be free, so a caller waits for one until its timeout. Blocks only this
        thread; callers that wait for other keys are not in its line. Raises as `hit` and `reserve` do.
        """
        if lease is None and lease_us is None and id is None and remember is None:
            decision: Decision = run(self._charge_steps(key, cost, timeout), self._bound, self._clock)
            return decision
        steps, given_lease_us = self._hold_steps(key, cost, timeout, lease, lease_us, id, remember)
        return Reservation(self._holds, run(steps, self._bound, self._clock), given_lease_us)

    def acquire_for(self, departure: Departure, key: Key, cost: Cost, timeout: float) -> Decision:
        """`acquire` for a client that may disconnect meanwhile, which `departure` reports: raises ClientLeft then."""
        decision: Decision = run(self._charge_steps(key, cost, timeout), self._bound, self._clock, departure)
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
        """See `Limiter.acquire`. Cancelling it leaves the line, and gives back a charge made at that moment."""
        check_asyncio()  # also where it need not wait: else only a busy program would show the error
        if lease is None and lease_us is None and id is None and remember is None:
            decision: Decision = await run_async(self._charge_steps(key, cost, timeout), self._bound, self._clock)
            return decision
        steps, given_lease_us = self._hold_steps(key, cost, timeout, lease, lease_us, id, remember)
        return AsyncReservation(self._holds, await run_async(steps, self._bound, self._clock), given_lease_us)
