"""Waiting in line until a ticket is called, in threads and on event loops."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial

from headgate.drive import check_asyncio
from headgate.stores.lines import Ticket
from headgate.waiting.departure import Departure
from headgate.waiting.wake_signal import WakeSignal


def stand(ticket: Ticket, seconds: float, departure: Departure | None = None) -> None:
    """Wait in this thread until the ticket is called, for at most `seconds`; the departure may end it sooner."""
    signal = WakeSignal()
    ticket.wake = signal.set
    if not ticket.called:
        wait = signal.wait if departure is None else partial(departure.wait, signal)
        wait(seconds if seconds < threading.TIMEOUT_MAX else None)


async def stand_async(ticket: Ticket, seconds: float) -> None:
    """`stand` on an event loop."""
    check_asyncio()
    called = asyncio.Event()
    loop = asyncio.get_running_loop()
    ticket.loop, ticket.wake = loop, lambda: loop.call_soon_threadsafe(called.set)
    if not ticket.called:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await called.wait()
