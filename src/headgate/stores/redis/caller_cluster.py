"""A Cluster behind a client that the caller made, in either colour: each server's failures are counted apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import exceptions

from headgate.stores.redis.silent_servers import SilentServers
from headgate.stores.redis.slot_map import ELSEWHERE, LOST
from headgate.stores.redis.url import Address


class CallerCluster:
    """Which server a client of redis-py calls, as far as it knows, and which servers do not answer.

    The client finds out by itself where the slots are. Where none of its servers answers, no single one is reported.
    """

    def __init__(self, client: Any, shown: str, silent: SilentServers) -> None:
        self._client = client
        self._shown = shown
        self._silent = silent

    @contextmanager
    def watching(self, key: bytes | None) -> Iterator[None]:
        """Record whether the server of a key answers; raises StoreUnavailable where it is not to be called now."""
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
        except exceptions.RedisClusterException:  # the client does not know yet
            return None
        return Address(node.host, node.port)

    @staticmethod
    def _last_server(error: Exception) -> Address | None:
        """The server of the failed call, which may be another one than the client knew of before."""
        connection = getattr(error, "connection", None)
        host, port = getattr(connection, "host", None), getattr(connection, "port", None)
        return Address(host, port) if isinstance(host, str) and isinstance(port, int) else None
