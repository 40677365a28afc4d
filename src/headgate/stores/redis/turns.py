"""The tickets of this process in the lines of a Redis, and the one connection that receives the calls to them.

It is open only while callers wait. A lost message delays its caller by a few seconds: the first ticket of a process in
a line queries every `KEEP_S` whether its turn has come, which also shows that the process is alive.
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
"""A process that has sent no query for so long is considered dead: its tickets are skipped."""

_POLL_S = 1.0
_PAUSE_S = 0.5
_CHANNEL = b"headgate:turn:"


class Turns:
    """The callers that wait in this process.

    `caller_client` is a redis-py client that the caller made, of either colour; else `new_client` makes one for
    threads, which may take a while.
    """

    def __init__(self, caller_client: Any, new_client: Callable[[], Any] | None = None) -> None:
        self._caller_client: Any = caller_client
        self._new_client = new_client
        self._reset()
        self.keepalive_us = KEEP_S * 1_000_000
        self.alive_ms = ALIVE_S * 1_000
        register_for_forks(self)

    def after_fork(self) -> None:
        """Drop all tickets in a child process: they belong to the parent."""
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self.process = os.urandom(8).hex().encode()
        self._numbers = 0
        self._tickets: dict[int, Ticket] = {}
        self._listening = False
        self._task: asyncio.Task[None] | None = None
        self._was_logged = False
        self.receives_calls = False
        """Whether messages are received now."""

    def add(self, ticket: Ticket) -> None:
        """Give a ticket its number, and wake it when it is called."""
        with self._lock:
            self._numbers += 1
            ticket.number = self._numbers
            self._tickets[ticket.number] = ticket
            if self._listening and not self._loop_ended():
                return
            self._listening = True
        if self._caller_client is None and self._new_client is None:  # a client that cannot listen
            self._listening = False
        elif isinstance(self._caller_client, redis.asyncio.Redis):
            self._task = asyncio.get_running_loop().create_task(self._listen_async(self._caller_client))
        else:
            try:
                threading.Thread(target=self._listen, name="headgate-turns", daemon=True).start()
            except RuntimeError as error:  # no more threads, or the interpreter ends
                self._listening = False
                self._on_lost(error)

    def _loop_ended(self) -> bool:
        """Whether the listening task has ended with its event loop."""
        return self._task is not None and (self._task.done() or not self._task.get_loop().is_running())

    def remove(self, ticket: Ticket) -> None:
        """Stop calling a ticket."""
        with self._lock:
            self._tickets.pop(ticket.number, None)

    def oldest(self, number: int) -> int:
        """The lowest number among a ticket and all tickets of this process."""
        with self._lock:
            return min(number, next(iter(self._tickets), number))

    def call(self, number: bytes | str) -> None:
        """Call a ticket whose turn has come."""
        with self._lock:
            ticket = self._tickets.get(int(number))
        if ticket is not None:
            ticket.is_first = True
            ticket.call()

    def _stop_if_idle(self) -> bool:
        """Stop listening where no ticket is left; return whether it has stopped."""
        with self._lock:
            self._listening = bool(self._tickets)
            self.receives_calls = self.receives_calls and self._listening
            return not self._listening

    def _on_message(self, message: Any) -> None:
        if message is None:
            return
        if message["type"] == "message":
            self.call(message["data"])
        elif message["type"] == "subscribe":  # earlier messages were missed
            self._was_logged, self.receives_calls = False, True
            with self._lock:
                tickets = list(self._tickets.values())
            for ticket in tickets:
                ticket.call()

    def _open_client(self) -> Any:
        """A client for threads: the caller's own, or a new one."""
        return self._caller_client if self._new_client is None else self._new_client()

    def _listen(self) -> None:
        """Receive the calls to tickets until none is left."""
        pause = threading.Event()
        while True:
            try:
                client = self._open_client()
                with client.pubsub() as subscription:
                    subscription.subscribe(_CHANNEL + self.process)
                    while True:
                        message = subscription.get_message(timeout=_POLL_S)
                        self._on_message(message)
                        if message is None and self._stop_if_idle():
                            break
                if client is not self._caller_client:
                    client.close()
                return
            except Exception as error:  # of the network, or of redis-py for what a server sends
                if self._stop_if_idle():
                    return
                self._on_lost(error)
                pause.wait(_PAUSE_S)

    async def _listen_async(self, client: Any) -> None:
        """`_listen` on an event loop, over the connections of a caller's own client."""
        while True:
            try:
                async with client.pubsub() as subscription:
                    await subscription.subscribe(_CHANNEL + self.process)
                    while True:
                        message = await subscription.get_message(timeout=_POLL_S)
                        self._on_message(message)
                        if message is None and self._stop_if_idle():
                            return
            except Exception as error:  # as above
                if self._stop_if_idle():
                    return
                self._on_lost(error)
                await asyncio.sleep(_PAUSE_S)

    def _on_lost(self, error: Exception) -> None:
        self.receives_calls = False
        if not self._was_logged:
            self._was_logged = True
            log.warning("waiting callers receive no messages and query every %d s: %s", KEEP_S, type(error).__name__)
