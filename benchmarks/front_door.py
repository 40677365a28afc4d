"""The front door: checks a processor second, beside the Python service and an nginx that only answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx

from benchmarks.measuring import Section, Target
from benchmarks.servers import free_port, processor_seconds, program, running, wrk

_POLICY = """\
version: 1
client_ip: {header: X-Forwarded-For, trusted_proxies: [127.0.0.0/8]}
rules:
  - {name: all, by: [ip], limits: 1000000000/hour bucket}
"""
_NGINX = """
daemon off; worker_processes {workers}; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 512; }}
http {{
    access_log off; keepalive_requests 1000000000;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            add_header RateLimit-Policy '"all";q=1000000000;w=3600';
            add_header RateLimit '"all";r=999999999;t=3600';
            return 200;
        }}
    }}
}}
"""
_BODY = '{"request": {"path": "/a", "client_ip": "203.0.113.9"}}'
_CORES = sorted(os.sched_getaffinity(0))
_CONNECTIONS = 16
_CLIENTS = 60_000
_TIMES_PYTHON = 5
_PART_OF_NGINX = 0.5
_TIMES_ONE_CORE = 1.8


class Subject(NamedTuple):
    """A server, what it is asked, and by how many clients; 0 are one, whom no field names."""

    server: str
    path: str
    body: str = ""
    clients: int = 0


_NGINX_ANSWERS = Subject("nginx", "/")
_PYTHON = Subject("Python", "/check/default/a", clients=_CLIENTS)
_DOOR = Subject("door, 1 thread", "/check/default/a", clients=_CLIENTS)
_DOOR_ONE_KEY = Subject("door, 1 thread", "/check/default/a")
_PYTHON_BODY = Subject("Python", "/v1/check", _BODY)
_DOOR_BODY = Subject("door, 1 thread", "/v1/check", _BODY)
_SUBJECTS = {
    "nginx: a constant answer": _NGINX_ANSWERS,
    "Python: GET /check": _PYTHON,
    "front door: GET /check": _DOOR,
    "front door: GET /check, one key": _DOOR_ONE_KEY,
    "Python: POST /v1/check": _PYTHON_BODY,
    "front door: POST /v1/check": _DOOR_BODY,
}
_DOORS = ("door, 1 thread", "door, 2 threads")
_ON_TWO_CORES = {
    "": (_DOOR, _DOORS),
    "one key": (_DOOR_ONE_KEY, _DOORS),
    "nginx": (_NGINX_ANSWERS, ("nginx", "nginx, 2 workers")),
}
"""What is asked, and of which servers: on one core, and on two."""


def run(quick: bool) -> Section:
    """Load the servers in turns, each on the first core, or on two where it has two threads."""
    seconds, rounds = (0.2, 2) if quick else (0.4, 9)
    per_second: dict[Subject, list[float]] = {subject: [] for subject in _SUBJECTS.values()}
    more: dict[str, list[float]] = {"": [], "one key": [], "nginx": []}
    with ExitStack() as stack:
        servers = {
            "nginx": stack.enter_context(_nginx(1)),
            "nginx, 2 workers": stack.enter_context(_nginx(2)),
            "Python": stack.enter_context(_service(0)),
            "door, 1 thread": stack.enter_context(_service(1)),
            "door, 2 threads": stack.enter_context(_service(2)),
        }
        for turn in range(rounds + 1):
            for subject, measured in per_second.items():
                pid, url = servers[subject.server]
                before = processor_seconds(pid)
                [load] = wrk(
                    [url + subject.path], seconds=seconds, connections=_CONNECTIONS, body=subject.body,
                    clients=subject.clients,
                )  # fmt: skip
                if turn:  # the first warms up
                    measured.append(load.requests / (processor_seconds(pid) - before))
            for name, ratios in more.items():
                subject, servers_asked = _ON_TWO_CORES[name]
                one, two = (
                    _loaded_from_its_cores(servers[server][1] + subject.path, subject.clients, _CORES[:count], seconds)
                    for count, server in enumerate(servers_asked, 1)
                )
                if turn:
                    ratios.append(two / one)
        for subject in (_DOOR, _DOOR_BODY):
            _verify(servers[subject.server][1], subject)

    def ratio(one: Subject, other: Subject) -> float:
        return median(mine / its for mine, its in zip(per_second[one], per_second[other], strict=True))

    rows = []
    for name, subject in _SUBJECTS.items():
        measured = per_second[subject]
        rows.append((name, f"{median(measured):,.0f} ({min(measured):,.0f} to {max(measured):,.0f})"))
    on_two, on_two_one_key, nginx_on_two = (median(ratios) for ratios in more.values())
    return Section(
        "The front door",
        "`headgate serve` with a policy of one rule, in memory, asked by Python alone (`--threads 0`) and behind the "
        "native front door, and an nginx of one worker that answers `return 200` with the same fields. In short turns "
        f"a wrk with {_CONNECTIONS} connections on another core asks each of them, for {_CLIENTS:,} clients at random "
        "or for one. A processor second is one that the server had, with all its threads. Two cores are compared with "
        "one by what is answered in the same time where the load comes from the same cores: one thread each of the "
        "door and of wrk on one core, two on two; so is nginx, whose workers share nothing but the machine.",
        ("server and question", "checks a processor second"),
        rows,
        [
            Target(
                f"the front door decides at least {_TIMES_PYTHON} times as many checks a processor second as Python",
                f"{ratio(_DOOR, _PYTHON):.1f}",
                ratio(_DOOR, _PYTHON) >= _TIMES_PYTHON,
            ),
            Target(
                "and at least half as many as nginx gives constant answers",
                f"{ratio(_DOOR, _NGINX_ANSWERS):.2f}",
                ratio(_DOOR, _NGINX_ANSWERS) >= _PART_OF_NGINX,
            ),
            Target(
                f"on two cores it decides at least {_TIMES_ONE_CORE} times as many checks as on one, on one key too",
                f"{on_two:.2f}, on one key {on_two_one_key:.2f} (nginx with two workers: {nginx_on_two:.2f})",
                min(on_two, on_two_one_key) >= _TIMES_ONE_CORE,
            ),
        ],
    )


def _loaded_from_its_cores(url: str, clients: int, cores: Sequence[int], seconds: float) -> int:
    """How many requests a server answers in a time that it shares its cores with the load."""
    connections = _CONNECTIONS * len(cores)
    [load] = wrk([url], seconds=2 * seconds, connections=connections, clients=clients, cores=cores)
    return load.requests


@contextmanager
def _service(threads: int) -> Iterator[tuple[int, str]]:
    """The process and the address of a service, on the first core if it has one thread."""
    where = ",".join(str(core) for core in _CORES[: max(1, threads)])
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.yaml")
        policy.write_text(_POLICY)
        command = [program("taskset") or "taskset", "-c", where, sys.executable, "-m", "headgate", "serve"]
        command += [str(policy), "--port", "0", "--threads", str(threads)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                told = next((found for line in process.stderr if (found := re.search(r"on (http://\S+),", line))), None)
                assert told
                yield process.pid, told[1]
            finally:
                process.terminate()


@contextmanager
def _nginx(workers: int) -> Iterator[tuple[int, str]]:
    port = free_port()
    where = ",".join(str(core) for core in _CORES[:workers])
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "nginx.conf")
        configuration.write_text(_NGINX.format(folder=folder, port=port, workers=workers))
        command = [program("taskset") or "taskset", "-c", where, program("nginx") or "nginx"]
        with running([*command, "-p", folder, "-c", str(configuration)], port) as process:
            yield process.pid, f"http://127.0.0.1:{port}"


def _verify(url: str, subject: Subject) -> None:
    """See that the front door decides, and leaves nothing to Python."""
    answer = httpx.request("POST" if subject.body else "GET", url + subject.path, content=subject.body)
    shown = httpx.get(f"{url}/metrics").text
    left = re.search(r"^headgate_checks_left_to_python_total (\S+)", shown, re.MULTILINE)
    if answer.status_code != 200 or left is None or float(left[1]) > 0:
        raise RuntimeError(f"{subject}: {answer.status_code}, left to Python: {left and left[1]}")
