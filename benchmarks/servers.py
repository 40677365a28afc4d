"""Servers that the benchmarks run on loopback (Redis and nginx), and load on any server by wrk."""

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
_REPORT_SCRIPT = """
done = function(summary, latency)
    local errors = summary.errors
    local failed = errors.status + errors.connect + errors.read + errors.write + errors.timeout
    io.write("load ", summary.requests, " ", failed, " ", latency:percentile(50), " ", latency:percentile(99), "\\n")
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
"""The head is formatted once: to format each one takes wrk longer than to send it, and a server that waits for its
load wakes up for each request."""


def program(name: str) -> str | None:
    """The path of a program; None where it is not installed."""
    return shutil.which(name, path=_PATHS)


def free_port() -> int:
    """A free port on loopback."""
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
    """The port of a Redis that writes nothing to disk."""
    port = free_port()
    command = [program("redis-server") or "redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
    with tempfile.TemporaryDirectory() as folder, running([*command, "--dir", folder], port):
        yield port


@dataclass(frozen=True, slots=True)
class CountedRedis:
    """A Redis whose instructions callgrind counts: the counts do not depend on the machine's load."""

    port: int
    pid: int
    folder: Path

    def instructions(self) -> int:
        """The number of instructions since the last call."""
        former = set(self.folder.glob("redis.*"))
        subprocess.run(["callgrind_control", "-d", str(self.pid)], capture_output=True, check=True)
        [dump] = set(self.folder.glob("redis.*")) - former
        match = re.search(r"^(?:summary|totals): (\d+)", dump.read_text(), re.MULTILINE)
        assert match, dump
        return int(match[1])


@contextmanager
def counted_redis(folder: Path) -> Iterator[CountedRedis]:
    """A Redis under callgrind, which writes its counts into a folder; the Redis writes nothing to disk."""
    port = free_port()
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'redis'}"]
    command += [program("redis-server") or "redis-server", "--port", str(port), "--save", "", "--hz", "1"]
    with running(command, port) as process:
        yield CountedRedis(port, process.pid, folder)


@dataclass(frozen=True, slots=True)
class Load:
    """The result of one wrk: the number of answered requests, and percentiles of their latency."""

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
    """Load all URLs at the same time, each on so many connections, from the last core; raises where a request fails.

    With `cores`, each URL is loaded from its own core.

    `seconds` are some tenths. wrk counts whole seconds, so it is interrupted just before the last tenth is over.
    A `body` is posted, one for each URL where there are several; "" sends GET without a body. With `refused`, a
    status of 400 and above is no failure. With `clients`, up to 65,536, each request names a random one in
    X-Forwarded-For.
    """
    cores_of_loads = cores or [max(os.sched_getaffinity(0))] * len(urls)
    bodies = [body] * len(urls) if isinstance(body, str) else body
    with ExitStack() as stack:
        started = []
        for url, posted, core in zip(urls, bodies, cores_of_loads, strict=True):
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".lua"))
            file.write(_REPORT_SCRIPT.replace("errors.status + ", "") if refused else _REPORT_SCRIPT)
            if posted:
                file.write(f"wrk.method = 'POST'\nwrk.body = [[{posted}]]\n")
                file.write("wrk.headers['Content-Type'] = 'application/json'\n")
            if clients:
                file.write(_RANDOM_CLIENTS.format(clients=clients))
            file.flush()
            command = [program("taskset") or "taskset", "-c", str(core), program("wrk") or "wrk", "-t1"]
            command += [f"-c{connections}", "-d30s", "-s", file.name, url]
            started.append(stack.enter_context(_process_with_output(command)))
        for process in started:
            _wait_until_interruptible(process.pid)
        time.sleep(seconds - 0.02)
        for process in started:
            process.send_signal(signal.SIGINT)
        return [_load(url, process.communicate(timeout=10)[0]) for url, process in zip(urls, started, strict=True)]


@contextmanager
def _process_with_output(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The process of a command whose output is captured; it is killed at the end of the block."""
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


def _load(url: str, output: str) -> Load:
    match = re.search(r"^load (\d+) (\d+) ([0-9.]+) ([0-9.]+)$", output, re.MULTILINE)
    if match is None or match[1] == "0" or match[2] != "0":
        raise RuntimeError(f"requests to {url} failed: {output}")
    return Load(int(match[1]), float(match[3]), float(match[4]))


def processor_seconds(pid: int) -> float:
    """The processor time of a process and its children.

    By the clock that clock_getcpuclockid(3) gives for a process: /proc counts in hundredths of a second.
    """
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return time.clock_gettime(~pid << 3 | 2) + sum(processor_seconds(int(child)) for child in children)


def nginx_requests_per_second(seconds: int) -> float:
    """Requests a second of nginx with `limit_req` on 100,000 keys, all admitted, with wrk on the same machine."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        configuration, script = Path(folder, "nginx.conf"), Path(folder, "keys.lua")
        configuration.write_text(_NGINX.format(folder=folder, port=port))
        script.write_text(_RANDOM_KEYS)
        with running([program("nginx") or "nginx", "-p", folder, "-c", str(configuration)], port):
            load = [program("wrk") or "wrk", "-t1", "-c32", f"-d{seconds}s", "-s", str(script)]
            done = subprocess.run(
                [*load, f"http://127.0.0.1:{port}/"], capture_output=True, text=True, check=True, timeout=60
            )
    match = re.search(r"Requests/sec:\s+([0-9.]+)", done.stdout)
    assert match and "Non-2xx" not in done.stdout, done.stdout
    return float(match[1])
