"""The memory store is bounded, counts what it drops, and never evicts a blocked key for a new one."""

from __future__ import annotations

import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from headgate import ArgumentError, AsyncGate, AsyncLimiter, ConfigError, Decision, Gate, Limiter, MemoryStore
from headgate.stores.memory import ON_FULL
from headgate.testing import ManualClock
from subjects import make_limiter

HOUR_US = 3_600_000_000


def fill(limiter: Limiter, count: int, name: str = "old") -> None:
    assert all(limiter.hit_many([f"{name}{index}" for index in range(count)]).allowed)


def test_decisions_of_many_requests_are_a_sequence(core: str) -> None:
    decisions = make_limiter(core, "2/hour", ManualClock()).hit_many(["key"] * 3)
    one_after_another = iter(decisions)
    assert iter(one_after_another) is one_after_another
    assert [decision.remaining for decision in one_after_another] == [1, 0, 0]
    assert next(one_after_another, None) is None
    assert [decision.allowed for decision in decisions] == decisions.allowed == [True, True, False]
    assert [decisions[index].allowed for index in (0, -1)] == [True, False]
    with pytest.raises(IndexError):
        decisions[3]


def test_states_are_dropped_when_they_have_become_the_same_as_none(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "10/second bucket", clock, max_keys=100)
    for round_number in range(50):
        fill(limiter, 100, f"round{round_number}-")
        clock.advance(1_000_000)
    stats = limiter.store.stats()
    assert stats.keys <= 100
    assert stats.expired >= 4000
    assert (stats.evicted, stats.refused_full, stats.passed_full) == (0, 0, 0)


@pytest.mark.parametrize("on_full", ON_FULL)
@pytest.mark.parametrize("max_keys", [1, 2, 33, 1000, 9_000])
def test_a_store_never_holds_more_than_max_keys(core: str, on_full: str, max_keys: int) -> None:
    limiter = make_limiter(core, "5/hour", ManualClock(), max_keys=max_keys, on_full=on_full)
    # Keys are spread over the parts of the native core, so the last part is full later than the table of Python.
    for start in range(0, 3 * max_keys if core == "native" else max_keys + 1000, 500):
        limiter.hit_many([f"key{index}" for index in range(start, start + 500)])
        assert limiter.store.stats().keys <= max_keys
    assert limiter.store.stats().keys == max_keys


def test_forget_evicts_the_key_that_resets_soonest(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "10/hour bucket", clock, max_keys=20)
    for index in range(20):
        limiter.hit(f"key{index}", 2 if index == 7 else 3)
    assert limiter.hit("new")
    assert limiter.peek("key7", 0).remaining == 10
    assert all(limiter.peek(f"key{index}", 0).remaining == 7 for index in range(20) if index != 7)
    assert limiter.store.stats().evicted == 1


@pytest.mark.parametrize("spent", ["exhausted", "refused"])
@pytest.mark.parametrize("text", ["5/hour", "5/hour fixed", "5/hour log", "5/hour bucket", "5/hour leaky 5"])
def test_a_flood_of_new_keys_never_frees_a_blocked_one(core: str, text: str, spent: str) -> None:
    limiter = make_limiter(core, text, ManualClock(), max_keys=200)
    if spent == "exhausted":
        limiter.hit("blocked", 5)
    else:
        limiter.hit("blocked", 4)
        assert not limiter.hit("blocked", 2)
    for start in range(0, 10_000, 1000):
        limiter.hit_many([f"flood{index}" for index in range(start, start + 1000)])
    assert not limiter.hit("blocked", 5 if spent == "exhausted" else 2)
    assert limiter.peek("blocked", 0).remaining == (0 if spent == "exhausted" else 1)
    assert limiter.store.stats().evicted >= 9_000


