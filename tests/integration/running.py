"""Real processes for tests: started on free ports of the loopback, and stopped whatever happens."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from fronts import DefaultFront

ADDRESS = re.compile(r"on (https?://\S+),")
START_WITHIN_S = 30


class RunningService:
    """`headgate serve` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], trusts: ssl.SSLContext | None = None) -> None:
        """`trusts` holds what its client trusts, where the service has a certificate."""
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self.wait_for(ADDRESS)[1]
        self.client = httpx.Client(base_url=self.url, timeout=10, verify=True if trusts is None else trusts)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def wait_for(
        self, pattern: re.Pattern[str] | str, after: int = 0, within_s: float = START_WITHIN_S
    ) -> re.Match[str]:
        """Wait until the process prints a line that matches, after its first `after` lines."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for line in self.lines[after:]:
                if match := re.search(pattern, line):
                    return match
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.02)
        raise AssertionError(f"{pattern} is not in what the service said:\n{''.join(self.lines)}")

    def check(
        self, path: str = "/", method: str = "GET", client: str = "203.0.113.9", **headers: str
    ) -> httpx.Response:
        """Send a check as a gateway does."""
        fields = {"X-Forwarded-Method": method, "X-Forwarded-Uri": path, "X-Forwarded-For": client, **headers}
        return self.client.get("/check/default", headers=fields)

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process to end, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.client.close()
            self._reader.join(5)
            if self.process.stderr is not None:
                self.process.stderr.close()


def headgate_command(*arguments: str) -> list[str]:
    """The command line of the headgate that is under test."""
    return [sys.executable, "-m", "headgate", *arguments]


def run_headgate(*arguments: str, input: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with results as wide as in a file whatever terminal the tests have."""
    return subprocess.run(
        headgate_command(*arguments),
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **environment},
        check=False,
    )


@contextmanager
def running_service(policy: Path, *arguments: str, trusts: ssl.SSLContext | None = None) -> Iterator[RunningService]:
    """Run a service on a free port until the end of the block; see `fronts` for what answers."""
    command = headgate_command("serve", str(policy), "--port", "0", *DefaultFront.options, *arguments)
    with service_of(command, trusts) as service:
        yield service


@contextmanager
def service_of(command: Sequence[str], trusts: ssl.SSLContext | None = None) -> Iterator[RunningService]:
    """Run the service that a command starts until the end of the block."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    service: RunningService | None = None
    try:
        service = RunningService(process, trusts)
        yield service
    finally:
        if service is not None:
            service.stop()
        else:
            process.kill()
            process.wait()
