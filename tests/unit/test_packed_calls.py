"""Replies that packed calls take as the bytes that came, and what goes the usual way."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hiredis import Reader

from headgate.errors import StoreTimeout
from headgate.stores.redis.packed_calls import PackedCalls, intercept_replies
from headgate.stores.redis.replies import AsyncReplyParser


class Receiver:
    """Takes as many bytes as it is said to; nothing that begins with a minus."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.taken: list[Any] = []

    def receive(self, replies: list[Any]) -> None:
        self.taken.append(replies)

    def receive_bytes(self, data: bytes) -> int:
        if data.startswith(b"-"):
            return -1
        if len(data) < self.length:
            return 0
        self.taken.append(data[: self.length])
        return self.length

    def resume(self) -> None:
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
        intercept_replies(SimpleNamespace(_parser=parser, _reader=self.stream), self.sent, lambda: self.in_use)

    def feed(self, data: bytes) -> None:
        self.stream.feed_data(data)


def packed(receiver: Receiver) -> PackedCalls:
    return PackedCalls(b"", 2, receiver, 1.0)


def test_replies_are_taken_when_they_are_whole_each_by_its_call() -> None:
    one, other = Receiver(4), Receiver(2)
    wire = Wire(packed(one), packed(other))
    wire.feed(b"ab")
    assert one.taken == []
    wire.feed(b"cde")
    assert (one.taken, other.taken) == ([b"abcd", "went on"], [])
    wire.feed(b"fgh")
    assert (other.taken, wire.passed, list(wire.sent)) == ([b"ef", "went on"], [b"gh"], [])


def test_replies_that_are_not_as_usual_are_passed_on_and_so_is_what_was_kept_of_them() -> None:
    receiver = Receiver(4)
    wire = Wire(call := packed(receiver))
    wire.feed(b"-x")
    wire.feed(b"ab")
    call.set_exception(StoreTimeout("late"))
    wire.feed(b"cd")
    assert wire.passed == [b"-x", b"abcd"]
    assert [len(taken) for taken in receiver.taken] == [2]
    assert list(wire.sent) == [call]


def test_once_a_reply_was_taken_the_usual_way_the_others_are_too() -> None:
    receiver = Receiver(4)
    wire = Wire(call := packed(receiver))
    call.add([b"a"])
    wire.feed(b"abcd")
    assert wire.passed == [b"abcd"]
    call.add([b"b"])
    assert receiver.taken == [[b"a", b"b"]]


@pytest.mark.parametrize("where", ["stream", "parser", "another call", "another connection"])
def test_what_comes_after_something_else_is_passed_on(where: str) -> None:
    wire = Wire(packed(receiver := Receiver(4)))
    if where == "stream":
        wire.stream._buffer += b"+"
    elif where == "parser":
        wire.reader.feed(b"+")
    elif where == "another call":
        wire.sent.appendleft(None)
    else:
        wire.in_use = False
    wire.feed(b"abcd")
    assert (wire.passed, receiver.taken) == ([b"abcd"], [])
