"""The proxy of language models: the time that it adds until the first byte, and what streams cost it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import uvloop

from benchmarks.measuring import Section, Target
from benchmarks.peer_programs import PEER_PYTHON, peer_program
from benchmarks.servers import free_port, processor_seconds

_STREAMS, _EVENTS, _PAUSE_S = 200, 50, 0.1
"""So many streams at once, each with so many events: together 2,000 events a second."""

_LONGEST_START_S = 120

_RULES = [
    {"name": name, "by": by, "limits": "1000000/minute; 1000000000 tokens/minute bucket; 1000000 usd/day in UTC"}
    for name, by in (("user", ["user"]), ("team", ["team"]), ("model", ["model"]))
]
_MESSAGE = {"role": "user", "content": "Tell me about the weather in the mountains, in fifty words. " * 5}
_BODY = json.dumps({"model": "m", "stream": True, "max_tokens": 100, "messages": [_MESSAGE]}).encode()


class Load(NamedTuple):
    """What streams took: milliseconds until the first byte of each, and how many of a core's seconds a second."""

    first_byte_ms: list[float]
    core_share: float

    def at(self, percent: int) -> float:
        """A percentile of the first bytes."""
        return quantiles(self.first_byte_ms, n=100, method="inclusive")[percent - 1]


def run(quick: bool) -> Section:
    """Ask a provider directly and through the proxy, in turns, with streams that begin evenly over their length."""
    rounds, seconds = (1, 6.0) if quick else (5, 15.0)
    direct: list[Load] = []
    proxied: list[Load] = []
    peers: list[Load] = []
    litellm = peer_program("litellm", "litellm[proxy]>=1.80,<2", PEER_PYTHON)
    with _provider() as (_, provider), _proxy(provider) as (process, proxy):
        uvloop.run(_load(provider, None, 1.0))
        uvloop.run(_load(proxy, None, 3.0))
        for _ in range(rounds):
            direct.append(uvloop.run(_load(provider, None, seconds)))
            proxied.append(uvloop.run(_load(proxy, process, seconds)))
    if litellm is not None:
        with _provider() as (_, provider), _litellm(litellm, provider) as (process, proxy):
            uvloop.run(_load(proxy, None, 3.0))
            peers.append(uvloop.run(_load(proxy, process, seconds)))
    added = {
        percent: median(after.at(percent) - before.at(percent) for before, after in zip(direct, proxied, strict=True))
        for percent in (50, 99)
    }
    share = median(load.core_share for load in proxied)
    peer_rows: list[tuple[str, ...]] = [("LiteLLM was not measured: it did not install", "", "", "")]
    peer_targets: list[Target] = []
    if peers:
        theirs = {percent: peers[0].at(percent) - median(load.at(percent) for load in direct) for percent in (50, 99)}
        told = tuple(f"{theirs[percent]:.2f}" for percent in (50, 99))
        peer_rows = [("added by LiteLLM's proxy, without a limit", *told, f"{peers[0].core_share:.2f}")]
        share_of = added[50] / theirs[50]
        peer_targets = [
            Target("at most a fifth of what LiteLLM's proxy adds", f"{share_of:.2f} of it", share_of <= 0.2)
        ]
    rows = [
        ("the provider alone", *(f"{median(load.at(percent) for load in direct):.2f}" for percent in (50, 99)), ""),
        ("through the proxy", *(f"{median(load.at(percent) for load in proxied):.2f}" for percent in (50, 99)),
         f"{share:.2f}"),
        ("added", *(f"{added[percent]:.2f}" for percent in (50, 99)), ""),
        *peer_rows,
    ]  # fmt: skip
    return Section(
        "The proxy of language models",
        f"`headgate llm serve` in one process, three rules with three limits each, in memory. {_STREAMS} streams are "
        f"open at a time, which begin evenly, each with {_EVENTS} events in {_EVENTS * _PAUSE_S:.0f} seconds: together "
        f"{_STREAMS / _PAUSE_S:,.0f} events a second. The provider and the client are processes of their own on the "
        "same cores. Milliseconds until the first byte of the body; the proxy's processor time in seconds a second.",
        ("", "first byte, median", "first byte, 99 %", "cores"),
        rows,
        [
            Target("the proxy adds at most 1.5 ms to the median first byte", f"{added[50]:.2f} ms", added[50] <= 1.5),
            Target("and at most 10 ms to the 99th percentile", f"{added[99]:.2f} ms", added[99] <= 10),
            Target("2,000 events a second take at most a quarter of a core", f"{share:.2f}", share <= 0.25),
            *peer_targets,
        ],
    )


