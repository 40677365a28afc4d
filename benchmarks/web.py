"""Web applications under load: the share of their requests a second that remains with Headgate and its peers."""

from __future__ import annotations

import http.client
import multiprocessing
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from statistics import median
from typing import NamedTuple

from benchmarks.measuring import Section, Target
from benchmarks.servers import Load, processor_seconds, program, wrk
from benchmarks.web_apps.serving import serve

BARE = "alone"
HEADGATE = "headgate"
MANY = 1_000_000_000
FEW = 3
CLIENTS = 8
ORDER = (
    '{"customer": "c-1041", "express": true, "items": ['
    '{"name": "sluice board", "price": 12.5, "quantity": 4, "tags": ["oak", "spare"]}, '
    '{"name": "rack and pinion", "price": 310, "quantity": 1, "tags": []}, '
    '{"name": "grease", "price": 7.95, "quantity": 12}]}'
)


@dataclass(frozen=True, slots=True)
class Subject:
    """An application under load, by the function that builds it."""

    name: str
    function: str
    header: str = ""
    """A header that every response must have; "" where the limiter sends none."""

    limited: bool = True
    """Whether it can refuse requests."""

    every_turn: bool = False
    """Whether a target is about it, or relative to it: it is measured in every turn, the others in the first."""

    target: float = 0
    """The least share of the requests a second of `baseline`; 0 where it has no target."""

    baseline: str = BARE


@dataclass(frozen=True, slots=True)
class Comparison:
    """Subjects of one framework, all under one kind of server and of load."""

    title: str
    module: str
    server: str
    subjects: tuple[Subject, ...]
    path: str = "/"
    body: str = ""


ALONE = Subject(BARE, "bare", limited=False, every_turn=True)
CONSTANT = Subject("two constant headers", "constant_headers", "ratelimit", limited=False, every_turn=True)
EMPTY = "empty dependency"


def middlewares(plain_target: float, policy_target: float) -> tuple[Subject, ...]:
    """Headgate before an application, with plain limits and with a policy."""
    return (
        Subject(HEADGATE, "headgate", "ratelimit", every_turn=True, target=plain_target),
        Subject("headgate, policy", "headgate_policy", "ratelimit", every_turn=True, target=policy_target),
    )


ON_FASTAPI = (
    ALONE,
    CONSTANT,
    *middlewares(0.95, 0.96),
    Subject(EMPTY, "empty_dependency", limited=False, every_turn=True),
    Subject("headgate, dependency", "headgate_dependency", "ratelimit", every_turn=True, target=0.95, baseline=EMPTY),
    Subject("slowapi, middleware", "slowapi_middleware", "x-ratelimit-remaining"),
    Subject("slowapi, decorator", "slowapi_decorator", "x-ratelimit-remaining"),
    Subject("throttled-py", "throttled", "ratelimit-remaining"),
    Subject("fastapi-limiter (no headers)", "fastapi_limiter"),
)
COMPARISONS = (
    Comparison(
        "Starlette, uvicorn",
        "starlette_apps",
        "uvicorn",
        (
            ALONE,
            CONSTANT,
            *middlewares(0.90, 0.92),
            Subject("headgate, no headers", "headgate_silent", every_turn=True),
            Subject("headgate, decorator", "headgate_decorator", "ratelimit", every_turn=True, target=0.88),
            Subject("slowapi, middleware", "slowapi_middleware", "x-ratelimit-remaining"),
            Subject("slowapi, decorator", "slowapi_decorator", "x-ratelimit-remaining"),
            Subject("throttled-py", "throttled", "ratelimit-remaining"),
        ),
    ),
    Comparison("FastAPI, uvicorn", "fastapi_apps", "uvicorn", ON_FASTAPI),
    Comparison("FastAPI, models in and out", "fastapi_apps", "uvicorn", ON_FASTAPI, "/orders", ORDER),
    Comparison(
        "Flask, gunicorn",
        "flask_apps",
        "gunicorn",
        (
            ALONE,
            CONSTANT,
            *middlewares(0.95, 0.96),
            Subject("Flask-Limiter", "limiter", "x-ratelimit-remaining"),
            Subject("throttled-py", "throttled_py", "ratelimit-remaining"),
        ),
    ),
    Comparison(
        "Django, gunicorn",
        "django_apps",
        "gunicorn",
        (
            ALONE,
            CONSTANT,
            *middlewares(0.95, 0.96),
            Subject("headgate, policy, in Django", "headgate_django", "ratelimit"),
            Subject("django-ratelimit (no headers)", "django_ratelimit"),
            Subject("throttled-py", "throttled_py", "ratelimit-remaining"),
        ),
    ),
)
COLUMNS = (
    "application",
    "limited by",
    "requests a second",
    "of the bare one's",
    "added to a request",
    "one client: p50, p99",
)


