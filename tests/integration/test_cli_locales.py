"""The command where the locale knows ASCII alone, and Python may not use UTF-8 in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate import Gate
from headgate.policy.request import Request

POLICY = """version: 1
identities:
  org: {header: X-Org}
rules:
  - {name: search, by: [org], match: {path: /süche}, limits: 10/minute}
"""


def run_in_ascii(*arguments: str) -> str:
    """What the command prints, on both streams, after it ended with status 0."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(
        [sys.executable, "-m", "headgate", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=environment, check=True, timeout=60,
    )  # fmt: skip
    return result.stdout.decode()


@pytest.fixture
def policy(tmp_path: Path) -> str:
    file = tmp_path / "pölicy.yaml"
    file.write_text(POLICY, encoding="utf-8")
    return str(file)


def test_arguments_are_read_as_utf_8(policy: str) -> None:
    shown = run_in_ascii("explain", policy, "--path", "/süche", "--header", "X-Org:Müller")
    assert "+ search  path /süche" in shown and "counted by org: key " in shown


def test_a_key_is_the_one_that_a_request_with_the_same_text_has(policy: str, tmp_path: Path) -> None:
    store = f"shared://{tmp_path}/zone?size=4MiB"
    with Gate(policy, store=store) as gate:
        assert gate.hit(Request("GET", "/süche", headers=[("X-Org", "Müller")]))
    assert "9 of 10 left" in run_in_ascii("inspect", policy, "org=Müller", "--store", store)
    assert "search: forgot what " in run_in_ascii("reset", policy, "org=Müller", "--store", store)


def test_results_and_errors_are_printed(policy: str, tmp_path: Path) -> None:
    log = tmp_path / "lög.log"
    log.write_bytes(b'203.0.113.1 - - [01/Nov/2026:00:00:00 +0000] "GET /s\xc3\xbcche HTTP/1.1" 200 5 "\xff"\n')
    assert "1 request, 1 passed" in run_in_ascii("replay", "--policy", policy, str(log))
    assert run_in_ascii("replay", "--policy", policy, str(log), "--report", f"{log}.html").startswith("report in ")
    assert "search" in run_in_ascii("capacity", policy, "--users", "10", "--rate", "10")
    assert "no problems" in run_in_ascii("validate", policy)
