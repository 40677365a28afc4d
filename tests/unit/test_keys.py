"""Keys and costs: valid and invalid ones, and that no two keys run together."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ArgumentError, AsyncLimiter, Limiter
from headgate.keys import check_ago, check_now, encode_key
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from headgate.units import LARGEST
from subjects import make_limiter

PART = st.one_of(st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable()), st.integers())
KEYS = st.one_of(
    st.text(min_size=1, max_size=12).filter(lambda text: text.isprintable()),
    st.lists(PART, min_size=1, max_size=4).map(tuple),
)


def texts(key: Any) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(str(part) for part in key)


@given(one=KEYS, other=KEYS)
def test_two_keys_share_a_text_only_if_their_parts_are_the_same(one: Any, other: Any) -> None:
    assert (encode_key(one) == encode_key(other)) == (texts(one) == texts(other))


@given(one=KEYS, other=KEYS)
def test_two_keys_share_a_budget_only_if_their_parts_are_the_same(core: str, one: Any, other: Any) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())
    limiter.hit(one)
    assert limiter.hit(other).allowed == (texts(one) != texts(other))


@pytest.mark.parametrize("key", ["{a}b", "a{b", "%7B", "a|b", "a\r\nb", " ", "\x00"])
def test_no_key_can_choose_a_redis_hash_tag_or_a_joint(key: str) -> None:
    assert not set("{}|\r\n \x00") & set(encode_key(key))


BAD_KEYS = [
    ("", "^a key is empty"),
    (("a", ""), "part 1 of a key is empty"),
    (None, "a key is text or a tuple of parts, not None"),
    (("a", None), "part 1 of a key is text or a whole number, not None"),
    (b"a", "not a bytes"),
    (7, "not an int"),
    (("a", True), "not a bool"),
    (("a", 1.5), "not a float"),
    (["a"], "not a list"),
    ((), "1 to 16 parts, not 0"),
    (("a",) * 17, "1 to 16 parts, not 17"),
    ("x" * 8193, "at most 8192 bytes, not 8193"),
    ("é" * 5000, "at most 8192 bytes, not 10000"),
    (("x" * 5000, "y" * 5000), "at most 8192 bytes, not 10000"),
    ("\ud800", "^a key has a lone surrogate at character 0"),
    (("a", "b\udfff"), "part 1 of a key has a lone surrogate at character 1"),
    ((1 << 5000,), "too long for a key"),
    ((2**1024,), "^part 0 of a key is a number of 1025 bits: too long for a key"),
]


@pytest.mark.parametrize(("key", "message"), BAD_KEYS, ids=[message for _, message in BAD_KEYS])
def test_an_invalid_key_is_refused_and_nothing_is_charged(core: str, key: Any, message: str) -> None:
    limiter = make_limiter(core, "5/hour", ManualClock())
    for method in (limiter.hit, limiter.peek, limiter.acquire, limiter.reset):
        with pytest.raises(ArgumentError, match=message):
            method(key)
    with pytest.raises(ArgumentError, match=message):
        limiter.hit_many(["good", key, "good"])
    assert limiter.peek("good", 0).remaining == 5


@pytest.mark.parametrize("key", ["x" * 8192, ("a", -5), ("a", 2**1024 - 1), "\U0001f600", "a b", "\x7f", ("a",) * 16])
def test_unusual_keys_are_valid(core: str, key: Any) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())
    assert limiter.hit(key).allowed
    assert not limiter.hit(key).allowed


BAD_COSTS = [
    (-1, "at least 0, not -1"),
    (-(10**30), "at least 0, not -10"),
    (True, "a whole number, not a bool"),
    (1.0, "a whole number, not a float"),
    (float("nan"), "not a float"),
    ("1", "not a str"),
    (LARGEST + 1, "at most 4503599627370496 (2**52)"),
    (10**5000, "not a number of 16610 bits"),
]


@pytest.mark.parametrize(("cost", "message"), BAD_COSTS, ids=[message for _, message in BAD_COSTS])
def test_an_invalid_cost_is_refused_and_nothing_is_charged(core: str, cost: Any, message: str) -> None:
    limiter = make_limiter(core, "5/hour", ManualClock())
    for method in (limiter.hit, limiter.peek, limiter.acquire):
        with pytest.raises(ArgumentError, match=re.escape(message)):
            method("key", cost)
    with pytest.raises(ArgumentError, match=re.escape(message)):
        limiter.hit_many(["key", "key"], [1, cost])
    assert limiter.peek("key", 0).remaining == 5


def test_a_cost_of_none_is_not_a_cost_of_one(core: str) -> None:
    limiter = make_limiter(core, "5/hour", ManualClock())
    with pytest.raises(ArgumentError, match="a whole number, not None"):
        limiter.hit("key", None)  # type: ignore[arg-type]


def test_the_largest_cost_is_never_admitted_and_never_an_error(core: str) -> None:
    for text in (
        "5/hour", "5/hour fixed", "5/hour log", "5/hour bucket", "5/hour leaky 9", "5/hour queue 9",
        "5/hour bucket stepwise", "5/day in Europe/Zurich",
    ):  # fmt: skip
        decision = make_limiter(core, text, ManualClock()).hit("key", LARGEST)
        assert not decision.allowed
        assert decision.retry_after is None


def test_a_limit_of_zero_refuses_for_ever_and_stores_nothing(core: str) -> None:
    for text in (
        "0/hour", "0/hour fixed", "0/hour log", "5/hour burst 0", "5/hour leaky 0", "5/hour burst 0 stepwise",
        "0/day in Europe/Zurich",
    ):  # fmt: skip
        limiter = make_limiter(core, text, ManualClock())
        decision = limiter.hit("key")
        assert (decision.allowed, decision.retry_after, decision.remaining) == (False, None, 0)
        assert limiter.hit("key", 0).allowed
        assert limiter.store.stats().keys == 0


def test_as_many_costs_as_keys(core: str) -> None:
    limiter = make_limiter(core, "5/hour", ManualClock())
    with pytest.raises(ArgumentError, match="2 keys need as many costs, not 3"):
        limiter.hit_many(["a", "b"], [1, 2, 3])
    assert limiter.hit_many([]).allowed == []
    assert limiter.hit_many(iter(["a", "b"]), iter([5, 6])).allowed == [True, False]
    assert limiter.hit_many(("c",), 6).allowed_count == 0


@pytest.mark.parametrize("store", ["memory", "redis"])
@pytest.mark.parametrize("text", ["5/hour", "5/hour; 9 tokens/hour"])
def test_a_call_without_keys_has_the_same_result_on_every_store(core: str, store: str, text: str) -> None:
    used_store = (
        make_limiter(core, text, ManualClock()).store if store == "memory" else RedisStore("redis://127.0.0.1:1")
    )
    limiter = Limiter(text, store=used_store)
    right: tuple[Any, ...] = (None, 2, {"requests": 2}, [], ())
    wrong: tuple[Any, ...] = (-1, 1.5, [1], {"euro": 2})
    for costs in right:
        assert limiter.hit_many([], costs).allowed == []
    for costs in wrong:
        with pytest.raises(ArgumentError):
            limiter.hit_many([], costs)
    with pytest.raises(ArgumentError, match="counts what is in flight, and a hit never ends"):
        Limiter(f"{text}; 5 concurrent", store=used_store).hit_many([])
    with pytest.raises(ArgumentError, match="counts what is in flight, and a hit never ends"):
        asyncio.run(AsyncLimiter(f"{text}; 5 concurrent", store=used_store).hit_many([]))


@pytest.mark.parametrize(
    ("check", "bad", "message"),
    [
        (check_now, "1", "a moment is a whole number of microseconds, not a str"),
        (check_now, 1.5, "a moment is a whole number of microseconds, not a float"),
        (check_now, True, "a moment is a whole number of microseconds, not a bool"),
        (check_now, -1, f"a moment is in [0, {LARGEST}] microseconds since the epoch, not -1"),
        (check_now, LARGEST + 1, f"a moment is in [0, {LARGEST}] microseconds since the epoch, not {LARGEST + 1}"),
        (check_ago, None, "how long ago is a whole number of microseconds, not None"),
    ],
)
def test_an_invalid_moment_is_refused_by_name(check: Any, bad: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        check(bad)
    assert check(0) == 0
    assert check(LARGEST) == LARGEST


def test_a_manual_clock_moves_by_whole_microseconds() -> None:
    clock = ManualClock(5)
    invalid: Any
    for invalid, kind in (("1", "a str"), (True, "a bool"), (None, "None"), (1.0, "a float")):
        with pytest.raises(ArgumentError, match=f"a duration is a whole number of microseconds, not {kind}"):
            clock.advance(invalid)
    clock.advance(-2)
    assert clock.now_us() == 3
