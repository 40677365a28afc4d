"""The place in flight that a call holds: from its turn until its response is closed, or was read to its end."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from headgate.collector import in_collector
from headgate.costs import Cost
from headgate.drive import answered_in_any_case, drive, drive_async
from headgate.errors import StoreError
from headgate.http.server.held_request import HeldRequest
from headgate.limits import Limit

log = logging.getLogger("headgate")


class HeldCall:
    """The hold of one attempt of a call; it is freed once, or when it is dropped, like that of a dropped request."""

    __slots__ = ("_asynchronous", "_held")

    def __init__(self, reservation: Any, *, asynchronous: bool) -> None:
        self._held: HeldRequest | None = HeldRequest(reservation, asynchronous=asynchronous)
        self._asynchronous = asynchronous

    def free(self, actual: Cost | None = None) -> Any:
        """Settle it with the actual cost, None for as much as is held; awaitable where the limiter is asynchronous."""
        return answered_in_any_case(self._free_async(actual)) if self._asynchronous else self._free(actual)

    def free_soon(self) -> None:
        """`free` on the event loop of the call, from any thread: a dropped hold is settled there."""
        self._held = None

    def _free(self, actual: Cost | None) -> None:
        held, self._held = self._held, None
        if held is not None and not in_collector():  # a hold that is dropped in the collector is settled later
            try:
                drive(held.free(actual))
            except StoreError as error:
                log.warning("a call was not settled: %s", error)

    async def _free_async(self, actual: Cost | None) -> None:
        held, self._held = self._held, None
        if held is not None:
            try:
                await drive_async(held.free(actual))
            except StoreError as error:
                log.warning("a call was not settled: %s", error)


def holds(limits: Iterable[Limit]) -> bool:
    """Whether some of a client's limits count calls in flight."""
    return not all(limit.is_rate for limit in limits)
