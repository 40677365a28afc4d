"""The client of a call: its answer is written here, until it leaves. No method fails when a client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from headgate.llm.dialects import Answer


class _HeadWithFirstPart(web.StreamResponse):
    """An answer whose head aiohttp buffers until its first part is written, so that both take one system call.

    An aiohttp that does not know the attribute writes the head at once.
    """

    _send_headers_immediately = False


class ClientSide:
    """Writes one answer. A client that does not read blocks its own writer, and no other."""

    def __init__(self, request: web.BaseRequest, *, closes: bool, ending: Callable[[], None]) -> None:
        """With `closes` the connection is closed after the answer. `ending` is called before the answer's end is
        written."""
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._closes = closes
        self._ending = ending
        self.response: web.StreamResponse | None = None
        self.has_left = False
        self.on_leave: Callable[[], None] = _nothing
        """Called once, when the client has gone."""

        self.writing_since: float | None = None
        """The event loop's time at which the write in progress began; None where there is none."""

    async def answer(self, answer: Answer) -> None:
        """Answer with a status, headers and a complete body."""
        await self.write_complete(answer.status, answer.headers, answer.body)

    async def write_complete(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Write a complete answer."""
        response = web.Response(status=status, body=body)
        response.headers.clear()
        await self._prepare(response, headers)
        await self._write_out(response.write_eof)

    async def start(self, status: int, headers: list[tuple[str, str]], *, with_part: bool) -> None:
        """Begin an answer that is written in parts; `with_part` is whether the first one is written next."""
        response = _HeadWithFirstPart if with_part else web.StreamResponse
        await self._prepare(response(status=status), headers)

    async def write(self, data: bytes) -> None:
        """Write a part, once the client has read most of the parts before it."""
        response = self.response
        if self.has_left or response is None:
            return
        self.writing_since = self._loop.time()
        try:
            await response.write(data)
        except (ConnectionError, RuntimeError):
            self.leave()
        finally:
            self.writing_since = None

    async def end(self, last: bytes = b"") -> None:
        """End an answer that was written in parts, with a last one."""
        if self.response is not None:
            await self._write_out(partial(self.response.write_eof, last))

    def break_off(self) -> None:
        """Close the connection in the middle of an answer, so that the client sees that the answer is incomplete."""
        if self._request.transport is not None:
            self._request.transport.abort()
        self.leave()

    def leave(self) -> None:
        """Note that the client has gone."""
        if not self.has_left:
            self.has_left = True
            self.on_leave()

    async def _prepare(self, response: web.StreamResponse, headers: list[tuple[str, str]]) -> None:
        self.response = response
        response.headers.extend(headers)
        if self._closes:
            response.force_close()
        if not self.has_left:
            try:
                await response.prepare(self._request)
            except (ConnectionError, RuntimeError):
                self.leave()

    async def _write_out(self, write: Callable[[], Awaitable[None]]) -> None:
        if self.has_left:
            return
        self.writing_since = self._loop.time()
        self._ending()
        try:
            await write()
        except (ConnectionError, RuntimeError):
            self.leave()
        finally:
            self.writing_since = None


def _nothing() -> None:
    """Do nothing: the default of `on_leave`."""
