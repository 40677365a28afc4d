"""What is sent of a response of Django: all of it, or the parts of a stream.

Nothing here keeps the response. Where that is dropped unsent, as it is where a thread answers a client that is gone,
what was in flight is to be freed then, and not when the garbage collector comes by.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, cast
from weakref import WeakMethod, ref

from headgate.http.server.counted_parts import CountedParts
from headgate.http.server.exchange import Exchange
from headgate.http.server.options import Response


class Sent:
    """What is sent of a response, to HEAD no body; it does not keep the response, which is gone once it is dropped."""

    def __init__(self, request: Any, response: Any) -> None:
        self._response = ref(response)
        self._known = response.status_code, response.headers
        self._has_body = request.method != "HEAD"

    def with_bytes(self, body_bytes: int) -> Response:
        response = self._response()
        status, headers = self._known if response is None else (response.status_code, response.headers)
        return Response(status, {name.lower(): value for name, value in headers.items()}, body_bytes)

    def whole(self) -> Response:
        """The response with its whole body, of which nothing was sent if it is gone or was never rendered."""
        response = self._response()
        if response is None or not self._has_body or not getattr(response, "is_rendered", True):
            return self.with_bytes(0)
        return self.with_bytes(len(response.content))


def counted(response: Any, exchange: Exchange, sent: Sent) -> CountedParts:
    """The parts of a stream, which end an exchange when they are sent or closed."""
    # What `streaming_content` gives keeps the response, which is to keep these parts.
    encode, parts = _Encode(response), response._iterator
    if response.is_async:
        return _CountedAsync(_encoded(encode, parts), exchange, sent)
    return _Counted(map(encode, parts), exchange, sent)


class _Encode:
    """Makes bytes of a part as its response does."""

    def __init__(self, response: Any) -> None:
        self._encode = WeakMethod(response.make_bytes)

    def __call__(self, part: Any) -> Any:
        encode = self._encode()
        return part if encode is None else encode(part)  # a response with the same parts does it


async def _encoded(encode: _Encode, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for part in parts:
        yield encode(part)


class _Counted(CountedParts):
    """The parts of a stream; Django closes it in a thread."""

    def __init__(self, parts: Any, exchange: Exchange, sent: Sent) -> None:
        super().__init__(parts, lambda body_bytes: exchange.end(sent.with_bytes(body_bytes)))
        self._exchange, self._sent = exchange, sent


class _CountedAsync(_Counted):
    """The parts of a stream that an event loop makes; Django does not close one that fails."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in cast(AsyncIterator[bytes], self._parts):
                self._bytes += len(part)
                yield part
        finally:
            await self._exchange.end_async(self._sent.with_bytes(self._bytes))

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("this stream is read on an event loop")
