"""Logs of the extended format of the W3C, as IIS and CloudFront write them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from headgate import ConfigError
from headgate.replay.entries import Entry, Tally
from headgate.replay.sources import Log, Reading, detect_format
from headgate.replay.times import iso_time

IIS = """\
#Software: Microsoft Internet Information Services 10.0
#Version: 1.0
#Date: 2026-01-15 09:00:01
#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) sc-status time-taken
2026-01-15 09:00:01 10.0.0.1 GET /items id=5 443 - 192.0.2.1 Mozilla/5.0+(X11) 200 15
2026-01-15 09:00:02 10.0.0.1 POST /login - 443 ann 192.0.2.2 - 401 3
"""

CLOUDFRONT = (
    "#Version: 1.0\n"
    "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) "
    "cs(User-Agent) cs-uri-query x-host-header time-taken\n"
    "2026-01-15\t09:00:01\tFRA56-P4\t2390\t192.0.2.1\tGET\td111.cloudfront.net\t/items\t200\t-\tcurl/8.5.0\tid=5\t"
    "shop.example\t0.001\n"
)


def read(folder: Path, text: str, **reading: Any) -> tuple[list[Entry], Tally]:
    log, tally = folder / "log", Tally()
    log.write_text(text)
    return list(chain.from_iterable(Log(log, Reading(**reading)).entries(tally, lambda step: None))), tally


def test_a_log_of_iis_is_read(tmp_path: Path) -> None:
    entries, tally = read(tmp_path, IIS.replace("\n", "\r\n"), headers={"user-agent": "cs(User-Agent)"})
    assert (tally.count, iso_time(entries[0][0])) == (0, "2026-01-15T09:00:01Z")
    assert [entry[1:6] for entry in entries] == [
        ("192.0.2.1", "GET", "/items?id=5", "", {"user-agent": "Mozilla/5.0+(X11)"}),
        ("192.0.2.2", "POST", "/login", "", {}),
    ]


def test_a_log_of_cloudfront_is_read(tmp_path: Path) -> None:
    entries, tally = read(tmp_path, CLOUDFRONT, fields={"cost": "sc-bytes"})
    assert tally.count == 0
    assert entries[0][1:] == ("192.0.2.1", "GET", "/items?id=5", "shop.example", {}, 2390)


def test_fields_that_are_named_again_hold_from_there_on(tmp_path: Path) -> None:
    again = "#Fields: c-ip date time cs-uri-stem\n192.0.2.3 2026-01-15 09:00:03 /new\n"
    entries, tally = read(tmp_path, IIS + again)
    assert (tally.count, entries[-1][1:4]) == (0, ("192.0.2.3", "", "/new"))


def test_a_field_in_quotes_may_hold_blanks(tmp_path: Path) -> None:
    quoted = '#Fields: date time c-ip x-agent cs-uri-stem\n2026-01-15 09:00:01 192.0.2.1 "a ""b"" c" /\n'
    entries, _ = read(tmp_path, quoted, headers={"user-agent": "x-agent"})
    assert entries[0][5] == {"user-agent": 'a "b" c'}


def test_lines_that_are_cut_off_or_stand_before_the_names_are_counted(tmp_path: Path) -> None:
    _, tally = read(tmp_path, "2026-01-15 09:00:01 192.0.2.1\n" + IIS + "2026-01-15 09:0", format="w3c")
    assert [(unread.line, unread.reason) for unread in tally.shown] == [
        (1, "no line before it names its fields: #Fields: date time c-ip ..."),
        (8, "it has 2 of 12 fields"),
    ]


def test_a_log_that_lacks_what_is_needed_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="log: no column is named like a client: there are date, time, cs-uri-stem"):
        read(tmp_path, "#Fields: date time cs-uri-stem\n2026-01-15 09:00:01 /\n")
    with pytest.raises(ConfigError, match="log: no column is named 'x-real' for the client"):
        read(tmp_path, IIS, fields={"client": "x-real"})


@pytest.mark.parametrize("sample", [IIS, CLOUDFRONT, "#fields: time c-ip\n"])
def test_the_format_is_detected_from_the_beginning(sample: str) -> None:
    assert detect_format(sample.encode()) == "w3c"


def test_comments_before_another_log_are_no_fields() -> None:
    line = '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5'
    assert detect_format(f"# of yesterday\n{line}\n".encode()) == "common"
