"""Logs on Redis, packed and in several fields, equal those of the memory store, however their numbers change."""

from __future__ import annotations

import os
import random
import struct
from itertools import count
from typing import Any

import pytest
import redis
from redis_servers import Server

from headgate import Limiter, MemoryStore
from headgate.operation import Receipt
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from vector_check import answer

pytestmark = pytest.mark.integration
_prefixes = count()
START_US = 1_800_000_000_000_000


def raw(server: Server) -> RedisStore:
    return RedisStore(f"{server.url}?timeout=10s", prefix=f"log{os.getpid()}-{next(_prefixes)}")


@pytest.mark.parametrize(
    "texts",
    [
        ["7/second log"],
        ["900/second log", "2000/second log", "900/3 seconds log"],
        ["5/second log", "9/2 seconds log", "3/second log"],
        ["50/second log; 7/second bucket", "20/2 seconds log; 9/second bucket"],
        ["20/second log", "30/second counter", "8/3 seconds counter", "12/second log"],
        ["30/second log; 40/second log; 60/2 seconds log; 80/minute log; 90/hour log; 99/day log"],
    ],
    ids=lambda texts: texts[0][:30],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_log_on_redis_decides_like_the_one_in_memory(server: Server, texts: list[str], seed: int) -> None:
    chance, clock, text = random.Random(f"{texts}{seed}"), ManualClock(START_US), texts[0]
    stores: list[Any] = [raw(server), MemoryStore()]
    charges: list[tuple[int, int]] = []
    limiters = [Limiter(text, store=store, clock=clock, name="n") for store in stores]
    for step in range(1500 if "900" in text else 250):
        clock.advance(chance.choice([0, 1, 7, 300, 400, 1000]) if chance.random() < 0.95 else 300_000)
        if chance.random() < 0.02:
            text = chance.choice(texts)
            limiters = [Limiter(text, store=store, clock=clock, name="n") for store in stores]
        cost = chance.choice([0, 1, 1, 1, 2, 5]) if chance.random() < 0.97 else chance.choice([20, 100, 400])
        act = chance.random()
        if act < 0.9:
            decision, expected = (
                answer(limiter.hit("k", cost) if act < 0.8 else limiter.peek("k", cost)) for limiter in limiters
            )
            assert decision == expected, (step, text, cost)
            charges.append((clock.now_us(), cost))
            continue
        if act < 0.95 and charges:
            moment_us, charged = chance.choice(charges[-30:])
            for limiter in limiters:
                limiter._bound.give_back(Receipt(("k",), (charged,)), clock.now_us() - moment_us)
        elif act < 0.952:
            assert limiters[0].reset("k") == limiters[1].reset("k")
        told_states, true_states = (list(limiter._bound.read(("k",))) for limiter in limiters)
        assert told_states == true_states, (step, text)


def test_a_long_log_is_read_and_written_a_few_hundred_bytes_at_a_time(server: Server) -> None:
    clock, store = ManualClock(START_US), raw(server)
    limiter = Limiter("10000/hour log", store=store, clock=clock, name="long")
    for _ in range(4000):
        clock.advance(1)
        assert limiter.hit("k")
    client: Any = redis.Redis(port=server.port)
    [name] = client.scan_iter(match=f"{store.prefix}:*")
    fields = client.hgetall(name)
    assert max(map(len, fields.values())) < 450 and sum(map(len, fields.values())) < 4000 * 12
    assert limiter.peek("k", 6001).retry_after_us == 3_600_000_000 - 3999
    clock.advance(3_600_000_000)
    while client.hlen(name) > 1:
        assert limiter.hit("k"), "what has left is deleted a part at a time"
    assert limiter.reset("k") and not client.exists(name)
    client.close()


@pytest.mark.parametrize("entries", [1, 9, 300])
def test_a_list_of_version_0_1_is_taken_over_and_never_more_generously(server: Server, entries: int) -> None:
    clock, store, client = ManualClock(START_US), raw(server), redis.Redis(port=server.port)
    limiter = Limiter("400/second log", store=store, clock=clock, name="old")
    [calls] = store.commands(limiter.definitions).names(("k",))[:1]
    mark = b"\0" + (400).to_bytes(7, "little") + (1_000_000).to_bytes(7, "little")
    elements: list[bytes] = [struct.pack("<dI", START_US, 4_000_000_000) + mark, b"0"]
    for number in range(entries):
        elements += [b"%d" % (number * 1000), b"%d" % (number + 1)]
    client.rpush(calls + b"sliding_log.0", *elements)
    clock.set(START_US + entries * 1000)
    assert limiter.peek("k").remaining == 400 - entries - 1
    assert limiter.hit("k").remaining == 400 - entries - 1
    assert not client.exists(calls + b"sliding_log.0")
    clock.set(START_US + 1_000_000)  # the first has left, if they were taken over one by one
    assert limiter.peek("k", 0).remaining == (400 - entries if entries < 200 else 400 - entries - 1)
    clock.set(START_US + 2_000_000)
    assert limiter.peek("k", 0).remaining == 400
    client.close()


def test_a_list_of_version_0_1_is_taken_over_by_the_first_hold_of_its_key(server: Server) -> None:
    clock, store, client = ManualClock(START_US), raw(server), redis.Redis(port=server.port)
    limiter = Limiter("9/minute log", store=store, clock=clock, name="held")
    [name] = store.commands(limiter.definitions).names(("k",))
    mark = b"\0" + (9).to_bytes(7, "little") + (60_000_000).to_bytes(7, "little")
    client.rpush(name + b"sliding_log.0", struct.pack("<dI", START_US, 4_000_000_000) + mark, b"0", b"0", b"5")
    reserved = limiter.reserve("k", 3)
    assert reserved.decision.remaining == 1 and not client.exists(name + b"sliding_log.0")
    limiter.commit(reserved.id, 0)
    assert [limiter.reserve("k", 4).decision.remaining, limiter.peek("k", 0).remaining] == [0, 0]
    client.close()


@pytest.mark.parametrize(
    ("text", "left", "later"),
    [("1000/hour; 9/minute log", [980, 9], [979, 9]), ("9/minute log; 1000/hour", [0, 1000], [9, 1000])],
)
def test_the_first_of_a_log_and_a_counter_of_version_0_1_continues_from_the_counter(
    server: Server, text: str, left: list[int], later: list[int]
) -> None:
    clock, store, client = ManualClock(START_US), raw(server), redis.Redis(port=server.port)
    counter = Limiter("1000/hour", store=store, clock=clock, name="mixed")  # as 0.1 wrote it, whatever stood beside it
    counter.hit("k", 20)
    [name] = store.commands(counter.definitions).names(("k",))
    mark = b"\0" + (9).to_bytes(7, "little") + (60_000_000).to_bytes(7, "little")
    client.rpush(name + b"sliding_log.0", struct.pack("<dI", START_US, 4_000_000_000) + mark, b"0", b"0", b"5")
    limiter = Limiter(text, store=store, clock=clock, name="mixed")
    assert [reading.remaining for reading in limiter.peek("k", 0).limits] == left
    assert limiter.hit("k").allowed == (min(left) > 0)
    clock.advance(60_000_000)
    assert [reading.remaining for reading in limiter.peek("k", 0).limits] == later
    client.close()
