"""The link of a Redis store for threads: it executes scripts and commands over connections of the right kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError

from headgate.drive import each
from headgate.stores.redis.caller_cluster import CallerCluster
from headgate.stores.redis.clients import open_client
from headgate.stores.redis.cluster import ClusterPools
from headgate.stores.redis.commands import Command, ScriptCall
from headgate.stores.redis.errors import execute_one_by_one, reply_or_raise, store_error
from headgate.stores.redis.eviction import EvictionNotice
from headgate.stores.redis.first_connection import FirstConnection, first_commands
from headgate.stores.redis.pool import ConnectionPool
from headgate.stores.redis.replies import check_reply
from headgate.stores.redis.scripts import Script
from headgate.stores.redis.silent_servers import SilentServers
from headgate.stores.redis.url import RedisTarget

MOST_IN_A_WRITE = 500
"""Calls that travel in one write."""

_ERRORS = Exception
"""Anything that a client of redis-py may raise for what a server sends."""

_AS_BYTES = {NEVER_DECODE: True}
"""Keeps replies as bytes on a caller's own client, which may decode what it reads."""


class Connections(Protocol):
    """Connections to one server or to many: a ConnectionPool, ClusterPools, or a client of the caller's own.

    They raise redis-py's errors and StoreError.
    """

    def execute(self, key: bytes | None, command: Command) -> Any:
        """The reply to a command, from the server that has a key (None: any)."""
        ...

    def execute_first(self, key: bytes | None, command: Command) -> Any:
        """`execute` for a call that waited for the first connection, within what is left of that time."""
        ...

    def execute_all(self, requests: Sequence[tuple[bytes | None, Command]]) -> list[Any]:
        """The replies to several commands, sent in one write where possible; a refusal is an error among them."""
        ...

    def open(self, commands: Sequence[Command], on_replies: Callable[[list[Any]], object]) -> None:
        """Open a connection to each server, send these commands over it and pass the replies to `on_replies`."""
        ...

    def close(self) -> None:
        """Close the connections that no call uses."""
        ...


