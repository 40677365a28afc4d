"""What needs a thread in the background goes on where the system has no room for one, or the interpreter is ending."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis_servers import Cluster, Server, single

from headgate import GuardedStore, Limiter, RedisStore, StoreUnavailable
from headgate.stores.guard.breaker import CLOSED, OPEN
from until import until

_LARGER_THAN_MEMORY = 1 << 46


@contextmanager
def no_room_for_threads() -> Iterator[None]:
    before = threading.stack_size(_LARGER_THAN_MEMORY)
    try:
        with pytest.raises(RuntimeError):
            threading.Thread(target=print).start()
        yield
    finally:
        threading.stack_size(before)


def test_without_a_thread_to_probe_requests_are_decided_here_and_the_store_is_found_once_there_is_room() -> None:
    with single() as server:
        store = GuardedStore(RedisStore(server.url))
        limiter, breaker = Limiter("100/minute", store=store), store.breaker
        assert not limiter.hit("key").degraded
        held = limiter.reserve("key")
        server.kill()
        with no_room_for_threads():
            assert [limiter.hit("key").degraded for _ in range(5)] == ["local"] * 5
            assert breaker.state == OPEN
            assert held.commit().degraded == "later"
        server.restart()
        until(lambda: limiter.hit("key").degraded == "" and breaker.state == CLOSED)
        store.close()


def test_without_a_thread_that_listens_a_caller_waits_in_line_and_polls(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter("10/second bucket", store=RedisStore(server.url), name="unheard")
    assert limiter.hit("key", cost=10)
    with no_room_for_threads():
        assert limiter.acquire("key", timeout=5)
    assert "waiting callers receive no messages and query every 3 s: RuntimeError" in caplog.text
    limiter.store.close()


def test_a_cluster_is_connected_without_threads(nodes: Cluster) -> None:
    store = RedisStore(f"{nodes.url}?timeout=1s")
    limiter = Limiter("100/minute", store=store)
    with no_room_for_threads():
        assert all(limiter.hit(f"key {number}") for number in range(20))
    store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the shared store is for Linux")
def test_without_a_thread_that_listens_to_a_zone_callers_wait_in_the_line_of_their_process(tmp_path: Path) -> None:
    pytest.importorskip("headgate._native")
    url = f"shared://{tmp_path / 'zone'}?size=1MiB"
    bare = Limiter("10/second bucket", store=url, name="unheard")
    guarded = Limiter("10/second bucket", store=url, name="unheard", on_store_error="local")
    assert bare.hit("key", cost=10)
    with no_room_for_threads():
        with pytest.raises(StoreUnavailable, match="the thread that wakes waiting callers cannot be started"):
            bare.acquire("key", timeout=5)
        assert guarded.acquire("key", timeout=5)
    assert bare.hit("key", cost=10).allowed is False
    assert bare.acquire("key", timeout=5)


_AT_THE_END = """
import atexit, sys
from headgate import Limiter

limiter = Limiter("10/second bucket", store=sys.argv[1])
limiter.hit("key")


@atexit.register
def decide():
    said = [limiter.hit("key").degraded for _ in range(5)]
    print(said, bool(limiter.hit("key", 4)), limiter.acquire("key", timeout=5))
"""


@pytest.mark.parametrize("away", [True, False])
def test_a_program_that_ends_decides_and_waits(server: Server, away: bool) -> None:
    url = "redis://127.0.0.1:1/0" if away else f"{server.url}?timeout=1s"
    done = subprocess.run(
        [sys.executable, "-c", _AT_THE_END, url], check=False, capture_output=True, text=True, timeout=60
    )
    assert "Error" not in done.stderr.replace("RuntimeError\n", "", 1), done.stderr
    assert done.stdout.startswith(f"{['local' if away else ''] * 5} True Decision(allowed=True"), done.stdout
