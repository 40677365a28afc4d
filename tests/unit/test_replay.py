"""Logs of every format are read, sorted and judged; lines that cannot be read are counted."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import re
import tracemalloc
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headgate import ConfigError, core
from headgate.cli.replay_text import outcome_lines
from headgate.clock import since_epoch_us
from headgate.policy.compiled import Policy
from headgate.policy.gate import read_policy
from headgate.replay import ordering
from headgate.replay.common_log import common_reader, read_block, split_request, split_target
from headgate.replay.entries import Entry, Tally, Unreadable
from headgate.replay.ordering import FarOutOfOrder, ordered, sorted_on_disk
from headgate.replay.replay import replay
from headgate.replay.report import report
from headgate.replay.series import Series
from headgate.replay.sources import Format, Log, Reading, detect_format
from headgate.replay.summary import summary
from headgate.replay.times import Calendar, TimeReader, UnknownTime, iso_time

COMBINED = '1.2.3.4 - ann [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 5 "http://r/" "Agent \\"x\\""'
TIME_US = 1_431_857_103_000_000
ZURICH = ZoneInfo("Europe/Zurich")
SECOND_TIME_US = 1_445_734_800_000_000
"""2015-10-25, when it was 2:00 in Zurich for the second time."""


def policy(limits: str = "2/minute bucket", **more: Any) -> Policy:
    return read_policy({"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": limits}], **more})


def read_all(path: Path, **reading: Any) -> tuple[list[Entry], Tally]:
    tally = Tally()
    return flat(Log(path, Reading(**reading)).entries(tally, lambda step: None)), tally


TIMES = [
    ("17/May/2015:10:05:03 +0000", TIME_US),
    ("17/May/2015:12:05:03 +0200", TIME_US),
    ("17/May/2015:10:05:03", TIME_US),
    ("2015-05-17T10:05:03Z", TIME_US),
    ("2015-05-17 10:05:03.000000", TIME_US),
    ("2015-05-17 10:05:03.25", TIME_US + 250_000),
    ("2015-05-17T10:05:03,123456789+02:00", TIME_US + 123_456 - 7_200_000_000),
    ("2015/05/17 10:05:03", TIME_US),
    ("2015-05-17T06:05:03-0400", TIME_US),
    ("1431857103", TIME_US),
    ("1431857103.5", TIME_US + 500_000),
    ("1431857103000", TIME_US),
    ("1431857103000250", TIME_US + 250),
    ("1431857103000250999", TIME_US + 250),
    ("Sun, 17 May 2015 10:05:03 GMT", TIME_US),
    ("Sunday, 17-May-15 10:05:03 GMT", TIME_US),
    ("Sun May 17 10:05:03 2015", TIME_US),
    ("2015-06-30 23:59:60", 1_435_708_800_000_000),
    ("0", 0),
]


@pytest.mark.parametrize(("text", "time_us"), TIMES, ids=[text for text, _ in TIMES])
def test_a_time_of_any_usual_form_is_read(text: str, time_us: int) -> None:
    assert TimeReader()(text) == time_us


@pytest.mark.parametrize(
    "text", ["", "-", "yesterday", "2015-13-01 00:00:00", "32/May/2015:10:05:03 +0000", "17/Mai/2015:10:05:03 +0000",
             "1900-01-01 00:00:00", "9" * 19, "2015-05-17", "Oct 10 13:55:36", "\x00" * 26],
)  # fmt: skip
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(UnknownTime):
        TimeReader()(text)


def test_a_time_without_a_zone_is_in_the_zone_that_was_given() -> None:
    assert TimeReader(ZURICH)("2015-05-17 12:05:03.000000") == TIME_US
    assert TimeReader(ZURICH)("17/May/2015:10:05:03 +0000") == TIME_US


@pytest.mark.parametrize(
    "form", ["25/Oct/2015:%H:%M:%S", "2015-10-25 %H:%M:%S", "2015-10-25T%H:%M:%S.000000", "%H:%M:%S"]
)
@pytest.mark.parametrize("step_s", [1, 60, 1500])
def test_times_of_the_hour_that_the_end_of_summer_time_repeats_go_on_in_their_log(form: str, step_s: int) -> None:
    first = datetime(2015, 10, 24, 23, 30, tzinfo=UTC)  # 01:30 of summer time; 02:00 comes again at 01:00 UTC
    moments = [first + timedelta(seconds=seconds) for seconds in range(0, 4 * 3600, step_s)]
    read_time = TimeReader(ZURICH, Calendar(date(2015, 10, 25)))
    read = [read_time(moment.astimezone(ZURICH).strftime(form)) for moment in moments]
    assert read == [since_epoch_us(moment) for moment in moments]


def test_lines_out_of_order_do_not_end_an_hour_that_is_repeated() -> None:
    read_time = TimeReader(ZURICH)
    clocks = ["02:59:50", "02:59:40", "02:00:01", "02:59:59", "02:00:00", "02:59:59", "03:00:00", "02:59:58"]
    minutes = [(read_time(f"2015-10-25 {clock}") - SECOND_TIME_US) / 60e6 for clock in clocks]
    assert minutes == pytest.approx([-1 / 6, -1 / 3, 1 / 60, -1 / 60, 0, -1 / 60, 60, 60 - 1 / 30])


@given(time_us=st.integers(0, 4 * 10**15))
def test_times_are_read_as_they_are_written(time_us: int) -> None:
    assert TimeReader()(iso_time(time_us)) == time_us


COMMON_LINES: list[tuple[str, Entry]] = [
    (COMBINED, (TIME_US, "1.2.3.4", "GET", "/a?b=1", "", {}, 1)),
    ('::1 - - [17/May/2015:10:05:03 +0000] "POST / HTTP/2" 200 -', (TIME_US, "::1", "POST", "/", "", {}, 1)),
    (
        'example.com:443 1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5',
        (TIME_US, "1.2.3.4", "GET", "/a", "example.com", {}, 1),
    ),
    (
        'example.com 1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5',
        (TIME_US, "1.2.3.4", "GET", "/a", "example.com", {}, 1),
    ),
    (
        'example.com 2001:db8::1 - ann [17/May/2015:10:05:03 +0000] "GET /"a" HTTP/1.1" 200 5',
        (TIME_US, "2001:db8::1", "GET", '/"a"', "example.com", {}, 1),
    ),
    ('- ::1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5', (TIME_US, "::1", "GET", "/a", "", {}, 1)),
    (
        '1.2.3.4 10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5',
        (TIME_US, "1.2.3.4", "GET", "/a", "", {}, 1),
    ),
    (
        'example.com - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5',
        (TIME_US, "example.com", "GET", "/a", "", {}, 1),
    ),
    ('1.2.3.4 US - [2015-05-17 10:05:03.000000] "-" 408 - "-" "-" x', (TIME_US, "1.2.3.4", "", "", "", {}, 1)),
    ('1.2.3.4 - - [17/May/2015:10:05:03 +0000] "quit" 400 5', (TIME_US, "1.2.3.4", "QUIT", "", "", {}, 1)),
    ('1.2.3.4 - - [17/May/2015:10:05:03 +0000] "" 400 5', (TIME_US, "1.2.3.4", "", "", "", {}, 1)),
    (
        '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET http://h/p?q HTTP/1.1" 200 5',
        (TIME_US, "1.2.3.4", "GET", "/p?q", "h", {}, 1),
    ),
    ('1.2.3.4 - - [17/May/2015:10:05:03 +0000] "PRI * HTTP/2.0" 200 5', (TIME_US, "1.2.3.4", "PRI", "", "", {}, 1)),
    ('1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a b HTTP/1.1" 200 5', (TIME_US, "1.2.3.4", "GET", "/a b", "", {}, 1)),  # noqa: E501
    ('1.2.3.4 - a b [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5', (TIME_US, "1.2.3.4", "GET", "/a", "", {}, 1)),  # noqa: E501
    (
        '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /\\"x\\" HTTP/1.1" 200 5',
        (TIME_US, "1.2.3.4", "GET", '/"x"', "", {}, 1),
    ),
    ('1.2.3.4 - - [17/May/2015:10:05:03 +0000] "\\x16\\x03" 400 5', (TIME_US, "1.2.3.4", "", "", "", {}, 1)),
    ('1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1"', (TIME_US, "1.2.3.4", "GET", "/a", "", {}, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("line", "entry"), COMMON_LINES, ids=[line for line, _ in COMMON_LINES])
def test_a_line_of_the_common_format_and_its_kin_is_read(line: str, entry: Entry) -> None:
    assert common_reader(TimeReader(), {})(line) == entry
    assert common_reader(TimeReader(), {"x": "bytes"})(line)[:5] == entry[:5]


UNREADABLE_LINES = [
    "",
    "nonsense",
    "1.2.3.4 - -",
    '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HT',
    '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "cut o',
    '1.2.3.4 - - [no time] "GET /a HTTP/1.1" 200 5',
    '1.2.3.4 - - [] "GET /a HTTP/1.1" 200 5',
    "x" * 100_000,
    "\x00\x01\x02",
]


@pytest.mark.parametrize("line", UNREADABLE_LINES, ids=[line[:60] for line in UNREADABLE_LINES])
def test_a_line_that_cannot_be_read_is_refused(line: str) -> None:
    with pytest.raises((Unreadable, UnknownTime)):
        common_reader(TimeReader(), {})(line)


def test_fields_of_a_line_can_stand_for_headers() -> None:
    headers = {"x-user-id": "user", "user-agent": "agent", "referer": "referer", "x-none": "ident"}
    entry = common_reader(TimeReader(), headers)(COMBINED)
    assert entry[5] == {"x-user-id": "ann", "user-agent": 'Agent "x"', "referer": "http://r/"}


CLIENTS = st.sampled_from(
    ["1.2.3.4", "::1", "h:80", "h:80 1.2.3.4", "h 1.2.3.4", "h ::1", "1.2.3.4 h.", "a.example.com", "é", "a\tb", "",
     "a b", '"', "[", "1.2.3.4\xa0"]
)  # fmt: skip
REQUESTS = st.sampled_from(
    ["GET /a HTTP/1.1", "GET  /a HTTP/1.1", "GET /é HTTP/1.1", "-", "get /a HTTP/1.1", "GET a HTTP/1.1", "GET /a",
     "GET /a HTTP/1.1.1", 'GET /" HTTP/1.1', "GET /a\\ HTTP/1.1", "X" * 33 + " / HTTP/1.1", "GET / HTTP/"]
)  # fmt: skip
MOMENTS = st.one_of(
    st.sampled_from(
        ["17/May/2015:10:05:03 +0000", "29/Feb/2016:23:59:59 -1130", "29/Feb/2015:00:00:00 +0000",
         "31/Apr/2015:00:00:00 +0000", "01/Jan/1970:00:00:00 +0100", "17/May/2015:24:00:00 +0000",
         "2015-05-17 10:05:03.123456", "2015-05-17T10:05:03.123456", "2015-02-29 10:05:03.123456",
         "17/May/2015:10:05:60 +0000", "17/May/2015:10:05:03 +2400", "17/May/2015:10:05:03 +0060",
         "2015-05-17 10:05:03,123456", "17-May/2015:10:05:03 +0000", "31/Dec/2112:10:05:03 +0000"]
    ),
    st.datetimes().map(lambda moment: moment.strftime("%d/%b/%Y:%H:%M:%S +0000")),
)  # fmt: skip


@pytest.mark.skipif(core.native is None, reason="only the Python core is here")
@given(
    parts=st.lists(st.tuples(CLIENTS, st.sampled_from([" - - ", " ", " é - ", " [ "]), MOMENTS, REQUESTS), max_size=5)
)
def test_the_native_reader_reads_the_same_as_python(parts: list[tuple[str, str, str, str]]) -> None:
    lines = [f'{client}{middle}[{moment}] "{request}" 200 5' for client, middle, moment, request in parts]
    others: dict[int, str] = {}
    read_time = TimeReader()
    read = common_reader(read_time, {})
    block = read_block("\n".join(lines), read_time, lambda number, line: others.update({number: line}), by_head=True)
    assert all(lines[number] == line for number, line in others.items() if lines)
    assert list(block) == [read(line) for number, line in enumerate(lines) if number not in others]


def test_most_lines_are_read_natively() -> None:
    if core.native is None:
        pytest.skip("only the Python core is here")
    plain = '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "A"'
    others: list[str] = []
    block = read_block(plain, TimeReader(), lambda _, line: others.append(line), by_head=True)
    assert (len(block), others) == (1, [])


@given(request=st.text(max_size=60))
def test_any_request_line_is_split_without_error(request: str) -> None:
    method, target = split_request(request)
    _, path = split_target(target)
    assert path == "" or path.startswith("/")
    assert method == method.upper()


JSON_LINES: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"time": 1431857103, "ip": "1.2.3.4", "method": "get", "path": "/a"}, (TIME_US, "1.2.3.4", "GET", "/a", "")),
    (
        {"@timestamp": "2015-05-17T10:05:03Z", "remote_addr": "1.2.3.4", "request": "GET /a?b HTTP/1.1"},
        (TIME_US, "1.2.3.4", "GET", "/a?b", ""),
    ),
    (  # as Caddy writes it
        {"ts": 1431857103.25, "request": {"remote_ip": "1.2.3.4", "method": "GET", "host": "h", "uri": "/a"}},
        (TIME_US + 250_000, "1.2.3.4", "GET", "/a", "h"),
    ),
    (  # as Traefik writes it
        {"StartUTC": "2015-05-17T10:05:03.5Z", "ClientHost": "1.2.3.4", "RequestMethod": "GET", "RequestPath": "/a"},
        (TIME_US + 500_000, "1.2.3.4", "GET", "/a", ""),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("value", "entry"), JSON_LINES)
def test_json_lines_are_read_by_the_usual_names(tmp_path: Path, value: dict[str, Any], entry: tuple[Any, ...]) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps(value) + "\n{broken\n[]\n{}\n\n" + json.dumps(value) + "\n")
    entries, tally = read_all(log)
    assert [one[:5] for one in entries] == [entry, entry]
    assert [(unread.line, unread.reason) for unread in tally.shown] == [
        (2, "it is not JSON"),
        (3, "it is no JSON object"),
        (4, "it has no time"),
    ]


def test_json_headers_are_read_from_fields(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(json.dumps({"ts": 5, "ip": "x", "request": {"headers": {"User-Agent": ["A"]}}, "user": "ann"}))
    entries, _ = read_all(log, headers={"x-user": "user", "user-agent": "request.headers.user-agent"})
    assert entries[0][5] == {"x-user": "ann", "user-agent": "A"}


def test_tables_are_read_by_the_names_of_their_columns(tmp_path: Path) -> None:
    csv = tmp_path / "log.csv"
    csv.write_text('time,ip,url,method,user\n5,1.2.3.4,"/a,b",GET,ann\nx,1.2.3.4,/,GET,\n6\n7,,/,GET,\n')
    entries, tally = read_all(csv, headers={"x-user": "user"})
    assert entries == [(5_000_000, "1.2.3.4", "GET", "/a,b", "", {"x-user": "ann"}, 1)]
    assert [unread.line for unread in tally.shown] == [3, 4, 5]
    tsv = tmp_path / "log.tsv"
    tsv.write_text('host\tlogname\ttime\tmethod\turl\tresponse\tbytes\nh.example\t-\t5\tGET\t/"\t200\t5\t\t\n')
    assert read_all(tsv)[0] == [(5_000_000, "h.example", "GET", '/"', "", {}, 1)]
    semicolons = tmp_path / "semicolons.csv"
    semicolons.write_text("zeit;wer;pfad\n5;1.2.3.4;/a\n")
    fields = {"time": "zeit", "client": "wer", "path": "pfad"}
    assert read_all(semicolons, format="csv", fields=fields)[0] == [(5_000_000, "1.2.3.4", "", "/a", "", {}, 1)]


def test_a_table_without_the_columns_that_are_needed_is_refused_by_their_names(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("timestamp,tokens\n5,100\n")
    with pytest.raises(ConfigError, match=r"no column is named like a client: there are timestamp, tokens"):
        read_all(log)
    assert read_all(log, needs_client=False)[0] == [(5_000_000, "", "", "", "", {}, 1)]


def test_a_table_without_the_column_of_a_header_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("time,ip\n5,1.2.3.4\n")
    with pytest.raises(ConfigError, match=r"no column is named 'user' for the header x-user: there are time, ip"):
        read_all(log, headers={"x-user": "user"})


def test_a_field_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    """With a misspelt name, all requests would be for one path, and the report would not say so."""
    table = tmp_path / "log.csv"
    table.write_text("time,ip,url\n5,1.2.3.4,/a\n")
    with pytest.raises(ConfigError, match=r"no column is named 'ulr' for the path: there are time, ip, url"):
        read_all(table, fields={"path": "ulr"})
    lines = tmp_path / "log.json"
    lines.write_text('{"time": 5, "ip": "1.2.3.4", "url": "/a"}\n{"time": 6, "ip": "1.2.3.4", "Req": {"url": null}}\n')
    entries, tally = read_all(lines, fields={"path": "req.url"}, headers={"x-user": "uesr"})
    assert entries == [(moment, "1.2.3.4", "", "", "", {}, 1) for moment in (5_000_000, 6_000_000)]  # one lacks it
    assert (tally.count, tally.absent) == (0, {str(lines): {"header x-user": "uesr"}})
    entries, tally = read_all(lines, fields={"path": "ulr"})
    assert (len(entries), tally.absent) == (2, {str(lines): {"path": "ulr"}})


def test_a_host_is_the_client_in_a_table_and_the_server_in_json(tmp_path: Path) -> None:
    table = tmp_path / "log.csv"
    table.write_text("time,Host\n5,1.2.3.4\n")
    assert read_all(table)[0] == [(5_000_000, "1.2.3.4", "", "", "", {}, 1)]
    lines = tmp_path / "log.json"
    lines.write_text('{"time": 5, "host": "api.example"}\n')
    assert read_all(lines)[0] == []


def test_a_long_line_is_refused_by_every_reader(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    head = '1.2.3.4 - - [17/May/2015:10:05:00 +0000] "GET /'
    log.write_text(f'{head} HTTP/1.1" 200 5 "-" "-"\n{head}{"a" * 70_000} HTTP/1.1" 200 5 "-" "-"\n')
    for headers in ({}, {"user-agent": "agent"}):
        entries, tally = read_all(log, headers=headers)
        assert (len(entries), tally.count) == (1, 1)


COMPRESSIONS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("plain", lambda data: data),
    ("gzip", gzip.compress),
    ("gzip in two members", lambda data: gzip.compress(data[:40]) + gzip.compress(data[40:])),
    ("xz", lzma.compress),
    ("bzip2", bz2.compress),
    ("zstd", lambda data: zstandard.ZstdCompressor().compress(data)),
    ("zstd by pzstd", lambda data: b"P*M\x18\x04\0\0\0size" + zstandard.ZstdCompressor().compress(data)),
    ("zstd in two frames", lambda data: b"".join(map(zstandard.ZstdCompressor().compress, (data[:40], data[40:])))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "compress"), COMPRESSIONS, ids=[name for name, _ in COMPRESSIONS])
def test_compressed_logs_are_read_whatever_their_names(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    log = tmp_path / "log"
    log.write_bytes(compress((COMBINED + "\r\n").encode() * 50))
    steps: list[int] = []
    entries = flat(Log(log, Reading()).entries(Tally(), steps.append))
    assert len(entries) == 50
    assert sum(steps) == log.stat().st_size


@given(data=st.binary(max_size=2000))
def test_lines_of_any_bytes_are_counted_not_fatal(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("any") / "log"
    log.write_bytes(b"\n" + data + b"\n" + COMBINED.encode())
    entries, tally = read_all(log, format="common")
    assert entries[-1][1] == "1.2.3.4"
    assert len(entries) + tally.count <= data.count(b"\n") + 3
    heads: dict[Format, bytes] = {
        "json": b"\n",
        "csv": b"time,ip\n",
        "tsv": b"time\tip\n",
        "w3c": b"#Fields: time c-ip\n",
    }
    for format, head in heads.items():
        log.write_bytes(head + data)
        read_all(log, format=format)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        for _ in range(40):
            file.write(b"x" * (1 << 20))
        file.write(COMBINED.encode() + b"\n" + COMBINED.encode() + b"\nbroken\n")
    tracemalloc.start()
    entries, tally = read_all(log, format="common")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(entries) == 1
    assert [(unread.line, unread.reason[:20]) for unread in tally.shown] == [
        (1, "the line is longer t"),
        (3, "it is not: client id"),
    ]
    assert peak < 24 << 20


FORMATS: list[tuple[str, Format | None]] = [
    (COMBINED, "common"),
    ("garbage\n" * 5 + COMBINED, "common"),
    ('{"time": 5}', "json"),
    ("time\tip\n5\tx", "tsv"),
    ("time,ip\n5,x", "csv"),
    ("", "common"),
    ("\n\n", "common"),
    ("what is this\nand that", None),
]


@pytest.mark.parametrize(("sample", "kind"), FORMATS, ids=[sample[:20] for sample, _ in FORMATS])
def test_the_format_is_detected_from_the_beginning(sample: str, kind: Format | None) -> None:
    assert detect_format(sample.encode()) == kind


def test_an_unrecognized_format_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("what is this\n")
    with pytest.raises(ConfigError, match="the format is not recognized; say which with --format"):
        read_all(log)


def flat(blocks: Iterable[Sequence[Entry]]) -> list[Entry]:
    return [entry for block in blocks for entry in block]


def entries_at(times: list[int], name: str = "x") -> list[Entry]:
    return [(time_us, name, "GET", f"/{place}", "", {}, 1) for place, time_us in enumerate(times)]


@given(times=st.lists(st.lists(st.integers(0, 50), max_size=60), min_size=1, max_size=3), window=st.integers(1, 20))
def test_entries_are_put_in_order_whatever_the_disorder(
    times: list[list[int]], window: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    streams = [entries_at(one, str(number)) for number, one in enumerate(times)]
    expected = sorted((entry for stream in streams for entry in stream), key=lambda entry: entry[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "_WINDOW", window)
        patch.setattr(ordering, "_RUN_ENTRIES", window)
        patch.setattr(ordering, "_BLOCK_ENTRIES", 3)
        blocks = [[stream[start : start + 7] for start in range(0, len(stream), 7)] for stream in streams]
        assert flat(sorted_on_disk(blocks, tmp_path_factory.mktemp("runs"))) == expected
        try:
            merged = flat(ordered(blocks))
        except FarOutOfOrder:
            return
        assert merged == expected


def test_lines_that_an_open_quote_takes_into_a_row_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text('time,client,path\n1768467600,192.0.2.1,/\n1768467601,"192.0.2.1,/\n1768467602,192.0.2.1,/\n')
    summed = summary(replay([Log(log, Reading())], [("p", policy())], lambda step: None), 5)
    unread = [(one["line"], one["reason"]) for one in summed["unparsed_lines"]]
    assert (summed["requests"], summed["unparsed"], unread) == (1, 2, [(3, "it has 2 of 3 columns")])


def test_of_many_logs_no_more_is_held_than_of_a_few() -> None:
    block, read = entries_at([7] * 1_000), Counts[int]()

    def log(number: int) -> Iterator[list[Entry]]:
        for _ in range(30):
            read[number] += len(block)
            yield block

    for logs, most in ((1, 80_000), (20, 700_000), (40, 700_000)):
        read.clear()
        next(ordered([log(number) for number in range(logs)]))
        assert (len(read), read.total() <= most) == (logs, True)


def test_small_logs_out_of_order_share_a_temporary_file(tmp_path: Path) -> None:
    first, second = entries_at([5, 3, 9], "a"), entries_at([3, 1, 9], "b")
    expected = sorted(first + second, key=lambda entry: entry[0])
    blocks = sorted_on_disk([[first], [second]], tmp_path)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    assert flat(blocks) == expected
    assert len(list(Path("/proc/self/fd").iterdir())) == opened - 1


def write_log(path: Path, times: list[int], client: str = "1.2.3.4") -> Path:
    lines = []
    for place, time_us in enumerate(times):
        moment = iso_time(time_us).replace("T", " ").replace("Z", "")
        lines.append(f'{client} - - [{moment}] "GET /{place} HTTP/1.1" 200 5')
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_log_far_out_of_order_gives_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [TIME_US + 7_000_000 * place for place in range(500)]
    in_order = replay([Log(write_log(tmp_path / "a", times), Reading())], [("p", policy())], lambda step: None)
    random.Random(3).shuffle(times)
    monkeypatch.setattr(ordering, "_WINDOW", 10)
    steps: list[int] = []
    log = Log(write_log(tmp_path / "b", times), Reading())
    shuffled = replay([log], [("p", policy())], steps.append)
    assert summary(shuffled, 5) == summary(in_order, 5)
    assert sum(steps) == log.size


def test_several_logs_are_judged_as_one(tmp_path: Path) -> None:
    logs = [
        Log(write_log(tmp_path / name, [TIME_US + offset + place * 2_000_000 for place in range(10)]), Reading())
        for name, offset in (("a", 0), ("b", 1_000_000))
    ]
    outcome = replay(logs, [("p", policy("5/minute log"))], lambda step: None)
    assert (outcome.results[0].allowed, outcome.results[0].denied) == (5, 15)
    assert (outcome.first_us, outcome.last_us) == (TIME_US, TIME_US + 19_000_000)


def test_the_summary_has_the_result_of_each_rule(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [f'{client} - - [17/May/2015:10:05:03 +0000] "GET /{path} HTTP/1.1" 200 5'
             for client, path in [("1.1.1.1", "a")] * 5 + [("2.2.2.2", "a")] * 3 + [("3.3.3.3", "b")]]  # fmt: skip
    log.write_text("\n".join([*lines, "broken", ""]))
    rules = [
        {"name": "a", "by": ["ip"], "limits": "2/minute bucket", "match": {"path": "/a"}},
        {"name": "all", "by": [], "limits": "6/minute bucket"},
        {"name": "candidate", "by": ["ip"], "limits": "1/minute bucket", "shadow": True},
    ]
    summed = summary(
        replay([Log(log, Reading())], [("p", read_policy({"version": 1, "rules": rules}))], lambda s: None), 1
    )
    assert {name: summed[name] for name in ("requests", "allowed", "denied", "unparsed", "first", "last")} == {
        "requests": 9, "allowed": 5, "denied": 4, "unparsed": 1,
        "first": "2015-05-17T10:05:03Z", "last": "2015-05-17T10:05:03Z",
    }  # fmt: skip
    assert [
        {name: rule[name] for name in ("name", "matched", "allowed", "denied", "keys", "top")}
        for rule in summed["rules"]
    ] == [
        {"name": "a", "matched": 8, "allowed": 4, "denied": 4, "keys": 2, "top": [{"key": "1.1.1.1", "denied": 3}]},
        {"name": "all", "matched": 9, "allowed": 9, "denied": 0, "keys": 1, "top": []},
        {
            "name": "candidate",
            "matched": 9,
            "allowed": 3,
            "denied": 6,
            "keys": 3,
            "top": [{"key": "1.1.1.1", "denied": 4}],
        },
    ]
    assert summed["rules"][0]["worst_minute"] == {"start": "2015-05-17T10:05:00Z", "denied": 4}
    assert summed["unparsed_lines"][0]["line"] == 10


def test_two_policies_are_judged_side_by_side(tmp_path: Path) -> None:
    log = Log(write_log(tmp_path / "log", [TIME_US] * 10), Reading())
    outcome = replay([log], [("wide", policy("8/minute bucket")), ("narrow", policy())], lambda step: None)
    assert outcome.difference is not None
    assert (outcome.difference.newly_denied, outcome.difference.newly_allowed) == (6, 0)
    summed = summary(outcome, 3)
    assert (summed["allowed"], summed["compare"]["allowed"], summed["compare"]["newly_denied"]) == (8, 2, 6)


def test_a_policy_without_a_rule_for_any_request_passes_all(tmp_path: Path) -> None:
    log = Log(write_log(tmp_path / "log", [TIME_US] * 3), Reading())
    rules = [{"name": "a", "by": ["user"], "missing": "refuse", "limits": "1/s", "match": {"path": "/1"}}]
    only = read_policy({"version": 1, "rules": rules, "identities": {"user": {"header": "X"}}})
    summed = summary(replay([log], [("p", only)], lambda step: None), 3)
    assert (summed["requests"], summed["denied"]) == (3, 1)
    assert summed["rules"][0]["top"] == [{"key": "(no identity)", "denied": 1}]


def test_an_empty_log_is_a_result_too(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    outcome = replay([Log(tmp_path / "log", Reading())], [("p", policy())], lambda step: None)
    summed = summary(outcome, 3)
    assert (summed["requests"], summed["first"], summed["last"]) == (0, None, None)
    assert "No request is in what was read" in report(outcome, ["log"], 3)


@given(times=st.lists(st.integers(0, 10**15), min_size=1, max_size=60))
def test_a_series_keeps_every_count_in_few_steps(times: list[int]) -> None:
    series = Series()
    for time_us in sorted(times):
        series.add(time_us, 1, 2)
    assert sum(passed for passed, _ in series.counts.values()) == len(times)
    assert sum(refused for _, refused in series.counts.values()) == 2 * len(times)
    assert len(series.counts) <= Series.MOST
    for time_us in times:
        assert time_us // series.step_us in series.counts


def test_events_weeks_apart_have_the_same_resolution() -> None:
    series = Series()
    for day in (0, 20, 40):
        for second in range(300):
            series.add((day * 86_400 + second) * 1_000_000, 1, 0)
    assert series.step_us == 1_000_000


def test_the_report_is_one_page_that_fetches_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('<script>alert(1)</script> - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5\n' * 5 + "<b>\n")
    outcome = replay([Log(log, Reading())], [("<p>", policy())], lambda step: None)
    page = report(outcome, ["<log>"], 5)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("<svg") == 2
    assert "5</b>requests" in page
    assert "2015-05-17 10:05:03 to 10:05:03 UTC" in page


def test_concurrency_limits_are_left_out_and_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('203.0.113.9 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 5\n' * 3)
    rules = [
        {"name": "busy", "by": ["ip"], "limits": "1 concurrent"},
        {"name": "both", "by": ["ip"], "limits": "1 concurrent; 2/minute"},
    ]
    both = read_policy({"version": 1, "rules": rules})
    outcome = replay([Log(log, Reading())], [("p", both)], lambda step: None)
    summed = summary(outcome, 5)
    assert (summed["allowed"], summed["denied"]) == (2, 1)
    assert summed["left_out"] == ["busy: 1 concurrent", "both: 1 concurrent"]
    assert [(rule["name"], rule["limits"]) for rule in summed["rules"]] == [("both", "2/minute")]
    for text in ("\n".join(outcome_lines(outcome, 5, 200)), report(outcome, ["log"], 5)):
        assert "left out, since a log does not say how long a request took: busy: 1 concurrent, both: 1" in re.sub(
            "<[^>]*>", "", text
        )
    with pytest.raises(ConfigError, match="nothing to replay"):
        replay([], [("p", read_policy({"version": 1, "rules": rules[:1]}))], lambda step: None)
