"""Servers that the benchmarks start on loopback and end again, Redis and nginx, and the load of wrk on any."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

_PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
_NGINX = """
daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 512; }}
http {{
    access_log off; keepalive_requests 1000000000;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    limit_req_zone $arg_key zone=keys:64m rate=1000000r/s;
    server {{
        listen 127.0.0.1:{port};
        location / {{ limit_req zone=keys burst=1000000 nodelay; empty_gif; }}
    }}
}}
"""
_TELL = """
done = function(summary, latency)
    local errors = summary.errors
    local failed = errors.status + errors.connect + errors.read + errors.write + errors.timeout
    io.write("told ", summary.requests, " ", failed, " ", latency:percentile(50), " ", latency:percentile(99), "\\n")
end
"""
_RANDOM_KEYS = """
request = function() return wrk.format("GET", "/?key=user" .. math.random(100000)) end
"""
_RANDOM_CLIENTS = """
init = function()
    wrk.headers["X-Forwarded-For"] = "@"
    local head = wrk.format()
    local place = head:find("@", 1, true)
    before, after = head:sub(1, place - 1) .. "10.0.", head:sub(place + 1)
end
request = function()
    local client = math.random({clients}) - 1
    return before .. math.floor(client / 256) .. "." .. client % 256 .. after
end
"""
"""The head is put together once: to format each one takes wrk longer than to send it, and a server that waits for its
load wakes up for each request."""


def program(name: str) -> str | None:
    """Where a program is, if it is installed."""
    return shutil.which(name, path=_PATHS)


def free_port() -> int:
    """A port of the loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a server that answers on its port, until the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with {process.returncode}")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def redis_server() -> Iterator[int]:
    """The port of a Redis that keeps nothing on disk."""
    port = free_port()
    command = [program("redis-server") or "redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
    with tempfile.TemporaryDirectory() as folder, running([*command, "--dir", folder], port):
        yield port


@dataclass(frozen=True, slots=True)
class CountedRedis:
    """A Redis whose instructions callgrind counts: the same on every machine, however busy."""

    port: int
    pid: int
    folder: Path

    def instructions(self) -> int:
        """Those since the last call."""
        former = set(self.folder.glob("redis.*"))
        subprocess.run(["callgrind_control", "-d", str(self.pid)], capture_output=True, check=True)
        [told] = set(self.folder.glob("redis.*")) - former
        found = re.search(r"^(?:summary|totals): (\d+)", told.read_text(), re.MULTILINE)
        assert found, told
        return int(found[1])


@contextmanager
def counted_redis(folder: Path) -> Iterator[CountedRedis]:
    """A Redis under callgrind, which writes into a folder, and keeps nothing itself."""
    port = free_port()
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'redis'}"]
    command += [program("redis-server") or "redis-server", "--port", str(port), "--save", "", "--hz", "1"]
    with running(command, port) as process:
        yield CountedRedis(port, process.pid, folder)


@dataclass(frozen=True, slots=True)
class Load:
    """What one wrk saw: how many requests were answered, and how long one took."""

    requests: int
    p50_us: float
    p99_us: float


def wrk(
    urls: Sequence[str],
    *,
    seconds: float,
    connections: int,
    body: str | Sequence[str] = "",
    refused: bool = False,
    clients: int = 0,
    cores: Sequence[int] = (),
) -> list[Load]:
    """Ask all of these at once, each on so many connections, from the last core; raises where a request fails.

    With `cores`, each is asked from its own of them.

    `seconds` are some tenths. wrk counts whole seconds, so it is interrupted just before the last tenth is over.
    A `body` is posted, for each of the URLs its own where there are several; "" asks without. With `refused`, a
    status of 400 and above is no failure. Of so many `clients`, up to 65,536, one at random is named in
    X-Forwarded-For.
    """
    own = cores or [max(os.sched_getaffinity(0))] * len(urls)
    bodies = [body] * len(urls) if isinstance(body, str) else body
    with ExitStack() as stack:
        started = []
        for url, posted, core in zip(urls, bodies, own, strict=True):
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".lua"))
            file.write(_TELL.replace("errors.status + ", "") if refused else _TELL)
            if posted:
                file.write(f"wrk.method = 'POST'\nwrk.body = [[{posted}]]\n")
                file.write("wrk.headers['Content-Type'] = 'application/json'\n")
            if clients:
                file.write(_RANDOM_CLIENTS.format(clients=clients))
            file.flush()
            command = [program("taskset") or "taskset", "-c", str(core), program("wrk") or "wrk", "-t1"]
            command += [f"-c{connections}", "-d30s", "-s", file.name, url]
            started.append(stack.enter_context(_told(command)))
        for process in started:
            _wait_until_interruptible(process.pid)
        time.sleep(seconds - 0.02)
        for process in started:
            process.send_signal(signal.SIGINT)
        return [_load(url, process.communicate(timeout=10)[0]) for url, process in zip(urls, started, strict=True)]


@contextmanager
def _told(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program whose output is read; it does not outlive the block."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_until_interruptible(pid: int) -> None:
    """Wait, for at most ten seconds, until a process has a handler for SIGINT."""
    for _ in range(2000):
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        if caught and int(caught[1], 16) >> (signal.SIGINT - 1) & 1:
            return
        time.sleep(0.005)


def _load(url: str, told: str) -> Load:
    match = re.search(r"^told (\d+) (\d+) ([0-9.]+) ([0-9.]+)$", told, re.MULTILINE)
    if match is None or match[1] == "0" or match[2] != "0":
        raise RuntimeError(f"requests to {url} failed: {told}")
    return Load(int(match[1]), float(match[3]), float(match[4]))


def processor_seconds(pid: int) -> float:
    """What a process and its children have had of the processors.

    By the clock that clock_getcpuclockid(3) gives for a process: /proc counts in hundredths of a second.
    """
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return time.clock_gettime(~pid << 3 | 2) + sum(processor_seconds(int(child)) for child in children)


def nginx_requests_per_second(seconds: int) -> float:
    """What nginx answers while `limit_req` judges 100,000 keys and admits all, asked by wrk on the same machine."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        configuration, script = Path(folder, "nginx.conf"), Path(folder, "keys.lua")
        configuration.write_text(_NGINX.format(folder=folder, port=port))
        script.write_text(_RANDOM_KEYS)
        with running([program("nginx") or "nginx", "-p", folder, "-c", str(configuration)], port):
            load = [program("wrk") or "wrk", "-t1", "-c32", f"-d{seconds}s", "-s", str(script)]
            told = subprocess.run(
                [*load, f"http://127.0.0.1:{port}/"], capture_output=True, text=True, check=True, timeout=60
            )
    match = re.search(r"Requests/sec:\s+([0-9.]+)", told.stdout)
    assert match and "Non-2xx" not in told.stdout, told.stdout
    return float(match[1])
