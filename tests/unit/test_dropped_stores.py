"""An unreferenced store is freed at once, with its connections, without a garbage collection."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator
from weakref import ref

import pytest

from headgate import Limiter
from headgate.errors import StoreError
from headgate.stores.guard.store import GuardedStore
from headgate.stores.protocol import Store
from headgate.stores.redis.store import RedisStore
from subjects import REDIS, make_store, redis_client


def hit(limiter: Limiter) -> None:
    assert limiter.hit("a").allowed


def hit_many(limiter: Limiter) -> None:
    assert all(decision.allowed for decision in limiter.hit_many(["a", "b"]))


def hold(limiter: Limiter) -> None:
    limiter.reserve("a", 2).commit(1)


def wait(limiter: Limiter) -> None:
    for _ in range(6):
        assert limiter.acquire("a", timeout=30)


def fail(limiter: Limiter) -> None:
    for _ in range(3):
        with pytest.raises(StoreError):
            limiter.hit("a")


def do_without(limiter: Limiter) -> None:
    for _ in range(3):
        assert limiter.hit("a").degraded
    limiter.reserve("a", 1).commit(1)


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def guarded(url: str) -> Store:
    return GuardedStore(RedisStore(url))


@pytest.fixture
def away() -> Iterator[str]:
    """The URL of a Redis whose port is closed: it is bound, and no process listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{bound.getsockname()[1]}?timeout=200ms"


def is_kept(make: Callable[[], Store], use: Callable[[Limiter], None]) -> bool:
    """Whether a store stays alive after its use, without a reference to it."""
    store = make()
    dropped = ref(store.unguarded)
    use(Limiter("5/second bucket", store=store))
    del store
    return dropped() is not None


@pytest.mark.skipif("redis" not in REDIS, reason="HEADGATE_TOPOLOGIES leaves Redis out")
@pytest.mark.parametrize("use", [hit, hit_many, hold, wait])
@pytest.mark.parametrize("kind", ["redis", "guarded"])
def test_an_unreferenced_store_is_collected_with_its_connections(kind: str, use: Callable[[Limiter], None]) -> None:
    redis_client("redis").script_flush()  # the first call finds that its script is missing
    assert not is_kept(lambda: make_store(kind), use)


@pytest.mark.parametrize("use", [fail, do_without])
def test_an_unreferenced_store_that_never_connected_is_collected(away: str, use: Callable[[Limiter], None]) -> None:
    make = RedisStore if use is fail else guarded
    assert not is_kept(lambda: make(away), use)
