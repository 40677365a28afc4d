"""Requests that are held while they are in flight: leases go on by themselves, and each is freed once, at its end.

A hold belongs to its request: where a request is dropped and nothing ends it, its lease is not extended any more, and
ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping
from typing import Any
from weakref import ReferenceType, ref

from headgate import heartbeat
from headgate.costs import Cost
from headgate.drive import begun
from headgate.errors import ArgumentError, ConfigError, StoreError
from headgate.holding import Extension, lease_of
from headgate.reservation import AsyncReservation

_log = logging.getLogger("headgate")
_GONE = Extension("unknown", (), None)
_LEASE_S = 60.0


class HeldRequest:
    """A reservation of a request, whose lease goes on until the request ends, or is dropped."""

    __slots__ = ("__weakref__", "_asynchronous", "_beat", "reservation")

    def __init__(self, reservation: Any, *, asynchronous: bool) -> None:
        self.reservation = reservation
        self._asynchronous = asynchronous
        self._beat = (_AsyncBeat if asynchronous else _Beat)(ref(self), reservation.lease_us)
        (heartbeat.start_async if asynchronous else heartbeat.start)(self._beat)

    def free(self, actual: Cost | None = None) -> Generator[Any, Any, None]:
        """Settle it with what counts, None for as much as is held; yields what may have to be awaited.

        Raises StoreError where the store does not answer; the lease ends by itself then.
        """
        self._beat.settled = True
        (heartbeat.stop_async if self._asynchronous else heartbeat.stop)(self._beat)
        try:
            yield self.reservation.commit(actual)
        except ArgumentError:
            _log.exception("what counts of a request could not be settled: it counts as it was held")
            yield self.reservation.commit()


class _Beat:
    """What the leases of requests are extended by; it does not keep the request alive."""

    __slots__ = ("_held", "lease_us", "settled")

    def __init__(self, held: ReferenceType[HeldRequest], lease_us: int) -> None:
        self._held = held
        self.lease_us = lease_us
        self.settled = False

    def extend(self) -> Any:
        """Extend its lease, if there is anything to extend."""
        held = self._held()
        return _GONE if held is None or self.settled else held.reservation.extend()


class _AsyncBeat(_Beat):
    __slots__ = ()

    async def extend(self) -> Any:
        held = self._held()
        return _GONE if held is None or self.settled else await held.reservation.extend()


async def reserved(reserving: Any) -> Any:
    """What was reserved, or decided; a reservation is cancelled as it comes if the caller was cancelled."""
    asked = begun(reserving)
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        asked.add_done_callback(_abandon)
        raise


def _abandon(asked: asyncio.Future[Any]) -> None:
    if asked.cancelled() or asked.exception() is not None:
        return
    if isinstance(asked.result(), AsyncReservation) and asked.result():
        begun(_cancel(asked.result()))


async def _cancel(reservation: Any) -> None:
    try:
        await reservation.cancel()
    except StoreError as error:
        _log.warning("a request was not settled: %s", error)


def lease_us_of(told: Mapping[str, Any]) -> int:
    """The option `lease` in microseconds; raises ConfigError."""
    try:
        return lease_of(told.get("lease", _LEASE_S), None)
    except ArgumentError as error:
        raise ConfigError(f"lease is for how many seconds a request is held without a sign of life: {error}") from error
