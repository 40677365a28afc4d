"""Replies that packed calls parse from the received bytes, and replies that are parsed in the usual way."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hiredis import Reader

from headgate.errors import StoreTimeout
from headgate.stores.redis.packed_calls import PackedCalls, intercept_replies
from headgate.stores.redis.replies import AsyncReplyParser


class Receiver:
    """Receives `length` bytes; nothing that begins with a minus."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.received: list[Any] = []

    def receive(self, replies: list[Any]) -> None:
        self.received.append(replies)

    def receive_bytes(self, data: bytes) -> int:
        if data.startswith(b"-"):
            return -1
        if len(data) < self.length:
            return 0
        self.received.append(data[: self.length])
        return self.length

    def resume(self) -> None:
        self.received.append("resumed")


class FakeConnection:
    """A connection, the calls that were sent on it, and the data that was passed on to its stream."""

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


def test_each_call_receives_its_replies_when_they_are_complete() -> None:
    one, other = Receiver(4), Receiver(2)
    connection = FakeConnection(packed(one), packed(other))
    connection.feed(b"ab")
    assert one.received == []
    connection.feed(b"cde")
    assert (one.received, other.received) == ([b"abcd", "resumed"], [])
    connection.feed(b"fgh")
    assert (other.received, connection.passed, list(connection.sent)) == ([b"ef", "resumed"], [b"gh"], [])


def test_unusual_replies_are_passed_on_with_the_part_received_before() -> None:
    receiver = Receiver(4)
    connection = FakeConnection(call := packed(receiver))
    connection.feed(b"-x")
    connection.feed(b"ab")
    call.set_exception(StoreTimeout("late"))
    connection.feed(b"cd")
    assert connection.passed == [b"-x", b"abcd"]
    assert [len(received) for received in receiver.received] == [2]
    assert list(connection.sent) == [call]


def test_once_a_reply_was_parsed_in_the_usual_way_the_others_are_too() -> None:
    receiver = Receiver(4)
    connection = FakeConnection(call := packed(receiver))
    call.add([b"a"])
    connection.feed(b"abcd")
    assert connection.passed == [b"abcd"]
    call.add([b"b"])
    assert receiver.received == [[b"a", b"b"]]


@pytest.mark.parametrize("where", ["stream", "parser", "another call", "another connection"])
def test_data_after_other_data_is_passed_on(where: str) -> None:
    connection = FakeConnection(packed(receiver := Receiver(4)))
    if where == "stream":
        connection.stream._buffer += b"+"
    elif where == "parser":
        connection.reader.feed(b"+")
    elif where == "another call":
        connection.sent.appendleft(None)
    else:
        connection.in_use = False
    connection.feed(b"abcd")
    assert (connection.passed, receiver.received) == ([b"abcd"], [])
