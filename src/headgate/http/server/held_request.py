"""Holds of requests in flight: their leases are extended automatically, and each is freed once, when its request ends.

A hold belongs to its request: if a request is dropped and nothing ends it, as when a server fails while it sends a
response, its hold is settled as held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Generator, Mapping
from contextlib import suppress
from typing import Any
from weakref import ref

from headgate import heartbeat
from headgate.costs import Cost
from headgate.drive import begun
from headgate.errors import ArgumentError, ConfigError, StoreError
from headgate.holding import Extension, lease_of
from headgate.reservation import AsyncReservation

log = logging.getLogger("headgate")
NEEDS_ASYNCIO = (
    "holding requests in flight, letting them wait in line and using Redis need asyncio: choose the server's worker for"
    " asyncio (hypercorn: --worker-class asyncio)"
)
"""The message of `check_asyncio` where a server runs on another event loop."""

_UNKNOWN_HOLD = Extension("unknown", (), None)


class HeldRequest:
    """The reservation of a request, whose lease is extended until the request ends, or is dropped."""

    __slots__ = ("__weakref__", "_asynchronous", "_beat", "reservation")

    def __init__(self, reservation: Any, *, asynchronous: bool) -> None:
        self.reservation = reservation
        self._asynchronous = asynchronous
        self._beat = (_AsyncBeat if asynchronous else _Beat)(self)
        (heartbeat.start_async if asynchronous else heartbeat.start)(self._beat)

    def free(self, actual: Cost | None = None) -> Generator[Any, Any, None]:
        """Settle it with the actual cost, None for as much as is held; yields calls that may have to be awaited.

        Raises StoreError where the store does not answer; the lease then expires by itself.
        """
        self._beat.settled = True
        (heartbeat.stop_async if self._asynchronous else heartbeat.stop)(self._beat)
        try:
            yield self.reservation.commit(actual)
        except ArgumentError:
            log.exception("the actual cost of a request could not be settled: it counts as it was held")
            yield self.reservation.commit()

    def __del__(self) -> None:
        """Settle a dropped hold now, not when its lease would be extended; on an event loop `_AsyncBeat` does that."""
        if not self._asynchronous and not self._beat.settled:
            heartbeat.hasten(self._beat)


class _Beat:
    """Extends the lease of a request; it does not keep the request alive."""

    __slots__ = ("_held", "_reservation", "lease_us", "settled")

    def __init__(self, held: HeldRequest) -> None:
        self._held = ref(held)
        self._reservation = held.reservation
        self.lease_us: int = held.reservation.lease_us
        self.settled = False

    def extend(self) -> Any:
        """Extend the lease, or settle the hold if the request was dropped."""
        if self.settled:
            return _UNKNOWN_HOLD
        if self._held() is not None:
            return self._reservation.extend()
        self._reservation.commit()
        self.settled = True
        return _UNKNOWN_HOLD


class _AsyncBeat(_Beat):
    __slots__ = ("_loop",)

    def __init__(self, held: HeldRequest) -> None:
        super().__init__(held)
        self._loop = asyncio.get_running_loop()
        self._held = ref(held, self._dropped)

    async def extend(self) -> Any:
        return _UNKNOWN_HOLD if self.settled else await self._reservation.extend()

    def _dropped(self, _: object) -> None:
        """Have the event loop settle the hold: this may be called in any thread, at any moment."""
        if not self.settled:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.settled = True
        heartbeat.stop_async(self)
        begun(_settle(self._reservation.commit()))


async def await_reservation(reserving: Any) -> Any:
    """Return the reservation or decision; if the caller was cancelled, a reservation is cancelled when it arrives."""
    pending = begun(reserving)
    try:
        return await asyncio.shield(pending)
    except asyncio.CancelledError:
        pending.add_done_callback(_abandon)
        raise


def _abandon(pending: asyncio.Future[Any]) -> None:
    if pending.cancelled() or pending.exception() is not None:
        return
    if isinstance(pending.result(), AsyncReservation) and pending.result():
        begun(_settle(pending.result().cancel()))


async def _settle(settling: Awaitable[Any]) -> None:
    try:
        await settling
    except StoreError as error:
        log.warning("a request was not settled: %s", error)


def lease_us_of(options: Mapping[str, Any]) -> int:
    """Return the option `lease` in microseconds; raises ConfigError."""
    try:
        return lease_of(options.get("lease"), None)
    except ArgumentError as error:
        raise ConfigError(
            f"lease is the number of seconds after which the request of a dead process is freed: {error}"
        ) from error
