"""The front door: checks per processor second, compared with the Python service, other limiters, and nginx.

The door's targets are relative to the service as it was before there was a native gate.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx

from benchmarks.door_peers import RATELIMIT, Peer, peer_running, peers
from benchmarks.measuring import Section, Target
from benchmarks.peer_programs import headgate_of
from benchmarks.servers import free_port, processor_seconds, program, redis_server, running, wrk

BEFORE = "07449322b0d879d3d2fed473b7de6bb823b5a059"
"""The service that the targets were set by, long before the native gate."""

_POLICY = """\
version: 1
client_ip: {header: X-Forwarded-For, trusted_proxies: [127.0.0.0/8]}
rules:
  - {name: all, by: [ip], limits: 1000000000/hour bucket}
"""
_NGINX = """
daemon off; worker_processes {workers}; worker_cpu_affinity auto; pid {folder}/pid; error_log {folder}/error.log crit;
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
_TIMES_PYTHON_ON_REDIS = 3
_TIMES_RATELIMIT = 3
_PART_OF_NGINX = 0.5
_TIMES_ONE_CORE = 1.8


class Subject(NamedTuple):
    """A server, the request that it gets, and the number of clients that send it; 0 for one that no field names."""

    server: str
    path: str
    body: str = ""
    clients: int = 0


_NGINX_ANSWERS = Subject("nginx", "/")
_PYTHON = Subject("Python", "/check/default/a", clients=_CLIENTS)
_PYTHON_BEFORE = _PYTHON._replace(server="Python before")
_DOOR = Subject("door, 1 thread", "/check/default/a", clients=_CLIENTS)
_DOOR_ONE_KEY = Subject("door, 1 thread", "/check/default/a")
_PYTHON_BODY = Subject("Python", "/v1/check", _BODY)
_PYTHON_BODY_BEFORE = _PYTHON_BODY._replace(server="Python before")
_DOOR_BODY = Subject("door, 1 thread", "/v1/check", _BODY)
_PYTHON_ON_REDIS = Subject("Python on Redis", "/check/default/a", clients=_CLIENTS)
_PYTHON_ON_REDIS_BEFORE = _PYTHON_ON_REDIS._replace(server="Python on Redis before")
_DOOR_ON_REDIS = Subject("door on Redis", "/check/default/a", clients=_CLIENTS)
_SUBJECTS = {
    "nginx: a constant answer": _NGINX_ANSWERS,
    "Python: GET /check": _PYTHON,
    "front door: GET /check": _DOOR,
    "front door: GET /check, one key": _DOOR_ONE_KEY,
    "Python: POST /v1/check": _PYTHON_BODY,
    "front door: POST /v1/check": _DOOR_BODY,
    "Python on Redis: GET /check": _PYTHON_ON_REDIS,
    "front door on Redis: GET /check": _DOOR_ON_REDIS,
}
_SUBJECTS_BEFORE = {
    f"Python at {BEFORE[:7]}: GET /check": _PYTHON_BEFORE,
    f"Python at {BEFORE[:7]}: POST /v1/check": _PYTHON_BODY_BEFORE,
    f"Python at {BEFORE[:7]} on Redis: GET /check": _PYTHON_ON_REDIS_BEFORE,
}
_DOORS = ("door, 1 thread", "door, 2 threads")
_TWO_CORE_COMPARISONS = {
    "": (_DOOR, _DOORS),
    "one key": (_DOOR_ONE_KEY, _DOORS),
    "not pinned": (_DOOR, ("door, 1 thread", "door, 2 threads, not pinned")),
    "nginx": (_NGINX_ANSWERS, ("nginx", "nginx, 2 workers")),
}
"""The request, and the servers that get it: on one core, and on two."""

_TEXT = (
    "`headgate serve` with a policy of one rule, asked by Python alone (`--threads 0`) and behind the native "
    "front door, with its states in memory and in a Redis, and an nginx of one worker that answers `return 200` "
    "with the same fields. Beside them the Python service as it was at "
    f"{BEFORE[:7]}, long before the native gate, which the targets were set by: most of what Python has gained since "
    "is native, too. Other limiters are asked about one client in the body of a POST: throttlecrab, with its states "
    "in memory, and envoyproxy/ratelimit over HTTP, which keeps its counts in the same Redis. All are started anew "
    "several times, since processes of one program differ, too. In short turns a wrk "
    f"with {_CONNECTIONS} connections on another core asks each of them, for {_CLIENTS:,} clients at random or for "
    "one. A processor second is one that the process of the server had, with all its threads; those of Redis and "
    "of wrk count for none of them. Two cores are compared with one where the load comes from the same cores: on "
    "each a wrk and a thread of the door, kept there by `--pin-threads`, or not pinned; so is nginx, whose workers, "
    "one on each, share nothing but the machine. What is answered in the same time shows what a client gets, and "
    "falls with whatever holds up the cores, the rest of the machine included. What a processor second of the server "
    "gives on two cores, times two, over what it gives on one shows what the server loses by having two threads: "
    "by waiting in turns, by memory that travels between the cores, and by cores that are slower when both work. "
    "Time without work to do is in the first measure and not in the second."
)


