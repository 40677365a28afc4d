"""Notification of changes of jobs: to workers, to callers that wait for a result, to watchers of a position."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FOR_WORKERS = frozenset({"submitted", "parked", "ended", "freed", "cancelled"})
"""The kinds after which a worker may be able to take a job."""


class News:
    """Events that are set at news. For one event loop. `on_wait` is called whenever a waiter registers."""

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        self._on_wait = on_wait
        self._workers: set[asyncio.Event] = set()
        self._cancellations: set[asyncio.Event] = set()
        self._watchers: set[asyncio.Event] = set()
        self._by_job: dict[str, set[asyncio.Event]] = {}

    def publish(self, kind: str, id: str) -> None:
        """Notify of a change: a job was "submitted", "taken", "parked", "ended" or "cancelled", or a limit "freed"."""
        for event in self._by_job.get(id, ()):
            event.set()
        for event in self._workers if kind in _FOR_WORKERS else ():
            event.set()
        for event in self._cancellations if kind == "cancelled" else ():
            event.set()
        for event in self._watchers:
            event.set()

    def publish_all(self) -> None:
        """Notify all waiters, as news may have been missed: they check again."""
        for events in (self._workers, self._cancellations, self._watchers, *self._by_job.values()):
            for event in events:
                event.set()

    @contextmanager
    def for_worker(self) -> Iterator[asyncio.Event]:
        """Provide an event that is set when a job may be taken."""
        with self._among(self._workers) as event:
            yield event

    @contextmanager
    def for_cancellations(self) -> Iterator[asyncio.Event]:
        """Provide an event that is set when a running job was cancelled."""
        with self._among(self._cancellations) as event:
            yield event

    @contextmanager
    def for_any(self) -> Iterator[asyncio.Event]:
        """Provide an event that is set when positions may have changed."""
        with self._among(self._watchers) as event:
            yield event

    @contextmanager
    def for_job(self, id: str) -> Iterator[asyncio.Event]:
        """Provide an event that is set at each change of a job."""
        events = self._by_job.setdefault(id, set())
        try:
            with self._among(events) as event:
                yield event
        finally:
            if not events and self._by_job.get(id) is events:
                del self._by_job[id]

    @contextmanager
    def _among(self, events: set[asyncio.Event]) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        events.add(event)
        self._on_wait()
        try:
            yield event
        finally:
            events.discard(event)


async def wait_for(event: asyncio.Event, within_s: float | None) -> bool:
    """Wait for an event and clear it; return whether it was set in time."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
