"""Parsers that accept only what a server may send: a reply in time, or an error of redis-py.

redis-py reads a reply for as long as pieces of it arrive, each within the socket's timeout, and allocates memory for as
many elements as a server announces. The parsers here give a reply one deadline, and refuse what no server sends on
purpose. The functions check the replies to commands other than scripts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import hiredis
from redis import exceptions
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.connection import DefaultParser as DefaultAsyncParser
from redis.connection import DefaultParser
from redis.utils import HIREDIS_AVAILABLE

from headgate.clock import US_PER_SECOND, now_us
from headgate.errors import StoreError

if not HIREDIS_AVAILABLE:  # redis-py would silently use its own parser
    raise ImportError(f"redis-py takes no hiredis before 3.2, and {hiredis.__version__} is installed")

LONGEST_REPLY = 64 << 20
"""Bytes."""

_TOO_MANY = re.compile(rb"(?:\A|\n)[*%~>|]\+?[0-9]{7,}")
"""An array, map, set or push of a million elements or more; no valid reply has as many."""

_MAYBE_TOO_MANY = re.compile(rb"[*%~>|]\+?[0-9]{7}")
"""A part of all of those; a search for it is faster where there is none."""

_REPLIES = (bytes, int, list, type(None))
"""The types of replies in version 2 of the protocol, beside errors."""

_HEAD = 32
_SLOTS = 16384

_Parser: Any = DefaultParser
_AsyncParser: Any = DefaultAsyncParser


class _Reader:
    """A reader of hiredis that refuses announcements of more elements or bytes than a server sends."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._tail = b""
        self._length = 0
        self.has_data = reader.has_data

    def feed(self, data: Any, start: int = 0, length: int | None = None) -> None:
        if length is None:
            length = len(data) - start
        end = start + length
        if (_MAYBE_TOO_MANY.search(data, start, end) and _TOO_MANY.search(data, start, end)) or (
            self._tail and _TOO_MANY.search(self._tail + bytes(data[start : start + _HEAD]))
        ):
            raise exceptions.InvalidResponse("a reply of millions of elements")
        self._length += length
        if self._length > LONGEST_REPLY:
            raise exceptions.InvalidResponse(f"a reply of more than {LONGEST_REPLY:,} bytes")
        self._tail = (self._tail + bytes(data[max(start, end - _HEAD) : end]))[-_HEAD:]
        self._reader.feed(data, start, length)

    def gets(self, *options: Any) -> Any:
        reply = self._reader.gets(*options)
        if not self._reader.has_data():
            self._tail, self._length = b"", 0
        return reply

    def take_replies(self, most: int) -> list[Any]:
        """Up to `most` complete replies, as bytes."""
        gets = self._reader.gets
        replies: list[Any] = []
        while len(replies) < most and (reply := gets(False)) is not NOT_ENOUGH_DATA:
            replies.append(reply)
        if not self._reader.has_data():
            self._tail, self._length = b"", 0
        return replies


class ReplyParser(_Parser):  # type: ignore[misc]
    """Reads replies for threads: the socket's timeout holds for each reply as a whole."""

    _deadline_us: int | None = None
    _reader: Any

    def on_connect(self, connection: Any, **options: Any) -> None:
        super().on_connect(connection, **options)
        self._reader = _Reader(self._reader)

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        self._deadline_us = None
        return super().read_response(*arguments, **options)

    def read_from_socket(self, *arguments: Any, **options: Any) -> Any:
        sock: Any = cast(Any, self._sock)
        timeout_s = None if sock is None else sock.gettimeout()
        if sock is None or timeout_s is None:
            return super().read_from_socket(*arguments, **options)
        now = now_us()
        if self._deadline_us is None:
            self._deadline_us = now + round(timeout_s * US_PER_SECOND)
            return super().read_from_socket(*arguments, **options)
        if self._deadline_us <= now:
            raise exceptions.TimeoutError("an incomplete reply")
        sock.settimeout((self._deadline_us - now) / US_PER_SECOND)
        try:
            return super().read_from_socket(*arguments, **options)
        finally:
            if self._sock is sock:
                sock.settimeout(timeout_s)

    def handle_push_response(self, response: Any, **_: Any) -> Any:
        raise exceptions.InvalidResponse("an unexpected push")