def test_where_every_key_is_blocked_a_new_one_is_refused_until_one_resets(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "1/hour bucket", clock, max_keys=10)
    fill(limiter, 10)
    clock.advance(HOUR_US // 2)
    decision = limiter.hit("new")
    assert not decision.allowed
    assert decision.degraded == "closed"
    assert decision.retry_after_us == HOUR_US // 2
    assert decision.remaining == 1
    assert limiter.store.stats().refused_full == 1
    clock.advance(HOUR_US // 2)
    assert limiter.hit("new").degraded == ""


def test_refuse_refuses_new_keys_and_keeps_the_old(core: str) -> None:
    limiter = make_limiter(core, "5/hour", ManualClock(), max_keys=10, on_full="refuse")
    fill(limiter, 10)
    decision = limiter.hit("new")
    assert (decision.allowed, decision.degraded) == (False, "closed")
    assert decision.retry_after_us is not None
    assert decision.retry_after_us > 0
    assert limiter.hit("old3").remaining == 3
    assert limiter.store.stats().refused_full == 1


def test_pass_passes_new_keys_without_counting_them(core: str) -> None:
    limiter = make_limiter(core, "5/hour", ManualClock(), max_keys=10, on_full="pass")
    fill(limiter, 10)
    for _ in range(9):
        decision = limiter.hit("new")
        assert (decision.allowed, decision.degraded, decision.remaining) == (True, "open", 4)
    assert limiter.store.stats().passed_full == 9


def test_a_refused_request_evicts_no_key(core: str) -> None:
    limiter = make_limiter(core, "5/hour; 3/minute", ManualClock(), max_keys=10)
    for index in range(5):
        limiter.hit(f"old{index}")
    assert not limiter.hit("new", 4)
    assert limiter.store.stats().evicted == 0
    assert limiter.store.stats().keys == 10


def test_a_refusal_for_lack_of_room_reports_the_decision_of_each_limit(core: str) -> None:
    limiter = make_limiter(core, "5/hour log; 2/minute log", ManualClock(), max_keys=2, on_full="refuse", name="api")
    assert limiter.hit("old")
    decision = limiter.hit("new", 3)  # more than the second ever passes
    assert [reading.allowed for reading in decision.limits] == [True, False]
    assert [reading.retry_after_us for reading in decision.limits] == [0, None]
    decision = limiter.hit("new", 2)
    assert decision.degraded == "closed"
    assert [reading.allowed for reading in decision.limits].count(False) == 1
    assert [reading.remaining for reading in decision.limits] == [5, 2]


def hit_each_moment(limiter: Limiter, clock: ManualClock, key: str, hits: int) -> list[Decision]:
    """Hit a key at `hits` different moments, each an entry of a log."""
    decisions = []
    for _ in range(hits):
        clock.advance(1)
        decisions.append(limiter.hit(key))
    return decisions


def test_entries_given_back_to_a_log_make_room_for_others() -> None:  # the native core bounds blocks of entries
    clock = ManualClock()
    limiter = make_limiter("python", "9/hour log", clock, max_log_entries=6, on_full="refuse")
    fill(limiter, 3)
    decisions = hit_each_moment(limiter, clock, "other", 3)
    assert not any(hit_each_moment(limiter, clock, "other", 2))
    limiter.give_back("other", 1, 2, decisions[2])
    limiter.give_back("other", 1, 3, decisions[1])
    assert [bool(decision) for decision in hit_each_moment(limiter, clock, "other", 3)] == [True, True, False]


def test_a_table_takes_more_bytes_the_more_it_stores() -> None:
    clock = ManualClock()
    limiter = make_limiter("python", "99/hour log", clock)
    taken = [limiter.store.stats().bytes]
    for hits, key in ((1, "a"), (50, "a"), (1, "b"), (98, "b")):
        hit_each_moment(limiter, clock, key, hits)
        taken.append(limiter.store.stats().bytes)
    empty, one, fifty, two, many = taken
    assert 100 < one - empty < 2_000
    assert 50 * 50 < fifty - one < 50 * 500
    assert 100 < two - fifty < 2_000
    assert 98 * 50 < many - two < 98 * 500


def test_all_limits_of_a_request_find_room_or_none_is_charged(core: str) -> None:
    limiter = make_limiter(core, "5/hour; 3/minute", ManualClock(), max_keys=3, on_full="refuse")
    assert limiter.hit("a")
    assert not limiter.hit("b")
    assert limiter.store.stats().keys == 2
    assert [reading.remaining for reading in limiter.peek("b", 0).limits] == [5, 3]


def test_logs_are_bounded_together(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "1000/hour log", clock, max_log_entries=140)
    passed = 0
    for index in range(400):
        clock.advance(1)
        passed += limiter.hit(f"key{index % 4}").allowed
    assert 100 <= passed <= 200
    assert limiter.store.stats().refused_full == 400 - passed
    clock.advance(HOUR_US)
    assert limiter.hit("key0").degraded == ""


def test_logs_free_what_leaves_their_window(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "50/second log", clock, max_log_entries=200)
    for _ in range(5000):
        clock.advance(25_000)
        decision = limiter.hit("key")
        assert decision.allowed
        assert decision.degraded == ""


def test_clear_and_close_forget_everything(core: str) -> None:
    limiter = make_limiter(core, "5/hour; 9/hour log", ManualClock(), max_keys=100)
    for forget in (limiter.store.clear, limiter.close):
        fill(limiter, 40)
        forget()
        assert limiter.store.stats().keys == 0
        fill(limiter, 40)
        forget()


def test_a_limiter_closes_its_store_at_the_end_of_a_with_block(core: str) -> None:
    with make_limiter(core, "5/hour", ManualClock()) as limiter:
        limiter.hit("key")
    assert limiter.store.stats().keys == 0


@pytest.mark.parametrize(
    "text", ["100/hour", "100/hour fixed", "100/hour log", "100/hour bucket", "100/hour leaky 100", "100/hour queue 99"]
)
def test_threads_together_pass_exactly_the_limit(core: str, text: str) -> None:
    previous = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            limiter = make_limiter(core, f"{text}; 1000/hour", ManualClock())
            start = threading.Barrier(8)

            def hit_together(limiter: Limiter = limiter, start: threading.Barrier = start) -> int:
                start.wait()
                singly = sum(limiter.hit("key").allowed for _ in range(40))
                return singly + limiter.hit_many(["key"] * 40).allowed_count

            with ThreadPoolExecutor(8) as pool:
                assert sum(future.result() for future in [pool.submit(hit_together) for _ in range(8)]) == 100
    finally:
        sys.setswitchinterval(previous)


def test_threads_with_new_keys_never_pass_the_bound(core: str) -> None:
    limiter = make_limiter(core, "5/hour", ManualClock(), max_keys=5000)

    def hit_new_keys(thread: int) -> None:
        for start in range(0, 4000, 100):
            limiter.hit_many([f"{thread}-{index}" for index in range(start, start + 100)])
            assert limiter.store.stats().keys <= 5000

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hit_new_keys, range(8)))
    assert limiter.store.stats().keys == 5000


