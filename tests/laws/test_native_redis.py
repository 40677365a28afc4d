"""Calls of Redis scripts are packed and read natively as Python does, or left to it."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from headgate import core
from headgate.decision import Decision, NamedLimit, name_limits
from headgate.errors import StoreError
from headgate.keys import encode_key
from headgate.limits import Limit, TokenBucket
from headgate.operation import Operation
from headgate.stores.redis.commands import Commands
from headgate.testing import ManualClock
from strategies import SEVERAL_LIMITS

pytestmark = pytest.mark.skipif(core.native is None, reason="the law compares the native core")

TEXTS = st.sampled_from(["a", "b", "a|b", "{x}", "100%", "é", "k" * 128, "k" * 129]) | st.text(min_size=1, max_size=5)
KEYS = st.one_of(TEXTS, st.lists(TEXTS, min_size=1, max_size=3).map(tuple))
COSTS = st.sampled_from([1, 1, 1, 0, 2, 2**52]) | st.integers(0, 20)
MOMENTS = st.none() | st.integers(0, 2**52)
NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0**52, 2.0**52 + 2, -(2.0**52), float("nan"), float("inf")])
DOUBLES = NUMBERS | st.integers(-3, 10**9).map(float) | st.floats()


@st.composite
def definitions(draw: st.DrawFn) -> tuple[NamedLimit, ...]:
    """Limits of some rules, which are decided together."""
    named: list[NamedLimit] = []
    for group, limits in enumerate(draw(st.lists(SEVERAL_LIMITS, min_size=1, max_size=3))):
        scope, shadow = draw(st.sampled_from(["s", f"s{group}"])), draw(st.booleans())
        named += name_limits(tuple(limits), scope=scope, name=f"n{group}", shadow=shadow, group=group)
    return tuple({limit.scope: limit for limit in named}.values())


def words(call: Any) -> bytes:
    """A call as it is sent."""
    said = [word if isinstance(word, bytes) else str(word).encode() for word in call.by_sha]
    return b"*%d\r\n%b" % (len(said), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in said))


@given(definitions(), st.data())
def test_a_call_is_packed_in_the_same_bytes(limits: tuple[NamedLimit, ...], data: st.DataObject) -> None:
    commands = Commands(limits, "hg", None)
    calls = commands.native_calls
    if calls is None:
        assert commands.have_borders
        return
    same = data.draw(st.booleans())
    keys = tuple(data.draw(st.lists(KEYS, min_size=commands.groups, max_size=commands.groups)))
    keys = (keys[0],) * commands.groups if same else keys
    costs = tuple(data.draw(st.lists(COSTS, min_size=commands.groups, max_size=commands.groups)))
    now_us = data.draw(MOMENTS)
    clock = None if now_us is None else ManualClock(now_us)
    packed = calls.pack([encode_key(key) for key in keys], costs, now_us)
    if packed is None:
        event("left to Python")
        assert any(len(encode_key(key).encode()) > 128 for key in keys)
        return
    assert packed == words(next(commands.decide(Operation(keys, costs), clock)))


def read_by_python(commands: Commands, reply: bytes, costs: tuple[int, ...]) -> Decision | None:
    """The decision that Python reads from a reply, or None where it is an error."""
    steps = commands.decide(Operation(("k",) * commands.groups, costs))
    next(steps)
    try:
        steps.send(reply)
    except StopIteration as stop:
        decision: Decision = stop.value
        return decision
    except (StoreError, ZeroDivisionError, ValueError, OverflowError):
        return None
    raise AssertionError("it sends a second call")


def replies(count: int) -> st.SearchStrategy[bytes]:
    """All kinds of replies of a server for so many limits."""
    doubles = st.sampled_from([1, 3 * count, 5 * count, 5 * count, 2]).flatmap(
        lambda length: st.lists(DOUBLES, min_size=length, max_size=length)
    )
    whole = st.lists(st.integers(-1, 50).map(float), min_size=5 * count, max_size=5 * count)
    brief = st.lists(DOUBLES, min_size=count, max_size=count).map(
        lambda units: b"".join(pack("<d", each) + b"\0" * 34 for each in units)
    )
    return brief | (doubles | whole).map(lambda each: pack(f"<{len(each)}d", *each)) | st.binary(max_size=50)


@given(definitions(), st.data())
def test_a_reply_is_read_alike_or_left_to_python(limits: tuple[NamedLimit, ...], data: st.DataObject) -> None:
    commands = Commands(limits, "hg", None)
    calls = commands.native_calls
    if calls is None:
        return
    costs = tuple(data.draw(st.lists(COSTS, min_size=commands.groups, max_size=commands.groups)))
    reply = data.draw(replies(len(limits)))
    read = calls.read(limits, reply, costs)
    event("left to Python" if read is None else "read natively")
    if read is not None:
        expected = read_by_python(commands, reply, costs)
        assert expected is not None
        assert (read.allowed, read.readings, read.binding) == (expected.allowed, expected.readings, expected.binding)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_usual_replies_are_read_natively(count: int) -> None:
    limits = name_limits([_bucket(number) for number in range(count)], scope="s", name="n")
    calls = Commands(limits, "hg", None).native_calls
    for numbers in ([3, 7, 1], [0, 9, 9, 8, 0], [0, 9, 9, -1, 0], [4, 1, 0, 0, 5]):
        reply = pack(f"<{len(numbers) * count}d", *numbers * count)
        assert calls.read(limits, reply, (1,)) is not None
    assert calls.read(limits, (pack("<d", 5e6) + b"\0" * 34) * count, (1,)) is not None


def _bucket(number: int) -> Limit:
    return TokenBucket(capacity=10 + number, refill=1, period="minute")
