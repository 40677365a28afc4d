"""The tickets of this process in the lines of a Redis, and the one connection that hears when one of them is called.

It is open only while callers wait. A message that is lost costs its caller a few seconds: the first ticket that a
process has in a line asks every `KEEP_S` whether its turn has come, which also says that the process is alive.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import redis.asyncio

from headgate.forks import register_for_forks
from headgate.stores.lines import Ticket

log = logging.getLogger("headgate")

KEEP_S = 3
ALIVE_S = 10
"""A process that did not ask for so long is taken for dead: its tickets are passed over."""

_LOOK_S = 1.0
_PAUSE_S = 0.5
_CHANNEL = b"headgate:turn:"


class Turns:
    """The callers that wait in this process.

    `handed` is a client of redis-py of the caller's own, of either colour; else `client` makes one for threads, which
    may take a while.
    """

    def __init__(self, handed: Any, client: Callable[[], Any] | None = None) -> None:
        self._handed: Any = handed
        self._client = client
        self._begin()
        self.keepalive_us = KEEP_S * 1_000_000
        self.alive_ms = ALIVE_S * 1_000
        register_for_forks(self)

    def after_fork(self) -> None:
        """Have no tickets in a child process: those of a parent are the parent's."""
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self.process = os.urandom(8).hex().encode()
        self._numbers = 0
        self._tickets: dict[int, Ticket] = {}
        self._listening = False
        self._task: asyncio.Task[None] | None = None
        self._told = False
        self.receives_calls = False
        """Whether messages come now."""

    def add(self, ticket: Ticket) -> None:
        """Give a ticket its number, and wake it when it is called."""
        with self._lock:
            self._numbers += 1
            ticket.number = self._numbers
            self._tickets[ticket.number] = ticket
            if self._listening and not self._was_cut_off():
                return
            self._listening = True
        if self._handed is None and self._client is None:  # a client that cannot listen
            self._listening = False
        elif isinstance(self._handed, redis.asyncio.Redis):
            self._task = asyncio.get_running_loop().create_task(self._listen_async(self._handed))
        else:
            try:
                threading.Thread(target=self._listen, name="headgate-turns", daemon=True).start()
            except RuntimeError as error:  # no more threads, or the interpreter ends
                self._listening = False
                self._lost(error)

    def _was_cut_off(self) -> bool:
        """Whether the task that listened has ended with its event loop."""
        return self._task is not None and (self._task.done() or not self._task.get_loop().is_running())

    def remove(self, ticket: Ticket) -> None:
        """Call it no more."""
        with self._lock:
            self._tickets.pop(ticket.number, None)

    def oldest(self, number: int) -> int:
        """The number of the oldest ticket of this process; at most this one."""
        with self._lock:
            return min(number, next(iter(self._tickets), number))

    def call(self, number: bytes | str) -> None:
        """The turn of a ticket has come."""
        with self._lock:
            ticket = self._tickets.get(int(number))
        if ticket is not None:
            ticket.is_first = True
            ticket.call()

    def _ended(self) -> bool:
        """Whether there is no ticket left to listen for."""
        with self._lock:
            self._listening = bool(self._tickets)
            self.receives_calls = self.receives_calls and self._listening
            return not self._listening

    def _hear(self, message: Any) -> None:
        if message is None:
            return
        if message["type"] == "message":
            self.call(message["data"])
        elif message["type"] == "subscribe":  # what was said before was not heard
            self._told, self.receives_calls = False, True
            with self._lock:
                tickets = list(self._tickets.values())
            for ticket in tickets:
                ticket.call()

    def _opened(self) -> Any:
        """A client for threads: the caller's own, or a new one."""
        return self._handed if self._client is None else self._client()

    def _listen(self) -> None:
        """Hear which tickets are called, until none is left."""
        pause = threading.Event()
        while True:
            try:
                client = self._opened()
                with client.pubsub() as heard:
                    heard.subscribe(_CHANNEL + self.process)
                    while True:
                        message = heard.get_message(timeout=_LOOK_S)
                        self._hear(message)
                        if message is None and self._ended():
                            break
                if client is not self._handed:
                    client.close()
                return
            except Exception as error:  # of the network, or what redis-py makes of what a server sends
                if self._ended():
                    return
                self._lost(error)
                pause.wait(_PAUSE_S)

    async def _listen_async(self, client: Any) -> None:
        """`_listen` on an event loop, over the connections of a client of the caller's own."""
        while True:
            try:
                async with client.pubsub() as heard:
                    await heard.subscribe(_CHANNEL + self.process)
                    while True:
                        message = await heard.get_message(timeout=_LOOK_S)
                        self._hear(message)
                        if message is None and self._ended():
                            return
            except Exception as error:  # as above
                if self._ended():
                    return
                self._lost(error)
                await asyncio.sleep(_PAUSE_S)

    def _lost(self, error: Exception) -> None:
        self.receives_calls = False
        if not self._told:
            self._told = True
            log.warning("calls to waiting callers are not heard: they ask every %d s: %s", KEEP_S, type(error).__name__)
