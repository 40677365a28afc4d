"""Replies that packed calls take as the bytes that came, and what goes the usual way."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hiredis import Reader

from headgate.errors import StoreTimeout
from headgate.stores.redis.packed_calls import Packed, take_bytes_of
from headgate.stores.redis.replies import AsyncReplyParser


class Asker:
    """Takes as many bytes as it is said to; nothing that begins with a minus."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.taken: list[Any] = []

    def take(self, replies: list[Any]) -> None:
        self.taken.append(replies)

    def take_bytes(self, data: bytes) -> int:
        if data.startswith(b"-"):
            return -1
        if len(data) < self.length:
            return 0
        self.taken.append(data[: self.length])
        return self.length

    def go_on(self) -> None:
        self.taken.append("went on")


class Wire:
    """A connection, the calls that were sent on it, and what was passed on to its stream."""

    def __init__(self, *calls: Any) -> None:
        self.passed: list[bytes] = []
        self.sent: deque[Any] = deque(calls)
        self.in_use = True
        self.stream = SimpleNamespace(_buffer=bytearray(), feed_data=self.passed.append)
        parser: Any = AsyncReplyParser(socket_read_size=1)
        parser._reader = self.reader = Reader()
        take_bytes_of(SimpleNamespace(_parser=parser, _reader=self.stream), self.sent, lambda: self.in_use)

    def comes(self, data: bytes) -> None:
        self.stream.feed_data(data)


def packed(asker: Asker) -> Packed:
    return Packed(b"", 2, asker, 1.0)


def test_replies_are_taken_when_they_are_whole_each_by_its_call() -> None:
    one, other = Asker(4), Asker(2)
    wire = Wire(packed(one), packed(other))
    wire.comes(b"ab")
    assert one.taken == []
    wire.comes(b"cde")
    assert (one.taken, other.taken) == ([b"abcd", "went on"], [])
    wire.comes(b"fgh")
    assert (other.taken, wire.passed, list(wire.sent)) == ([b"ef", "went on"], [b"gh"], [])


def test_replies_that_are_not_as_usual_are_passed_on_and_so_is_what_was_kept_of_them() -> None:
    asker = Asker(4)
    wire = Wire(call := packed(asker))
    wire.comes(b"-x")
    wire.comes(b"ab")
    call.set_exception(StoreTimeout("late"))
    wire.comes(b"cd")
    assert wire.passed == [b"-x", b"abcd"]
    assert [len(taken) for taken in asker.taken] == [2]
    assert list(wire.sent) == [call]


def test_once_a_reply_was_taken_the_usual_way_the_others_are_too() -> None:
    asker = Asker(4)
    wire = Wire(call := packed(asker))
    call.add([b"a"])
    wire.comes(b"abcd")
    assert wire.passed == [b"abcd"]
    call.add([b"b"])
    assert asker.taken == [[b"a", b"b"]]


@pytest.mark.parametrize("where", ["stream", "parser", "another call", "another connection"])
def test_what_comes_after_something_else_is_passed_on(where: str) -> None:
    wire = Wire(packed(asker := Asker(4)))
    if where == "stream":
        wire.stream._buffer += b"+"
    elif where == "parser":
        wire.reader.feed(b"+")
    elif where == "another call":
        wire.sent.appendleft(None)
    else:
        wire.in_use = False
    wire.comes(b"abcd")
    assert (wire.passed, asker.taken) == ([b"abcd"], [])
