"""A Cluster for threads: it picks the server for a call and repeats what was not executed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redis import exceptions
from redis.crc import key_slot

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.drive import drive
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.redis.clients import open_connection
from headgate.stores.redis.commands import Command
from headgate.stores.redis.errors import execute_one_by_one, reply_or_raise
from headgate.stores.redis.pool import ConnectionPool
from headgate.stores.redis.silent_servers import NotSent
from headgate.stores.redis.slot_map import PAUSE_S, RecordKey, SearchStep, SendTo, SlotMap
from headgate.stores.redis.url import Address, RedisTarget

_USUAL_PART = 0.75
"""With this part of a deadline left, a call uses an open connection, whose socket waits for a full timeout."""


class ClusterPools:
    """Connections to the servers of a Cluster; a call ends by its deadline, however often it is redirected."""

    def __init__(self, target: RedisTarget, call_timeout_s: Callable[[], float]) -> None:
        self._target = target
        self._call_timeout_s = call_timeout_s
        self._slots = SlotMap(target.addresses)
        self._pools: dict[Address, ConnectionPool] = {}
        self._learning_lock = threading.Lock()
        self._pid = os.getpid()

    def execute(self, key: bytes | None, command: Command) -> Any:
        """Execute a command on the server that has a key (None: any server) and return its reply."""
        slot, deadline_us = 0 if key is None else key_slot(key), self._new_deadline_us()

        def perform(step: SearchStep | SendTo) -> Any:
            if isinstance(step, SendTo):
                return self._send(step.address, command, deadline_us, asking=step.asking)
            if step is SearchStep.LEARN:
                return self._learn_slots(slot, deadline_us)
            return threading.Event().wait(min(PAUSE_S, self._remaining_s(deadline_us)))

        return drive(self._slots.search(slot, self._target.shown, needs_whole_slot=isinstance(key, RecordKey)), perform)

    execute_first = execute
    """The same: `call_timeout_s` includes the rest of the time for the first connection."""

    def execute_all(self, requests: Sequence[tuple[bytes | None, Command]]) -> list[Any]:
        """Execute several commands one by one and return their replies; a refusal is an error among them."""
        return execute_one_by_one(self.execute, requests)

    def open(self, commands: Sequence[Command], on_replies: Callable[[list[Any]], object]) -> None:
        """Learn where the slots are and connect to each of their servers; one that does not answer is skipped."""
        deadline_us = self._new_deadline_us()
        self._learn_slots(0, deadline_us)
        threads = [
            threading.Thread(
                target=self._open, args=(address, commands, on_replies), name="headgate-connect", daemon=True
            )
            for address in self._slots.servers()
        ]
        with suppress(RuntimeError):  # no more threads, or the interpreter ends: calls connect
            for thread in threads:
                thread.start()
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, (deadline_us - SYSTEM_CLOCK.now_us()) / US_PER_SECOND))

    def _open(self, address: Address, commands: Sequence[Command], on_replies: Callable[[list[Any]], object]) -> None:
        with suppress(exceptions.RedisError, OSError):  # the first call to this server raises the error
            self._pool_of(address).open(commands, on_replies)

    def close(self) -> None:
        """Close the connections that no call uses."""
        for pool in list(self._pools.values()):
            pool.close()

    def _send(self, address: Address, command: Command, deadline_us: int, *, asking: bool) -> Any:
        remaining_s, usual_s = self._remaining_s(deadline_us), self._target.timeout_s
        within_s = None if _USUAL_PART * usual_s < remaining_s <= usual_s else remaining_s
        pool = self._pool_of(address)
        if within_s is None and not asking:
            return pool.execute(None, command)
        commands: list[Command] = [("ASKING",), command] if asking else [command]
        return reply_or_raise(pool.execute_many(commands, within_s)[-1])

    def _pool_of(self, address: Address) -> ConnectionPool:
        pool = self._pools.get(address)
        if pool is None:
            target = self._target
            new_connection = partial(open_connection, target, address)
            new_pool = ConnectionPool(new_connection, target, lambda: target.timeout_s)
            pool = self._pools.setdefault(address, new_pool)
        return pool

    def _learn_slots(self, slot: int, deadline_us: int) -> None:
        """Query which server has which slot; of concurrent calls, one sends the query."""
        if self._pid != os.getpid():  # a thread of the parent may have held it
            self._learning_lock, self._pid = threading.Lock(), os.getpid()
        if not self._learning_lock.acquire(timeout=self._remaining_s(deadline_us)):
            raise exceptions.TimeoutError
        try:
            last_error: Exception = StoreUnavailable(f"{self._target.shown}: no server answers")
            for address in () if slot in self._slots else self._slots.candidates(list(self._pools)):
                try:
                    reply_deadline_us = min(
                        deadline_us, SYSTEM_CLOCK.now_us() + round(self._target.per_server_timeout_s * US_PER_SECOND)
                    )
                    self._slots.learn(
                        self._send(address, ("CLUSTER", "SLOTS"), reply_deadline_us, asking=False), address
                    )
                except (exceptions.RedisError, OSError, StoreError) as error:
                    last_error = error
                    self._slots.note_failed(address)
                    self._remaining_s(deadline_us)
                    continue
                return
            if slot not in self._slots:
                raise last_error
        finally:
            self._learning_lock.release()

    def _new_deadline_us(self) -> int:
        return SYSTEM_CLOCK.now_us() + round(self._call_timeout_s() * US_PER_SECOND)

    def _remaining_s(self, deadline_us: int) -> float:
        """The seconds left until a deadline; raises NotSent, a TimeoutError of redis-py, once it has passed."""
        left_us = deadline_us - SYSTEM_CLOCK.now_us()
        if left_us <= 0:
            raise NotSent
        return left_us / US_PER_SECOND
