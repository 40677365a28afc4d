"""Passes on a stream as it arrives, reads its usage, holds more where a rule requires it, and enforces its budget."""

from __future__ import annotations

import json
import logging

from headgate.errors import StoreError
from headgate.llm.call import AsyncCall
from headgate.llm.dialects import Dialect, StreamEnd
from headgate.llm.events import EventReader
from headgate.llm.stream_reading import StreamReading
from headgate.llm.tokens import count_text_async
from headgate.llm.usage import Usage
from headgate.llm_proxy.client_side import ClientSide
from headgate.llm_proxy.provider_answer import ProviderAnswer

log = logging.getLogger("headgate")


class StreamRelay:
    """The stream of one call."""

    def __init__(
        self, call: AsyncCall, reading: StreamReading, client: ClientSide, dialect: Dialect, *, strips_usage: bool
    ) -> None:
        """`reading` is a new one of the call.

        With `strips_usage`, the proxy and not the client has requested the usage of (chat) completions: it is removed.
        """
        self._call = call
        self._client = client
        self._reading = reading
        self._strips_usage = strips_usage and dialect.reports_usage_on_request
        self._end: StreamEnd | None = None
        self._passed_events: EventReader | None = None
        if reading.is_counted:
            self._end, self._passed_events = StreamEnd(dialect.name), EventReader()

    async def run(self, response: ProviderAnswer, headers: list[tuple[str, str]]) -> str:
        """Pass on the answer's parts; return how it ended: `answered`, `cut` or `broken`."""
        client, reading = self._client, self._reading
        has_begun, last = False, b""
        try:
            if not response.has_more:
                has_begun = True
                await client.start(response.status, headers, with_part=False)
            while chunk := await response.read():
                passed = b"".join(reading.feed(chunk, strip_usage=self._strips_usage))
                if reading.usage.has_ended:  # settled before the client sees the end: it may call again at once
                    await self.settle()
                if not has_begun:
                    has_begun = True
                    await client.start(response.status, headers, with_part=bool(passed))
                if self._end is None and response.is_at_end:
                    last = passed
                    break
                if passed:
                    await client.write(passed)
                if self._end is not None and await self._is_spent(passed):
                    await self._cut()
                    return "cut"
        except OSError:
            await self.settle()
            client.break_off()
            return "broken"
        last += reading.rest()
        await self.settle()
        await client.end(last)
        return "answered"

    async def settle(self) -> None:
        """Settle with the usage that was read so far."""
        if self._reading.answer is not None:
            await self._call.settle(self._reading.answer)
        else:
            await self._call.settle_stream(self._reading.usage)

    async def _is_spent(self, passed: bytes) -> bool:
        """Whether the budget is exhausted, after these bytes were passed on; holds more where it is not."""
        assert self._end is not None and self._passed_events is not None
        for event in self._passed_events.feed(passed):
            self._end.read(_parsed(event.data))
        reading = self._reading
        if reading.usage.has_ended:
            return False
        try:
            while reading.needs_more:
                if not await self._call.hold_more(reading):
                    return True
        except StoreError as error:  # the tokens generated are settled at the end
            log.warning("no more could be held for a stream, which goes on: %s", error)
        return False

    async def _cut(self) -> None:
        """End the stream like a provider whose answer has reached its maximum of tokens."""
        assert self._end is not None
        reported = self._reading.usage.usage or Usage(self._call.held.input, 0)
        counted = (await count_text_async(self._reading.usage.text, self._call.model)).tokens
        usage = reported._replace(output=max(reported.output, counted))
        await self.settle()
        await self._client.write(self._end.cut(usage, reports_usage=not self._strips_usage))
        await self._client.end()


def _parsed(data: str) -> object:
    try:
        return json.loads(data) if data and data != "[DONE]" else None
    except (ValueError, RecursionError):
        return None
