"""The log warns of servers that evict keys when their memory is full."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_askers import COLOURS, Asker
from redis_servers import Server, cluster, single
from tcp_proxy import HOST

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[Server]:
    with single("maxmemory 100mb", "maxmemory-policy allkeys-lru") as server:
        yield server


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "evicts" in record.getMessage()]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_evicts_keys_is_reported_once(
    server: Server, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Asker(colour, "7/minute log", f"redis://{HOST}:{server.port}/3?timeout=5s") as asker:
        asker.at_once(["key"] * 20)
        if colour == "sync":
            asker.store.close()  # and connects once more
        assert asker.hit("key").degraded == ""
    [message] = warned(caplog)
    assert message.startswith(f"redis://{HOST}:{server.port}/3 evicts keys")
    assert "maxmemory-policy allkeys-lru" in message


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("settings", [{"maxmemory-policy": "noeviction"}, {"maxmemory": "0"}], ids=str)
def test_a_server_that_evicts_no_keys_is_not_reported(
    server: Server, settings: dict[str, str], colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in settings.items():
        server.cli("CONFIG", "SET", name, value)
    with Asker(colour, "7/minute log", f"redis://{HOST}:{server.port}?timeout=5s") as asker:
        assert asker.hit("key").degraded == ""
    assert warned(caplog) == []


@pytest.mark.parametrize("colour", COLOURS)
def test_a_user_who_may_not_run_the_query_decides_nevertheless(
    server: Server, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.cli("ACL", "SETUSER", "few", "on", ">secret", "~hg:*", "+@all", "-info")
    with Asker(colour, "7/minute log", f"redis://few:secret@{HOST}:{server.port}?timeout=5s") as asker:
        assert asker.hit("key").degraded == ""
    assert warned(caplog) == []


@pytest.mark.parametrize("colour", COLOURS)
def test_a_cluster_with_a_server_that_evicts_keys_is_reported(colour: str, caplog: pytest.LogCaptureFixture) -> None:
    with cluster(replicas_each=0) as nodes:
        for name, value in (("maxmemory", "100mb"), ("maxmemory-policy", "volatile-lru")):
            nodes.servers[1].cli("CONFIG", "SET", name, value)
        with Asker(colour, "7/minute log", f"{nodes.url}?timeout=5s") as asker:
            assert asker.hit("key").degraded == ""
    assert len(warned(caplog)) == 1
