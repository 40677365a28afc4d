"""Logs of real servers, replayed and also counted by brute force.

The traces are not part of this repository; where they are absent, these tests are reported as skipped.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from running import run_headgate

pytestmark = pytest.mark.integration

DATA = Path(os.environ.get("HEADGATE_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real traces are not at {DATA}")

Line = tuple[int, str, str]
"""(time in microseconds, client, path)"""


def text_of(name: str) -> str:
    return gzip.decompress((DATA / name).read_bytes()).decode("utf-8", "replace")


def micros(moment: datetime) -> int:
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)


def netnea() -> list[Line]:
    lines = []
    for line in text_of("netnea-2015-09-access.log.gz").splitlines():
        match = re.match(r'(\S+) .*?\[([^\]]+)\] "([^"]*)"', line)
        assert match
        parts = match[3].split(" ")
        lines.append((micros(datetime.fromisoformat(match[2])), match[1], parts[1] if len(parts) > 1 else ""))
    return lines


def nasa() -> list[Line]:
    rows = csv.reader(io.StringIO(text_of("nasa-1995-07-01-first10k.tsv.gz")), delimiter="\t", quoting=csv.QUOTE_NONE)
    next(rows)
    return [(int(row[2]) * 1_000_000, row[0], row[4]) for row in rows]


def elastic() -> list[Line]:
    lines = []
    for line in text_of("elastic-apache_logs.log.gz").splitlines():
        match = re.match(r'(\S+) .*?\[([^\]]+)\] "([^"]*)"', line)
        assert match
        if line.count('"') % 2 == 0:  # line 8899 is cut off inside its last field
            moment = datetime.strptime(match[2], "%d/%b/%Y:%H:%M:%S %z")
            lines.append((micros(moment), match[1], match[3].split(" ")[1]))
    return lines


LOGS: dict[str, Callable[[], list[Line]]] = {
    "netnea-2015-09-access.log.gz": netnea,
    "nasa-1995-07-01-first10k.tsv.gz": nasa,
    "elastic-apache_logs.log.gz": elastic,
}


def count_log(lines: Iterable[Line], limit: int, period_us: int) -> dict[str, int]:
    """Count the refusals of each client under a sliding log that stores the time of every admitted request."""
    admitted: dict[str, deque[int]] = defaultdict(deque)
    refused: dict[str, int] = defaultdict(int)
    for time_us, client, _ in lines:
        moments = admitted[client]
        while moments and moments[0] <= time_us - period_us:
            moments.popleft()
        if len(moments) < limit:
            moments.append(time_us)
        else:
            refused[client] += 1
    return dict(refused)


def count_fixed(lines: Iterable[Line], limit: int, period_us: int) -> dict[str, int]:
    """Count the refusals of each client under a fixed window."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    refused: dict[str, int] = defaultdict(int)
    for time_us, client, _ in lines:
        window = (client, time_us // period_us)
        if counts[window] < limit:
            counts[window] += 1
        else:
            refused[client] += 1
    return dict(refused)


def replayed(name: str, policy: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(policy))
    completed = run_headgate("replay", str(DATA / name), "--policy", str(file), "--json", "--top", "1000")
    assert completed.returncode == 0, completed.stderr
    result: dict[str, Any] = json.loads(completed.stdout)
    return result


@needs_data
@pytest.mark.parametrize("name", LOGS)
def test_a_replay_refuses_what_brute_force_refuses(name: str, tmp_path: Path) -> None:
    lines = sorted(LOGS[name](), key=lambda line: line[0])
    for text, refused in (
        ("20/minute log", count_log(lines, 20, 60_000_000)),
        ("20/minute fixed", count_fixed(lines, 20, 60_000_000)),
        ("100/day log", count_log(lines, 100, 86_400_000_000)),
    ):
        report = replayed(name, {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": text}]}, tmp_path)
        assert report["requests"] == len(lines)
        assert report["denied"] == sum(refused.values())
        rule = report["rules"][0]
        assert rule["keys"] == len({client for _, client, _ in lines})
        assert {entry["key"]: entry["denied"] for entry in rule["top"]} == refused


@needs_data
def test_rules_by_path_count_the_requests_that_brute_force_counts(tmp_path: Path) -> None:
    lines = netnea()
    rules = [
        {"name": "cms", "match": {"path": "/cms/**"}, "by": [], "limits": "1000000/day"},
        {"name": "rest", "by": [], "limits": "1000000/day", "default": True},
    ]
    report = replayed("netnea-2015-09-access.log.gz", {"version": 1, "rules": rules}, tmp_path)
    cms = sum(f"{path.partition('?')[0]}/".startswith("/cms/") for _, _, path in lines)
    assert [rule["matched"] for rule in report["rules"]] == [cms, len(lines) - cms]


@needs_data
def test_the_tokens_of_a_trace_are_its_cost(tmp_path: Path) -> None:
    name = "AzureLLMInferenceTrace_conv.csv.gz"
    rows = list(csv.DictReader(io.StringIO(text_of(name))))
    costs = [int(row["ContextTokens"]) + int(row["GeneratedTokens"]) for row in rows]
    moments = [micros(datetime.fromisoformat(row["TIMESTAMP"][:26])) for row in rows]
    used = passed = window = 0
    for moment, cost in sorted(zip(moments, costs, strict=True), key=lambda pair: pair[0]):
        if moment // 60_000_000 != window:
            window, used = moment // 60_000_000, 0
        if used + cost <= 300_000:
            used, passed = used + cost, passed + cost
    file = tmp_path / "policy.yaml"
    rules = [{"name": "tokens", "by": [], "limits": "300000/minute fixed"}]
    file.write_text(json.dumps({"version": 1, "rules": rules}))
    field = "cost=ContextTokens+GeneratedTokens"
    report = json.loads(
        run_headgate("replay", str(DATA / name), "--policy", str(file), "--json", "--field", field).stdout
    )
    assert (report["requests"], report["cost_allowed"] + report["cost_denied"]) == (19_366, sum(costs))
    assert report["cost_allowed"] == passed
    assert report["cost_denied"] > 0


@needs_data
def test_a_replay_reports_the_known_facts_of_the_traces(tmp_path: Path) -> None:
    policy = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "1000000/day"}]}
    facts = {name: replayed(name, policy, tmp_path) for name in LOGS}
    assert [facts[name]["requests"] for name in LOGS] == [10_000, 9_999, 9_999]
    assert [facts[name]["unparsed"] for name in LOGS] == [0, 0, 1]
    assert [facts[name]["rules"][0]["keys"] for name in LOGS] == [890, 936, 1_753]
    assert facts["elastic-apache_logs.log.gz"]["unparsed_lines"][0]["line"] == 8899
    assert facts["netnea-2015-09-access.log.gz"]["first"] == "2015-09-02T10:42:51.003372Z"
