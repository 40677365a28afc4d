"""A report shows minutes that are weeks apart, each key once, and how two policies differ."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.replay_text import outcome_lines, unread_lines
from headgate.policy.gate import read_policy
from headgate.replay.axis import axis_of, length_text, step_text
from headgate.replay.charts import bars_of, difference_chart, time_chart
from headgate.replay.replay import Outcome, replay
from headgate.replay.report import report
from headgate.replay.series import Series
from headgate.replay.sources import Log, Reading
from headgate.replay.summary import summary

DAY_US = 86_400_000_000
START_US = 1_767_603_600_000_000  # 2026-01-05 09:00


def series_of(times: list[int]) -> Series:
    series = Series()
    for time_us in sorted(times):
        series.add(time_us, 1, 0)
    return series


def policy(*rules: tuple[str, str]) -> Any:
    named = [{"name": name, "by": ["ip"], "limits": limits} for name, limits in rules]
    return read_policy({"version": 1, "rules": named})


def replayed(folder: Path, requests: list[tuple[int, str]], *policies: Any) -> Outcome:
    log = folder / "log.csv"
    log.write_text("time,ip\n" + "".join(f"{time_us // 1_000_000},{client}\n" for time_us, client in requests))
    named = [(f"p{number}.yaml", one) for number, one in enumerate(policies)]
    return replay([Log(log, Reading())], named, lambda step: None)


def busy_minutes(*days: int) -> list[int]:
    return [START_US + day * DAY_US + minute * 60_000_000 for day in days for minute in range(40)]


def test_minutes_that_lie_weeks_apart_are_shown_as_minutes_with_a_break_between() -> None:
    axis = axis_of(series_of(busy_minutes(0, 14, 37)))
    assert axis.step_us == 60_000_000
    assert [stretch.bars for stretch in axis.stretches] == [40, 40, 40]
    assert [length_text(gap.length_us) for gap in axis.breaks()] == ["14 days", "23 days"]
    assert axis.slots < 150


def test_each_stretch_begins_with_its_time_and_its_date() -> None:
    ticks = axis_of(series_of(busy_minutes(0, 14, 37))).ticks()
    named = [(tick.text, tick.day) for tick in ticks if tick.day]
    assert named == [("09:00", "2026-01-05"), ("09:00", "2026-01-19"), ("09:00", "2026-02-11")]
    assert all(tick.major for tick in ticks if tick.day)


def test_a_log_within_a_day_names_its_date() -> None:
    ticks = axis_of(series_of(busy_minutes(0))).ticks()
    assert (ticks[0].text, ticks[0].day) == ("09:00", "2026-01-05")
    assert len(ticks) > 3


def test_traffic_without_long_gaps_has_no_break() -> None:
    axis = axis_of(series_of([START_US + hour * 3_600_000_000 for hour in range(24 * 28)]))
    assert len(axis.stretches) == 1
    assert step_text(axis.step_us) == "6 hours"


@given(times=st.lists(st.integers(0, 10**15), min_size=1, max_size=80))
def test_every_count_has_its_bar_on_an_axis_that_has_room(times: list[int]) -> None:
    series = series_of(times)
    axis = axis_of(series)
    bars = bars_of(series, axis)
    assert sum(bar.passed for bar in bars) == len(times)
    assert all(0 <= bar.slot <= axis.slots - 1 for bar in bars)
    assert axis.slots <= 150
    assert len(axis.stretches) <= 7
    places = [tick.place for tick in axis.ticks()]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    assert all(after - before >= 0.0999 for before, after in pairwise(places))
    majors = [tick.place for tick in axis.ticks() if tick.major]
    assert all(after - before >= 0.2499 for before, after in pairwise(majors))
    assert axis.ticks()[0].day


@pytest.mark.parametrize(
    ("step_us", "text"),
    [(1_000_000, "second"), (2_000_000, "2 seconds"), (60_000_000, "minute"), (600_000_000, "10 minutes"),
     (21_600_000_000, "6 hours"), (DAY_US, "day"), (7 * DAY_US, "7 days")],
)  # fmt: skip
def test_the_length_of_a_bar_is_written_in_words(step_us: int, text: str) -> None:
    assert step_text(step_us) == text


def test_labels_of_a_chart_are_text_beside_the_picture_not_in_it() -> None:
    series = series_of(busy_minutes(0, 14))
    for chart in (time_chart, difference_chart):
        drawn = chart(series, axis_of(series), height=200, label="x")
        picture = re.search(r"<svg.*</svg>", drawn, re.DOTALL)
        assert picture
        assert "<text" not in picture[0]
        assert 'preserveAspectRatio="none"' in picture[0]
        assert "<b>14 days</b>" in drawn
        assert "<small>2026-01-19</small>" in drawn


def test_newly_refused_requests_are_listed_above_newly_admitted_ones() -> None:
    series = Series()
    series.add(START_US, 30, 10)
    drawn = difference_chart(series, axis_of(series), height=200, label="x")
    above = re.search(r'rect class="refused" x="0.0" y="([0-9.]+)" width="10" height="([0-9.]+)"', drawn)
    below = re.search(r'rect class="passed" x="0.0" y="([0-9.]+)" width="10" height="([0-9.]+)"', drawn)
    assert above and below
    assert float(above[1]) + float(above[2]) == float(below[1])
    assert float(below[2]) == 3 * float(above[2])
    assert "10 newly refused, 30 newly passed" in drawn


def test_the_busiest_keys_are_listed_once_whatever_the_number_of_rules(tmp_path: Path) -> None:
    requests = [(START_US, "10.0.0.9")] * 8 + [(START_US, "10.0.0.7")] * 2
    outcome = replayed(
        tmp_path, requests, policy(("a", "5/minute log"), ("b", "3/minute log"), ("c", "100/minute log"))
    )
    page = report(outcome, ["log"], 5)
    assert page.count("Busiest keys") == 1
    assert page.count("10.0.0.7") == 1
    assert ">b refused 5<" in page
    (busy, quiet) = outcome.results[0].busiest(5)
    assert (busy.key, busy.by, busy.requests, busy.refusals) == ("10.0.0.9", ("ip",), 8, (("b", 5),))
    assert (quiet.key, quiet.requests, quiet.refusals) == ("10.0.0.7", 2, ())


def test_a_comparison_shows_what_changes_over_time_by_rule_and_by_key(tmp_path: Path) -> None:
    requests = [(START_US + second * 1_000_000, client) for second in range(8) for client in ("10.0.0.9", "10.0.0.7")]
    requests += [(START_US + DAY_US, "10.0.0.5")] * 3
    first = policy(("all", "5/minute log"))
    second = policy(("all", "6/minute log"), ("new", "2/day log"))
    outcome = replayed(tmp_path, requests, first, second)
    assert outcome.difference is not None
    assert (outcome.difference.newly_denied, outcome.difference.newly_allowed) == (7, 0)
    assert outcome.difference.rules == {"new": [7, 0]}
    assert outcome.difference.most(2, denied=True) == [("10.0.0.7", 3), ("10.0.0.9", 3)]
    assert sum(refused for _, refused in outcome.difference.series.counts.values()) == 7
    page = report(outcome, ["log"], 5)
    assert "What changes" in page
    assert "the difference over time" in page
    assert "Newly refused, by key" in page
    assert "not there, now <code>2/day</code>" in page
    assert page.count("<details>") == 2
    assert summary(outcome, 1)["compare"]["by_rule"] == [{"name": "new", "newly_denied": 7, "newly_allowed": 0}]
    backwards = replayed(tmp_path, requests, second, first)
    assert summary(backwards, 1)["compare"]["top_newly_allowed"] == [{"key": "10.0.0.7", "requests": 3}]


def test_two_policies_that_agree_have_no_picture_of_a_difference(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, [(START_US, "x")], policy(("a", "5/minute")), policy(("a", "6/minute")))
    assert "the difference over time" not in report(outcome, ["log"], 5)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_nothing_that_matters_is_lost_at_any_width(tmp_path: Path, width: int) -> None:
    long_name = "a-rule-with-a-name-as-long-as-names-may-be-which-is-sixty-four-x"
    limits = "10/second burst 20; 200/minute log; 1000/hour; 10000/day fixed; 50000/week"
    requests = [(START_US + number, f"192.0.2.{number % 20}") for number in range(4000)]
    outcome = replayed(tmp_path, requests, policy((long_name, limits), ("short", "100/minute log")))
    lines = list(outcome_lines(outcome, 10, width))
    longest = len(f"{long_name} refused most often:")  # no name is folded
    assert all(len(line) <= max(width, longest) for line in lines)
    text = " ".join(" ".join(lines).split())
    for shown in (long_name, "4,000", "%", *limits.split("; "), "192.0.2.10", "UTC", "2026-01-05"):
        assert shown in text
    result = outcome.results[0]
    for rule in result.rules:
        assert f"{rule.matched:,} {rule.allowed:,} {rule.refused:,} " in text


def test_a_guessed_date_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "epa.log"
    log.write_text('h [29:23:53:25] "GET / HTTP/1.0" 200 5\n')
    outcome = replay([Log(log, Reading())], [("p", policy(("a", "5/minute")))], lambda step: None)
    lines = list(unread_lines(outcome.unread))
    assert len(lines) == 1
    assert lines[0].startswith(f"{log}: its times lack their month or their date: the first is taken for one of ")
    assert "lack their month" in report(outcome, ["log"], 5)
