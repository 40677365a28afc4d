"""What was held: settled by its own methods, by its id, or by leaving its `with` block.

A `Reservation` is made for many requests, so where the native core is at hand its class is native; the class here has
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
from headgate.drive import answered, answered_in_any_case, begun
from headgate.errors import HeadgateError, RateLimited, StoreError
from headgate.holding import Extension, Hold, Reserved, Settlement, lease_of

log = logging.getLogger("headgate")


class CountedHolds:
    """Settles holds of limits by the units that they count: amounts are given as costs are, and told as written.

    A store tells amounts apart by their groups alone. What is the same for all of them, as much as is held or nothing,
    is asked as one amount: so it settles and extends holds of whatever units.
    """

    __slots__ = ("_bound", "_counted")

    def __init__(self, bound: Any, counted: Counted) -> None:
        self._bound = bound
        self._counted = counted

    def commit(self, whole_id: str, actual: Cost | None = None) -> Any:
        """See `BoundLimits.commit`; of what a mapping does not name counts as much as is held."""
        is_one = actual is None or _is_nothing(actual) or self._is_a_number(actual)
        settlement = self._bound.commit(whole_id, actual if is_one else self._counted.read_actuals(actual))
        if self._counted.in_order:
            return settlement
        if type(settlement) is not Settlement and hasattr(settlement, "__await__"):
            return self._written_later(settlement)
        return self._written(settlement)

    def extend(self, whole_id: str, lease_us: int, more: Sequence[Cost]) -> Any:
        """See `BoundLimits.extend`; of what a mapping does not name nothing is added."""
        is_one = _is_nothing(more[0]) or self._is_a_number(more[0])
        return self._bound.extend(whole_id, lease_us, more if is_one else self._counted.read_part(more[0]))

    def _is_a_number(self, amount: object) -> bool:
        """Whether an amount is one of the only unit already, or is refused as none where it is settled."""
        return self._counted.is_plain and not isinstance(amount, Mapping)

    async def _written_later(self, settling: Awaitable[Settlement]) -> Settlement:
        return self._written(await settling)

    def _written(self, settlement: Settlement) -> Settlement:
        """A settlement with its amounts in the order in which the limits write their units."""
        if settlement.actuals is None:
            return settlement
        actuals = self._counted.as_written(settlement.actuals)
        return Settlement(settlement.outcome, actuals, settlement.after, settlement.degraded)


def _is_nothing(amount: object) -> bool:
    return type(amount) is int and amount == 0


class _Held:
    """What the reservations of both colours are made of."""

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
            log.warning("a hold could not be cancelled: %s", error)  # what the block raised says more


async def reserved_or_given_back(
    answer: Reserved | Awaitable[Reserved], hold: Hold, commit: Callable[..., Any]
) -> Reserved:
    """What a store answers to `hold`, at once or when it comes.

    Where the caller is cancelled before that, the store may hold already, and nothing else knows the id: what it held
    is given back by `commit` as soon as it answers. A hold that has a name stays: a call that asks again by it finds
    it.
    """
    value: Any = answer
    if not hasattr(value, "__await__") or hold.name is not None:
        known: Reserved = await answered(value)
        return known
    asking: asyncio.Future[Reserved] = begun(value)
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        if not asking.cancelled():
            begun(_give_back(asking, commit))
        raise


async def _give_back(asking: asyncio.Future[Reserved], commit: Callable[..., Any]) -> None:
    try:
        reserved = await asking
        if reserved.decision.allowed:
            await answered(commit(reserved.id, 0))
    except StoreError as error:
        log.warning("a hold could not be given back whose caller was cancelled: %s", error)


PythonReservation = Reservation
if not TYPE_CHECKING and core.native is not None:
    Reservation = core.native.Reservation


def enter(reservation: Reservation) -> Reservation:
    """What happens where a block begins."""
    if not reservation:
        raise RateLimited(reservation.decision)
    try:
        heartbeat.start(reservation)
    except BaseException as error:  # a signal's handler raised in the midst of it: the block does not begin
        leave(reservation, type(error))
        raise
    return reservation


def leave(reservation: Reservation, kind: type[BaseException] | None) -> None:
    """What happens where a block ends, by an error of this kind or by none."""
    try:
        _leave(reservation, kind)
    except HeadgateError:
        raise
    except BaseException:  # a signal's handler raised in the midst of it: else its lease would be extended for ever
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
        log.warning("a hold could not be cancelled: %s", error)  # what the block raised says more


def end(reservation: Reservation) -> None:
    """What happens where a call that was held ends, however it ended: it is settled as held.

    Where the store does not answer, its lease frees it later: what the call came to is worth more than that error.
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
    """`end` on an event loop, carried out where the call is cancelled, too."""
    heartbeat.stop_async(reservation)
    try:
        await answered_in_any_case(reservation.commit())
    except StoreError as error:
        log.warning("a hold could not be settled: %s", error)
