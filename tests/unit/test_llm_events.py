"""Server-sent events cut at any byte: the same events are read, and every byte is passed on."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headgate.llm.events import EventReader, ServerSentEvent

STREAM = (
    b"\xef\xbb\xbf: hello\n\n"
    b'event: message_start\r\ndata: {"a":1}\r\n\r\n'
    b"data: first\ndata:second\nid: 7\n\n"
    b"event: ping\rdata: \xc3\xa4\r\r"
    b"data\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [("", ""), ("message_start", '{"a":1}'), ("", "first\nsecond"), ("ping", "\u00e4"), ("", ""), ("", "[DONE]")]


def read(chunks: list[bytes], **options: int) -> tuple[list[ServerSentEvent], bytes]:
    reader = EventReader(**options)
    return [event for chunk in chunks for event in reader.feed(chunk)], reader.end()


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(borders)]


@given(st.lists(st.integers(0, 10_000)))
def test_events_are_the_same_wherever_chunks_are_cut(places: list[int]) -> None:
    events, rest = read(cut(STREAM, places))
    assert [(name, data) for _, name, data in events if name or data] == [each for each in EVENTS if any(each)]
    assert b"".join(event.raw for event in events) + rest == STREAM


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"data: x", b":", b"data:"])))
def test_every_byte_is_passed_on_in_order(chunks: list[bytes]) -> None:
    events, rest = read(chunks)
    assert b"".join(event.raw for event in events) + rest == b"".join(chunks)


def test_one_byte_at_a_time() -> None:
    events, rest = read([bytes([byte]) for byte in STREAM])
    assert [(name, data) for _, name, data in events if name or data] == [each for each in EVENTS if any(each)]
    assert b"".join(event.raw for event in events) + rest == STREAM


def test_an_event_that_is_too_long_is_handed_on_unread_and_the_next_one_is_read() -> None:
    events, rest = read([b"data: ", b"x" * 100, b"x" * 100, b"x\n\n", b"data: y\n\n"], most_bytes=150)
    assert [event.data for event in events] == ["", "", "y"]
    assert b"".join(event.raw for event in events) == b"data: " + b"x" * 201 + b"\n\ndata: y\n\n" and rest == b""


def test_bytes_without_a_blank_line_are_no_event() -> None:
    events, rest = read([b"data: [DONE]\n"])
    assert events == [] and rest == b"data: [DONE]\n"
