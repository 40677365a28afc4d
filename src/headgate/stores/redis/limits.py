"""Limits bound to a Redis store: asked from threads, and from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from headgate.clock import Clock, SystemClock
from headgate.decision import Decision, NamedLimit
from headgate.drive import drive, drive_async
from headgate.keys import Key, check_now
from headgate.operation import Operation, Receipt
from headgate.stores.protocol import StatesAt, checked_pairs, read_receipt
from headgate.stores.python_table import PythonDecisions
from headgate.stores.redis.codec import field_name, is_log
from headgate.stores.redis.commands import Calls, Steps, states_at
from headgate.stores.redis.replies import read_time
from headgate.stores.redis.scripts import HIT, PEEK

if TYPE_CHECKING:
    from headgate.stores.redis.async_link import AsyncLink
    from headgate.stores.redis.multiplexer import Command
    from headgate.stores.redis.store import RedisStore


class _Bound:
    """What the limits of both colours are made of."""

    def __init__(self, calls: Calls, clock: Clock | None) -> None:
        self._calls = calls
        # The server's clock, unless another one is to stand in for it.
        self._clock = None if clock is None or isinstance(clock, SystemClock) else clock

    def _now_us(self) -> int | None:
        return None if self._clock is None else check_now(self._clock.now_us())

    def _many(self, keys: Iterable[Key], costs: int | Iterable[int] | None) -> list[Operation]:
        """Operations at one moment; nothing is asked if a key or cost is bad."""
        groups, now_us = self._calls.groups, self._now_us()
        pairs = zip(*checked_pairs(keys, costs), strict=True)
        return [Operation((key,) * groups, (cost,) * groups, now_us=now_us) for key, cost in pairs]

    def _steps(self, operation: Operation) -> Steps:
        names, each = self._calls.names(operation.keys), self._calls.costs(operation.costs)
        now_us = operation.now_us
        if now_us is None and self._clock is not None:
            now_us = self._clock.now_us()
        mode = HIT if operation.commit else PEEK
        return self._calls.decide(names, each, mode=mode, now_us=now_us, max_delay_us=operation.max_delay_us)

    def _steps_back(self, receipt: Receipt, ago_us: int) -> Steps:
        _, each, ago_us = read_receipt(self._calls.definitions, receipt, ago_us)
        return self._calls.give_back(self._calls.names(receipt.keys), each, ago_us, self._now_us())


class RedisLimits(_Bound):
    """Limits bound to a Redis store, for threads; see `headgate.stores.protocol.BoundLimits`."""

    def __init__(self, store: RedisStore, calls: Calls, clock: Clock | None) -> None:
        super().__init__(calls, clock)
        self._store = store

    def hit(self, key: Key, cost: int = 1) -> Decision:
        return self.decide(Operation((key,) * self._calls.groups, (cost,) * self._calls.groups))

    def peek(self, key: Key, cost: int = 1) -> Decision:
        return self.decide(Operation((key,) * self._calls.groups, (cost,) * self._calls.groups, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        many = self._many(keys, costs)
        if self._store.is_cluster or not self._calls.groups:
            return PythonDecisions(map(self.decide, many))
        steps = list(map(self._steps, many))
        replies = self._store.run_many([next(step) for step in steps])
        return PythonDecisions(_last(step, reply) for step, reply in zip(steps, replies, strict=True))

    def decide(self, operation: Operation, /) -> Decision:
        decision: Decision = drive(self._steps(operation), self._store.run)
        return decision

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        steps = self._steps_back(receipt, ago_us)
        if not receipt.degraded:
            drive(steps, self._store.run)

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        found: bool = drive(self._calls.forget(self._calls.names(keys), self._now_us()), self._store.run)
        return found

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> StatesAt:
        names = self._calls.names(keys)
        found, moment_us = self._store.fetch(self._calls.definitions, names)
        if now_us is None:
            now_us = moment_us if self._clock is None else self._clock.now_us()
        return states_at(self._calls.definitions, found, now_us)


class AsyncRedisLimits(_Bound):
    """Limits bound to a Redis store, for asyncio; see `headgate.stores.protocol.AsyncBoundLimits`."""

    def __init__(self, link: AsyncLink, calls: Calls, clock: Clock | None) -> None:
        super().__init__(calls, clock)
        self._link = link

    def hit(self, key: Key, cost: int = 1) -> Coroutine[Any, Any, Decision]:
        return self.decide(Operation((key,) * self._calls.groups, (cost,) * self._calls.groups))

    def peek(self, key: Key, cost: int = 1) -> Coroutine[Any, Any, Decision]:
        return self.decide(Operation((key,) * self._calls.groups, (cost,) * self._calls.groups, commit=False))

    async def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        return PythonDecisions(await asyncio.gather(*map(self.decide, self._many(keys, costs))))

    async def decide(self, operation: Operation, /) -> Decision:
        decision: Decision = await drive_async(self._steps(operation), self._link.run)
        return decision

    async def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        steps = self._steps_back(receipt, ago_us)
        if not receipt.degraded:
            await drive_async(steps, self._link.run)

    async def reset(self, keys: tuple[Key, ...], /) -> bool:
        found: bool = await drive_async(self._calls.forget(self._calls.names(keys), self._now_us()), self._link.run)
        return found

    async def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> StatesAt:
        definitions, names = self._calls.definitions, self._calls.names(keys)
        asks = [
            self._link.ask(name, look(definition, name)) for definition, name in zip(definitions, names, strict=True)
        ]
        *found, moment = await asyncio.gather(*asks, self._link.ask(names[0], ("TIME",)))
        if now_us is None:
            server_us = read_time(moment)
            now_us = server_us if self._clock is None else self._clock.now_us()
        return states_at(definitions, [value or None for value in found], now_us)


def _last(steps: Steps, reply: Any) -> Decision:
    """What the only reply of some steps makes."""
    try:
        steps.send(reply)
    except StopIteration as stop:
        decision: Decision = stop.value
        return decision
    raise AssertionError("one server decides in one call")


def look(definition: NamedLimit, name: bytes) -> Command:
    """The command that reads a limit's state: what a sliding window needs, which may be in several fields, or one."""
    return ("HGETALL", name) if is_log(definition) else ("HGET", name, field_name(definition))
