"""The native core and the Python core read arguments alike: both return the same decision or raise the same error."""

from __future__ import annotations

import enum
from collections import namedtuple
from typing import Any, cast

import pytest

from headgate import ArgumentError, ConfigError, FixedWindow, Limiter, MemoryStore, TokenBucket
from headgate.decision import name_limits
from headgate.limit_text import parse_limits
from headgate.testing import ManualClock
from subjects import KINDS, make_limiter, make_store


class Number(enum.IntEnum):
    SEVEN = 7


class MyInt(int):
    def __str__(self) -> str:
        return "odd"

    __repr__ = __str__


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another"


class Index:
    """An integer that is not an `int`, as those of NumPy are."""

    def __index__(self) -> int:
        return 7


Pair = namedtuple("Pair", "one other")  # some callers have such keys

KEYS: list[Any] = [
    "user", ("t", 7), ("t", Number.SEVEN), (Number.SEVEN,), ("t", MyInt(7)), ("t", True), ("t", Index()), Text("user"),
    ("t", Text("user")), Pair("t", 7), b"user", ("t", b"user"), bytearray(b"user"), "lone \udcff", ("t", "\ud800"), "",
    ("t", ""), (), ("t",) * 17, None, ("t", None), 7, 7.0, ("t", 7.0), 10**400, ("t", 10**400), ("t", -(10**300)),
    ("t", 1 << 70), ["t", 7], ("t", ("u", 7)), "x" * 8193, Number.SEVEN,
]  # fmt: skip
COSTS: list[Any] = [
    0, 1, Number.SEVEN, MyInt(2), True, False, Index(), 1.0, float("nan"), "1", b"1", None, -1, 2**52, 2**52 + 1,
    10**400, -(10**400),
]  # fmt: skip


def outcome(kind: str, key: Any, cost: Any) -> object:
    """The decision, and what remains of the key `("t", 7)` and of `"user"` after a hit, or the error."""
    limiter = make_limiter(kind, "9/hour bucket", ManualClock())
    try:
        decision = limiter.hit(key, cost)
    except ArgumentError as error:
        return str(error)
    left = [limiter.peek(cast(Any, known), 0).remaining for known in (("t", 7), "user", (7,))]
    return decision.allowed, decision.remaining, left


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{type(key).__name__}-{repr(key)[:20]!a}")
def test_every_kind_of_key_has_the_same_outcome_on_all_stores(key: Any) -> None:
    outcomes = {kind: outcome(kind, key, 1) for kind in KINDS if "redis" not in kind}
    assert len(set(map(repr, outcomes.values()))) == 1, outcomes


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: f"{type(cost).__name__}-{repr(cost)[:20]}")
def test_every_kind_of_cost_has_the_same_outcome_on_all_stores(cost: Any) -> None:
    outcomes = {kind: outcome(kind, "user", cost) for kind in KINDS if "redis" not in kind}
    assert len(set(map(repr, outcomes.values()))) == 1, outcomes


def test_an_instance_of_a_subclass_of_int_is_that_number() -> None:
    for kind in KINDS:
        limiter = make_limiter(kind, "9/hour bucket", ManualClock())
        limiter.hit(("t", Number.SEVEN))
        assert limiter.hit(("t", MyInt(7))).remaining == 7
        assert limiter.hit(("t", cast(Any, Index()))).remaining == 6
        assert limiter.hit(("t", 7)).remaining == 5


@pytest.mark.parametrize("seven", [Number.SEVEN, MyInt(7), Index()], ids=lambda seven: type(seven).__name__)
def test_a_cost_and_the_numbers_of_a_limit_may_be_any_integers(seven: Any) -> None:
    for limit in (FixedWindow(limit=seven, period_us=seven), TokenBucket(capacity=seven, refill=seven, period="hour")):
        assert str(limit) in ("7 per 7 us fixed", "7/hour bucket")
        for kind in KINDS:
            limiter = make_limiter(kind, limit, ManualClock())
            assert [limiter.hit("user", seven).allowed for _ in range(2)] == [True, False]


@pytest.mark.parametrize("number", [True, 7.0, "7"])
def test_numbers_of_a_limit_that_are_not_integers_are_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match=r"FixedWindow: limit must be a whole number, not (True|7\.0|'7')"):
        FixedWindow(limit=number, period="minute")
    with pytest.raises(ConfigError, match="max_keys is a whole number"):
        MemoryStore(max_keys=number)
    for kind in KINDS:
        with pytest.raises(ArgumentError, match=r"a cost is a whole number, not a (bool|float|str)"):
            make_limiter(kind, "9/hour bucket", ManualClock()).hit("user", number)


@pytest.mark.parametrize("limits", [5, None, 5.0, True, b"5/minute", object()])
def test_the_error_for_an_invalid_limit_shows_a_valid_one(limits: Any) -> None:
    with pytest.raises(ConfigError, match=r'limits are text such as "100/minute", limit values or a list of those'):
        Limiter(limits)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in ("native", "shared")])
def test_a_scope_with_lone_surrogates_is_refused(kind: str) -> None:
    limits = name_limits(parse_limits("5/hour"), scope="\ud800", name="x")
    with pytest.raises(ConfigError, match="without lone surrogates"):
        make_store(kind).bind(limits)
