"""Every line of a log is an entry, a line that is counted and shown, or an error that names the file and the line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headgate import ConfigError, core
from headgate.cli.replay_text import outcome_lines
from headgate.policy.gate import read_policy
from headgate.replay.entries import Entry, Tally
from headgate.replay.replay import Outcome, Span, replay
from headgate.replay.report import report
from headgate.replay.sources import Log, Reading, detect_format
from headgate.replay.summary import summary
from headgate.replay.times import Calendar, TimeReader, UnknownTime, iso_time, read_date

LINE = '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5'
DAY_US = 86_400_000_000
POLICY = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "2/minute log"}]}


def read_all(path: Path, **reading: Any) -> tuple[list[Entry], Tally]:
    tally = Tally()
    return list(chain.from_iterable(Log(path, Reading(**reading)).entries(tally, lambda step: None))), tally


def read_text(folder: Path, text: str | bytes, **reading: Any) -> tuple[list[Entry], Tally]:
    log = folder / "log"
    log.write_bytes(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)
    return read_all(log, **reading)


def replayed(*logs: Path, span: Span | None = None, policy: Any = POLICY, **reading: Any) -> Outcome:
    opened = [Log(log, Reading(**reading)) for log in logs]
    more = {} if span is None else {"span": span}
    return replay(opened, [("p", read_policy(policy))], lambda step: None, **more)


def judged_or_refused(log: Path) -> None:
    """A replay, or an error that names the log; anything else fails."""
    message = str(log)
    try:
        replayed(log)
    except ConfigError as error:
        message = str(error)
    assert str(log) in message


# Digits that are none, seconds that are none.


@pytest.mark.parametrize(
    "moment",
    ["15/Jan/2026:09:00:²² +0000", "15/Jan/2026:09:00:٣٣ +0000", "15/Jan/2026:09:00:75 +0000", "2026-01-15 09:00:²²",
     "2026-01-15 09:00:75", "2026-01-15 09:00:01.12345²", "2026-01-15 09:00:75.123456", "٢٠٢٦-01-15 09:00:01",
     "30:00:00:00", "09:00:01"],
)  # fmt: skip
def test_digits_that_no_log_means_are_a_bad_line(tmp_path: Path, moment: str) -> None:
    entries, tally = read_text(
        tmp_path, f"{LINE}\n{LINE.replace('17/May/2015:10:05:03 +0000', moment)}\n", calendar=Calendar
    )
    assert (len(entries), tally.count) == (1, 1)
    assert tally.shown[0].line == 2
    with pytest.raises(UnknownTime):
        TimeReader()(moment)


ANY_TIME = st.one_of(
    st.text(st.characters() | st.sampled_from("0123456789:/-+ TZ.,²٣"), max_size=30),
    st.from_regex(r"[0-9²]{1,4}[-/:][0-9A-Za-z]{1,3}[-/:][0-9]{1,4}[T: ][0-9²:.+ -]{0,20}", fullmatch=True),
)


@given(text=ANY_TIME)
def test_any_text_is_a_time_or_is_none(text: str) -> None:
    for reader in (TimeReader(), TimeReader(calendar=Calendar(date(2024, 1, 31)))):
        try:
            assert 0 <= reader(text) <= 1 << 52
        except UnknownTime:
            continue


# Damage.


def compress_zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


COMPRESSIONS: list[Callable[[bytes], bytes]] = [gzip.compress, lzma.compress, bz2.compress, compress_zstd]
NAMES = ["gzip", "xz", "bzip2", "zstd"]


def many_lines(count: int = 25_000) -> bytes:
    return b"".join(b'1.2.%d.%d - - [17/May/2015:10:05:03 +0000] "GET /%x HTTP/1.1" 200 5\n'
                    % (place % 251, place % 241, place * 7919) for place in range(count))  # fmt: skip


@pytest.mark.parametrize("compress", COMPRESSIONS, ids=NAMES)
def test_of_a_log_that_is_cut_off_all_that_can_be_unpacked_is_judged(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    log = tmp_path / "log"
    packed = compress(many_lines())
    log.write_bytes(packed[:-20_000])
    entries, tally = read_all(log)
    assert 0 < len(entries) < 25_000
    assert tally.count == 0  # the last line counts neither as complete nor as unreadable
    (part,) = tally.damaged
    assert (part.source, part.line) == (str(log), len(entries) + 1)
    assert "it is cut off" in part.reason


@pytest.mark.parametrize("compress", COMPRESSIONS, ids=NAMES)
def test_a_log_that_cannot_be_decompressed_is_damaged_and_not_empty(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    log = tmp_path / "log"
    log.write_bytes(compress(many_lines(10))[:14])
    entries, tally = read_all(log)
    assert (entries, tally.empty) == ([], [])
    assert "it is cut off" in tally.damaged[0].reason


@pytest.mark.parametrize("line", [LINE, '{"time": 1768467600, "ip": "1.2.3.4"}', "time,client,path"])
def test_a_log_that_is_cut_off_in_its_first_line_is_damaged_and_not_of_an_unknown_format(
    tmp_path: Path, line: str
) -> None:
    packer = zlib.compressobj(wbits=31)
    entries, tally = read_text(tmp_path, packer.compress(line[:30].encode()) + packer.flush(zlib.Z_SYNC_FLUSH))
    assert entries == []
    assert [(part.line, part.reason) for part in tally.damaged] == [(1, "it is cut off (gzip)")]


@pytest.mark.parametrize("compress", COMPRESSIONS, ids=NAMES)
def test_of_a_log_that_is_damaged_all_before_the_damage_is_judged(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    log = tmp_path / "log"
    packed = bytearray(compress(many_lines()))
    packed[-30_000:-29_000] = bytes(1000)
    log.write_bytes(packed)
    outcome = replayed(log)
    assert outcome.results[0].requests > 0
    assert len(outcome.unread.damaged) == 1
    assert str(log) in report(outcome, ["log"], 5)
    assert summary(outcome, 5)["damaged"][0]["source"] == str(log)


@pytest.mark.parametrize("compress", COMPRESSIONS, ids=NAMES)
def test_data_after_a_compressed_log_is_reported_and_padding_is_not(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    packed = compress(f"{LINE}\n".encode() * 9)
    entries, tally = read_text(tmp_path, packed + b"garbage after it")
    assert len(entries) == 9
    assert "the data after its end is not part of it" in tally.damaged[0].reason
    entries, tally = read_text(tmp_path, packed + bytes(4096) + packed)
    assert (len(entries), tally.damaged) == (18, [])


@given(
    kind=st.integers(0, 3),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 60),
)
def test_no_damage_is_more_than_a_message(
    kind: int, changes: list[tuple[int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    packed = bytearray(COMPRESSIONS[kind](many_lines(200)))
    for place, byte in changes:
        packed[place % len(packed)] = byte
    del packed[len(packed) - cut :]
    log = tmp_path_factory.mktemp("damaged") / "log"
    log.write_bytes(packed)
    judged_or_refused(log)


@pytest.mark.parametrize("compress", COMPRESSIONS, ids=NAMES)
def test_a_small_file_that_unpacks_to_a_huge_one_stays_small_in_memory(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    import tracemalloc

    log = tmp_path / "log"
    log.write_bytes(compress(b"x" * (64 << 20)))
    tracemalloc.start()
    entries, tally = read_all(log, format="common")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (entries, tally.count) == ([], 1)
    assert peak < 48 << 20


# Text of other kinds.


@pytest.mark.parametrize("head", ["time\tip\rx\ty", "\ra\tb", "time\tip\r\t"])
@pytest.mark.parametrize("format", ["auto", "tsv"])
def test_a_bare_carriage_return_in_the_names_of_columns_is_an_error_with_its_place(
    tmp_path: Path, head: str, format: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_text(tmp_path, f"{head}\n5\t1.2.3.4\n", format=format)
    place = f"{tmp_path / 'log'}:1: the names of the columns cannot be read"
    assert str(caught.value) == f"{place}: a carriage return is inside a field that is not quoted"


def test_a_bare_carriage_return_in_a_row_is_a_bad_line(tmp_path: Path) -> None:
    entries, tally = read_text(tmp_path, "time,ip,url\n5,1.2.3.4,/a\n5,1.2\r.3.4,/\n6,1.2.3.4,/b\n")
    assert [entry[3] for entry in entries] == ["/a", "/b"]
    assert [(unread.line, unread.reason) for unread in tally.shown] == [
        (3, "it is no row: a carriage return is inside a field that is not quoted")
    ]


def test_the_lines_that_an_open_quote_takes_in_are_all_counted(tmp_path: Path) -> None:
    rows = "".join(f"{second},1.2.3.4,/{'a' * 90}\n" for second in range(3000))
    entries, tally = read_text(tmp_path, f'time,ip,url\n5,"1.2.3.4,/x\n{rows}')
    assert len(entries) + tally.count == 3001
    assert tally.shown[0].line == 2
    assert tally.shown[0].reason == "it is no row: field larger than field limit (131072)"


def test_the_byte_order_mark_of_utf_8_is_not_part_of_a_log(tmp_path: Path) -> None:
    for text in (LINE, "time,ip\n5,1.2.3.4", '{"time": 5, "ip": "1.2.3.4"}'):
        entries, tally = read_text(tmp_path, "\ufeff" + text)
        assert (len(entries), tally.count) == (1, 0)


@pytest.mark.parametrize(
    "lines",
    [[LINE, LINE], ['{"time": 1768467600, "ip": "1.2.3.4"}'] * 2, ["time,client", "1768467600,1.2.3.4"]],
    ids=["common", "json", "csv"],
)
@pytest.mark.parametrize("nuls", [1, 70_000, (1 << 20) - 1, 9 << 20])
def test_nul_bytes_at_the_start_of_lines_are_skipped(tmp_path: Path, lines: list[str], nuls: int) -> None:
    hole, text = b"\0" * nuls, [line.encode() for line in lines]
    plain, plain_tally = read_text(tmp_path, b"\n".join(text))
    entries, tally = read_text(tmp_path, hole + text[0] + b"\n" + hole + text[1] + b"\n" + hole)
    assert (entries, tally.shown) == (plain, plain_tally.shown)
    assert {entry[1] for entry in entries} == {"1.2.3.4"}


def test_a_log_of_nul_bytes_alone_is_empty(tmp_path: Path) -> None:
    entries, tally = read_text(tmp_path, b"\0" * 5000)
    assert (entries, tally.count, len(tally.empty)) == ([], 0, 1)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_in_utf_16_is_an_error_that_says_so(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(ConfigError, match="this is UTF-16; a log is UTF-8 text"):
        read_text(tmp_path, f"\ufeff{LINE}\n".encode(encoding))


def test_a_lone_surrogate_in_json_is_replaced_and_affects_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"time": 5, "ip": "\\ud800", "url": "/\\udfff", "method": "\\ud83d"}\n' * 3 + "{}\n")
    rules = [{"name": "all", "by": ["ip", "user", "method"], "limits": "2/minute log"}]
    policy = {"version": 1, "identities": {"user": {"header": "X-User"}}, "rules": rules}
    outcome = replayed(log, policy=policy, headers={"x-user": "ip"})
    assert (outcome.results[0].allowed, outcome.results[0].denied) == (2, 1)
    json.dumps(summary(outcome, 5)).encode()
    report(outcome, ["log"], 5).encode()


@given(data=st.text(st.characters() | st.sampled_from('",\r\n\t{}:\\[]-² '), max_size=300))
def test_any_text_after_any_head_is_entries_and_bad_lines(data: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("any")
    heads = [LINE + "\n", "time,ip,url\n", "time\tip\turl\n", '{"time": 5}\n', "", "date;time;ip\n"]
    for head in heads:
        log = folder / "log"
        log.write_text(head + data, encoding="utf-8", errors="surrogatepass", newline="")
        judged_or_refused(log)


PIECES = st.sampled_from(
    ["1.2.3.4", "h:80", " ", " - - ", "[", "]", "17/May/2015:10:05:03 +0000", "17/May/2015:10:05:²² +0000",
     "30:10:05:03", "2015-05-17 10:05:03.123456", '"', "GET /a HTTP/1.1", "GET /a", ' HTTP/1.0" 200 5', "\\",
     " 404 -", "é", "\x00", "\n"]
)  # fmt: skip


DAMAGED = st.tuples(st.integers(0, len(LINE)), PIECES | st.sampled_from(list('"\\[] 09'))).map(
    lambda change: LINE[: change[0]] + change[1] + LINE[change[0] + 1 :]
)


@given(lines=st.lists(st.lists(PIECES, max_size=14).map("".join) | DAMAGED, max_size=6))
def test_a_line_is_read_alike_with_and_without_headers(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("headers") / "log"
    log.write_text("\n".join(lines))
    by_head, tally = read_all(log, format="common")
    in_full, other_tally = read_all(log, format="common", headers={"x": "bytes"})
    assert [entry[:4] for entry in by_head] == [entry[:4] for entry in in_full]
    assert tally == other_tally


@pytest.mark.skipif(core.native is None, reason="only the Python core is here")
@given(lines=st.lists(st.lists(PIECES, max_size=14).map("".join) | st.just(LINE), max_size=6))
def test_both_cores_read_the_same_of_any_log(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("cores") / "log"
    log.write_text("\n".join(lines))
    expected = read_all(log, format="common")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "native", None)
        assert read_all(log, format="common") == expected


# Old servers.

UNESCAPED: list[tuple[str, str]] = [
    ('GET /docs/"quoted" HTTP/1.0" 200 5', '/docs/"quoted"'),
    ('GET /a"b HTTP/1.0" 404 -', '/a"b'),
    ('GET /a"b HTTP/1.0" 404 - "http://r/" "Agent"', '/a"b'),
    ('GET /nn2.gif" alt=" HTTP/1.0" 404 -', '/nn2.gif" alt="'),
    ('GET /enviro/"> HTTP/1.0" 302 -', '/enviro/">'),
    ('GET /a"" 200 5', '/a"'),
    ("GET /a\\\\" + '" 200 5', "/a\\"),
    ("GET /c:\\x\\" + '" 404 -', "/c:\\x\\"),
]


@pytest.mark.parametrize(("request_", "path"), UNESCAPED, ids=[path for _, path in UNESCAPED])
def test_a_complete_line_with_a_quote_in_its_request_is_read(tmp_path: Path, request_: str, path: str) -> None:
    for before in ("host.example [30:12:00:01]", "1.2.3.4 - - [17/May/2015:10:05:03 +0000]"):
        entries, tally = read_text(tmp_path, f'{before} "{request_}\n{LINE}\n')
        assert [entry[3] for entry in entries] == [path, "/a"], tally.shown
        assert read_text(tmp_path, f'{before} "{request_}\n', headers={"x": "status"})[0][0][3] == path


@pytest.mark.parametrize(
    "line",
    ['"GET /a"b HTTP/1.0', '"GET /a"b HT', '"GET /a HTTP/1.1" 200 5 "-" "cut o', '"GET /a"b HTTP/1.0" 200 5 "-" "cut o',
     '"GET /a"b HTTP/1.0" 20'],
)  # fmt: skip
def test_a_line_that_was_cut_off_stays_a_bad_line(tmp_path: Path, line: str) -> None:
    entries, tally = read_text(tmp_path, f"1.2.3.4 - - [17/May/2015:10:05:03 +0000] {line}\n", format="common")
    assert (entries, tally.count) == ([], 1)


EPA = """\
141.243.1.172 [29:23:53:25] "GET /Software.html HTTP/1.0" 200 1497
query2.lycos.cs.cmu.edu [29:23:53:36] "GET /Consumer.html HTTP/1.0" 200 1325
tanuki.twics.com [30:00:00:12] "GET /News.html HTTP/1.0" 200 1014
wpbfl2-45.gate.net [29:23:59:59] "GET / HTTP/1.0" 200 4889
"""


@pytest.mark.parametrize(
    "time",
    ["31/Feb/2026:09:00:07 +0000", "15/Jan/1969:09:00:07 +0000", "2026-02-31 09:00:07", "2026-02-31 09:00:07.25"],
)
def test_an_unreadable_time_is_quoted_as_it_is_written(time: str) -> None:
    with pytest.raises(UnknownTime, match=re.escape(repr(time))):
        TimeReader()(time)


@pytest.mark.parametrize(
    "line",
    [
        'unix: - - [15/Jan/2026:09:00:01 +0000] "GET / HTTP/1.1" 200 5',
        'shop.example:443 unix: - - [15/Jan/2026:09:00:01 +0000] "GET / HTTP/1.1" 200 5',
        '{"time": 1768467601, "remote_addr": "unix:", "request": "GET / HTTP/1.1"}',
        ' - - [15/Jan/2026:09:00:01 +0000] "GET /a?b=1 HTTP/1.1" 200 1 "-" "curl/7.88.1"',  # gunicorn
    ],
)
def test_clients_of_unix_sockets_in_logs_are_its_peer(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{line}\n")
    [entry] = [entry for block in Log(log, Reading()).entries(Tally(), lambda _: None) for entry in block]
    assert entry[:3] == (1_768_467_601_000_000, "unix", "GET")


OF_CLIENT = '203.0.113.9 - - [15/Jan/2026:09:00:01 +0000] "GET / HTTP/1.1" 200 5 "-" "agent"'


@pytest.mark.parametrize(
    "words",
    ["Jan 15 09:00:01 web nginx:", "2026-01-15T09:00:01.123Z stdout F", "web-1  |", "[pod/web-1/nginx]", "a 80"],
)
@pytest.mark.parametrize("format_", ["auto", "common"])
def test_a_common_log_with_words_before_the_client_is_refused(tmp_path: Path, words: str, format_: Any) -> None:
    log = tmp_path / "log"
    log.write_text(f"{words} {OF_CLIENT}\nbroken\n{words} {OF_CLIENT}\n")
    wrong = f"log: lines begin with {re.escape(repr(words))} before the client: cut that off$"
    with pytest.raises(ConfigError, match=wrong):
        list(Log(log, Reading(format=format_)).entries(Tally(), lambda _: None))


@pytest.mark.parametrize("words", ["", "a.example:80 ", "a.example ", "- ", "10.0.0.1 - "])
def test_a_host_before_the_client_is_read(tmp_path: Path, words: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{words}{OF_CLIENT}\n")
    [entry] = [entry for block in Log(log, Reading()).entries(Tally(), lambda _: None) for entry in block]
    assert entry[1] in ("203.0.113.9", "10.0.0.1")


def test_one_user_whose_name_looks_like_a_client_stops_no_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    user = OF_CLIENT.replace("203.0.113.9 - -", "host.example - 1.2.3.4 a b")
    log.write_text(f"{user}\n{OF_CLIENT}\n")
    entries = [entry for block in Log(log, Reading()).entries(Tally(), lambda _: None) for entry in block]
    assert [entry[1] for entry in entries] == ["host.example", "203.0.113.9"]


def test_a_log_whose_times_have_no_month_is_read_by_the_configured_date(tmp_path: Path) -> None:
    for text in ("1995-08", "1995-08-29"):
        first, month = read_date(text)
        entries, tally = read_text(
            tmp_path, EPA, calendar=lambda first=first, month=month: Calendar(first, month=month)
        )
        assert (tally.count, tally.guessed) == (0, {})
        assert [iso_time(entry[0]) for entry in entries] == [
            "1995-08-29T23:53:25Z", "1995-08-29T23:53:36Z", "1995-08-30T00:00:12Z", "1995-08-29T23:59:59Z",
        ]  # fmt: skip


def test_a_log_whose_times_have_no_month_is_read_by_the_date_of_its_file(tmp_path: Path) -> None:
    log = tmp_path / "epa-http.txt"
    log.write_text(EPA)
    for written, first in (
        (date(1995, 8, 30), "1995-08-29"),
        (date(1996, 4, 15), "1996-03-29"),
        (date(2026, 8, 29), "2026-08-29"),
    ):
        seconds = (written - date(1970, 1, 1)).days * 86_400 + 7200
        os.utime(log, (seconds, seconds))
        entries, tally = read_all(log)
        assert tally.guessed == {str(log): date.fromisoformat(first)}
        assert iso_time(entries[0][0]) == f"{first}T23:53:25Z"
        assert entries[2][0] - entries[3][0] == 13_000_000


def test_a_month_ends_where_its_last_day_does(tmp_path: Path) -> None:
    lines = "".join(f'h [{day:02d}:00:00:00] "GET / HTTP/1.0" 200 5\n' for day in [27, 28, 29, 30, 31, 1, 2])
    entries, _ = read_text(tmp_path, lines, calendar=lambda: Calendar(date(1995, 8, 27)))
    assert [entry[0] - entries[0][0] for entry in entries] == [days * DAY_US for days in range(7)]


EDGAR = """\
ip,date,time,zone,cik,accession,extention,code,size,idx,norefer,noagent,find,crawler,browser
101.81.133.jja,2017-06-30,00:00:00,0.0,1608552.0,0001047469-17-004337,-index.htm,200.0,80251.0,1.0,0.0,0.0,9.0,0.0,
107.23.85.jfd,2017-06-30,00:00:01,0.0,1027281.0,0000898430-02-001167,-index.htm,200.0,2825.0,1.0,0.0,0.0,10.0,0.0,
"""


def test_a_date_and_a_clock_in_columns_of_their_own_are_one_time(tmp_path: Path) -> None:
    entries, tally = read_text(tmp_path, EDGAR)
    assert tally.count == 0
    assert [(iso_time(entry[0]), entry[1]) for entry in entries] == [
        ("2017-06-30T00:00:00Z", "101.81.133.jja"),
        ("2017-06-30T00:00:01Z", "107.23.85.jfd"),
    ]
    times = {"date": "tag", "time": "uhr", "client": "wer"}
    for day in ("2017-06-30", "2017/06/30", "20170630", "30/Jun/2017"):
        entries, _ = read_text(tmp_path, f"tag;uhr;wer\n{day};0:00:01.5;x\n", format="csv", fields=times)
        assert iso_time(entries[0][0]) == "2017-06-30T00:00:01.500000Z"
    lines = json.dumps({"date": "2017-06-30", "time": "00:00:01", "ip": "x"})
    assert iso_time(read_text(tmp_path, lines)[0][0][0]) == "2017-06-30T00:00:01Z"
    log_text = "date,ip\n2017-06-30 00:00:01,x\n"
    assert iso_time(read_text(tmp_path, log_text)[0][0][0]) == "2017-06-30T00:00:01Z"
    both = "date,time,ip\n2017-06-30,1498780801,x\n"
    assert iso_time(read_text(tmp_path, both)[0][0][0]) == "2017-06-30T00:00:01Z"


def test_a_clock_without_a_date_goes_over_midnight(tmp_path: Path) -> None:
    rows = "time,ip\n23:59:58,x\n00:00:01,x\n23:59:59,x\n00:00:02,x\n"
    entries, _ = read_text(tmp_path, rows, calendar=lambda: Calendar(date(2017, 6, 30)))
    assert [iso_time(entry[0])[8:19] for entry in entries] == [
        "30T23:59:58", "01T00:00:01", "30T23:59:59", "01T00:00:02",
    ]  # fmt: skip
    entries, tally = read_text(tmp_path, rows)
    assert len(entries) == 4 and list(tally.guessed) == [str(tmp_path / "log")]


@pytest.mark.parametrize("text", ["1995-13", "1995-02-30", "95-08", "yesterday", ""])
def test_an_invalid_date_is_refused(text: str) -> None:
    with pytest.raises(UnknownTime):
        read_date(text)


def test_old_formats_are_detected_from_the_beginning() -> None:
    assert detect_format(EPA.encode()) == "common"
    assert detect_format(EDGAR.encode()) == "csv"


# Costs and stretches of time.

TRACE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
FREE = {"version": 1, "rules": [{"name": "tokens", "by": [], "limits": "500/minute log"}]}


@pytest.mark.parametrize(
    ("field", "costs"),
    [("ContextTokens", [374, 396]), ("contexttokens", [374, 396]), ("ContextTokens+GeneratedTokens", [418, 505])],
)
def test_the_cost_of_a_request_is_read_from_a_field_or_from_several(
    tmp_path: Path, field: str, costs: list[int]
) -> None:
    entries, _ = read_text(tmp_path, TRACE, fields={"cost": field}, needs_client=False)
    assert [entry[6] for entry in entries] == costs
    assert [entry[6] for entry in read_text(tmp_path, TRACE, needs_client=False)[0]] == [1, 1]
    lines = json.dumps({"time": 5, "usage": {"in": 3, "out": 4.0}})
    assert read_text(tmp_path, lines, fields={"cost": "usage.in+usage.out"}, needs_client=False)[0][0][6] == 7
    assert read_text(tmp_path, LINE, fields={"cost": "bytes"})[0][0][6] == 5
    assert read_text(tmp_path, LINE.replace(" 5", " -"), fields={"cost": "bytes"})[0][0][6] == 0


@pytest.mark.parametrize("cost", ["1.5", "-3", "x", "1e3", "²", "9" * 16])
def test_a_cost_that_is_none_is_a_bad_line(tmp_path: Path, cost: str) -> None:
    entries, tally = read_text(tmp_path, f"time,ip,c\n5,x,{cost}\n5,x,7\n", fields={"cost": "c"})
    assert [entry[6] for entry in entries] == [7]
    assert tally.shown[0].reason.startswith("its cost is ")


def test_a_cost_that_no_field_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="no field is named 'Tokens' for the cost: there are timestamp, contexttokens"
    ):
        read_text(tmp_path, TRACE, fields={"cost": "ContextTokens+Tokens"}, needs_client=False)
    with pytest.raises(ConfigError, match="--field cost=tokens: the common format has the fields client"):
        read_text(tmp_path, LINE, fields={"cost": "tokens"})


def test_a_request_is_charged_its_cost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(TRACE)
    summed = summary(replayed(log, policy=FREE, fields={"cost": "ContextTokens"}, needs_client=False), 5)
    assert {name: summed[name] for name in ("allowed", "denied", "cost_allowed", "cost_denied")} == {
        "allowed": 1, "denied": 1, "cost_allowed": 374, "cost_denied": 396,
    }  # fmt: skip
    assert "cost_allowed" not in summary(replayed(log, policy=FREE, needs_client=False), 5)


UNITS = {"version": 1, "rules": [{"name": "llm", "by": [], "limits": "9/minute; 500 tokens/minute log; 1 usd/day"}]}


def test_each_unit_is_read_from_fields_of_its_own(tmp_path: Path) -> None:
    units = {"tokens": "ContextTokens+GeneratedTokens", "requests": "ContextTokens"}
    entries, _ = read_text(tmp_path, TRACE, units=units, needs_client=False)
    assert [entry[6] for entry in entries] == [{"tokens": 418, "requests": 374}, {"tokens": 505, "requests": 396}]
    entries, _ = read_text(tmp_path, LINE, units={"bytes": "bytes"})
    assert entries[0][6] == {"bytes": 5}
    with pytest.raises(ConfigError, match="no field is named 'Tokens' for the tokens: there are timestamp"):
        read_text(tmp_path, TRACE, units={"tokens": "Tokens"}, needs_client=False)
    entries, tally = read_text(tmp_path, "time,ip,t\n5,x,1.5\n5,x,7\n", units={"tokens": "t"})
    assert [entry[6] for entry in entries] == [{"tokens": 7}]
    assert tally.shown[0].reason == "its cost in tokens is '1.5', which is no whole number"


@pytest.mark.parametrize(("written", "nano"), [("0.0123", 12_300_000), ("1.2e-10", 1), ("3", 3 * 10**9), ("null", 0)])
def test_money_of_a_log_is_read_as_it_is_written(tmp_path: Path, written: str, nano: int) -> None:
    line = f'{{"time": 1768467600.5, "price": {written}}}'
    entries, _ = read_text(tmp_path, line, units={"usd": "price"}, needs_client=False)
    assert (entries[0][0], entries[0][6]) == (1_768_467_600_500_000, {"usd": nano})
    table = f"time,price\n5,{written.replace('null', '-')}\n"
    assert read_text(tmp_path, table, units={"usd": "price"}, needs_client=False, format="csv")[0][0][6] == {
        "usd": nano
    }


def test_money_that_is_none_is_a_bad_line(tmp_path: Path) -> None:
    _, tally = read_text(tmp_path, "time,price\n5,-1\n5,x\n5,9999999\n", units={"usd": "price"}, needs_client=False)
    assert [unread.reason[:19] for unread in tally.shown] == [
        "its cost in usd: an",
        "its cost in usd: an",
        "its cost in usd is ",
    ]


def test_each_request_is_charged_what_it_took_of_each_unit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("time,ip,t,price\n100,x,300,0.25\n101,x,300,0.25\n102,x,200,0.8\n103,x,200,0.75\n")
    units = {"tokens": "t", "usd": "price"}
    outcome = replayed(log, policy=UNITS, units=units)
    summed = summary(outcome, 5)
    assert (summed["allowed"], summed["denied"], summed["rules"][0]["matched"], summed["rules"][0]["keys"]) == (
        2,
        2,
        4,
        1,
    )
    assert summed["cost_allowed"] == {"tokens": 500, "usd": "1"}
    assert summed["cost_denied"] == {"tokens": 500, "usd": "1.05"}
    assert summed["rules"][0]["busiest"] == [{"key": "everyone", "requests": 4}]
    lines = list(outcome_lines(outcome, 5, 200))
    assert "their cost in tokens is 1,000: 500 passed, 500 refused (50.00 %)" in lines
    assert "their cost in usd is 2.05: 1 passed, 1.05 refused (51.22 %)" in lines
    assert "<b>2.05</b>usd of all" in report(outcome, ["log"], 5)


def test_a_unit_that_one_of_two_policies_counts_is_no_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("time,ip,t\n100,x,300\n101,x,300\n")
    policies = [("a", read_policy(UNITS)), ("b", read_policy(FREE))]
    outcome = replay([Log(log, Reading(units={"tokens": "t"}))], policies, lambda step: None)
    assert [(result.allowed, result.denied) for result in outcome.results] == [(1, 1), (2, 0)]


def test_only_entries_in_the_span_are_judged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("time,ip\n" + "".join(f"{second},1.2.3.4\n" for second in range(100)))
    summed = summary(replayed(log, span=Span(10_000_000, 20_000_000)), 5)
    assert (summed["requests"], summed["outside"]) == (10, 90)
    assert (summed["first"], summed["last"]) == ("1970-01-01T00:00:10Z", "1970-01-01T00:00:19Z")


TARGETS = ["http://Shop.example:80/a?b", "HTTP://Shop.example:80?b", "http://Shop.example:80"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_whole_url_in_a_request_names_the_host(tmp_path: Path, target: str) -> None:
    line = LINE.replace("/a", target)
    as_json = json.dumps({"time": 1431857103, "ip": "1.2.3.4", "request": f"GET {target} HTTP/1.1"})
    as_url = json.dumps({"time": 1431857103, "ip": "1.2.3.4", "url": target})
    rule = {"name": "shop", "match": {"host": "shop.example"}, "by": ["ip"], "limits": "2/minute log"}
    for text in (line, as_json, as_url):
        ((*_, path, host, _, _),), _ = read_text(tmp_path, text)
        assert host == "Shop.example:80"
        assert path.startswith("/")
        assert replayed(tmp_path / "log", policy={"version": 1, "rules": [rule]}).results[0].rules[0].matched == 1


def test_a_host_of_its_own_in_a_log_comes_before_that_of_a_url(tmp_path: Path) -> None:
    for text in (
        f"a.example:80 {LINE.replace('/a', TARGETS[0])}",
        json.dumps({"time": 1431857103, "ip": "1.2.3.4", "url": TARGETS[0], "vhost": "a.example"}),
    ):
        ((*_, host, _, _),), _ = read_text(tmp_path, text)
        assert host == "a.example"


def test_the_header_host_of_a_log_is_the_host_of_a_request(tmp_path: Path) -> None:
    rule = {"name": "shop", "match": {"host": "shop.example"}, "by": ["ip"], "limits": "2/minute log"}
    policy = {"version": 1, "rules": [rule]}
    as_json = json.dumps({"time": 1431857103, "ip": "1.2.3.4", "agent": "shop.example:443", "url": "http://b/a"})
    for text in (f'{LINE} "-" "shop.example"', as_json, "time,ip,agent\n1431857103,1.2.3.4,shop.example"):
        (tmp_path / "log").write_text(text)
        outcome = replayed(tmp_path / "log", policy=policy, headers={"host": "agent"})
        assert outcome.results[0].rules[0].matched == 1


@pytest.mark.parametrize("field", ["user", "headers.user", "request.headers.user"])
def test_of_a_list_of_values_the_first_is_read(tmp_path: Path, field: str) -> None:
    nested: Any = ["ann"]
    for name in reversed(field.split(".")):
        nested = {name: nested}
    text = json.dumps({"time": 1431857103, "ip": "1.2.3.4", **nested})
    ((*_, headers, _),), _ = read_text(tmp_path, text, headers={"x-user": field})
    assert headers == {"x-user": "ann"}


@pytest.mark.parametrize("client", ["remote_addr", "who"])
def test_a_field_host_beside_a_client_is_the_host(tmp_path: Path, client: str) -> None:
    fields = {"client": client} if client == "who" else {}
    as_json = json.dumps({"time": 1431857103, client: "1.2.3.4", "host": "shop.example"})
    for text in (as_json, f"time,Host,{client}\n1431857103,shop.example,1.2.3.4"):
        ((_, found, _, _, host, _, _),), _ = read_text(tmp_path, text, fields=fields, format="auto")
        assert (found, host) == ("1.2.3.4", "shop.example")
    for field in ('"vhost": "own.example"', '"url": "http://own.example/"'):
        ((*_, host, _, _),), _ = read_text(tmp_path, f"{as_json[:-1]}, {field}}}", fields=fields)
        assert host == "own.example"


def test_a_field_host_that_is_the_client_is_not_the_host(tmp_path: Path) -> None:
    ((_, client, _, _, host, _, _),), _ = read_text(tmp_path, "time,host\n1431857103,1.2.3.4")
    assert (client, host) == ("1.2.3.4", "")