def test_a_store_can_serve_several_limiters_without_mixing_them(core: str) -> None:
    store = MemoryStore(core=core)  # type: ignore[arg-type]
    clock = ManualClock()
    login = Limiter("1/hour", store=store, name="login", clock=clock)
    search = Limiter("1/hour", store=store, name="search", clock=clock)
    unnamed = Limiter("1/hour", store=store, clock=clock)
    assert login.hit("key") and search.hit("key") and unnamed.hit("key")
    assert not Limiter("1/hour", store=store, name="login", clock=clock).hit("key")
    assert not Limiter("1/hour", store=store, clock=clock).hit("key")
    assert Limiter("2/hour", store=store, clock=clock).hit("key")


BAD_STORES: list[tuple[dict[str, Any], str]] = [
    ({"max_keys": 0}, "max_keys is in [1, 4294967296], not 0"),
    ({"max_keys": True}, "max_keys is a whole number, not True"),
    ({"max_keys": 1e6}, "max_keys is a whole number"),
    ({"max_keys": 1 << 40}, "max_keys is in"),
    ({"max_log_entries": -1}, "max_log_entries is in"),
    ({"on_full": "evict"}, "on_full is one of forget, refuse, pass, not 'evict'"),
    ({"core": "rust"}, 'core is "native" or "python"'),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_STORES, ids=[message for _, message in BAD_STORES])
def test_a_store_with_invalid_arguments_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        MemoryStore(**arguments)


def test_a_store_url_sets_its_bounds() -> None:
    store = Limiter("5/hour", store="memory://?max_keys=1_000&on_full=pass&max_log_entries=70").store
    assert isinstance(store, MemoryStore)
    assert (store.max_keys, store.on_full, store.max_log_entries) == (1000, "pass", 70)


BAD_URLS = [
    ("", "a store is one of memory://"),
    ("memory:", "a store is one of memory://"),
    ("redis//hunter2@host", 'not a text without a scheme, which is not shown: did you mean "redis://"?'),
    ("mysql://root:hunter2@db/limits", "not 'mysql://***@db/limits'"),
    ("memory://host", 'the memory store is "memory://"'),
    ("memory://?max_key=5", 'not "max_key"'),
    ("memory://?max_keys=x", "max_keys is a whole number, not 'x'"),
    ("memory://?max_keys=1&max_keys=2", '"max_keys" is given twice'),
    ("memory://?max_keys", "cannot read the options"),
    ("memory://?on_full=never", "on_full is one of"),
]


