"""Clients of a Redis store in tests: from threads or from an event loop, with the same methods.

`Asker` makes one call at a time or many at once; `Load` makes calls all the time and records every answer, so that a
test can count the outcomes while a server was away.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from stalls import stalled_s

from headgate import AsyncLimiter, Limiter
from headgate.clock import Clock
from headgate.decision import Decision
from headgate.holding import Extension, Settlement
from headgate.operation import Receipt
from headgate.stores.guard.store import GuardedStore
from headgate.stores.protocol import Store
from headgate.stores.redis.store import RedisStore

T = TypeVar("T")

COLOURS = ("sync", "async")
THREADS = 16
ANSWER_WITHIN_S = 60
SLACK_S = 0.5
"""How long a request may be delayed beyond its deadline by its own process."""


class Loop:
    """An event loop in its own thread, so that background tasks continue between calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_WITHIN_S)

    def close(self) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_WITHIN_S)
        self._loop.close()

    @staticmethod
    async def _end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Asker:
    """A limiter of either colour, called from threads; close it."""

    def __init__(
        self, colour: str, limits: str, store: str | Store, *, name: str = "", clock: Clock | None = None
    ) -> None:
        self.colour = colour
        self.loop: Loop | None = None
        self.limiter: Any
        if colour == "sync":
            self.limiter = Limiter(limits, store=store, name=name, clock=clock)
        else:
            self.loop = Loop()
            self.limiter = AsyncLimiter(limits, store=store, name=name, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self.limiter.close)
        if self.loop is not None:
            self.loop.close()

    @property
    def store(self) -> Any:
        return self.limiter.store

    @property
    def raw(self) -> RedisStore:
        """The store itself, without its guard."""
        store = self.store
        inner: Any = store.inner if isinstance(store, GuardedStore) else store
        assert isinstance(inner, RedisStore)
        return inner

    def hit(self, key: str, cost: int = 1) -> Decision:
        decision: Decision = self._do(self.limiter.hit, key, cost)
        return decision

    def peek(self, key: str, cost: int = 1) -> Decision:
        decision: Decision = self._do(self.limiter.peek, key, cost)
        return decision

    def acquire(self, key: str, cost: int = 1, *, timeout: float) -> Decision:
        decision: Decision = self._do(self.limiter.acquire, key, cost, timeout=timeout)
        return decision

    def reserve(self, key: str, cost: int = 1, **how: Any) -> Any:
        return self._do(self.limiter.reserve, key, cost, **how)

    def acquire_place(self, key: str, cost: int = 1, *, timeout: float, lease: float) -> Any:
        """`acquire` of a place in flight; returns a reservation."""
        return self._do(self.limiter.acquire, key, cost, timeout=timeout, lease=lease)

    def commit(self, whole_id: str, actual: int | None = None) -> Settlement:
        settlement: Settlement = self._do(self.limiter.commit, whole_id, actual)
        return settlement

    def extend(self, whole_id: str, **how: Any) -> Extension:
        extension: Extension = self._do(self.limiter.extend, whole_id, **how)
        return extension

    def give_back(self, key: str, cost: int = 1, ago_us: int = 0) -> None:
        self._do(self.limiter._bound.give_back, Receipt((key,), (cost,)), ago_us)

    def reset(self, key: str) -> bool:
        found: bool = self._do(self.limiter.reset, key)
        return found

    def hit_many(self, keys: Sequence[str]) -> Any:
        return self._do(self.limiter.hit_many, keys)

    def read(self, key: str) -> Any:
        """The stored states of a key."""
        return self._do(self.limiter._bound.read, (key,))

    def close_links(self) -> None:
        """Close all connections; the next call opens new ones."""
        self._do(self.limiter.close)

    def at_once(self, keys: Sequence[str]) -> list[Decision | Exception]:
        """Hit all these keys at once and return the answers in their order."""
        return [answer for answer, _ in self.timed_at_once(keys)]

    def timed_at_once(self, keys: Sequence[str]) -> list[tuple[Decision | Exception, float]]:
        """Hit all these keys at once and return the answers and how many seconds each took."""
        if self.loop is not None:
            return self.loop.run(self._gather(keys))
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(self._timed_hit, keys))

    def _timed_hit(self, key: str) -> tuple[Decision | Exception, float]:
        start = time.perf_counter()
        try:
            answer: Decision | Exception = self.limiter.hit(key)
        except Exception as error:
            answer = error
        return answer, time.perf_counter() - start

    async def _gather(self, keys: Sequence[str]) -> list[tuple[Decision | Exception, float]]:
        return await asyncio.gather(*map(self.timed_hit_async, keys))

    async def timed_hit_async(self, key: str) -> tuple[Decision | Exception, float]:
        start = time.perf_counter()
        try:
            answer: Decision | Exception = await self.limiter.hit(key)
        except Exception as error:
            answer = error
        return answer, time.perf_counter() - start

    def _do(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if self.loop is None:
            return method(*args, **named)
        return self.loop.run(method(*args, **named))


class Answer(NamedTuple):
    """The outcome of one request."""

    at_s: float
    """When the request began, in seconds of the monotonic clock."""

    took_s: float
    decision: Decision | None
    error: Exception | None

    @property
    def own_s(self) -> float:
        """Its duration, without the time that the machine took from this process."""
        return self.took_s - stalled_s(self.at_s, self.at_s + self.took_s)

    @property
    def allowed(self) -> bool:
        return self.decision is not None and self.decision.allowed

    @property
    def decided_by(self) -> str:
        """What decided: "store", "local", "open", "closed", or the name of an error."""
        if self.decision is None:
            return type(self.error).__name__
        return self.decision.degraded or "store"


class Load:
    """Continuous requests from several threads or tasks, with a pause after each."""

    def __init__(self, asker: Asker, keys: Sequence[str], pause_s: float) -> None:
        self.answers: list[Answer] = []
        self._asker = asker
        self._pause_s = pause_s
        self._ended = threading.Event()
        if asker.loop is None:
            self._threads = [threading.Thread(target=self._ask, args=(key,)) for key in keys]
        else:
            self._threads = [threading.Thread(target=asker.loop.run, args=(self._ask_all(keys),))]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(ANSWER_WITHIN_S)
            assert not thread.is_alive(), "a request waits for ever"

    def wait_for(self, true: Callable[[Answer], bool], *, within_s: float = 20) -> float:
        """Wait for such an answer to a request that begins after now; return how long that took."""
        return wait_for(lambda: any(true(answer) for answer in self.since(start)), within_s, start := time.monotonic())

    def since(self, moment_s: float, until_s: float = float("inf")) -> list[Answer]:
        """The answers to requests of this time."""
        return [answer for answer in list(self.answers) if moment_s <= answer.at_s < until_s]

    def _ask(self, key: str) -> None:
        while not self._ended.is_set():
            at_s = time.monotonic()
            self._note(at_s, *self._asker._timed_hit(key))
            time.sleep(self._pause_s)

    async def _ask_all(self, keys: Sequence[str]) -> None:
        await asyncio.gather(*map(self._ask_async, keys))

    async def _ask_async(self, key: str) -> None:
        while not self._ended.is_set():
            at_s = time.monotonic()
            self._note(at_s, *await self._asker.timed_hit_async(key))
            await asyncio.sleep(self._pause_s)

    def _note(self, at_s: float, answer: Decision | Exception, took_s: float) -> None:
        if isinstance(answer, Exception):
            self.answers.append(Answer(at_s, took_s, None, answer))
        else:
            self.answers.append(Answer(at_s, took_s, answer, None))


@contextmanager
def load(asker: Asker, keys: Sequence[str], *, pause_s: float = 0.002) -> Iterator[Load]:
    """Requests until the end of the block, one client for each key; a key may be listed several times."""
    running = Load(asker, keys, pause_s)
    try:
        yield running
    finally:
        running.end()


def wait_for(true: Callable[[], bool], within_s: float = 20, start: float | None = None) -> float:
    """Wait until a condition is true; return how many seconds that took."""
    start = time.monotonic() if start is None else start
    while not true():
        if time.monotonic() - start > within_s:
            raise TimeoutError(f"not so within {within_s:g} s")
        time.sleep(0.01)
    return time.monotonic() - start


def tally(answers: Sequence[Decision | Exception]) -> dict[str, int]:
    """How many requests passed, were refused, or failed with which error."""
    return dict(
        Counter(
            type(answer).__name__ if isinstance(answer, Exception) else "passed" if answer.allowed else "refused"
            for answer in answers
        )
    )


def longest_s(answers: Sequence[Answer]) -> float:
    """The duration of the slowest, without the time that the machine took from this process."""
    return max(answer.own_s if answer.took_s > SLACK_S else answer.took_s for answer in answers)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a given share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