class Served(NamedTuple):
    """A server that runs."""

    port: int
    pid: int


@dataclass(slots=True)
class Rounds:
    """The measurements of a subject; times in microseconds."""

    took: list[float] = field(default_factory=list)
    """The processor time of a request."""

    bare: list[float] = field(default_factory=list)
    """The processor time of a request of the bare application, at the same time."""

    paired: list[tuple[float, float]] = field(default_factory=list)
    """(a request of its baseline, its own), at the same time."""

    solitary: list[Load] = field(default_factory=list)
    """The results of one client that waits for each response."""


def run(quick: bool) -> Section:
    """Measure every comparison."""
    rows: list[tuple[str, ...]] = []
    targets: list[Target] = []
    if program("wrk") and program("taskset"):
        for comparison in COMPARISONS:
            measured = _measure(comparison, quick)
            rows += _rows(comparison, measured)
            targets += [_target(comparison, one, measured) for one in comparison.subjects if one.target]
    return Section(
        "Web applications",
        "uvicorn with httptools and uvloop, or gunicorn with one worker of four threads. All limits are so high that "
        "nothing is refused, count by the client's address, and are in memory; the policy is of ten rules, of which "
        "two are for the request, one by a header that it lacks; headers are on where a limiter has them. The empty "
        "dependency takes what Headgate's takes, and does nothing. throttled-py is used by its integrations for "
        "FastAPI and Flask, elsewhere by a middleware written here. Two constant headers are what no limiter that "
        "tells anything can do without. In each of many short rounds a subject and the bare application are loaded at "
        f"the same time, their servers on one core, a wrk with {CLIENTS} connections for each on another: what "
        "disturbs one disturbs both. All servers are started anew several times, since processes of one application "
        "differ, too. Requests a second are those of a whole core, by the processor time that the server took. The "
        "last column is what one client sees, alone, who waits for each answer, in the quietest of a few rounds.",
        COLUMNS,
        rows,
        targets,
    )


def _measure(comparison: Comparison, quick: bool) -> dict[str, Rounds]:
    """Serve all subjects, check their responses, and load them in turns."""
    bare, *others = comparison.subjects
    seconds, sets, turns = (0.1, 1, 3) if quick else (0.15, 6, 6)
    rounds = {subject.name: Rounds() for subject in comparison.subjects}
    for number in range(sets):
        with _served(comparison, comparison.subjects, MANY) as served:
            if number == 0:
                _verify(comparison, served)
            for server in served.values():
                _request(comparison, server)  # waits until the server has started
            _load(comparison, list(served.values()), 0.3, 2)  # warms them up
            for turn in range(turns):
                for subject in others:
                    if subject.every_turn or turn == 0:
                        own, is_reversed = served[subject.name], bool(turn % 2)
                        both = _load_both(comparison, served[bare.name], own, seconds, is_reversed)
                        rounds[bare.name].took.append(both[0])
                        rounds[subject.name].bare.append(both[0])
                        rounds[subject.name].took.append(both[1])
                        if subject.baseline != BARE:
                            both = _load_both(comparison, served[subject.baseline], own, seconds, is_reversed)
                        rounds[subject.name].paired.append(both)
            for name, server in served.items():
                rounds[name].solitary += _load(comparison, [server], 0.1, 1)
    return rounds


