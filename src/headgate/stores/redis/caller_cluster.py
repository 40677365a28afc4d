"""A Cluster asked through a client of the caller's own, in either colour: each of its servers counts for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import exceptions

from headgate.stores.redis.silent_servers import SilentServers
from headgate.stores.redis.slot_map import ELSEWHERE, LOST
from headgate.stores.redis.url import Address


class CallerCluster:
    """Which server a client of redis-py asks, as far as it knows, and which servers do not answer.

    The client finds out by itself where the slots are. Where no server of it answers, no single one is told.
    """

    def __init__(self, client: Any, shown: str, silent: SilentServers) -> None:
        self._client = client
        self._shown = shown
        self._silent = silent

    @contextmanager
    def watching(self, key: bytes | None) -> Iterator[None]:
        """While the server that has a key is asked; raises StoreUnavailable where it is not to be asked now."""
        silent = self._silent
        if silent.failures and (address := self._server_of(key)) is not None:
            silent.check(address, self._shown)
        try:
            yield
        except (*LOST, exceptions.ResponseError) as error:
            server = self._last_server(error) or self._server_of(key)
            if server is None or isinstance(error, ELSEWHERE):
                raise
            silent.raise_for(error, server, self._shown)
        else:
            if silent.failures and (address := self._server_of(key)) is not None:
                silent.answered(address)

    def _server_of(self, key: bytes | None) -> Address | None:
        if key is None:
            return None
        try:
            node = self._client.get_node_from_key(key)
        except exceptions.RedisClusterException:  # it does not know yet
            return None
        return Address(node.host, node.port)

    @staticmethod
    def _last_server(error: Exception) -> Address | None:
        """The server that was asked last: a client may have asked another one than it knew of before."""
        connection = getattr(error, "connection", None)
        host, port = getattr(connection, "host", None), getattr(connection, "port", None)
        return Address(host, port) if isinstance(host, str) and isinstance(port, int) else None
