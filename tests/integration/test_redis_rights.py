"""A user with few rights, on another database and in a Cluster: the rights in docs/redis.md suffice."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from redis.crc import key_slot
from redis_askers import COLOURS, Asker
from redis_servers import Cluster, Server, cluster, single
from test_redis_lines import RIGHTS as TO_WAIT
from test_redis_store import RIGHTS

from headgate import RedisStore, StoreError, StoreUnavailable

IN_A_CLUSTER = ("cluster|slots", "asking")


def let(servers: list[Server], *rights: str) -> None:
    for server in servers:
        server.cli(
            "ACL", "SETUSER", "limiter", "reset", "on", ">limiter-pass", "~hg:*", "resetchannels", "&headgate:turn:*",
            "-@all", *(f"+{right}" for right in rights),
        )  # fmt: skip


def url_of(servers: Server | Cluster) -> str:
    return servers.url.replace("://", "://limiter:limiter-pass@")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(replicas_each=0) as nodes:
        yield nodes


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(("option", "right"), [("db=3", "select"), ("client_name=shop", "client|setname")])
def test_an_option_of_the_connection_needs_a_right_that_the_error_names(option: str, right: str, colour: str) -> None:
    with single() as server:
        url = f"{url_of(server).removesuffix('/0')}?timeout=10s&{option}"
        let([server], *RIGHTS)
        with (
            Asker(colour, "5/week", RedisStore(url)) as asker,
            pytest.raises(StoreError, match=rf"NOPERM; the denied command is {right.replace('|', '.')}\)"),
        ):
            asker.hit("key")
        let([server], *RIGHTS, right)
        with Asker(colour, "5/week", RedisStore(url)) as asker:
            assert asker.hit("key").remaining == 4


@pytest.mark.parametrize("colour", COLOURS)
def test_a_user_of_a_cluster_decides_while_a_slot_moves(nodes: Cluster, colour: str) -> None:
    key = f"mover {colour}"
    url = f"{url_of(nodes)}?timeout=10s"
    let(nodes.servers, *RIGHTS, *IN_A_CLUSTER)
    with Asker(colour, "5/week", RedisStore(url), name=colour) as asker:
        assert asker.hit(key).remaining == 4
        (there,) = (server for server in nodes.servers if server.cli("DBSIZE"))
        slot = key_slot(str(there.cli("KEYS", "hg:*")[0]).encode())

        def half_moved() -> None:
            assert asker.hit(key).remaining == 3
            let(nodes.servers, *RIGHTS, "cluster|slots")
            with pytest.raises(StoreUnavailable, match=r"needs \+asking"):
                asker.hit(key)

        other = next(server for server in nodes.servers if server is not there)
        nodes.migrate_slot(slot, other, pause=half_moved)
        nodes.wait_ok()
        assert asker.hit(key).remaining == 2
    other.cli("FLUSHALL")


def test_a_user_of_a_cluster_waits_in_line_and_clears(nodes: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    let(nodes.servers, *TO_WAIT, *IN_A_CLUSTER, "scan", "command")
    with (
        Asker("sync", "1 per 300 ms", RedisStore(f"{url_of(nodes)}?timeout=10s")) as asker,
        caplog.at_level(logging.INFO),
    ):
        assert [asker.acquire("key", timeout=20).allowed for _ in range(3)] == [True] * 3
        asker.store.clear()
    assert not caplog.messages
    assert not any(server.cli("DBSIZE") for server in nodes.servers)