@pytest.mark.parametrize(("url", "message"), BAD_URLS, ids=[url for url, _ in BAD_URLS])
def test_a_store_url_that_cannot_be_read_is_refused_without_showing_secrets(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        Limiter("5/hour", store=url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "store", [5, b"memory://", Path("/dev/shm/zone"), MemoryStore, redis.Redis(password="hunter2")]
)
def test_an_invalid_store_is_refused_where_it_is_passed(store: Any) -> None:
    policy = {"version": 1, "rules": [{"name": "a", "by": ["ip"], "limits": "5/minute"}]}
    for make in (Limiter, AsyncLimiter, Gate, AsyncGate):
        limits: Any = policy if make in (Gate, AsyncGate) else "5/minute"
        with pytest.raises(ConfigError, match=r"a store is a URL such as .* or a store, not a \w+") as caught:
            make(limits, store=store)
        assert "hunter2" not in str(caught.value)
        assert ("give a client of redis-py to RedisStore" in str(caught.value)) == isinstance(store, redis.Redis)


@pytest.mark.parametrize("clock", [1, 0, "", time.time, time, ManualClock])
def test_an_invalid_clock_is_refused_where_it_is_passed(clock: Any) -> None:
    policy = {"version": 1, "rules": [{"name": "a", "by": ["ip"], "limits": "5/minute"}]}
    for make in (Limiter, AsyncLimiter, Gate, AsyncGate):
        limits: Any = policy if make in (Gate, AsyncGate) else "5/minute"
        with pytest.raises(ConfigError, match=r"clock is an object with now_us\(\) .* not (a|the class) \w+"):
            make(limits, clock=clock)


def test_a_hit_on_a_limit_in_flight_is_an_error(core: str) -> None:
    limiter = make_limiter(core, "20 concurrent", ManualClock())
    with pytest.raises(ArgumentError, match="in flight"):
        limiter.hit("key")


@pytest.mark.parametrize("text", ["2 per {} fixed", "2 per {}", "2 per {} log", "2 per {} bucket"])
def test_a_key_refused_under_changed_numbers_is_not_forgotten_by_the_former_ones(core: str, text: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, text.format("2 seconds"), clock, name="changed", max_keys=8)
    limiter.hit("blocked", 2)
    changed = Limiter(text.format("2 hours"), store=limiter.store, clock=clock, name="changed")
    assert not changed.hit("blocked")
    clock.advance(10_000_000)  # under the former numbers nothing would be left of it
    flood = Limiter("5/hour", store=limiter.store, clock=clock, name="flood")
    for number in range(100):
        flood.hit(f"new-{number}")
    assert not changed.peek("blocked")


def test_a_request_of_several_limits_never_evicts_a_state_of_its_own(core: str) -> None:
    clock = ManualClock()
    store = MemoryStore(core=core, max_keys=2)  # type: ignore[arg-type]
    one = Limiter("5/minute fixed", store=store, name="api", clock=clock)
    both = Limiter("5/minute fixed; 10/hour fixed", store=store, name="api", clock=clock)
    other = Limiter("1/hour fixed", store=store, name="other", clock=clock)
    assert one.hit("key")
    assert other.hit("blocked") and not other.hit("blocked")
    # The table is full: with a blocked key, and with the first limit of this same request.
    refused = both.hit("key")
    assert (refused.allowed, refused.degraded) == (False, "closed")
    assert one.peek("key", 0).remaining == 4
    assert not other.hit("blocked")


@pytest.mark.parametrize("on_full", ["forget", "refuse", "pass"])
def test_an_ended_state_of_a_request_takes_up_room_again(core: str, on_full: str) -> None:
    clock = ManualClock()
    store = MemoryStore(core=core, max_keys=2, on_full=on_full)  # type: ignore[arg-type]
    one = Limiter("5/minute fixed", store=store, name="api", clock=clock)
    both = Limiter("5/minute fixed; 10/hour fixed", store=store, name="api", clock=clock)
    other = Limiter("1/hour fixed", store=store, name="other", clock=clock)
    assert one.hit("key")
    assert other.hit("blocked") and not other.hit("blocked")
    clock.advance(60_000_000)  # the first limit of the request has a state that has ended; the second has none
    both.hit("key")
    assert store.stats().keys <= 2
    assert not other.hit("blocked")


def test_a_refusal_for_lack_of_room_reports_what_is_left_of_each_limit(core: str) -> None:
    clock = ManualClock()
    store = MemoryStore(core=core, max_keys=2, on_full="refuse")  # type: ignore[arg-type]
    one = Limiter("5/minute fixed", store=store, name="api", clock=clock)
    both = Limiter("5/minute fixed; 10/hour fixed", store=store, name="api", clock=clock)
    other = Limiter("1/day fixed", store=store, name="other", clock=clock)
    assert one.hit("key", 2) and other.hit("elsewhere")
    clock.advance(7)
    peeked = both.peek("key", 0)
    refused = both.hit("key", 3)
    assert (refused.allowed, refused.degraded) == (False, "closed")
    assert [reading.allowed for reading in refused.limits] == [True, False]
    assert refused.limits[0].retry_after_us == 0
    assert refused.limits[1].retry_after_us == peeked.limits[0].reset_after_us  # what resets first makes room
    for reading, expected in zip(refused.limits, peeked.limits, strict=True):
        assert (reading.remaining, reading.reset_after_us, reading.next_after_us, reading.delay_us) == (
            expected.remaining,
            expected.reset_after_us,
            expected.next_after_us,
            0,
        )
    assert refused.binding == refused.limits[1]


def test_a_limit_that_refuses_by_itself_reports_it_where_there_is_no_room_for_another(core: str) -> None:
    store = MemoryStore(core=core, max_keys=2, on_full="refuse")  # type: ignore[arg-type]
    clock = ManualClock()
    shadow = Limiter("5/minute fixed; 10/hour fixed", store=store, name="api", clock=clock, shadow=True)
    Limiter("5/minute fixed", store=store, name="api", clock=clock).hit("key", 5)
    Limiter("1/day fixed", store=store, name="other", clock=clock).hit("elsewhere")
    passed = shadow.hit("key")
    assert passed.allowed and passed.degraded == ""
    assert [reading.allowed for reading in passed.limits] == [False, True]


def test_a_store_that_was_cleared_has_room_for_as_many_log_entries_as_a_new_one(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "1000/hour log", clock, max_log_entries=128)

    def passed() -> int:
        for number in range(1000):
            clock.advance(1)
            if limiter.hit("key").degraded:
                return number
        return 1000

    first = passed()
    limiter.store.clear()
    assert 100 <= first <= 200 and passed() == first


def test_a_reset_reports_whether_any_limit_still_counted_usage(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "5/hour fixed; 5/minute fixed", clock)
    limiter.hit("key")
    clock.advance(60_000_000)  # the last one does not count any more
    assert limiter.reset("key") and not limiter.reset("key")
    short = make_limiter(core, "5/minute fixed", clock)
    clock.advance(-(clock.now_us() % 60_000_000))
    short.hit("key")
    clock.advance(59_999_999)
    assert short.reset("key")
    short.hit("key")
    clock.advance(1)
    assert not short.reset("key")


def test_each_evicted_key_is_counted(core: str) -> None:
    limiter = make_limiter(core, "5/hour", ManualClock(), max_keys=4)
    fill(limiter, 9)
    assert limiter.store.stats().evicted == 5


def test_log_entries_that_are_given_back_make_room_and_no_more_than_that(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "1000/hour log", clock, max_log_entries=128)

    def fill_up() -> int:
        for number in range(1000):
            clock.advance(1)
            if (decision := limiter.hit("key")).degraded:
                return number
            receipts.append((clock.now_us(), decision))
        return 1000

    receipts: list[tuple[int, Decision]] = []
    assert 100 <= fill_up() <= 200
    if core == "python":
        for charged_us, decision in receipts[:3]:
            limiter.give_back("key", 1, clock.now_us() - charged_us, decision)
        receipts.clear()
        assert fill_up() == 3


def test_a_state_is_read_as_of_the_requested_moment(core: str) -> None:
    clock = ManualClock()
    store = MemoryStore(core=core)  # type: ignore[arg-type]
    Limiter("10/hour burst 10", store=store, name="api", clock=clock).hit("key", 10)
    changed = Limiter("10/minute burst 10", store=store, name="api", clock=clock)
    start_us = clock.now_us()
    states = [changed._bound.read(("key",), start_us + minutes * 60_000_000)[0] for minutes in (0, 6, 12)]
    assert len(set(states)) == 3, "the refill under the former numbers counts up to that moment"
    assert changed._bound.read(("key",)) == [states[0]]