def run(quick: bool) -> Section:
    """Load the servers in turns, each on the first core, or on two where it has two threads."""
    seconds, sets, turns = (0.2, 1, 2) if quick else (0.4, 3, 7)
    all_peers = peers()
    available = {name: peer for name, peer in all_peers.items() if isinstance(peer.program, Path)}
    earlier = headgate_of(BEFORE)
    subjects = _SUBJECTS | {_row_name(peer): _subject(peer) for peer in available.values()}
    if isinstance(earlier, Path):
        subjects |= _SUBJECTS_BEFORE
    per_second: dict[Subject, list[float]] = {subject: [] for subject in subjects.values()}
    scaled: dict[str, list[Scaled]] = {name: [] for name in _TWO_CORE_COMPARISONS}
    for _ in range(sets):
        with ExitStack() as stack:
            servers = _served(stack, earlier if isinstance(earlier, Path) else None, available)
            for turn in range(turns + 1):
                for subject, measured in per_second.items():
                    pid, url = servers[subject.server]
                    before = processor_seconds(pid)
                    [load] = wrk(
                        [url + subject.path], seconds=seconds, connections=_CONNECTIONS, body=subject.body,
                        clients=subject.clients,
                    )  # fmt: skip
                    if turn:  # the first warms up
                        measured.append(load.requests / (processor_seconds(pid) - before))
                for name, ratios in scaled.items():
                    subject, server_names = _TWO_CORE_COMPARISONS[name]
                    one, two = (
                        _loaded_from_its_cores(servers[server], subject, _CORES[:count], seconds)
                        for count, server in enumerate(server_names, 1)
                    )
                    if turn:
                        ratios.append(Scaled(two.requests / one.requests, 2 * two.per_second / one.per_second))
            for subject in (_DOOR, _DOOR_BODY):
                _verify(servers[subject.server][1], subject)

    rows = []
    for name, subject in subjects.items():
        measured = per_second[subject]
        rows.append((name, f"{median(measured):,.0f} ({min(measured):,.0f} to {max(measured):,.0f})"))
    if not isinstance(earlier, Path):
        rows.append((f"Python at {BEFORE[:7]}", f"not measured: {earlier}"))
    rows += [(peer.name, f"not measured: {peer.program}") for peer in all_peers.values() if peer.name not in available]
    return Section("The front door", _TEXT, ("server and question", "checks a processor second"), rows,
                   _targets(per_second, scaled, all_peers[RATELIMIT]))  # fmt: skip


def _served(stack: ExitStack, earlier: Path | None, available: dict[str, Peer]) -> dict[str, tuple[int, str]]:
    """(process, URL) of each server; all end with the stack."""
    redis_port = stack.enter_context(redis_server())
    on_redis = f"redis://127.0.0.1:{redis_port}/0"
    servers = {
        "nginx": stack.enter_context(_nginx(1)),
        "nginx, 2 workers": stack.enter_context(_nginx(2)),
        "Python": stack.enter_context(_service(0)),
        "door, 1 thread": stack.enter_context(_service(1)),
        "door, 2 threads": stack.enter_context(_service(2, pinned=True)),
        "door, 2 threads, not pinned": stack.enter_context(_service(2)),
        "Python on Redis": stack.enter_context(_service(0, on_redis)),
        "door on Redis": stack.enter_context(_service(1, on_redis)),
    }
    if earlier is not None:
        servers["Python before"] = stack.enter_context(_service(None, python=str(earlier)))
        servers["Python on Redis before"] = stack.enter_context(_service(None, on_redis, python=str(earlier)))
    for name, peer in available.items():
        servers[name] = stack.enter_context(peer_running(peer, _CORES[0], redis_port))
    return servers


