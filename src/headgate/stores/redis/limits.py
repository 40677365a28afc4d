"""Limits bound to a Redis store, for threads and for an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.clock import Clock, SystemClock
from headgate.costs import Cost, single_cost
from headgate.decision import Decision
from headgate.drive import all_in_portions, drive, drive_async, drive_together, together
from headgate.errors import StoreError
from headgate.holding import Amounts, Extension, Hold, Reserved, Settlement
from headgate.keys import Key, check_now
from headgate.operation import Operation, Receipt
from headgate.stores.protocol import AsyncBoundLimits, BoundLimits, StatesAt, checked_pairs, read_receipt
from headgate.stores.python_table import PythonDecisions
from headgate.stores.redis.commands import Commands, ScriptCall, ScriptSteps
from headgate.stores.redis.dropped_holds import drop_hold
from headgate.stores.redis.hold_commands import HoldCommands
from headgate.stores.redis.line import RedisLine
from headgate.stores.redis.new_holds import NewHolds
from headgate.stores.redis.short_commits import ShortCommits
from headgate.stores.redis.turns import Turns

if TYPE_CHECKING:
    from headgate.stores.redis.async_link import AsyncLink
    from headgate.stores.redis.sync_link import SyncLink


class _RedisLimits:
    """The common part of the limits of both colours: methods as steps, which yield the calls to make."""

    def __init__(self, link: Any, commands: Commands, clock: Clock | None) -> None:
        self._link = link
        self._commands = commands
        self._groups = commands.groups
        self._holds = HoldCommands(commands)
        # The clock that replaces the server's; None for the server's own.
        self._clock = None if clock is None or isinstance(clock, SystemClock) else clock

    def _now_us(self) -> int | None:
        return None if self._clock is None else check_now(self._clock.now_us())

    def _give_back_steps(self, receipt: Receipt, ago_us: int) -> ScriptSteps:
        _, costs, ago_us = read_receipt(self._commands.definitions, receipt, ago_us)
        if not receipt.degraded:  # otherwise nothing was charged there
            yield from self._commands.give_back(self._commands.names(receipt.keys), costs, ago_us, self._now_us())

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        return self._holds.id_of(key, name)

    def _new_call(self, key: Key, cost: int, lease_us: int) -> tuple[NewHolds, str, ScriptCall] | None:
        """The short path to a hold under a new id, that id, and the call; None where there is none."""
        new = self._holds.new
        return None if new is None or self._clock is not None else (new, *new.call(key, cost, lease_us))

    def _short_call(
        self, whole_id: str, actuals: Amounts, now_us: int | None
    ) -> tuple[ShortCommits, ScriptCall] | None:
        """The short path to settle a hold, and the call; None where there is none."""
        short = self._holds.short_commits
        if short is None or now_us is not None or self._clock is not None:
            return None
        call = short.call(whole_id, actuals)
        return None if call is None else (short, call)

    def _rest_of_commit(self, whole_id: str, actuals: Amounts) -> ScriptSteps:
        """The steps of a settlement after its first call, which was made already."""
        steps = self._holds.commit(whole_id, actuals, None, None)
        next(steps)
        return steps

    def _reset_steps(self, keys: tuple[Key, ...]) -> ScriptSteps:
        now_us = self._now_us()
        live, record_ids = yield from self._commands.forget(self._commands.names(keys), now_us)
        for letters in record_ids:
            yield from drop_hold(self._holds.calls, letters, now_us)
        return live

    def _read_steps(self, keys: tuple[Key, ...], now_us: int | None) -> Any:
        return self._commands.read(keys, partial(self._moment_us, now_us))

    def _moment_us(self, now_us: int | None, server_us: int) -> int:
        """The moment of states that were read: the requested one, the clock's, or the server's."""
        if now_us is not None:
            return now_us
        return server_us if self._clock is None else self._clock.now_us()

    def _operation(self, key: Key, cost: Cost, *, commit: bool = True) -> Operation:
        """An operation with one key and cost for all groups."""
        single = cost if type(cost) is int else single_cost(self._commands.definitions, cost)
        return Operation((key,) * self._groups, (single,) * self._groups, commit=commit)

    def _operations(self, keys: Iterable[Key], costs: int | Iterable[int] | None) -> list[Operation]:
        """Operations at one moment; raises before any call if a key or cost is invalid."""
        groups, pairs = self._groups, zip(*checked_pairs(keys, costs), strict=True)
        now_us = self._now_us()
        return [Operation((key,) * groups, (cost,) * groups, now_us=now_us) for key, cost in pairs]


class RedisLimits(_RedisLimits, BoundLimits):
    """Limits bound to a Redis store, for threads; see `headgate.stores.protocol.BoundLimits`."""

    def __init__(self, link: SyncLink, commands: Commands, clock: Clock | None, turns: Turns) -> None:
        super().__init__(link, commands, clock)
        self._run, self._run_many = link.run, link.run_many
        self.line = RedisLine(commands, self._holds, self._clock, turns, lambda steps: drive(steps, link.run))

    def hit(self, key: Key, cost: Cost = 1, *, id: str | bytes | None = None) -> Decision:
        if id is not None:
            return self.reserve(self._operation(key, cost), Hold(id, 0, at_once=True)).decision
        return self.decide(self._operation(key, cost))

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        return self.decide(self._operation(key, cost, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        return PythonDecisions(drive(all_in_portions(self._operations(keys, costs), self.decide_many)))

    def decide_many(self, operations: Sequence[Operation], /) -> list[Decision | Exception]:
        """Decide operations together; an error is in the place of the answer that it prevented."""
        steps = [self._commands.decide(operation, self._clock) for operation in operations]
        return drive(together(steps), self._run_many)

    def _rest(self, steps: ScriptSteps, reply: Any) -> Any:
        """Continue steps with the reply to the first and return their result; further calls are rare."""
        try:
            while True:
                reply = self._run(steps.send(reply))
        except StopIteration as stop:
            return stop.value

    def decide(self, operation: Operation, /) -> Decision:
        decision: Decision = drive(self._commands.decide(operation, self._clock), self._run)
        return decision

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        drive(self._give_back_steps(receipt, ago_us), self._run)

    def hold_new(self, key: Key, cost: int, lease_us: int) -> Reserved:
        """`reserve` of one key under a new id, without steps where it needs none."""
        new_call = self._new_call(key, cost, lease_us)
        if new_call is None:
            return self.reserve(self._operation(key, cost), Hold(None, lease_us))
        new, whole_id, call = new_call
        try:
            reply = self._run(call)
        except StoreError as error:
            error.hold_id = whole_id
            raise
        return Reserved(new.decided(reply, cost), whole_id, False)

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        reserved: Reserved = drive(self._holds.reserve(operation, hold, self._clock), self._run)
        return reserved

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        short_call = self._short_call(whole_id, actuals, now_us)
        if short_call is None:
            settlement: Settlement = drive(self._holds.commit(whole_id, actuals, now_us, self._clock), self._run)
            return settlement
        short, call = short_call
        reply = self._run(call)
        settled = short.settled(reply)
        return self._rest(self._rest_of_commit(whole_id, actuals), reply) if settled is None else settled

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        steps = self._holds.extend(whole_id, lease_us, more, now_us, self._clock)
        extension: Extension = drive(steps, self._run)
        return extension

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        found: bool = drive(self._reset_steps(keys), self._run)
        return found

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> StatesAt:
        states: StatesAt = drive(self._read_steps(keys, now_us), self._link.execute_all)
        return states


class AsyncRedisLimits(_RedisLimits, AsyncBoundLimits):
    """Limits bound to a Redis store, for asyncio; see `headgate.stores.protocol.AsyncBoundLimits`."""

    def __init__(self, link: AsyncLink, commands: Commands, clock: Clock | None, turns: Turns) -> None:
        super().__init__(link, commands, clock)
        self._run = link.run
        self._run_many = link.run_many
        self.line = RedisLine(commands, self._holds, self._clock, turns, lambda steps: drive_async(steps, link.run))

    def hit(self, key: Key, cost: Cost = 1, *, id: str | bytes | None = None) -> Awaitable[Decision]:
        if id is not None:
            return self._hit_once(self._operation(key, cost), Hold(id, 0, at_once=True))
        return self.decide(self._operation(key, cost))

    async def _hit_once(self, operation: Operation, hold: Hold) -> Decision:
        return (await self.reserve(operation, hold)).decision

    def peek(self, key: Key, cost: Cost = 1) -> Awaitable[Decision]:
        return self.decide(self._operation(key, cost, commit=False))

    async def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        return PythonDecisions(await drive_async(all_in_portions(self._operations(keys, costs), self.decide_many)))

    def decide(self, operation: Operation, /) -> Awaitable[Decision]:
        return drive_async(self._commands.decide(operation, self._clock), self._run)

    def decide_many(self, operations: Sequence[Operation], /) -> Awaitable[list[Decision | Exception]]:
        return drive_together(list(map(self.deciding, operations)), self._run_many)

    def deciding(self, operation: Operation) -> ScriptSteps:
        """Decide an operation; yields the calls to make."""
        return self._commands.decide(operation, self._clock)

    @property
    def native_calls(self) -> Any:
        """The native code that packs the usual calls; None where only Python can."""
        return self._commands.native_calls

    def give_back(self, receipt: Receipt, ago_us: int, /) -> Awaitable[None]:
        return drive_async(self._give_back_steps(receipt, ago_us), self._run)

    async def hold_new(self, key: Key, cost: int, lease_us: int) -> Reserved:
        """`RedisLimits.hold_new` for asyncio."""
        new_call = self._new_call(key, cost, lease_us)
        if new_call is None:
            return await self.reserve(self._operation(key, cost), Hold(None, lease_us))
        new, whole_id, call = new_call
        try:
            reply = await self._run(call)
        except StoreError as error:
            error.hold_id = whole_id
            raise
        return Reserved(new.decided(reply, cost), whole_id, False)

    def reserve(self, operation: Operation, hold: Hold, /) -> Awaitable[Reserved]:
        return drive_async(self._holds.reserve(operation, hold, self._clock), self._run)

    async def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        short_call = self._short_call(whole_id, actuals, now_us)
        if short_call is None:
            return await drive_async(self._holds.commit(whole_id, actuals, now_us, self._clock), self._run)
        short, call = short_call
        reply = await self._run(call)
        settled = short.settled(reply)
        if settled is not None:
            return settled
        steps = self._rest_of_commit(whole_id, actuals)
        try:
            while True:
                reply = await self._run(steps.send(reply))
        except StopIteration as stop:
            rest: Settlement = stop.value
            return rest

    def extend(
        self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None
    ) -> Awaitable[Extension]:
        return drive_async(self._holds.extend(whole_id, lease_us, more, now_us, self._clock), self._run)

    def reset(self, keys: tuple[Key, ...], /) -> Awaitable[bool]:
        return drive_async(self._reset_steps(keys), self._run)

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> Awaitable[StatesAt]:
        return drive_async(self._read_steps(keys, now_us), self._link.execute_all)
