"""Limiters with an HTTP API, to compare with the front door: throttlecrab, limitador and envoyproxy/ratelimit.

Each gets requests about one client, in the body of a POST, and admits all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.peer_programs import cargo_program, go_program
from benchmarks.servers import free_port, program, running

_THROTTLECRAB = "0.4.40"
_RATELIMIT = "v1.4.1-0.20260122083618-3fb702589d36"
_RATELIMIT_POLICY = """\
domain: bench
descriptors:
  - {key: ip, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
"""
_NO_LIMITADOR = "the registry of crates has no limitador-server"
"""Looked up in November 2026. A crate that gets this name later is not run before it is reviewed."""


class Peer(NamedTuple):
    """A limiter, its program or why there is none, its request about a client, and the response that admits it."""

    name: str
    program: Path | str
    path: str = ""
    body: str = ""
    admits: str = ""


THROTTLECRAB, LIMITADOR, RATELIMIT = "throttlecrab", "limitador", "envoyproxy/ratelimit"


def peers() -> dict[str, Peer]:
    """All peers by name; those that are not installed yet are built, which takes minutes."""
    a_client = '{"key": "203.0.113.9", "max_burst": 1000000000, "count_per_period": 1000000000, "period": 3600}'
    an_entry = '{"domain": "bench", "descriptors": [{"entries": [{"key": "ip", "value": "203.0.113.9"}]}]}'
    ratelimit = go_program("ratelimit", "github.com/envoyproxy/ratelimit/src/service_cmd", _RATELIMIT)
    all_peers = [
        Peer(
            THROTTLECRAB, cargo_program("throttlecrab-server", _THROTTLECRAB), "/throttle", a_client, '"allowed":true'
        ),
        Peer(LIMITADOR, _NO_LIMITADOR),
        Peer(RATELIMIT, ratelimit, "/json", an_entry, '"overallCode":"OK"'),
    ]
    return {peer.name: peer for peer in all_peers}


@contextmanager
def peer_running(peer: Peer, core: int, redis_port: int) -> Iterator[tuple[int, str]]:
    """The process and the address of a peer, on a core; envoyproxy/ratelimit keeps its counts in this Redis."""
    port = free_port()
    if peer.name == RATELIMIT:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "bench", "config").mkdir(parents=True)
            Path(folder, "bench", "config", "policy.yaml").write_text(_RATELIMIT_POLICY)
            environment = {
                "RUNTIME_ROOT": folder, "RUNTIME_SUBDIRECTORY": "bench", "RUNTIME_WATCH_ROOT": "false",
                "USE_STATSD": "false", "LOG_LEVEL": "error", "HOST": "127.0.0.1", "PORT": str(port),
                "GRPC_HOST": "127.0.0.1", "GRPC_PORT": str(free_port()), "DEBUG_HOST": "127.0.0.1",
                "DEBUG_PORT": str(free_port()), "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis_port}",
            }  # fmt: skip
            with _running(peer, [], environment, core, port) as served:
                yield served
    else:
        options = ["--http", "--http-host", "127.0.0.1", "--http-port", str(port), "--log-level", "error"]
        with _running(peer, options, {}, core, port) as served:
            yield served


@contextmanager
def _running(
    peer: Peer, options: Sequence[str], environment: Mapping[str, str], core: int, port: int
) -> Iterator[tuple[int, str]]:
    variables = [f"{name}={value}" for name, value in environment.items()]
    command = [program("taskset") or "taskset", "-c", str(core), "env", *variables, str(peer.program), *options]
    with running(command, port) as process:
        url = f"http://127.0.0.1:{port}"
        answer = httpx.post(url + peer.path, content=peer.body, headers={"content-type": "application/json"})
        if answer.status_code != 200 or peer.admits not in answer.text.replace(" ", ""):
            raise RuntimeError(f"{peer.name} does not admit: {answer.status_code} {answer.text}")
        yield process.pid, url
