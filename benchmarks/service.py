"""The service: the processor time of each kind of request, in comparison with one that passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx

from benchmarks.measuring import Section, Target
from benchmarks.servers import processor_seconds, program, wrk

_POLICY = """\
version: 1
rules:
  - {name: login, match: {path: /login}, by: [ip], limits: 1/hour}
  - {name: all, by: [ip], limits: 1000000000/hour bucket, default: true}
"""
_CONNECTIONS = 8
_AT_MOST = {"GET": 1.5, "POST": 2.0}


class Question(NamedTuple):
    """A request and its expected status. `body` is posted where there is one."""

    name: str
    path: str
    status: int
    body: str = ""


_PASSES = Question("GET /check, passes", "/check/default/a", 200)
_QUESTIONS = [
    Question("GET /check, refused", "/check/default/login", 429),
    Question("GET /check-403, refused", "/check-403/default/login", 403),
    Question("POST /v1/check, passes", "/v1/check", 200, '{"request": {"path": "/a", "client_ip": "127.0.0.1"}}'),
    Question("POST /v1/check, refused", "/v1/check", 200, '{"request": {"path": "/login", "client_ip": "127.0.0.1"}}'),
]


def run(quick: bool) -> Section:
    """Load two services at the same time, on one core: one with requests that pass, the other with each kind."""
    seconds, rounds = (0.2, 3) if quick else (0.3, 15)
    ratios: dict[str, list[float]] = {question.name: [] for question in _QUESTIONS}
    passing: list[float] = []
    with _serving() as (one, at_one), _serving() as (other, at_other):
        for question in (_PASSES, *_QUESTIONS):
            for url in (at_one, at_other):
                _verify(url, question)
        for turn in range(rounds + 1):
            for question in _QUESTIONS:
                before = processor_seconds(one), processor_seconds(other)
                loads = wrk(
                    [at_one + _PASSES.path, at_other + question.path],
                    seconds=seconds, connections=_CONNECTIONS, body=["", question.body], refused=True,
                )  # fmt: skip
                after = processor_seconds(one), processor_seconds(other)
                times_us = [
                    (late - early) * 1e6 / load.requests for early, late, load in zip(before, after, loads, strict=True)
                ]
                if turn:  # the first warms up
                    passing.append(times_us[0])
                    ratios[question.name].append(times_us[1] / times_us[0])
    rows = [(_PASSES.name, f"{1e6 / median(passing):,.0f}", "")]
    for name, measured in ratios.items():
        middle = median(measured)
        times = f"{middle:.2f} ({min(measured):.2f} to {max(measured):.2f})"
        rows.append((name, f"{1e6 / (median(passing) * middle):,.0f}", times))
    worst = {
        method: max(median(ratios[question.name]) for question in _QUESTIONS if question.name.startswith(method))
        for method in _AT_MOST
    }
    return Section(
        "The service",
        "`headgate serve` with one process, a policy of two rules, in memory. In each of many short rounds two "
        f"services are loaded at the same time, on one core, by a wrk with {_CONNECTIONS} connections for each on "
        "another: one is asked what passes, the other the question of the row. Requests a second are those of a whole "
        "core, by the processor time that the service took; the last column compares that time in the same round.",
        ("question", "requests a second", "times the cost of one that passes"),
        rows,
        [
            Target(
                f"every {method} costs the service at most {most} times what a GET costs that passes",
                f"{worst[method]:.2f}",
                worst[method] <= most,
            )
            for method, most in _AT_MOST.items()
        ],
    )


@contextmanager
def _serving() -> Iterator[tuple[int, str]]:
    """The process and the address of a service on the first core, until the end of the block."""
    core = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.yaml")
        policy.write_text(_POLICY)
        command = [program("taskset") or "taskset", "-c", str(core)]
        command += [sys.executable, "-m", "headgate", "serve", str(policy), "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                ready = re.search(r"on (http://\S+),", process.stderr.readline())
                assert ready
                yield process.pid, ready[1]
            finally:
                process.terminate()


def _verify(url: str, question: Question) -> None:
    """Send a request twice, so that the limit of a refused one is exhausted, and check the status."""
    for _ in range(2):
        response = httpx.request("POST" if question.body else "GET", url + question.path, content=question.body)
    if response.status_code != question.status:
        raise RuntimeError(f"{question.name}: {response.status_code} {response.text}")
