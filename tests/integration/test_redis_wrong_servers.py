"""Stores whose URL names the wrong kind of server: the error says what to change, and shows no key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import redis
from fake_server import FakeServer
from redis_askers import COLOURS, Asker
from redis_servers import cluster, sentinels, single
from tcp_proxy import HOST

from headgate.errors import StoreError
from headgate.stores.redis.store import RedisStore
from until import until

pytestmark = pytest.mark.integration
KEYS = ["jane@example.org", "john@example.org", "jim@example.org", "joan@example.org", "jack@example.org"]
"""No single server of a Cluster has all of them."""


@contextmanager
def port_of(kind: str) -> Iterator[int]:
    if kind == "cluster":
        with cluster(replicas_each=0) as nodes:
            yield nodes.servers[0].port
    elif kind == "sentinel":
        with sentinels() as servers:
            yield servers.sentinel_ports[0]
    else:
        with single(*([kind] if kind else [])) as server:
            yield server.port


def store_of(url: str) -> RedisStore:
    return RedisStore(f"{url}?timeout=5s")


def refused(asker: Asker, key: str) -> str:
    """The message of the error of a hit; empty where there is none."""
    try:
        asker.hit(key)
    except StoreError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("scheme", "there", "path", "expected"),
    [
        ("redis", "cluster", "", "it is a Cluster: use redis+cluster:"),
        ("redis", "sentinel", "", "it has no command EVALSHA: it was renamed or disabled there, or this is a Sentinel"),
        ("redis+cluster", "", "", "it is no Cluster: use redis://"),
        ("redis+sentinel", "", "/main", "it has no command SENTINEL: "),
        ("redis", "rename-command EVALSHA other", "", "it has no command EVALSHA: it was renamed or disabled"),
        ("redis", 'rename-command TIME ""', "", "it has no command that a script calls: it was renamed or disabled"),
    ],
)
def test_a_server_of_another_kind_is_reported(scheme: str, there: str, path: str, expected: str, colour: str) -> None:
    with port_of(there) as port, Asker(colour, "7/minute", store_of(f"{scheme}://{HOST}:{port}{path}")) as asker:
        errors = [message for key in KEYS if (message := refused(asker, key))]
    assert expected in errors[0]
    assert not any(key in message for key in KEYS for message in errors)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_takes_no_more_clients_is_reported(colour: str) -> None:
    with single("maxclients 3") as server, ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(redis.Redis(host=HOST, port=server.port)).ping()
        with Asker(colour, "7/minute", store_of(server.url)) as asker:
            # The server closes before it reads: what it said is lost where the system tells of that first.
            until(lambda: refused(asker, "key").endswith(": it has too many clients (MAXCLIENTS)"))
        clients.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_closes_each_connection_is_reported(colour: str) -> None:
    """As a TLS port may do with a connection without TLS."""
    with FakeServer(b"", opens=False) as server, Asker(colour, "7/minute", store_of(server.url)) as asker:
        server.hangs_up = True
        assert refused(asker, "key").endswith("cannot be reached: it closes the connection")
