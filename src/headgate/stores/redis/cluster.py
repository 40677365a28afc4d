"""A Cluster asked from threads: which server takes a call, and what is done where it was not executed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.drive import drive
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.redis.pool import Lines, sound
from headgate.stores.redis.replies import ReplyParser
from headgate.stores.redis.slot_map import PAUSE_S, Send, Slots, Step
from headgate.stores.redis.url import Address, Place

_AT_LEISURE = 0.75
"""The part of a deadline that is enough for a call over an open connection, whose socket waits for a whole one."""

_SCRIPTS = ("EVALSHA", "EVAL")


class ClusterLines:
    """Connections to the servers of a Cluster; however often a call is sent on, it ends by its deadline."""

    def __init__(self, place: Place, patience_s: Callable[[], float]) -> None:
        self._place = place
        self._patience_s = patience_s
        self._slots = Slots(place.addresses)
        self._lines: dict[Address, Lines] = {}
        self._learning = threading.Lock()
        self._pid = os.getpid()

    def execute(self, *command: Any) -> Any:
        """The reply to a command, from the server that has its first key; raises redis-py's errors and StoreError."""
        return self.ask(command[3 if command[0] in _SCRIPTS else 1], *command)

    execute_first = execute
    """A call that waited for the first connection has what is left of that time here by itself: `patience_s`."""

    def ask(self, key: bytes, *command: Any) -> Any:
        """The reply to a command, from the server that has a key."""
        slot, until_us = key_slot(key), self._until_us()

        def do(step: Step | Send) -> Any:
            if isinstance(step, Send):
                return self._send(step.address, command, until_us, asking=step.asking)
            if step is Step.LEARN:
                return self._learn(slot, until_us)
            return threading.Event().wait(min(PAUSE_S, self._left_s(until_us)))

        return drive(self._slots.search(slot, self._place.shown), do)

    def open(self, commands: Sequence[Sequence[Any]]) -> None:
        """Find out where the slots are and connect to each of their servers; one that does not answer is left out."""
        until_us = self._until_us()
        self._learn(0, until_us)
        opening = [
            threading.Thread(target=self._open, args=(address, commands), name="headgate-connect", daemon=True)
            for address in self._slots.servers()
        ]
        for thread in opening:
            thread.start()
        for thread in opening:
            thread.join(max(0.0, (until_us - SYSTEM_CLOCK.now_us()) / US_PER_SECOND))

    def _open(self, address: Address, commands: Sequence[Sequence[Any]]) -> None:
        with suppress(exceptions.RedisError, OSError):  # who asks this server is told
            self._lines_to(address).open(commands)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        for lines in list(self._lines.values()):
            lines.close()

    def _send(self, address: Address, command: Sequence[Any], until_us: int, *, asking: bool) -> Any:
        left_s, usual_s = self._left_s(until_us), self._place.timeout_s
        within_s = None if _AT_LEISURE * usual_s < left_s <= usual_s else left_s
        lines = self._lines_to(address)
        if within_s is None and not asking:
            return lines.execute(*command)
        commands = [("ASKING",), command] if asking else [command]
        return sound(lines.execute_many(commands, within_s)[-1])

    def _lines_to(self, address: Address) -> Lines:
        lines = self._lines.get(address)
        if lines is None:
            place = self._place
            make = partial(self._connection, address)
            new = Lines(make, place.timeout_s, place.connections, place.first_s, lambda: place.timeout_s)
            lines = self._lines.setdefault(address, new)
        return lines

    def _connection(self, address: Address) -> Any:
        options = dict(self._place.options)
        kind: Any = redis.SSLConnection if options.pop("ssl", False) else redis.Connection
        return kind(
            host=address.host,
            port=address.port,
            socket_timeout=self._place.timeout_s,
            socket_connect_timeout=self._place.first_s,
            retry=Retry(NoBackoff(), 0),  # a call whose answer was lost may have been charged
            protocol=2,
            parser_class=ReplyParser,
            **options,
        )

    def _learn(self, slot: int, until_us: int) -> None:
        """Ask where each slot is; of those who come together one asks."""
        if self._pid != os.getpid():  # a thread of the parent may have held it
            self._learning, self._pid = threading.Lock(), os.getpid()
        if not self._learning.acquire(timeout=self._left_s(until_us)):
            raise exceptions.TimeoutError
        try:
            last: Exception = StoreUnavailable(f"{self._place.shown}: no server answers")
            for address in () if slot in self._slots else self._slots.candidates(list(self._lines)):
                try:
                    ends_us = min(until_us, SYSTEM_CLOCK.now_us() + round(self._place.each_s * US_PER_SECOND))
                    self._slots.learn(self._send(address, ("CLUSTER", "SLOTS"), ends_us, asking=False), address)
                except (exceptions.RedisError, OSError, StoreError) as error:
                    last = error
                    self._slots.doubt(address)
                    self._left_s(until_us)
                    continue
                return
            if slot not in self._slots:
                raise last
        finally:
            self._learning.release()

    def _until_us(self) -> int:
        return SYSTEM_CLOCK.now_us() + round(self._patience_s() * US_PER_SECOND)

    def _left_s(self, until_us: int) -> float:
        """What is left of a deadline; raises redis-py's TimeoutError where nothing is."""
        left_us = until_us - SYSTEM_CLOCK.now_us()
        if left_us <= 0:
            raise exceptions.TimeoutError
        return left_us / US_PER_SECOND
