"""A connection to a provider: one call at a time is sent over it, and the bytes received are its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from headgate.llm_proxy.provider_answer import ProviderAnswer


class ProviderConnection(asyncio.Protocol):
    """One connection. `is_open` is whether it is usable; `freed` is called when it is free for another call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, freed: Callable[[ProviderConnection], None]) -> None:
        self._loop = loop
        self._freed = freed
        self._answer: ProviderAnswer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timeout_s = 0.0
        self._active_s = 0.0
        """When the provider last sent or accepted bytes, or reading resumed, by the event loop's clock."""

        self._is_paused = False
        self.is_open = False
        self.free_since_s = 0.0

    def send(self, head: bytes, body: bytes, *, timeout_s: float) -> ProviderAnswer:
        """Send a call; return its answer, which fails with TimeoutError where no bytes arrive for `timeout_s`."""
        answer = self._answer = ProviderAnswer(self, self._loop)
        self._timeout_s, self._active_s = timeout_s, self._loop.time()
        self._timer = self._loop.call_later(timeout_s, self._check_timeout)
        self._transport.writelines((head, body)) if body else self._transport.write(head)
        return answer

    def abort(self) -> None:
        """Close the connection at once."""
        self.is_open = False
        self._stop_timer()
        self._transport.abort()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # no request asked for this
            self.abort()
            return
        self._active_s = self._loop.time()
        self._answer.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._stop_timer()
        if self._answer is not None:
            self._answer.ended(exc)

    def resume_writing(self) -> None:
        self._active_s = self._loop.time()

    def _check_timeout(self) -> None:
        """Fail an answer of which no bytes have arrived for too long. Time with reading paused does not count."""
        now = self._loop.time()
        due = (now if self._is_paused else self._active_s) + self._timeout_s
        if due > now:
            self._timer = self._loop.call_at(due, self._check_timeout)
        elif self._answer is not None:
            self._answer.fail(TimeoutError(f"no bytes arrived for {self._timeout_s:g} s"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Called by the answer.

    def pause(self) -> None:
        self._is_paused = True
        self._transport.pause_reading()

    def resume(self) -> None:
        self._is_paused = False
        self._active_s = self._loop.time()
        if self.is_open:
            self._transport.resume_reading()

    def release(self, *, is_reusable: bool) -> None:
        self._answer = None
        self._stop_timer()
        if is_reusable and self.is_open and not self._transport.is_closing():
            self.free_since_s = self._loop.time()
            self._freed(self)
        else:
            self.abort()