async def _load(url: tuple[str, int], process: int | None, seconds: float) -> Load:
    """Keep the streams open for so long; those of the first and last moments are not counted."""
    length_s = _EVENTS * _PAUSE_S
    every_s = length_s / _STREAMS
    first: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    start, number = loop.time(), 0
    used, began = 0.0, 0.0
    while (now := loop.time()) < start + length_s + seconds:
        steady = now >= start + length_s
        if steady and not began:
            began, used = time.perf_counter(), processor_seconds(process) if process else 0.0
        task = asyncio.create_task(_stream(url, first if steady else []))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
        await asyncio.sleep(max(0.0, start + number * every_s - loop.time()))
    share = 0.0
    if process:
        share = (processor_seconds(process) - used) / (time.perf_counter() - began)
    await asyncio.gather(*tasks)
    return Load([seconds * 1000 for seconds in first], share)


async def _stream(url: tuple[str, int], first: list[float]) -> None:
    """One call on a connection of its own; a connection is made before the time is taken."""
    reader, writer = await asyncio.open_connection(*url)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    sent = f"{head}content-length: {len(_BODY)}\r\n\r\n".encode() + _BODY
    began = time.perf_counter()
    writer.write(sent)
    answered = await reader.readuntil(b"\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 200"), answered
    await reader.readuntil(b"\n\n")
    first.append(time.perf_counter() - began)
    end = b""
    while end != b"0\r\n\r\n" and (part := await reader.read(65536)):
        end = (end + part)[-5:]
    writer.close()


@contextmanager
def _provider() -> Iterator[tuple[int, tuple[str, int]]]:
    """A provider: its process, and where it is."""
    command = [sys.executable, "-m", "benchmarks.llm_provider", str(_EVENTS), str(_PAUSE_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, ("127.0.0.1", int(process.stdout.readline()))
        finally:
            process.kill()


@contextmanager
def _proxy(provider: tuple[str, int]) -> Iterator[tuple[int, tuple[str, int]]]:
    """A proxy before a provider: its process, and where it is."""
    with tempfile.TemporaryDirectory() as folder:
        policy, providers = Path(folder, "llm.yaml"), Path(folder, "providers.yaml")
        prices = {"m": {"input": "1", "output": "2"}}
        told = {"version": 1, "namespace": "llm", "store": "memory://", "llm": {"prices": prices}, "rules": _RULES}
        policy.write_text(json.dumps(told))
        url = f"http://{provider[0]}:{provider[1]}/v1"
        providers.write_text(json.dumps({"providers": [{"name": "p", "base_url": url}]}))
        command = [sys.executable, "-m", "headgate", "llm", "serve", str(policy), "--providers", str(providers)]
        with subprocess.Popen([*command, "--no-keys", "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                ready = re.search(r"on http://([0-9.]+):([0-9]+)/v1", process.stderr.readline())
                assert ready is not None
                yield process.pid, (ready[1], int(ready[2]))
            finally:
                process.kill()


@contextmanager
def _litellm(program: Path, provider: tuple[str, int]) -> Iterator[tuple[int, tuple[str, int]]]:
    """LiteLLM's proxy before a provider, without keys, a database or limits: its process, and where it is."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        model = {"model": "openai/m", "api_base": f"http://{provider[0]}:{provider[1]}/v1", "api_key": "x"}
        config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": model}]}))
        port = free_port()
        command: list[str | Path] = [
            program,
            "--config",
            config,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--num_workers",
            "1",
        ]
        quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_TELEMETRY": "True"}
        # Without a key it starts only where that is said. It costs it less so, and it listens on loopback alone.
        quiet["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **quiet}
        ) as process:
            try:
                _wait_for(port, process)
                yield process.pid, ("127.0.0.1", port)
            finally:
                process.kill()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until something listens."""
    deadline = time.monotonic() + _LONGEST_START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"LiteLLM's proxy ended with {process.returncode}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError("LiteLLM's proxy did not start")
