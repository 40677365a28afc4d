"""Servers that the benchmarks start on loopback and end again: Redis, nginx."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
_RANDOM_KEYS = """
request = function() return wrk.format("GET", "/?key=user" .. math.random(100000)) end
"""


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
def running(command: list[str], port: int) -> Iterator[None]:
    """A server that answers on its port, until the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with {process.returncode}")
            time.sleep(0.02)
        yield
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
