"""The things under test, made the same way everywhere."""

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
"""Where states can be: a memory store of each core, a shared zone, and a real Redis, alone or several."""

GUARDED = ("guarded",) if "redis" in REDIS else ()
"""A Redis behind a guard, as it is opened by its URL."""

HOLDING = (*CORES, *ZONES, *REDIS, *GUARDED)
"""Where what is settled later can be held."""


def deciding(kinds: tuple[str, ...]) -> list[str]:
    """Those of these kinds that decide each in a way of its own: sentinels only say which single Redis is asked."""
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
    """A store of this kind that nobody else has."""
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

    An error that it caught keeps the stores that it came through, until garbage is collected in another test, which
    fails for an unclosed socket.
    """
    for store in list(_CONNECTED):
        store.close()
    _CONNECTED.clear()


def make_twins() -> tuple[MemoryStore, MemoryStore]:
    """Two native stores that place every key in the same shard, as two stores with seeds of their own do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headgate.stores.memory.os.urandom", bytes)
        return MemoryStore(core="native"), MemoryStore(core="native")


def make_zone(size: int = 1 << 20, **options: Any) -> SharedStore:
    """A shared store in a file that has no name any more: it goes with the store."""
    path = Path("/dev/shm") / f"headgate-test-{os.getpid()}-{uuid4().hex}"
    store = SharedStore(path, size=size, **options)
    path.unlink()
    return store


@cache
def redis_url(kind: str) -> str:
    """Servers of this test process alone, which end with it."""
    servers = ExitStack()
    atexit.register(servers.close)
    url: str = servers.enter_context(TOPOLOGIES[kind]()).url
    return url


@cache
def redis_client(kind: str) -> Any:
    """One client for all stores on such servers: to open one takes longer than most of what is asked of it."""
    return RedisStore(f"{redis_url(kind)}?timeout=5s").client


def parse_list(field: str) -> list[tuple[str, dict[str, Any]]]:
    """A List of RFC 9651 whose members are strings with parameters, by an independent parser."""
    members: Any = http_sf.parse(field.encode(), tltype="list")
    return [(str(name), dict(parameters)) for name, parameters in members]


def numbers(decision: Decision) -> dict[str, object]:
    """All that a decision says, as plain values."""
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


def told(came: Any) -> object:
    """What came of a settling, as plain values."""
    decision = getattr(came, "decision", None)
    after = [(own.remaining, own.reset_after_us) for own in came.after]
    return came.outcome, getattr(came, "actuals", None), after, None if decision is None else numbers(decision)
