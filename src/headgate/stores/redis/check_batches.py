"""Batches of checks from the front door, decided on a guarded Redis; docs/decisions/0071.

A native `CheckBatch` packs the calls of usual checks and parses their usual replies. The steps that decide a single
operation do everything else: decisions without the store, remembered refusals, calendars, long keys, errors. All calls
are sent in one write, in the order of the checks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from hiredis import pack_command

from headgate.clock import Clock, SystemClock
from headgate.decision import Decision
from headgate.drive import begun, drive_together
from headgate.keys import check_now
from headgate.stores.batches import Done, Failing
from headgate.stores.guard.breaker import CLOSED
from headgate.stores.redis.async_link import AsyncLink
from headgate.stores.redis.commands import ScriptCall

if TYPE_CHECKING:
    from headgate.stores.guard.store import GuardedStore

Steps = Generator[ScriptCall, Any, Decision]


def decide_batch(
    link: AsyncLink, guard: GuardedStore, batch: Any, clock: Clock | None, failure: Failing, done: Done
) -> None:
    """Decide each check of a batch as the limits behind the guard do; see `DecidesBatches`."""
    run = _BatchRun(link, guard, batch, failure, done)
    try:
        run.begin(clock)
    except Exception as error:
        done(error)


class _BatchRun:
    """A batch that is being decided. A usual one takes two turns of the event loop, and no task."""

    def __init__(self, link: AsyncLink, guard: GuardedStore, batch: Any, failure: Failing, done: Done) -> None:
        self._link = link
        self._guard = guard
        self._batch = batch
        self._unusual = _UnusualChecks(batch, failure)
        self._done = done
        self._undone = guard.refusals.undone
        self._count = 0
        self._refused: list[int] = []

    def begin(self, clock: Clock | None) -> None:
        """Send the calls to the store, or decide without it."""
        batch, unusual, multiplexer = self._batch, self._unusual, self._link.multiplexer
        if self._guard.breaker.state != CLOSED or multiplexer is None:
            unusual.begin(range(len(batch)))
            self._finish(None)
            return
        moment, refusals = _explicit_now_us(clock), self._guard.refusals.known
        usual = None if refusals else batch.pack_usual(moment)
        if usual is not None:
            packed, self._count = usual
        else:
            indexes = batch.unusual()
            if refusals:
                indexes = sorted({*indexes, *batch.remembered(refusals)})
            unusual.begin(indexes)
            calls = {index: pack_command(call.by_sha) for index, call in unusual.calls.items()}
            packed, self._count = batch.pack(calls, moment)
        if self._count:
            multiplexer.execute_packed(packed, self._count, self)
        else:
            self._done(None)

    def receive(self, replies: list[Any]) -> None:
        """Continue with the replies."""
        try:
            left, refused = self._batch.read(replies)
            self._record(len(left), refused)
            replied = dict(left)
            self._unusual.begin(index for index in replied if index not in self._unusual.calls)
            self._finish(replied)
        except Exception as error:
            self._done(error)

    def receive_bytes(self, data: bytes) -> int:
        """Parse the replies from bytes where all of them are usual."""
        length: int
        length, self._refused = self._batch.read_bytes(data)
        return length

    def resume(self) -> None:
        """Continue after all replies were parsed from bytes."""
        try:
            self._record(0, self._refused)
            self._done(None)
        except Exception as error:
            self._done(error)

    def _record(self, left: int, refused: list[int]) -> None:
        """Record the decisions from the replies, except for the `left` ones."""
        batch, guard = self._batch, self._guard
        if guard.breaker.failures and left < self._count:
            guard.breaker.succeeded()
        self._forget_refusals(0)
        for index in refused:
            batch.limits(index).remember(batch.operation(index), batch.decision(index), self._undone)
        if refused:
            self._forget_refusals(refused[0])

    def _forget_refusals(self, first: int) -> None:
        """Forget remembered refusals that are outdated by charged checks from index `first` on."""
        refusals = self._guard.refusals
        for index in self._batch.charged(refusals.of_state) if refusals.known else ():
            if index >= first:
                self._batch.limits(index).charged(self._batch.operation(index))

    def _finish(self, replies: dict[int, Any] | None) -> None:
        """Continue the unusual checks, if any, with the replies to their first steps."""
        if not self._unusual.calls:
            self._done(None)
            return
        task = begun(self._unusual.resume(self._link, replies))
        task.add_done_callback(lambda ended: self._done(ended.exception()))


def _explicit_now_us(clock: Clock | None) -> int | None:
    """The moment of a clock that replaces the server's; None without one."""
    return None if clock is None or isinstance(clock, SystemClock) else check_now(clock.now_us())


class _UnusualChecks:
    """The checks of a batch that are decided in steps, by their indexes."""

    def __init__(self, batch: Any, failure: Failing) -> None:
        self._batch = batch
        self._failure = failure
        self._steps: dict[int, Steps] = {}
        self.calls: dict[int, ScriptCall] = {}
        """The call that each of them waits for."""

    def begin(self, indexes: Iterable[int]) -> None:
        """Take the first step of each check, or record its decision."""
        for index in indexes:
            steps = self._batch.limits(index).deciding(self._batch.operation(index))
            try:
                self.calls[index] = next(steps)
            except StopIteration as stop:
                self._record(index, stop.value)
            except Exception as error:
                self._record(index, error)
            else:
                self._steps[index] = steps

    async def resume(self, link: AsyncLink, replies: dict[int, Any] | None) -> None:
        """Continue to the end, from the replies to the first steps, which are sent first where `replies` is None."""
        calls = list(self.calls.values())
        if not calls:
            return
        if replies is None:
            first_replies = await link.run_many(calls)
        else:
            first_replies = await link.repeat_unexecuted(calls, [replies[index] for index in self.calls])
        results = await drive_together(list(self._steps.values()), link.run_many, first_replies)
        for index, result in zip(self._steps, results, strict=True):
            self._record(index, result)

    def _record(self, index: int, result: Decision | Exception) -> None:
        if isinstance(result, Exception):
            self._batch.failed(index, *self._failure(result))
        else:
            self._batch.decided(index, result)
