"""The stores and limiters under test, made the same way in all tests."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4
from weakref import WeakSet

import http_sf
import pytest

from headgate import GuardedStore, Limiter, MemoryStore, SharedStore
from headgate import core as cores
from headgate.decision import Decision
from headgate.limits import Limit
from headgate.stores.protocol import Store
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock

sys.path.insert(0, str(Path(__file__).parent / "integration"))
from redis_servers import cluster, sentinels, single

CORES = ("native", "python") if cores.native is not None else ("python",)
ZONES = ("shared",) if hasattr(cores.native, "Zone") else ()


@contextmanager
def valkey() -> Iterator[Any]:
    """A Valkey, where it is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADGATE_REDIS_SERVER", "valkey-server")
        with single() as server:
            yield server


_ALL: dict[str, Any] = {"redis": single, "sentinel": sentinels, "cluster": cluster}
if shutil.which("valkey-server"):
    _ALL["valkey"] = valkey
TOPOLOGIES = {name: _ALL[name] for name in os.environ.get("HEADGATE_TOPOLOGIES", " ".join(_ALL)).split()}
REDIS = tuple(TOPOLOGIES)
KINDS = (*CORES, *ZONES, *REDIS)
"""All kinds of stores: a memory store of each core, a shared zone, and a real Redis, single or several."""

GUARDED = ("guarded",) if "redis" in REDIS else ()
"""A Redis behind a guard, as its URL opens it."""

HOLDING = (*CORES, *ZONES, *REDIS, *GUARDED)
"""The kinds of stores with holds."""


def deciding(kinds: tuple[str, ...]) -> list[str]:
    """The kinds that decide in different ways: sentinels only select the single Redis that decides."""
    return [kind for kind in kinds if kind != "sentinel"]


_NUMBERS = count()
_CONNECTED: WeakSet[RedisStore] = WeakSet()
START_US = 1_800_000_000_000_000


def make_limiter(
    kind: str, limits: str | Limit | list[Limit], clock: ManualClock, *, name: str = "", **options: Any
) -> Limiter:
    """A limiter on a store of this kind and on this clock."""
    return Limiter(limits, store=make_store(kind, **options), name=name, clock=clock)


def make_store(kind: str, **options: Any) -> Store:
    """A new store of this kind, which no other test uses."""
    if kind == "shared":
        return make_zone(**options)
    if kind == "guarded":
        return GuardedStore(make_store("redis"))
    if kind in ("redis", "valkey"):
        store = RedisStore(f"{redis_url(kind)}?timeout=5s", prefix=f"t{next(_NUMBERS)}")
        _CONNECTED.add(store)
        return store
    if kind in TOPOLOGIES:
        return RedisStore(redis_client(kind), prefix=f"t{next(_NUMBERS)}")
    return MemoryStore(core=cast(Literal["native", "python"], kind), **options)


def close_stores() -> None:
    """Close the connections that a test has left open.

    A caught error keeps the stores in its traceback alive until garbage is collected in another test, which then fails
    for an unclosed socket.
    """
    for store in list(_CONNECTED):
        store.close()
    _CONNECTED.clear()


def make_twins() -> tuple[MemoryStore, MemoryStore]:
    """Two native stores that place every key in the same shard, which stores with different seeds do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headgate.stores.memory.os.urandom", bytes)
        return MemoryStore(core="native"), MemoryStore(core="native")


def make_zone(size: int = 1 << 20, **options: Any) -> SharedStore:
    """A shared store in a file without a name, which is freed with the store."""
    path = Path("/dev/shm") / f"headgate-test-{os.getpid()}-{uuid4().hex}"
    store = SharedStore(path, size=size, **options)
    path.unlink()
    return store


@cache
def redis_url(kind: str) -> str:
    """The URL of servers for this test process alone, which end with it."""
    servers = ExitStack()
    atexit.register(servers.close)
    url: str = servers.enter_context(TOPOLOGIES[kind]()).url
    return url


@cache
def redis_client(kind: str) -> Any:
    """One client for all stores on such servers: to open one takes longer than most tests."""
    return RedisStore(f"{redis_url(kind)}?timeout=5s").client


def parse_list(field: str) -> list[tuple[str, dict[str, Any]]]:
    """A List of RFC 9651 whose members are strings with parameters, by an independent parser."""
    members: Any = http_sf.parse(field.encode(), tltype="list")
    return [(str(name), dict(parameters)) for name, parameters in members]


def numbers(decision: Decision) -> dict[str, object]:
    """All numbers of a decision, as plain values."""
    return {
        "allowed": decision.allowed,
        "degraded": decision.degraded,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "reset_after_us": decision.reset_after_us,
        "retry_after_us": decision.retry_after_us,
        "delay_us": decision.delay_us,
        "binding": decision.binding,
        "limits": decision.limits,
    }


def outcome_values(reply: Any) -> object:
    """The result of a settlement or an extension, as plain values."""
    decision = getattr(reply, "decision", None)
    after = [(standing.remaining, standing.reset_after_us) for standing in reply.after]
    return reply.outcome, getattr(reply, "actuals", None), after, None if decision is None else numbers(decision)
