"""Transports that hold calls of an httpx or httpx2 client before they are sent, and settle them by their answers.

The library is the client's: both have the same classes, and neither is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, Protocol

from headgate.errors import ArgumentError, StoreError
from headgate.llm.call import AsyncCall, Call
from headgate.llm.dialects import Answer
from headgate.llm.held_bodies import AsyncHeldBody, HeldBody
from headgate.llm.held_requests import (
    AnswerReading,
    CallerSource,
    HeldRequest,
    caller_of,
    dialect_of_request,
    not_held,
    read_request,
    refused,
)
from headgate.llm.inputs import with_input_counted

_REDIRECTS, _FAILS = 300, 400
_WIRE_HEADERS = (b"content-encoding", b"content-length")
"""Headers that describe the received body, but not the decoded one that is passed on."""


class Gate(Protocol):
    """A gate that holds calls."""

    def reserve(self, model: str | None = None, *, body: Mapping[str, Any], **caller: Any) -> Any: ...


class HeldTransport:
    """The transport of a client for threads, around the one that it has."""

    def __init__(self, library: ModuleType, inner: Any, gate: Gate, caller: Mapping[str, CallerSource]) -> None:
        self._library = library
        self._inner = inner
        self._gate = gate
        self._caller = caller

    def handle_request(self, request: Any) -> Any:
        """The provider's answer, or one in its format for a call that is not sent."""
        dialect = dialect_of_request(request.method, request.url.path, request.headers)
        if dialect is None:
            return self._inner.handle_request(request)
        held = dialect if isinstance(dialect, Answer) else read_request(dialect, request.url.path, request.read())
        if isinstance(held, Answer):
            return _response_of(self._library, held)
        try:
            call: Call = self._gate.reserve(body=held.body, dialect=held.dialect.name, **caller_of(self._caller))
        except (ArgumentError, StoreError) as error:
            return _response_of(self._library, not_held(held, error))
        if not call:
            return _response_of(self._library, refused(held, call))
        call.__enter__()
        response = None
        try:
            response = self._inner.handle_request(_outgoing(self._library, request, held))
            if response.status_code < _REDIRECTS:
                return _settling_response(self._library, request, response, held, call)
            if response.status_code < _FAILS:
                call.cancel()
            call.settle_failed()
        except BaseException as error:
            if response is not None:  # interrupted before the client had it
                response.close()
            call.__exit__(type(error), error, error.__traceback__)
            raise
        call.__exit__(None, None, None)
        return response

    def close(self) -> None:
        """Close the client's own transport."""
        self._inner.close()

    def __enter__(self) -> HeldTransport:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)


class AsyncHeldTransport:
    """`HeldTransport` for asyncio."""

    def __init__(self, library: ModuleType, inner: Any, gate: Gate, caller: Mapping[str, CallerSource]) -> None:
        self._library = library
        self._inner = inner
        self._gate = gate
        self._caller = caller

    async def handle_async_request(self, request: Any) -> Any:
        """The provider's answer, or one in its format for a call that is not sent."""
        dialect = dialect_of_request(request.method, request.url.path, request.headers)
        if dialect is None:
            return await self._inner.handle_async_request(request)
        held = (
            dialect if isinstance(dialect, Answer) else read_request(dialect, request.url.path, await request.aread())
        )
        if isinstance(held, Answer):
            return _response_of(self._library, held)
        try:
            arguments = await with_input_counted(None, {**caller_of(self._caller), "body": held.body})
            call: AsyncCall = await self._gate.reserve(**arguments, dialect=held.dialect.name)
        except (ArgumentError, StoreError) as error:
            return _response_of(self._library, not_held(held, error))
        if not call:
            return _response_of(self._library, refused(held, call))
        await call.__aenter__()
        response = None
        try:
            response = await self._inner.handle_async_request(_outgoing(self._library, request, held))
            if response.status_code < _REDIRECTS:
                return _settling_response(self._library, request, response, held, call)
            if response.status_code < _FAILS:
                await call.cancel()
            await call.settle_failed()
        except BaseException as error:
            if response is not None:  # the call was cancelled before the client had it
                await response.aclose()
            await call.__aexit__(type(error), error, error.__traceback__)
            raise
        await call.__aexit__(None, None, None)
        return response

    async def aclose(self) -> None:
        """Close the client's own transport."""
        await self._inner.aclose()

    async def __aenter__(self) -> AsyncHeldTransport:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)


def _outgoing(library: ModuleType, request: Any, held: HeldRequest) -> Any:
    """The request to send: unchanged, or one that also requests the usage of its stream."""
    content = held.content
    if content is None:
        return request
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    return library.Request(request.method, request.url, headers=headers, content=content, extensions=request.extensions)


def _response_of(library: ModuleType, answer: Answer) -> Any:
    """A response with an answer that is not a provider's."""
    return library.Response(answer.status, headers=answer.headers, content=answer.body)


def _settling_response(
    library: ModuleType, request: Any, response: Any, held: HeldRequest, call: Call | AsyncCall
) -> Any:
    """A response whose body settles the call as it is read."""
    raw = library.Response(response.status_code, headers=response.headers, stream=response.stream, request=request)
    reading = AnswerReading(held, call, response.headers.get("content-type", ""))
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _WIRE_HEADERS]
    body = _body_classes(library)[isinstance(call, AsyncCall)](raw, reading, call)
    return library.Response(response.status_code, headers=headers, stream=body, extensions=response.extensions)


@cache
def _body_classes(library: ModuleType) -> tuple[Any, Any]:
    """The classes of bodies for clients of a library, for threads and for asyncio."""
    return (
        type("HeldBody", (HeldBody, library.SyncByteStream), {}),
        type("AsyncHeldBody", (AsyncHeldBody, library.AsyncByteStream), {}),
    )
