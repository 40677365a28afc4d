"""One HTTP/1.1 connection: in which order pipelined requests are answered, and when it ends.

`request_reader` bounds what is read. This module bounds how long the client may take, and how many requests are
answered ahead. The connection ends itself, or `Connections` ends it. See docs/decisions/0032-connections.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from headgate.service.http.messages import Persistence, ServiceRequest, ServiceResponse, WaitingReply
from headgate.service.http.problems import problem_response
from headgate.service.http.request_faults import RequestRefused
from headgate.service.http.request_reader import HEAD, IDLE, RequestReader
from headgate.service.http.response_writer import encode_response

if TYPE_CHECKING:
    from headgate.service.http.connections import Connections

_SLICE = 4096
"""Bytes that are parsed at once; it bounds the work of one turn of the event loop."""

_LINGER_S = 2.0
"""How long further data is read and discarded, so that the client reads the response before a reset."""


class Connection(asyncio.Protocol):
    """One connection. `due` is the time, on the event loop's clock, at which its client has taken too long."""

    def __init__(self, connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._connections = connections
        self._bounds = connections.bounds
        self._loop = loop
        self._pending: asyncio.Future[ServiceResponse] | None = None
        self._waiting: WaitingReply | None = None
        """The pending reply, if its request may wait in line."""

        self._queue: deque[tuple[ServiceRequest, Persistence]] = deque()
        """Requests that are answered after the pending one."""

        self._unfed = b""
        """Data that arrived behind requests that are answered first."""

        self._last: ServiceResponse | None = None
        """The response to a request that is not read further; sent once all requests before it are answered."""

        self._reads = True
        """Whether incoming data is read; if not, it is discarded."""

        self._lingers = False
        """Whether everything is answered, and the sending side is closed."""

        self._paused = False
        self._stuck = False
        """Whether the client does not read its responses."""

        self.served = 0
        """How many requests were answered."""

        self._waits_for: tuple[int, int] | None = None
        """(phase, number of the request) in which the connection waits for its client; None while it does not."""

        self._written = 0
        """The size of the response that was written last, in bytes."""

        self._unread = 0
        """Bytes of responses in memory that the client does not read, at the time when it stopped reading."""

        self.held = 0
        self.due = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun on it that could be finished."""
        return self._lingers or not (self._reader.has_begun or self._is_busy)

    @property
    def has_unsent(self) -> bool:
        """Whether the operating system has not taken all of its responses yet."""
        return self._transport.get_write_buffer_size() > 0

    @property
    def _is_busy(self) -> bool:
        """Whether a request must be answered, or a response sent, before more is read."""
        return self._pending is not None or self._stuck or bool(self._queue)

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        peer = address[0] if isinstance(address, tuple) else "unix"
        self._reader = RequestReader(
            self._bounds,
            None if self._connections.from_door else peer,
            self._loop.time,
            self._connections.app.wants_body,
            self._receive,
        )
        if self._connections.admit(self):
            self._wait()
        else:
            self._refuse(503, "too many connections are being answered; ask again")

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.open.discard(self)
        self._connections.waiting.pop(self, None)
        self._reads = False
        self._queue.clear()
        self._unfed = b""
        self._hold(0)
        self.stop_waiting()

    def data_received(self, data: bytes) -> None:
        if not self._reads:
            return
        if self._unfed or self._is_busy:
            self._unfed += data
            self._pause()
        else:
            self._feed(data)
        self._wait()

    def eof_received(self) -> bool:
        """The client sends no more. Its requests are still answered, but no longer wait in line."""
        self._reads = False
        self.stop_waiting()
        return self._is_busy and not self._lingers

    def pause_writing(self) -> None:
        self._stuck = True
        self._wait_until(self._bounds.take_s)
        # Event loops keep the whole buffer until its last byte is sent, but report only the size of the rest.
        self._unread = max(self._written, self._transport.get_write_buffer_size())
        self._hold(self._reader.held_bytes + self._unread)

    def resume_writing(self) -> None:
        self._stuck = False
        self._unread = 0
        if self._lingers:
            self._hold(0)
            self._wait_until(_LINGER_S)
            return
        self._hold(self._reader.held_bytes)
        self._waits_for = None
        self._go_on()

    # Called by `Connections`.

    def expire(self, now: float) -> None:
        """The client has taken too long."""
        if self._stuck or self._lingers or self._transport.is_closing():
            self.abort()
        elif self.is_idle:
            self._close()
        elif self._reader.phase == HEAD:
            self._refuse(408, f"the head of a request has to come within {self._bounds.head_s:g} s")
        else:
            due = self._reader.body_due_s
            if due > now:
                self.due = due
            else:
                self._refuse(408, f"a body has to come within {self._bounds.body_s:g} s, or steadily")

    def give_way(self) -> None:
        """End in favour of another connection."""
        if self._stuck or self._lingers or self._transport.is_closing():
            self.abort()
        elif self.is_idle:
            self._close()
        else:
            self._refuse(503, "too many connections are open, and this one has waited longest for its client")
            self._close()

    def stop_waiting(self) -> None:
        """Refuse the request that waits in line: the client seems to be gone, or the process ends."""
        if self._waiting is not None:
            self._waiting.leave()

    def abort(self) -> None:
        """Close the connection at once, without sending what is buffered."""
        self._transport.abort()
        self.connection_lost(None)

    # Reading and answering.

    def _feed(self, data: bytes) -> None:
        """Parse received data, until a request must be answered first."""
        reader = self._reader
        try:
            if len(data) <= _SLICE:
                reader.feed(data)
                if reader.expects_continue:
                    self._send_continue()
            else:
                self._feed_in_slices(data)
        except RequestRefused as refused:
            if self._reads:  # else it follows the last request
                self._refuse(refused.status, str(refused))
        if (held := reader.held_bytes + self._unread) != self.held:
            self._hold(held)

    def _feed_in_slices(self, data: bytes) -> None:
        """Parse much data; after some requests other connections get their turn."""
        view = memoryview(data)
        for start in range(0, len(data), _SLICE):
            served_before = self.served
            self._reader.feed(view[start : start + _SLICE])
            self._send_continue()
            if not self._reads:
                return
            if start + _SLICE < len(data) and (self._is_busy or self.served > served_before):
                self._unfed = data[start + _SLICE :]
                self._pause()
                if not self._is_busy:
                    self._loop.call_soon(self._go_on)
                return

    def _send_continue(self) -> None:
        """Send `100 Continue` to a client that holds its body back, unless a request must be answered first."""
        if self._reader.awaits_continue and not self._is_busy:
            self._reader.expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _receive(self, request: ServiceRequest, persistence: Persistence) -> None:
        """Answer a request, or queue it."""
        if not self._reads:
            return
        self._reads = bool(persistence)
        if self._is_busy:
            self._queue.append((request, persistence))
        else:
            self._answer(request, persistence)

    def _answer(self, request: ServiceRequest, persistence: Persistence) -> None:
        response = self._connections.app.answer(request)
        if isinstance(response, ServiceResponse):
            self._write(request, response, persistence)
        else:
            self._connections.waiting.pop(self, None)
            self._waits_for = None
            self._waiting = response if isinstance(response, WaitingReply) else None
            self._pending = asyncio.ensure_future(response)
            self._pending.add_done_callback(lambda done: self._finish_answer(request, done, persistence))

    def _finish_answer(
        self, request: ServiceRequest, done: asyncio.Future[ServiceResponse], persistence: Persistence
    ) -> None:
        self._pending = self._waiting = None
        if not done.cancelled():
            self._write(request, done.result(), persistence)
            self._go_on()

    def _write(self, request: ServiceRequest, response: ServiceResponse, persistence: Persistence) -> None:
        if self._transport.is_closing():
            return
        self.served += 1
        effective = Persistence.CLOSE if self._connections.closing else persistence
        head_only = request.method == "HEAD"
        encoded = encode_response(response, self._connections.date, effective, head_only=head_only)
        self._written = len(encoded)
        self._transport.write(encoded)
        if not effective:
            self._reads = False
            self._queue.clear()
            if persistence or self._reader.phase != IDLE or self._unfed:  # the client may be sending more
                self._linger()
            else:
                self._close()

    def _go_on(self) -> None:
        """Answer the next request in the queue, then read on."""
        while self._queue and self._pending is None and not self._stuck:
            self._answer(*self._queue.popleft())
        if not (self._is_busy or self._lingers or self._transport.is_closing()):
            if self._last is not None:
                self._write_last(self._last)
            elif self._reads:
                unfed, self._unfed = self._unfed, b""
                if unfed:
                    self._feed(unfed)
                if self._paused and not (self._unfed or self._is_busy or self._transport.is_closing()):
                    self._paused = False
                    self._transport.resume_reading()
            else:
                self._close()
        self._wait()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    # Ending.

    def _refuse(self, status: int, detail: str) -> None:
        """Stop reading, and send the reason; if the request was answered already, only stop reading."""
        self._reads = False
        self._unfed = b""
        answered = self._reader.is_handed_over and self._reader.phase != HEAD
        self._last = None if answered else problem_response(status, detail)
        if self._is_busy:
            return
        if self._last is None:
            self._linger()
        else:
            self._write_last(self._last)

    def _write_last(self, response: ServiceResponse) -> None:
        self._last = None
        if self._transport.is_closing():
            return
        self._transport.write(encode_response(response, self._connections.date, Persistence.CLOSE))
        self._linger()

    def _linger(self) -> None:
        """Close the sending side, and discard further data: with data unread, the response could be lost."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._lingers = True
        self._hold(self._unread)
        self._transport.write_eof()
        if not self._stuck:  # else its client may take its time to read, and the connection lingers after that
            self._wait_until(_LINGER_S)

    def _close(self) -> None:
        self._reads = False
        self._transport.close()
        self._wait_until(self._bounds.take_s)

    # Waiting for the client.

    def _wait(self) -> None:
        """Record since when and until when the connection waits for its client; nothing while it answers one."""
        if self._stuck or self._lingers or self._transport.is_closing():
            return  # recorded where it began
        if self._is_busy or self._unfed:
            self._waits_for = None
            self._connections.waiting.pop(self, None)
            return
        waits_for = (self._reader.phase, self.served)
        if waits_for != self._waits_for:
            bounds = self._bounds
            self._wait_until((bounds.idle_s, bounds.head_s, bounds.body_s)[self._reader.phase])
            self._waits_for = waits_for

    def _wait_until(self, seconds: float) -> None:
        self.due = self._loop.time() + seconds
        waiting = self._connections.waiting
        waiting.pop(self, None)
        waiting[self] = None

    def _hold(self, count: int) -> None:
        """Set the number of bytes that this connection holds."""
        change, self.held = count - self.held, count
        if change:
            self._connections.hold(self, change)
