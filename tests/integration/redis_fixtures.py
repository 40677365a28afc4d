"""What integration tests share: real Redis servers, one of each kind for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_servers import Cluster, Sentinels, Server, cluster, sentinels, single
from tcp_proxy import TcpProxy


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with single() as server:
        yield server


@pytest.fixture(scope="module")
def watched() -> Iterator[Sentinels]:
    with sentinels() as watched:
        yield watched


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as nodes:
        yield nodes


@pytest.fixture
def proxy(server: Server) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as proxy:
        yield proxy
