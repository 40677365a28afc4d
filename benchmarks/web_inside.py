"""Web applications without a server: the time that a limiter adds to a request, in turns in one process."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from statistics import median
from typing import Any

from benchmarks.measuring import Section
from benchmarks.web import BARE, COMPARISONS, CONSTANT, MANY, Comparison

TimedRequests = Callable[[int], float]
"""Has an application answer so many requests; returns the microseconds of one."""

ADDRESS = ("127.0.0.1", 50_000)
COLUMNS = ("application", "limited by", "a request", "added", "beyond two constant headers")


def run(quick: bool) -> Section:
    """Measure every comparison of `benchmarks.web`, but for the peers."""
    rounds, requests = (10, 40) if quick else (150, 80)
    rows: list[tuple[str, ...]] = []
    for comparison in COMPARISONS:
        rows += _rows(comparison, _measure(comparison, rounds, requests))
    return Section(
        "Web applications without a server",
        "The applications of the section before, called as their servers call them, all in one process and in turns: "
        f"{requests} requests each, {rounds} times. Nothing is sent or written to a socket, so what a limiter adds is "
        "all its own, but for what the server takes to write two more header lines. A time is that of the thread, "
        "the median of all rounds; what is added is the median of the differences in each round.",
        COLUMNS,
        rows,
    )


def _measure(comparison: Comparison, rounds: int, requests: int) -> dict[str, list[float]]:
    """Microseconds of a request, by subject and round."""
    names = {subject.name: subject.function for subject in comparison.subjects if subject.every_turn}
    applications = {name: built(comparison, function, MANY) for name, function in names.items()}
    times_us: dict[str, list[float]] = {name: [] for name in names}
    with _callers(comparison, applications) as callers:
        for one in callers.values():
            one(requests)  # warms it up
        for turn in range(rounds):
            for name in list(callers) if turn % 2 else reversed(callers):
                times_us[name].append(callers[name](requests))
    return times_us


def built(comparison: Comparison, function: str, a_minute: int) -> Any:
    """The application that a function of a comparison's module builds."""
    return getattr(import_module(f"benchmarks.web_apps.{comparison.module}"), function)(a_minute)


def _rows(comparison: Comparison, times_us: dict[str, list[float]]) -> Iterator[tuple[str, ...]]:
    for name, own in times_us.items():
        if name == BARE:
            yield comparison.title, name, f"{median(own):.1f} us", "", ""
            continue
        base = next(subject.baseline for subject in comparison.subjects if subject.name == name)
        added = _added(own, times_us[base])
        beyond = "" if name == CONSTANT.name or base != BARE else _added(own, times_us[CONSTANT.name])
        yield (
            comparison.title,
            name,
            f"{median(own):.1f} us",
            added + ("" if base == BARE else f" to {base}"),
            beyond,
        )


def _added(own: list[float], other: list[float]) -> str:
    return f"{median(one - before for one, before in zip(own, other, strict=True)):.2f} us"


@contextmanager
def _callers(comparison: Comparison, applications: dict[str, Any]) -> Iterator[dict[str, TimedRequests]]:
    """A caller for each application, which calls it as its kind of server does."""
    if comparison.server == "gunicorn":
        yield {name: _wsgi_caller(application, comparison) for name, application in applications.items()}
        return
    with asyncio.Runner() as runner:
        yield {name: asgi_caller(runner, application, comparison) for name, application in applications.items()}


def asgi_caller(runner: asyncio.Runner, application: Any, comparison: Comparison) -> TimedRequests:
    """A caller of an ASGI application, which calls it as a server does."""
    method, body = ("POST", comparison.body.encode()) if comparison.body else ("GET", b"")
    message = {"type": "http.request", "body": body, "more_body": False}
    headers = [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json"), (b"accept", b"*/*")]

    async def receive() -> Any:
        return message

    async def send(response_message: Any) -> None:
        if response_message["type"] == "http.response.start" and response_message["status"] != 200:
            raise RuntimeError(f"{comparison.title}: answered {response_message}")

    async def send_requests(requests: int) -> float:
        start_ns = time.thread_time_ns()
        for _ in range(requests):
            scope = {
                "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
                "server": ("127.0.0.1", 8000), "client": ADDRESS, "scheme": "http", "method": method,
                "root_path": "", "path": comparison.path, "raw_path": comparison.path.encode(),
                "query_string": b"", "headers": list(headers), "state": {},
            }  # fmt: skip
            await application(scope, receive, send)
        return (time.thread_time_ns() - start_ns) / requests / 1000

    return lambda requests: runner.run(send_requests(requests))


def _wsgi_caller(application: Any, comparison: Comparison) -> TimedRequests:
    def start_response(status: str, headers: Any, *error: Any) -> None:
        if not status.startswith("200"):
            raise RuntimeError(f"{comparison.title}: answered {status}")

    def send_requests(requests: int) -> float:
        start_ns = time.thread_time_ns()
        for _ in range(requests):
            parts = application(
                {
                    "REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "PATH_INFO": comparison.path, "QUERY_STRING": "",
                    "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "8000", "SERVER_PROTOCOL": "HTTP/1.1",
                    "REMOTE_ADDR": ADDRESS[0], "HTTP_HOST": "127.0.0.1:8000", "HTTP_ACCEPT": "*/*",
                    "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(),
                    "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": False,
                    "wsgi.run_once": False,
                },
                start_response,
            )  # fmt: skip
            for _ in parts:
                pass
            if hasattr(parts, "close"):
                parts.close()
        return (time.thread_time_ns() - start_ns) / requests / 1000

    return send_requests
