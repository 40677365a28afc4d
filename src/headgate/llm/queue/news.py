"""What is told when something happens to jobs: workers, callers that wait for a result, watchers of a position."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FREES = frozenset({"submitted", "parked", "ended", "freed", "cancelled"})
"""What may let a worker take a job."""


class News:
    """Events that are set when there is news. For one event loop. `wanted` is called when something waits for it."""

    def __init__(self, wanted: Callable[[], None] = lambda: None) -> None:
        self._wanted = wanted
        self._workers: set[asyncio.Event] = set()
        self._cancels: set[asyncio.Event] = set()
        self._watchers: set[asyncio.Event] = set()
        self._by_job: dict[str, set[asyncio.Event]] = {}

    def tell(self, kind: str, id: str) -> None:
        """Something happened to a job: "submitted", "taken", "parked", "ended", "cancelled"; or a limit was "freed"."""
        for event in self._by_job.get(id, ()):
            event.set()
        for event in self._workers if kind in _FREES else ():
            event.set()
        for event in self._cancels if kind == "cancelled" else ():
            event.set()
        for event in self._watchers:
            event.set()

    def tell_all(self) -> None:
        """News may have been missed: all look again."""
        for events in (self._workers, self._cancels, self._watchers, *self._by_job.values()):
            for event in events:
                event.set()

    @contextmanager
    def for_worker(self) -> Iterator[asyncio.Event]:
        """An event that is set when a job may be taken."""
        with self._among(self._workers) as event:
            yield event

    @contextmanager
    def of_cancels(self) -> Iterator[asyncio.Event]:
        """An event that is set when a job was cancelled that runs."""
        with self._among(self._cancels) as event:
            yield event

    @contextmanager
    def of_any(self) -> Iterator[asyncio.Event]:
        """An event that is set when positions may have changed."""
        with self._among(self._watchers) as event:
            yield event

    @contextmanager
    def of_job(self, id: str) -> Iterator[asyncio.Event]:
        """An event that is set when something happened to a job."""
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
        self._wanted()
        try:
            yield event
        finally:
            events.discard(event)


async def heard(event: asyncio.Event, within_s: float | None) -> bool:
    """Whether an event was set in time; it is cleared."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
