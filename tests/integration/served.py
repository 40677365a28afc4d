"""Real servers of applications, run from the command line as a user runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from test_several_workers import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def running(
    words: Sequence[str],
    answers: Callable[[int], bool],
    *,
    folder: Path = EXAMPLES,
    unsaid: Sequence[str] = ("Traceback",),
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """The port of a server that answers, until the end of the block; it must end by itself when asked to.

    `words` come after `python`; PORT stands for a free one. What is `unsaid` must not be in what it says.
    """
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, *(word.replace("PORT", str(port)) for word in words)],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        deadline = time.monotonic() + 30
        while not answers(port):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate(timeout=5)
            time.sleep(0.05)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert not any(word in said for word in unsaid), said


def answers_http(port: int) -> bool:
    """Whether somebody answers there; a preflight is not counted."""
    try:
        preflight = {"Origin": "a", "Access-Control-Request-Method": "GET"}
        httpx.options(f"http://127.0.0.1:{port}/", headers=preflight, timeout=20)
    except httpx.TransportError:
        return False
    return True


@contextmanager
def served(
    command: Sequence[str],
    folder: Path = EXAMPLES,
    *,
    unsaid: Sequence[str] = ("Traceback",),
    environment: Mapping[str, str] | None = None,
) -> Iterator[httpx.Client]:
    """A client of such a server; `command` are the words after `python -m`."""
    with (
        running(["-m", *command], answers_http, folder=folder, unsaid=unsaid, environment=environment) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):
        yield client