class AsyncReplyParser(_AsyncParser):  # type: ignore[misc]
    """Reads replies on an event loop; the deadlines are those of the waiting calls."""

    _reader: Any

    def on_connect(self, connection: Any) -> None:
        super().on_connect(connection)
        self._reader = _Reader(self._reader)

    async def handle_push_response(self, response: Any, **_: Any) -> Any:
        raise exceptions.InvalidResponse("an unexpected push")

    def has_partial_reply(self) -> bool:
        """Whether part of a reply was read, or a reply that was not taken."""
        return bool(self._reader.has_data())

    def take_replies(self, most: int) -> list[Any]:
        """Up to `most` complete replies; raises an error that means that the connection is unusable."""
        replies: list[Any] = self._reader.take_replies(most)
        for reply in replies:
            if type(reply) is bytes:
                continue
            if isinstance(reply, exceptions.ConnectionError):
                raise reply
            if not isinstance(reply, exceptions.ResponseError) and type(reply) not in _REPLIES:
                raise exceptions.InvalidResponse("an unexpected push")
        return replies


def has_unread_data(connection: Any) -> bool:
    """Whether data was read that belongs to no call: it would be taken for the next reply."""
    reader = getattr(connection._parser, "_reader", None)
    return reader is not None and bool(reader.has_data())


def is_stale(connection: Any) -> bool:
    """Whether a server has closed an event loop's connection that owes no reply, or has sent data over it."""
    stream = getattr(connection, "_reader", None)
    return stream is not None and (stream.at_eof() or stream.exception() is not None or bool(stream._buffer))


def read_time(reply: Any) -> int:
    """Parse the reply to TIME: a moment in microseconds."""
    if isinstance(reply, list | tuple) and len(reply) == 2:
        texts = [b"%d" % part if type(part) is int else part for part in reply]
        if all(isinstance(text, bytes) and re.fullmatch(b"[0-9]{1,15}", text) for text in texts):
            return int(texts[0]) * US_PER_SECOND + int(texts[1])
    raise unexpected_reply(reply, "a moment")


def read_ranges(reply: Any, default_host: str) -> list[tuple[int, int, str, int]]:
    """Parse the reply to CLUSTER SLOTS: (first slot, last slot, host, port) of each range's primary."""
    ranges = []
    if not isinstance(reply, list):
        raise unexpected_reply(reply, "a map of slots")
    for entry in reply:
        if not (isinstance(entry, list) and len(entry) >= 3 and isinstance(entry[2], list) and len(entry[2]) >= 2):
            raise unexpected_reply(entry, "a range of slots")
        first, last, (host, port, *_) = entry[0], entry[1], entry[2]
        if not (_is_number(first, 0, _SLOTS - 1) and _is_number(last, first, _SLOTS - 1)):
            raise unexpected_reply(entry, "a range of slots")
        if not (host is None or (isinstance(host, bytes) and len(host) < 300)) or not _is_number(port, 1, 65535):
            raise unexpected_reply(entry, "a server")
        ranges.append((first, last, (host or b"").decode("utf-8", "replace") or default_host, port))
    return ranges


def check_reply(reply: Any, expected: bytes) -> None:
    """Raise StoreError where the reply to a command is not the expected word."""
    if reply is not True and reply not in (expected, expected.decode()):
        raise unexpected_reply(reply, expected.decode())


def unexpected_reply(reply: object, expected: str) -> StoreError:
    """The error of an invalid reply; its content is not shown."""
    size = f" of {len(reply)}" if isinstance(reply, Sequence) else ""
    return StoreError(f"the server replied with a {type(reply).__name__}{size}, which is not {expected}")


def _is_number(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
