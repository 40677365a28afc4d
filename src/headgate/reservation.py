"""Reservations: held units, settled by the methods of a reservation, by its id, or by leaving its `with` block.

A `Reservation` is made for many requests, so where the native core is available its class is native; the class here has
the same methods and is what type checkers see.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate import collector, core, heartbeat
from headgate.costs import Cost, Counted
from headgate.decision import Decision
from headgate.drive import NEEDS_ASYNCIO, answered, answered_in_any_case, begun, is_on_asyncio
from headgate.errors import ArgumentError, ConfigError, HeadgateError, RateLimited, StoreError
from headgate.holding import Extension, Hold, Reserved, Settlement, lease_of

log = logging.getLogger("headgate")

_SETTLED = "the reservation is settled, so the block would run without what it held: reserve again"


class CountedHolds:
    """Settles holds by the units that their limits count: amounts have the form of costs.

    Settled amounts are returned in the order in which the limits write their units. A store distinguishes amounts by
    their groups alone. An amount that is the same for all groups, as much as is held or nothing, is passed as one: that
    settles and extends holds of any units.
    """

    __slots__ = ("_bound", "_counted")

    def __init__(self, bound: Any, counted: Counted) -> None:
        self._bound = bound
        self._counted = counted

    def commit(self, whole_id: str, actual: Cost | None = None) -> Any:
        """See `BoundLimits.commit`; units that a mapping does not name are settled as held."""
        is_single = actual is None or _is_zero(actual) or self._is_plain_number(actual)
        settlement = self._bound.commit(whole_id, actual if is_single else self._counted.read_actuals(actual))
        if self._counted.in_order:
            return settlement
        if type(settlement) is not Settlement and hasattr(settlement, "__await__"):
            return self._in_written_order_async(settlement)
        return self._in_written_order(settlement)

    def extend(self, whole_id: str, lease_us: int, more: Sequence[Cost]) -> Any:
        """See `BoundLimits.extend`; of units that a mapping does not name nothing is added."""
        is_single = _is_zero(more[0]) or self._is_plain_number(more[0])
        return self._bound.extend(whole_id, lease_us, more if is_single else self._counted.read_part(more[0]))

    def _is_plain_number(self, amount: object) -> bool:
        """Whether an amount needs no reading by units: a number of the only unit, or invalid (settling reports it)."""
        return self._counted.is_plain and not isinstance(amount, Mapping)

    async def _in_written_order_async(self, settling: Awaitable[Settlement]) -> Settlement:
        return self._in_written_order(await settling)

    def _in_written_order(self, settlement: Settlement) -> Settlement:
        """A settlement with its amounts in the order in which the limits write their units."""
        if settlement.actuals is None:
            return settlement
        actuals = self._counted.as_written(settlement.actuals)
        return Settlement(settlement.outcome, actuals, settlement.after, settlement.degraded)


def _is_zero(amount: object) -> bool:
    return type(amount) is int and amount == 0


class _Held:
    """The common part of the reservations of both colours."""

    __slots__ = ("_bound", "decision", "id", "lease_us", "repeated", "settled")

    decision: Decision
    id: str
    repeated: bool
    lease_us: int
    settled: bool

    def __init__(self, bound: Any, reserved: Reserved, lease_us: int) -> None:
        self._bound = bound
        self.decision, self.id, self.repeated = reserved
        self.lease_us = lease_us
        self.settled = False

    def __bool__(self) -> bool:
        return bool(self.decision)

    def _lease_us(self, lease: float | None, lease_us: int | None) -> int:
        if lease is None and lease_us is None:
            return self.lease_us
        return lease_of(0 if lease is None else lease, lease_us)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, allowed={bool(self)}, repeated={self.repeated})"


class Reservation(_Held):
    """Units that are held until they are settled; `bool(reservation)` is whether they are.

    `id` settles it anywhere, in another process too. `repeated` tells that this id was held before: nothing was
    charged now, and `decision` is the first one. `settled` is whether it was settled through this very object.

    As a context manager it raises RateLimited where it was refused, and extends its lease by itself, at a third of it,
    while the block runs. A block that ends without settling it settles it as held; one that raises cancels it.
    """

    __slots__ = ()

    def commit(self, actual: Cost | None = None) -> Settlement:
        """Settle it with what it really cost; None is as much as is held. See `Limiter.commit`."""
        settlement: Settlement = self._bound.commit(self.id, actual)
        self.settled = True
        return settlement

    def cancel(self) -> Settlement:
        """Settle it as if it had never been."""
        return self.commit(0)

    def extend(self, lease: float | None = None, more: Cost = 0, *, lease_us: int | None = None) -> Extension:
        """Let its lease end `lease` seconds from now (as long as at first), and hold `more`. See `Limiter.extend`."""
        extension: Extension = self._bound.extend(self.id, self._lease_us(lease, lease_us), (more,))
        return extension

    def __enter__(self) -> Reservation:
        return enter(self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        leave(self, kind)


class AsyncReservation(_Held):
    """`Reservation` for asyncio: the same names, awaited, and `async with`."""

    __slots__ = ()

    async def commit(self, actual: Cost | None = None) -> Settlement:
        """See `Reservation.commit`."""
        settlement: Settlement = await answered(self._bound.commit(self.id, actual))
        self.settled = True
        return settlement

    async def cancel(self) -> Settlement:
        """See `Reservation.cancel`."""
        return await self.commit(0)

    async def extend(self, lease: float | None = None, more: Cost = 0, *, lease_us: int | None = None) -> Extension:
        """See `Reservation.extend`."""
        extension: Extension = await answered(self._bound.extend(self.id, self._lease_us(lease, lease_us), (more,)))
        return extension

    async def __aenter__(self) -> AsyncReservation:
        if not self:
            raise RateLimited(self.decision)
        if self.settled:
            raise ArgumentError(_SETTLED)
        if not is_on_asyncio():
            await self.cancel()
            raise ConfigError(NEEDS_ASYNCIO)
        heartbeat.start_async(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        heartbeat.stop_async(self)
        if self.settled:
            return
        try:
            await answered_in_any_case(self.commit(None if kind is None else 0))
        except StoreError as error:
            if kind is None:
                raise
            log.warning("a hold could not be cancelled: %s", error)  # the error of the block is more useful


async def reserved_or_given_back(
    answer: Reserved | Awaitable[Reserved], hold: Hold, commit: Callable[..., Any]
) -> Reserved:
    """Return the store's answer to `hold`, after awaiting it where it is an awaitable.

    Where the caller is cancelled before the answer, the store may have made the hold, and only the answer has its id:
    so the hold is given back by `commit` as soon as the store answers. A hold with a name stays, and is found by a
    repeated call with that name.
    """
    value: Any = answer
    if not hasattr(value, "__await__") or hold.name is not None:
        reserved: Reserved = await answered(value)
        return reserved
    reserving: asyncio.Future[Reserved] = begun(value)
    try:
        return await asyncio.shield(reserving)
    except asyncio.CancelledError:
        if not reserving.cancelled():
            begun(_give_back(reserving, commit))
        raise


async def _give_back(reserving: asyncio.Future[Reserved], commit: Callable[..., Any]) -> None:
    try:
        reserved = await reserving
        if reserved.decision.allowed:
            await answered(commit(reserved.id, 0))
    except StoreError as error:
        log.warning("a hold could not be given back whose caller was cancelled: %s", error)


PythonReservation = Reservation
if not TYPE_CHECKING and core.native is not None:
    Reservation = core.native.Reservation


def enter(reservation: Reservation) -> Reservation:
    """Begin a `with` block."""
    if not reservation:
        raise RateLimited(reservation.decision)
    if reservation.settled:
        raise ArgumentError(_SETTLED)
    try:
        heartbeat.start(reservation)
    except BaseException as error:  # a signal handler raised during it: the block does not begin
        leave(reservation, type(error))
        raise
    return reservation


def leave(reservation: Reservation, kind: type[BaseException] | None) -> None:
    """End a `with` block, which raised an error of this kind, or none."""
    try:
        _leave(reservation, kind)
    except HeadgateError:
        raise
    except BaseException:  # a signal handler raised during it: else the lease would be extended for ever
        _leave(reservation, kind)
        raise


def _leave(reservation: Reservation, kind: type[BaseException] | None) -> None:
    if collector.in_collector():
        collector.call_later(partial(leave, reservation, kind))
        return
    heartbeat.stop(reservation)
    if reservation.settled:
        return
    try:
        reservation.commit(None if kind is None else 0)
    except StoreError as error:
        if kind is None:
            raise
        log.warning("a hold could not be cancelled: %s", error)  # the error of the block is more useful


def end(reservation: Reservation) -> None:
    """Settle the hold of a call as held when the call ends, however it ended.

    Where the store does not answer, the places are freed when the lease ends: the call's result is worth more than that
    error, which is logged.
    """
    if collector.in_collector():
        collector.call_later(partial(end, reservation))
        return
    heartbeat.stop(reservation)
    try:
        reservation.commit()
    except StoreError as error:
        log.warning("a hold could not be settled: %s", error)


async def end_async(reservation: AsyncReservation) -> None:
    """`end` on an event loop, completed even if the call is cancelled."""
    heartbeat.stop_async(reservation)
    try:
        await answered_in_any_case(reservation.commit())
    except StoreError as error:
        log.warning("a hold could not be settled: %s", error)