def _targets(
    per_second: Mapping[Subject, list[float]], scaled: Mapping[str, list[Scaled]], ratelimit: Peer
) -> list[Target]:
    def ratio(one: Subject, other: Subject) -> float:
        return median(mine / its for mine, its in zip(per_second[one], per_second[other], strict=True))

    def times(requirement: str, door: Subject, before: Subject, today: Subject, least: float) -> Target:
        """The door in comparison with the former Python service; with that of today without a target."""
        if before not in per_second:
            return Target(requirement, f"not measured: {ratio(door, today):.1f} times Python of today", False)
        measured = f"{ratio(door, before):.1f} ({ratio(door, today):.1f} times Python of today)"
        return Target(requirement, measured, ratio(door, before) >= least)

    def on_two(measure: Callable[[Scaled], float]) -> tuple[str, bool]:
        door, one_key, not_pinned, nginx = (median(map(measure, ratios)) for ratios in scaled.values())
        text = f"{door:.2f}, on one key {one_key:.2f} (not pinned: {not_pinned:.2f}; two workers of nginx: {nginx:.2f})"
        return text, min(door, one_key) >= _TIMES_ONE_CORE

    peer = _subject(ratelimit)
    ratelimit_ratio = ratio(_DOOR_BODY, peer) if peer in per_second else None
    return [
        times(
            f"the front door decides at least {_TIMES_PYTHON} times as many checks a processor second as Python did",
            _DOOR,
            _PYTHON_BEFORE,
            _PYTHON,
            _TIMES_PYTHON,
        ),
        times(
            f"with a body, at least {_TIMES_PYTHON} times as many as Python did",
            _DOOR_BODY,
            _PYTHON_BODY_BEFORE,
            _PYTHON_BODY,
            _TIMES_PYTHON,
        ),
        Target(
            "and at least half as many as nginx gives constant answers",
            f"{ratio(_DOOR, _NGINX_ANSWERS):.2f}",
            ratio(_DOOR, _NGINX_ANSWERS) >= _PART_OF_NGINX,
        ),
        times(
            f"with Redis behind it, at least {_TIMES_PYTHON_ON_REDIS} times as many as Python did with the same Redis",
            _DOOR_ON_REDIS,
            _PYTHON_ON_REDIS_BEFORE,
            _PYTHON_ON_REDIS,
            _TIMES_PYTHON_ON_REDIS,
        ),
        Target(
            f"with a body and in memory, at least {_TIMES_RATELIMIT} times as many as envoyproxy/ratelimit over HTTP",
            "not measured" if ratelimit_ratio is None else f"{ratelimit_ratio:.1f}",
            ratelimit_ratio is not None and ratelimit_ratio >= _TIMES_RATELIMIT,
        ),
        Target(
            f"on two cores it answers at least {_TIMES_ONE_CORE} times as many checks as on one, on one key too",
            *on_two(lambda ratios: ratios.answered),
        ),
        Target(
            f"and, by processor seconds of the server alone, at least {_TIMES_ONE_CORE} times as many",
            *on_two(lambda ratios: ratios.by_processor),
        ),
    ]


def _row_name(peer: Peer) -> str:
    return f"{peer.name}: POST {peer.path}"


def _subject(peer: Peer) -> Subject:
    return Subject(peer.name, peer.path, peer.body)


class Loaded(NamedTuple):
    """The number of answered requests of a server, in total and per second of its processor time."""

    requests: int
    per_second: float


class Scaled(NamedTuple):
    """Two cores over one: by requests answered in the same time, and by twice the requests per processor second."""

    answered: float
    by_processor: float


def _loaded_from_its_cores(server: tuple[int, str], subject: Subject, cores: Sequence[int], seconds: float) -> Loaded:
    """The load that a server answers while it shares its cores with the clients."""
    pid, url = server
    before = processor_seconds(pid)
    urls = [url + subject.path] * len(cores)
    loads = wrk(urls, seconds=2 * seconds, connections=_CONNECTIONS, clients=subject.clients, cores=cores)
    requests = sum(load.requests for load in loads)
    return Loaded(requests, requests / (processor_seconds(pid) - before))


@contextmanager
def _service(
    threads: int | None, store: str = "", *, pinned: bool = False, python: str = sys.executable
) -> Iterator[tuple[int, str]]:
    """The process and the address of a service, on the first core if it has one thread; its store is memory or this.

    `threads` is None for a version without that option; with `pinned` each thread stays on a core.
    """
    core_list = ",".join(str(core) for core in _CORES[: max(1, threads or 0)])
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.yaml")
        policy.write_text(_POLICY)
        command = [program("taskset") or "taskset", "-c", core_list, python, "-m", "headgate", "serve"]
        command += [str(policy), "--port", "0", *([] if threads is None else ["--threads", str(threads)])]
        command += ["--pin-threads"] if pinned else []
        command += ["--store", store] if store else []
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                address = next((hit for text in process.stderr if (hit := re.search(r"on (http://\S+),", text))), None)
                assert address
                yield process.pid, address[1]
            finally:
                process.terminate()


@contextmanager
def _nginx(workers: int) -> Iterator[tuple[int, str]]:
    port = free_port()
    core_list = ",".join(str(core) for core in _CORES[:workers])
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "nginx.conf")
        configuration.write_text(_NGINX.format(folder=folder, port=port, workers=workers))
        command = [program("taskset") or "taskset", "-c", core_list, program("nginx") or "nginx"]
        with running([*command, "-p", folder, "-c", str(configuration)], port) as process:
            yield process.pid, f"http://127.0.0.1:{port}"


def _verify(url: str, subject: Subject) -> None:
    """Check that the front door decides, and leaves no request to Python."""
    response = httpx.request("POST" if subject.body else "GET", url + subject.path, content=subject.body)
    metrics = httpx.get(f"{url}/metrics").text
    left_to_python = re.search(r"^headgate_checks_left_to_python_total (\S+)", metrics, re.MULTILINE)
    if response.status_code != 200 or left_to_python is None or float(left_to_python[1]) > 0:
        raise RuntimeError(f"{subject}: {response.status_code}, left to Python: {left_to_python and left_to_python[1]}")
