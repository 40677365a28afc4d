"""The part of a Django response that is sent: all of it, or the parts of a stream.

Nothing here keeps a strong reference to the response. A response that is dropped unsent, as one that a thread returns
for a client that is gone, has to free what is in flight at once, not when the garbage collector runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, cast
from weakref import WeakMethod, ref

from headgate.http.server.counted_parts import CountedParts
from headgate.http.server.exchange import Exchange
from headgate.http.server.options import Response


class Sent:
    """The sent part of a response, without its body to HEAD; refers to the response weakly."""

    def __init__(self, request: Any, response: Any) -> None:
        self._response = ref(response)
        self._last_known = response.status_code, response.headers
        self._has_body = request.method != "HEAD"

    def with_bytes(self, body_bytes: int) -> Response:
        """Return the response with this many bytes of its body."""
        response = self._response()
        status, headers = self._last_known if response is None else (response.status_code, response.headers)
        return Response(status, {name.lower(): value for name, value in headers.items()}, body_bytes)

    def whole(self) -> Response:
        """Return the response with its whole body; with none if the response is dropped or was never rendered."""
        response = self._response()
        if response is None or not self._has_body or not getattr(response, "is_rendered", True):
            return self.with_bytes(0)
        return self.with_bytes(len(response.content))


def counted(response: Any, exchange: Exchange, sent: Sent) -> CountedParts:
    """Return the parts of a stream, counted; they end the exchange when they are sent or closed."""
    # The iterator of `streaming_content` refers to the response, which will refer to these parts: a circle.
    encode, parts = _Encode(response), response._iterator
    if response.is_async:
        return _CountedAsync(_encoded(encode, parts), exchange, sent)
    return _Counted(map(encode, parts), exchange, sent)


class _Encode:
    """Encodes a part as its response does."""

    def __init__(self, response: Any) -> None:
        self._encode = WeakMethod(response.make_bytes)

    def __call__(self, part: Any) -> Any:
        encode = self._encode()
        return part if encode is None else encode(part)  # else a copy of the response, with these parts, encodes it


async def _encoded(encode: _Encode, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for part in parts:
        yield encode(part)


class _Counted(CountedParts):
    """The parts of a stream; Django closes it in a thread."""

    def __init__(self, parts: Any, exchange: Exchange, sent: Sent) -> None:
        super().__init__(parts, lambda body_bytes: exchange.end(sent.with_bytes(body_bytes)))
        self._exchange, self._sent = exchange, sent


class _CountedAsync(_Counted):
    """The parts of a stream that an event loop produces; Django does not close a stream that fails."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in cast(AsyncIterator[bytes], self._parts):
                self._bytes += len(part)
                yield part
        finally:
            await self._exchange.end_async(self._sent.with_bytes(self._bytes))

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("this stream is read on an event loop")