def _load_both(
    comparison: Comparison, bare: Served, subject: Served, seconds: float, is_reversed: bool
) -> tuple[float, float]:
    """Microseconds of processor time that a request took each of two servers under load at the same time.

    The load of the second one starts first where `is_reversed`.
    """
    both = [subject, bare] if is_reversed else [bare, subject]
    before = [processor_seconds(server.pid) for server in both]
    loads = _load(comparison, both, seconds, CLIENTS)
    took = [
        (processor_seconds(server.pid) - since) * 1e6 / load.requests
        for server, since, load in zip(both, before, loads, strict=True)
    ]
    first, second = reversed(took) if is_reversed else took
    return first, second


def _load(comparison: Comparison, servers: Sequence[Served], seconds: float, connections: int) -> list[Load]:
    urls = [f"http://127.0.0.1:{server.port}{comparison.path}" for server in servers]
    return wrk(urls, seconds=seconds, connections=connections, body=comparison.body)


def _rows(comparison: Comparison, measured: dict[str, Rounds]) -> list[tuple[str, ...]]:
    alone = _solitary(measured[BARE])
    rows: list[tuple[str, ...]] = []
    for name, one in measured.items():
        rate = f"{1e6 / median(one.took):,.0f}"
        middle, high = _solitary(one)
        if name == BARE:
            rows.append((comparison.title, name, rate, "", "", f"{middle:.0f} us, {high:.0f} us"))
            continue
        pairs = list(zip(one.bare, one.took, strict=True))
        kept = _spread([bare / own for bare, own in pairs], ".0%")
        added = _spread([own - bare for bare, own in pairs], ".1f")
        later = f"{middle - alone[0]:+.0f} us, {high - alone[1]:+.0f} us"
        rows.append((comparison.title, name, rate, kept, f"{added} us", later))
    return rows


def _spread(measured: Sequence[float], form: str) -> str:
    return f"{median(measured):{form}} ({min(measured):{form}} to {max(measured):{form}})"


def _solitary(rounds: Rounds) -> tuple[float, float]:
    """The median and the 99th percentile, each in its quietest round: what disturbs only adds."""
    return min(load.p50_us for load in rounds.solitary), min(load.p99_us for load in rounds.solitary)


def _target(comparison: Comparison, subject: Subject, measured: dict[str, Rounds]) -> Target:
    kept = median(other / own for other, own in measured[subject.name].paired)
    than = "the bare application" if subject.baseline == BARE else f"the application with an {subject.baseline}"
    return Target(
        f"{comparison.title}, {subject.name}: at least {subject.target:.0%} of the requests a second of {than}",
        f"{kept:.1%}",
        kept >= subject.target,
    )


@contextmanager
def _served(comparison: Comparison, subjects: Sequence[Subject], a_minute: int) -> Iterator[dict[str, Served]]:
    """Servers of these, by name, in processes forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    modules = ["serving", *(one.module for one in COMPARISONS)]
    context.set_forkserver_preload([f"benchmarks.web_apps.{module}" for module in modules])
    processes: list[ForkServerProcess] = []
    served = {}
    try:
        for subject in subjects:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                arguments = (comparison.server, comparison.module, subject.function, a_minute, listener)
                process = context.Process(target=serve, args=arguments, daemon=True)
                process.start()
                processes.append(process)
                served[subject.name] = Served(listener.getsockname()[1], process.pid or 0)
        yield served
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(10)
            process.kill()


def _verify(comparison: Comparison, served: dict[str, Served]) -> None:
    """Raise where a subject does not answer, lacks its header, or never refuses."""
    limited = [subject for subject in comparison.subjects if subject.limited]
    with _served(comparison, limited, FEW) as strict:
        for subject in comparison.subjects:
            status, headers = _request(comparison, served[subject.name])
            if status != 200 or (subject.header and subject.header not in headers):
                raise RuntimeError(f"{comparison.title}, {subject.name}: answered {status} with {headers}")
            if subject.limited:
                answers = [_request(comparison, strict[subject.name])[0] for _ in range(FEW + 1)]
                if answers != [200] * FEW + [429]:
                    raise RuntimeError(f"{comparison.title}, {subject.name}: {FEW} a minute were answered {answers}")


def _request(comparison: Comparison, served: Served) -> tuple[int, list[str]]:
    """The status and the names of the headers of one response."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    method = "POST" if comparison.body else "GET"
    connection.request(method, comparison.path, comparison.body or None, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, [name.lower() for name in response.headers]
