"""A held call of a language model, for threads and for asyncio: settled by its actual usage, or by an estimate."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from headgate import heartbeat
from headgate.collector import call_outside
from headgate.drive import answered, answered_in_any_case, is_on_asyncio
from headgate.errors import ArgumentError, RateLimited, StoreError
from headgate.holding import Extension
from headgate.llm.call_base import CallBase, log
from headgate.llm.call_costs import SettledAmounts
from headgate.llm.call_failures import mode_of
from headgate.llm.entry import SettleMode
from headgate.llm.stream_reading import StreamReading
from headgate.llm.streams import StreamUsage
from headgate.llm.tokens import LONG, count_text_async
from headgate.llm.usage import NO_PARTS, Usage, check_parts
from headgate.reservation import AsyncReservation

T = TypeVar("T")


class Call(CallBase):
    """A requested call; true if it is held.

    As a context manager it raises RateLimited if the call was refused. If its block ends without settling, what is held
    counts. If the block raises, the call is settled as failed where the provider refused, and as cancelled where
    nothing was sent; otherwise what is held counts.
    """

    __slots__ = ()

    def settle(self, answer: Any) -> None:
        """Settle with the usage that a whole answer reports, in any dialect; with what is held if it reports none.

        A usage without input, although some was sent, settles the call with at least its output.
        """
        self._settle(*self._read_answer(answer))

    def settle_usage(self, usage: Usage) -> None:
        """Settle with the actual usage. Raises ArgumentError for negative numbers, and for parts above their total."""
        if usage[0] < 0 or usage[1] < 0 or usage[2:] != NO_PARTS:
            check_parts(usage)
        self._settle("exact", usage)

    def settle_at_least(self, usage: Usage) -> None:
        """Settle with at least this usage: what is held is not given back. Raises as `settle_usage`."""
        if usage[0] < 0 or usage[1] < 0 or usage[2:] != NO_PARTS:
            check_parts(usage)
        self._settle("at least", usage)

    def settle_stream(self, usage: StreamUsage) -> None:
        """Settle with what was read of a stream: exactly if it reported usage, else with at least what was counted."""
        self._settle(*self._read_stream(usage))

    def settle_failed(self) -> None:
        """Settle a call that the provider refused before the first byte: the request counts, nothing else."""
        self._settle("failed", None)

    def settle_unknown(self) -> None:
        """Settle with what is held."""
        self._settle("unknown", None)

    def cancel(self) -> None:
        """Settle a call that was never sent: everything is given back."""
        self._settle("cancelled", None)

    def extend(self) -> Extension:
        """Extend the lease: it ends a full lease from now. A `with` block does so by itself."""
        extension: Extension = self._reservation.extend()
        self._note_extension(extension)
        return extension

    def hold_more(self, reading: StreamReading) -> bool:
        """Hold a further slice for a stream. False if the budget is used up and its rule says to cut the stream."""
        added, more = self._slice()
        return self._held_more(reading, added, self._reservation.extend(more=more))

    def stream(self, stream: Iterable[T]) -> Iterator[T]:
        """Yield the objects of a client's stream; settle the call at its end, or when the caller stops early.

        Where nothing more can be held and the rule says so, the stream ends and `was_cut` is true.
        """
        reading = self._streamed = self.reading()
        try:
            for event in stream:
                reading.read(event)
                yield event
                while reading.needs_more:
                    if not self.hold_more(reading):
                        close(stream)
                        return
        except BaseException as error:
            if not reading.has_begun and (mode := mode_of(error)) != "unknown":  # the call was made by the stream
                self._settle(mode, None)
            raise
        finally:
            self.settle_stream(reading.usage)

    def __enter__(self) -> Call:
        if not self:
            raise RateLimited(self.decision)
        if self._known.plan.extends_lease:
            heartbeat.start(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if self._known.plan.extends_lease:
            heartbeat.stop(self)
        self._settle(*self._at_exit(error))

    def _settle(self, mode: SettleMode, usage: Usage | None) -> None:
        if self.settled or not self._is_held:
            return
        self.settled = True
        call_outside(partial(self._settle_now, mode, usage))

    def _settle_now(self, mode: SettleMode, usage: Usage | None) -> None:
        amounts, entry = self._settlement(mode, usage)
        try:
            try:
                outcome = self._commit(amounts)
            except ArgumentError as error:
                amounts, entry = self._uncountable(error)
                outcome = self._commit(amounts)
        except StoreError as error:
            log.warning("a call could not be settled: %s", error)
            return
        if entry is not None:
            self._done(outcome, entry)

    def _commit(self, amounts: SettledAmounts) -> str:
        outcome: str
        if self._keyed is not None and type(amounts) is tuple:
            outcome = self._keyed.settle(self._reservation, amounts)
        else:
            outcome = self._reservation.commit(self._known.plan.of_groups(amounts)).outcome
        return outcome


class AsyncCall(CallBase):
    """`Call` for asyncio: the same names, awaited. A settlement continues if its caller is cancelled."""

    __slots__ = ()

    async def settle(self, answer: Any) -> None:
        """See `Call.settle`."""
        await self._settle(*self._read_answer(answer))

    async def settle_usage(self, usage: Usage) -> None:
        """See `Call.settle_usage`."""
        if usage[0] < 0 or usage[1] < 0 or usage[2:] != NO_PARTS:
            check_parts(usage)
        await self._settle("exact", usage)

    async def settle_at_least(self, usage: Usage) -> None:
        """See `Call.settle_at_least`."""
        if usage[0] < 0 or usage[1] < 0 or usage[2:] != NO_PARTS:
            check_parts(usage)
        await self._settle("at least", usage)

    async def settle_stream(self, usage: StreamUsage) -> None:
        """See `Call.settle_stream`."""
        text = "" if usage.is_final else usage.text
        if len(text) <= LONG or not is_on_asyncio():
            await self._settle(*self._read_stream(usage))
        elif not self.settled and self._is_held:
            self.settled = True  # so that nothing else settles it while its text is counted
            await answered_in_any_case(self._settle_counted(usage, text))

    async def settle_failed(self) -> None:
        """See `Call.settle_failed`."""
        await self._settle("failed", None)

    async def settle_unknown(self) -> None:
        """See `Call.settle_unknown`."""
        await self._settle("unknown", None)

    async def cancel(self) -> None:
        """See `Call.cancel`."""
        await self._settle("cancelled", None)

    async def extend(self) -> Extension:
        """See `Call.extend`."""
        extension: Extension = await answered(self._reservation.extend())
        self._note_extension(extension)
        return extension

    async def hold_more(self, reading: StreamReading) -> bool:
        """See `Call.hold_more`."""
        added, more = self._slice()
        return self._held_more(reading, added, await answered(self._reservation.extend(more=more)))

    async def stream(self, stream: AsyncIterable[T]) -> AsyncIterator[T]:
        """See `Call.stream`."""
        reading = self._streamed = self.reading()
        try:
            async for event in stream:
                reading.read(event)
                yield event
                while reading.needs_more:
                    if not await self.hold_more(reading):
                        await close_async(stream)
                        return
        except BaseException as error:
            if not reading.has_begun and (mode := mode_of(error)) != "unknown":  # the call was made by the stream
                await self._settle(mode, None)
            raise
        finally:
            await self.settle_stream(reading.usage)

    async def __aenter__(self) -> AsyncCall:
        if not self:
            raise RateLimited(self.decision)
        if self._known.plan.extends_lease:
            heartbeat.start_async(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if self._known.plan.extends_lease:
            heartbeat.stop_async(self)
        await self._settle(*self._at_exit(error))

    async def _settle(self, mode: SettleMode, usage: Usage | None) -> None:
        if self.settled or not self._is_held:
            return
        self.settled = True
        settling = self._settle_now(mode, usage)
        waits = isinstance(self._reservation, AsyncReservation)
        await (answered_in_any_case(settling) if waits else settling)

    async def _settle_counted(self, usage: StreamUsage, text: str) -> None:
        output_tokens = (await count_text_async(text, self.model)).tokens
        await self._settle_now(*self._read_stream(usage, output_tokens))

    async def _settle_now(self, mode: SettleMode, usage: Usage | None) -> None:
        amounts, entry = self._settlement(mode, usage)
        try:
            try:
                outcome = await self._commit(amounts)
            except ArgumentError as error:
                amounts, entry = self._uncountable(error)
                outcome = await self._commit(amounts)
        except StoreError as error:
            log.warning("a call could not be settled: %s", error)
            return
        if entry is not None:
            self._done(outcome, entry)

    async def _commit(self, amounts: SettledAmounts) -> str:
        outcome: str
        if self._keyed is not None and type(amounts) is tuple:
            outcome = self._keyed.settle(self._reservation, amounts)
        else:
            reservation, groups = self._reservation, self._known.plan.of_groups(amounts)
            outcome = (await answered(reservation.commit(groups))).outcome
        return outcome


def close(stream: Any) -> None:
    """Close a client's stream, so that the provider stops."""
    close_stream = getattr(stream, "close", None)
    if close_stream is not None:
        close_stream()


async def close_async(stream: Any) -> None:
    """`close` for an asynchronous stream."""
    close_stream = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    if close_stream is not None:
        await answered(close_stream())