class SyncLink:
    """How threads reach the servers of a store. It connects at `warm_up` or at the first call.

    All methods raise StoreError and no other error.
    """

    def __init__(
        self, target: RedisTarget | None, client: Any, shown: str, scripts: dict[str, Script], notice: EvictionNotice
    ) -> None:
        self.shown = shown
        self._notice = notice
        self._target = target
        self._client = client
        self._scripts = scripts
        self._first = None if target is None else FirstConnection(target)
        self._connections: Connections | None = _CallerClient(client, shown) if target is None else None

    @classmethod
    def of_client(cls, client: Any, shown: str) -> SyncLink:
        """A link over the connections that a client of redis-py makes."""
        return cls(None, client, shown, {}, EvictionNotice(shown))

    @property
    def client(self) -> Any:
        """The client of redis-py for rare operations."""
        if self._client is None:
            assert self._target is not None
            self._client = open_client(self._target)
        return self._client

    def run(self, call: ScriptCall) -> Any:
        """Call a script and return its reply."""
        try:
            if self._first is not None and self._first.finished_pid != os.getpid():
                with self._first.established(self._connect):
                    return self._run(call, self._open_connections().execute_first)
            return self._run(call, (self._connections or self._open_connections()).execute)
        except _ERRORS as error:
            raise store_error(error, self.shown) from error

    def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Call scripts together and return their replies."""
        return [reply_or_raise(reply) for reply in self.run_many(calls)]

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Call scripts together and return their replies, with errors in their places."""
        replies: list[Any] = []
        try:
            if self._first is None:
                self._run_many(calls, replies)
            else:
                with self._first.established(self._connect):
                    self._run_many(calls, replies)
        except _ERRORS as error:
            replies += [self._converted(error)] * (len(calls) - len(replies))
        return replies

    def execute(self, key: bytes | None, command: Command) -> Any:
        """Execute a command on the server that has a key (None: any server) and return its reply."""
        [reply] = self.execute_all([(key, command)])
        return reply

    def execute_all(self, requests: Sequence[tuple[bytes | None, Command]]) -> list[Any]:
        """Execute commands, each on the server that has its key, and return their replies."""
        try:
            if self._first is not None and not self._first.is_finished:
                self._first.establish(self._connect)
            execute = self._open_connections().execute
            return [execute(key, command) for key, command in requests]
        except _ERRORS as error:
            raise store_error(error, self.shown) from error

    def warm_up(self) -> None:
        """Connect and load the scripts; raises StoreError where that fails or does not finish in time."""
        try:
            if self._first is None:
                self.client.ping()
            elif not self._first.has_succeeded:
                if self._first.is_finished:
                    self._first.forget()
                self._first.establish(self._connect)
        except _ERRORS as error:
            raise store_error(error, self.shown) from error

    def ping(self) -> None:
        """Raise StoreError if a server does not answer."""
        check_reply(self.execute(None, ("PING",)), b"PONG")

    def close(self) -> None:
        """Close the connections; the next call opens new ones. A caller's own client stays open."""
        if self._target is None or self._first is None:
            return
        if self._connections is not None:
            self._connections.close()
        self._first.forget()
        if self._client is not None:
            self._client.close()
        self._client = self._connections = None

    def _run(self, call: ScriptCall, execute: Any) -> Any:
        script, keys, arguments = call
        try:
            return execute(keys[0], ("EVALSHA", script.sha, len(keys), *keys, *arguments))
        except NoScriptError:
            return execute(keys[0], ("EVAL", script.text, len(keys), *keys, *arguments))

    def _run_many(self, calls: Sequence[ScriptCall], replies: list[Any]) -> None:
        """Append the reply to each call; raises the error of a connection, which no further call would escape."""
        connections = self._open_connections()
        for start in range(0, len(calls), MOST_IN_A_WRITE):
            batch = calls[start : start + MOST_IN_A_WRITE]
            batch_replies = connections.execute_all([(call.keys[0], call.by_sha) for call in batch])
            for call, reply in zip(batch, batch_replies, strict=True):
                # A script that is not there was not executed.
                replies += each(self.run)([call]) if isinstance(reply, NoScriptError) else [self._converted(reply)]

    def _converted(self, reply: Any) -> Any:
        """A reply, or the StoreError of an error in its place."""
        if not isinstance(reply, Exception):
            return reply
        error = store_error(reply, self.shown)
        if error is not reply:
            error.__cause__ = reply
        return error

    def _connect(self) -> None:
        self._open_connections().open(first_commands(self._scripts), self._notice.check)

    def _open_connections(self) -> Connections:
        """The connections of this link, which cost less than those of a client and keep deadlines."""
        if self._connections is None:
            target = self._target
            assert target is not None and self._first is not None
            if target.kind == "cluster":
                self._connections = ClusterPools(target, self._first.call_timeout_s)
            else:
                new_connection = self.client.connection_pool.make_connection
                self._connections = ConnectionPool(new_connection, target, self._first.call_timeout_s)
        return self._connections


class _CallerClient:
    """A client that the caller made, with its own connections and deadlines."""

    def __init__(self, client: Any, shown: str) -> None:
        self._client = client
        is_cluster = isinstance(client, redis.RedisCluster)
        self._cluster = CallerCluster(client, shown, SilentServers()) if is_cluster else None

    def execute(self, key: bytes | None, command: Command) -> Any:
        if self._cluster is None:
            return self._client.execute_command(*command, **_AS_BYTES)
        if command == ("PING",):
            return self._client.ping()
        options: dict[str, Any] = {"target_nodes": "random"} if len(command) == 1 else _AS_BYTES
        with self._cluster.watching(key):
            return self._client.execute_command(*command, **options)

    execute_first = execute

    def execute_all(self, requests: Sequence[tuple[bytes | None, Command]]) -> list[Any]:
        return execute_one_by_one(self.execute, requests)

    def open(self, commands: Sequence[Command], on_replies: Callable[[list[Any]], object]) -> None: ...

    def close(self) -> None: ...
