"""The proxy of language models: the time that it adds to the first byte, and the cost of streams."""

from __future__ import annotations

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
from statistics import median

import uvloop

from benchmarks.llm_streams import Address, Load, Streams, burst, steady
from benchmarks.measuring import Section, Target
from benchmarks.peer_programs import PEER_PYTHON, peer_program
from benchmarks.servers import free_port

_FULL = Streams(200, 50, 0.1)
_CALM = Streams(200, 10, 1.0)
"""As many streams, at a rate that LiteLLM's proxy can pass on in one process; it cannot keep up with `_FULL`."""

_BURST = 200
_LONGEST_START_S = 120

_RULES = [
    {"name": name, "by": by, "limits": "1000000/minute; 1000000000 tokens/minute bucket; 1000000 usd/day in UTC"}
    for name, by in (("user", ["user"]), ("team", ["team"]), ("model", ["model"]))
]


def run(quick: bool) -> Section:
    """Ask a provider directly and through proxies, in turns: seven minutes, two when it is quick."""
    rounds, seconds = (1, 8.0) if quick else (4, 15.0)
    full, at_once = _full_load(rounds, seconds)
    litellm = peer_program("litellm", PEER_PYTHON)
    calm = _calm_load(litellm, 1 if quick else 2, seconds)
    added, share = _added(full["proxy"], full["alone"]), median(load.core_share for load in full["proxy"])
    rows: list[tuple[str, ...]] = [
        _row(f"{_rate_text(_FULL)}: the provider alone", full["alone"]),
        _row("through the proxy", full["proxy"], share),
        ("added", f"{added[50]:.2f}", f"{added[99]:.2f}", ""),
        _row(f"{_BURST} calls in one instant: the provider alone", at_once["alone"]),
        _row("through the proxy", at_once["proxy"]),
        _row(f"{_rate_text(_CALM)}: the provider alone", calm["alone"]),
        _row("through the proxy", calm["proxy"], median(load.core_share for load in calm["proxy"])),
    ]
    targets = [
        Target("the proxy adds at most 1.5 ms to the median first byte", f"{added[50]:.2f} ms", added[50] <= 1.5),
        Target("and at most 10 ms to the 99th percentile", f"{added[99]:.2f} ms", added[99] <= 10),
        Target("2,000 events a second take at most a quarter of a core", f"{share:.2f}", share <= 0.25),
    ]
    if calm["litellm"]:
        rows.append(
            _row(
                "through LiteLLM's proxy, without a limit",
                calm["litellm"],
                median(load.core_share for load in calm["litellm"]),
            )
        )
        ours, theirs = _added(calm["proxy"], calm["alone"]), _added(calm["litellm"], calm["alone"])
        for percent, name in ((50, "median"), (99, "99th percentile")):
            part = ours[percent] / theirs[percent]
            measured = f"{ours[percent]:.2f} of {theirs[percent]:.2f} ms, {part:.2f} of it"
            targets.append(Target(f"at most a fifth of what LiteLLM's proxy adds to the {name}", measured, part <= 0.2))
    else:
        rows.append(("LiteLLM was not measured: it did not install", "", "", ""))
    return Section(
        "The proxy of language models",
        "`headgate llm serve` in one process, three rules with three limits each, in memory. Streams begin at random "
        f"moments. {_FULL.streams} are open at a time, each with {_FULL.events} events in {_FULL.length_s:.0f} seconds "
        f"({_FULL.events_a_second:,.0f} events and {_FULL.calls_a_second:.0f} calls a second), or, for a comparison "
        f"with a proxy that cannot keep up with that, with {_CALM.events} events in {_CALM.length_s:.0f} seconds "
        f"({_CALM.events_a_second:,.0f} events and {_CALM.calls_a_second:.0f} calls a second). Provider and client are "
        "processes of their own on the same cores. Milliseconds until the first byte of the body; the proxy's "
        "processor time in seconds a second.",
        ("", "first byte, median", "first byte, 99 %", "cores"),
        rows,
        targets,
    )


def _full_load(rounds: int, seconds: float) -> tuple[dict[str, list[Load]], dict[str, list[Load]]]:
    """(streams at the full rate, bursts), of the provider alone and through the proxy."""
    full: dict[str, list[Load]] = {"alone": [], "proxy": []}
    at_once: dict[str, list[Load]] = {"alone": [], "proxy": []}
    with _provider(_FULL) as provider, _proxy(provider) as (process, proxy):
        uvloop.run(steady(proxy, _FULL, None, 1.0))
        for _ in range(rounds):
            full["alone"].append(uvloop.run(steady(provider, _FULL, None, seconds)))
            full["proxy"].append(uvloop.run(steady(proxy, _FULL, process, seconds)))
            at_once["alone"].append(uvloop.run(burst(provider, _BURST)))
            at_once["proxy"].append(uvloop.run(burst(proxy, _BURST)))
    return full, at_once


def _calm_load(litellm: Path | None, rounds: int, seconds: float) -> dict[str, list[Load]]:
    """Streams at a rate that LiteLLM keeps up with, of the provider alone and through each proxy."""
    calm: dict[str, list[Load]] = {"alone": [], "proxy": [], "litellm": []}
    with _provider(_CALM) as provider:
        with _proxy(provider) as (process, proxy):
            uvloop.run(burst(proxy, 20))
            for _ in range(rounds):
                calm["alone"].append(uvloop.run(steady(provider, _CALM, None, seconds)))
                calm["proxy"].append(uvloop.run(steady(proxy, _CALM, process, seconds)))
        if litellm is not None:
            with _litellm(litellm, provider) as (process, proxy):
                uvloop.run(burst(proxy, 20))
                for _ in range(rounds):
                    calm["litellm"].append(uvloop.run(steady(proxy, _CALM, process, seconds)))
    return calm


def _added(after: list[Load], before: list[Load]) -> dict[int, float]:
    """What a proxy adds to the median and to the 99th percentile, in milliseconds."""
    return {
        percent: median(one.at(percent) - other.at(percent) for one, other in zip(after, before, strict=True))
        for percent in (50, 99)
    }


def _row(name: str, loads: list[Load], share: float | None = None) -> tuple[str, ...]:
    cells = (f"{median(load.at(percent) for load in loads):.2f}" for percent in (50, 99))
    return (name, *cells, "" if share is None else f"{share:.2f}")


def _rate_text(streams: Streams) -> str:
    return f"{streams.events_a_second:,.0f} events a second"


@contextmanager
def _provider(streams: Streams) -> Iterator[Address]:
    """The address of a provider that answers with such streams."""
    command = [sys.executable, "-m", "benchmarks.llm_provider", str(streams.events), str(streams.pause_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield "127.0.0.1", int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def _proxy(provider: Address) -> Iterator[tuple[int, Address]]:
    """A proxy before a provider: its process, and its address."""
    with tempfile.TemporaryDirectory() as folder:
        policy, providers = Path(folder, "llm.yaml"), Path(folder, "providers.yaml")
        prices = {"m": {"input": "1", "output": "2"}}
        content = {"version": 1, "namespace": "llm", "store": "memory://", "llm": {"prices": prices}, "rules": _RULES}
        policy.write_text(json.dumps(content))
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
def _litellm(program: Path, provider: Address) -> Iterator[tuple[int, Address]]:
    """LiteLLM's proxy before a provider, without keys, a database or limits: its process, and its address."""
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
        # Without a key it starts only with this. A missing key is to its advantage, and it listens on loopback alone.
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
