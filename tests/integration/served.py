"""Real servers of applications, run from the command line as a user runs them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from test_several_workers import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def served(command: list[str], folder: Path = EXAMPLES) -> Iterator[httpx.Client]:
    """A client of a server that answers, until the end of the block; it must end by itself when asked to.

    `command` are the words after `python -m`; PORT stands for a free one.
    """
    port = str(free_port())
    words = [word.replace("PORT", port) for word in command]
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            deadline = time.monotonic() + 30
            while True:
                try:
                    client.options("/", headers={"Origin": "a", "Access-Control-Request-Method": "GET"})
                    break
                except httpx.TransportError:
                    assert process.poll() is None and time.monotonic() < deadline, process.communicate(timeout=5)
                    time.sleep(0.05)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert "Traceback" not in said, said
