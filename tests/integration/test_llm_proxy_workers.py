"""The proxy in several processes: one set of limits, of figures and of books, whoever answers and whoever dies."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from provider import Provider, running_provider
from redis_servers import Server, single
from running import RunningService, headgate_command, run_headgate, service_of
from running_proxy import PRICES, at, wait_until

from headgate import core
from headgate.cli.commands import headgate
from headgate.llm import LlmGate

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(core.native is None, reason="workers share a store, which needs the native core"),
]

ENOUGH = 24
"""Connections that reach both of two workers, but for once in 2**23 times."""

BODY: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with single() as server:
        yield server


@pytest.fixture
def zone(tmp_path: Path) -> str:
    """The URL of a zone that no other test has."""
    return f"shared://{tmp_path}/zone?size=4MiB"


def write(folder: Path, provider: Provider, limits: str, store: str) -> tuple[str, str]:
    """The files of a policy of one rule and of a provider, each put in its place in one step."""
    rule = {"name": "all", "by": ["model"], "limits": limits, "hold": "max"}
    told = {"version": 1, "namespace": "llm", "store": store, "llm": {"prices": PRICES}, "rules": [rule]}
    for name, text in (("llm.yaml", told), ("providers.yaml", {"providers": [at(provider)]})):
        new = folder / f"{name}.new"
        new.write_text(json.dumps(text))
        new.replace(folder / name)
    return str(folder / "llm.yaml"), str(folder / "providers.yaml")


@contextmanager
def running(folder: Path, *words: str) -> Iterator[RunningService]:
    """`headgate llm serve` with two workers on the files of a folder."""
    files = (str(folder / "llm.yaml"), "--providers", str(folder / "providers.yaml"))
    command = headgate_command("llm", "serve", *files, "--port", "0", "--workers", "2", *words)
    with service_of(command) as service:
        yield service


def ask(service: RunningService, **more: Any) -> httpx.Response:
    """A call on a connection of its own."""
    headers = more.pop("headers", {})
    return httpx.post(f"{service.url}/chat/completions", json={**BODY, **more}, headers=headers, timeout=30)


def figures(service: RunningService) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels; none is there twice."""
    text = httpx.get(f"{service.url.removesuffix('/v1')}/metrics", timeout=30).text
    samples = [
        ((sample.name, *sorted(sample.labels.values())), sample.value)
        for family in text_string_to_metric_families(text) for sample in family.samples
    ]  # fmt: skip
    assert max(Counter(name for name, _ in samples).values()) == 1
    return dict(samples)


def calls(service: RunningService, outcome: str) -> float:
    return figures(service).get(("headgate_llm_calls_total", *sorted(("chat", "m", outcome))), 0.0)


def workers_of(service: RunningService) -> list[int]:
    pid = service.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_exactly_the_limit_passes_and_all_count_as_one(provider: Provider, tmp_path: Path, zone: str) -> None:
    write(tmp_path, provider, "20/hour; 1 usd/day in UTC", zone)
    books = tmp_path / "books.jsonl"
    with running(tmp_path, "--no-keys", "--books", str(books)) as proxy:
        with ThreadPoolExecutor(8) as threads:
            statuses = Counter(threads.map(lambda _: ask(proxy).status_code, range(60)))
        assert statuses == {200: 20, 429: 40}
        for _ in range(ENOUGH):  # whichever worker tells them
            told = figures(proxy)
            assert told["headgate_llm_calls_total", "answered", "chat", "m"] == 20
            assert told["headgate_llm_calls_total", "chat", "m", "refused"] == 40
            assert told["headgate_llm_tokens_total", "m", "output"] == 60
            assert told["headgate_llm_cost_nano_usd_total", "m"] == 20 * 18_000
            assert told[("headgate_llm_calls_under_way",)] == told[("headgate_llm_held_tokens",)] == 0
            assert told[("headgate_llm_first_byte_seconds_count", "chat")] == 20
            assert told[("headgate_workers",)] == 2
        assert proxy.stop() == 0
    report = CliRunner().invoke(headgate, ["llm", "report", str(books), "--by", "model", "--format", "json"])
    assert report.exit_code == 0
    [row] = json.loads(report.stdout)["rows"]
    assert row["calls"] == 20


def left(store: str) -> dict[str, int]:
    """What the limits of the written policy have on a store, as another process sees it."""
    limits = {"name": "all", "by": ["model"], "limits": "40/hour; 1 usd/day in UTC", "hold": "max"}
    policy = {"version": 1, "namespace": "llm", "llm": {"prices": PRICES}, "rules": [limits]}
    with LlmGate(policy, store=store) as gate:
        call = gate.reserve("m", input_tokens=0, max_tokens=0)
        readings = {reading.name: reading.remaining for reading in call.decision.limits}
        call.cancel()
    return readings


def test_a_budget_on_redis_is_exact_over_all_workers_though_one_is_killed(
    provider: Provider, tmp_path: Path, server: Server
) -> None:
    store = f"{server.url}?timeout=10s"
    write(tmp_path, provider, "40/hour; 1 usd/day in UTC", store)
    with running(tmp_path, "--no-keys") as proxy:
        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(lambda _: ask(proxy).status_code, range(ENOUGH))) == {200}
        assert figures(proxy)[("headgate_workers",)] == 2
        assert left(store)["all.usd.day"] == 10**9 - ENOUGH * 18_000
        provider.behave("m", words=("a",) * 500, delay_s=0.01)
        try:
            with httpx.stream("POST", f"{proxy.url}/chat/completions", json={**BODY, "stream": True}) as answer:
                next(answer.iter_raw())
                os.kill(workers_of(proxy)[0], signal.SIGKILL)
                proxy.wait_for("worker [12] .*started again")
        finally:
            provider.behave("m")
        with ThreadPoolExecutor(8) as threads:
            statuses = Counter(threads.map(lambda _: ask(proxy).status_code, range(60)))
        assert statuses == {200: 40 - ENOUGH - 1, 429: 60 - (40 - ENOUGH - 1)}, "the stream was one of the forty"
        wait_until(lambda: figures(proxy)[("headgate_workers",)] == 2)
        assert calls(proxy, "refused") == 60 - (40 - ENOUGH - 1)
        spent = 10**9 - left(store)["all.usd.day"] - 39 * 18_000
        assert spent > 0, "the stream is settled by what is known of it, or held until its lease ends"
        assert proxy.stop() == 0


def test_a_worker_that_is_killed_is_replaced_and_its_figures_are_carried_on(
    provider: Provider, tmp_path: Path, zone: str
) -> None:
    provider.behave("slow", words=("a",) * 5000, delay_s=0.01)
    write(tmp_path, provider, "1000/hour", zone)
    with running(tmp_path, "--no-keys") as proxy:
        for _ in range(10):
            assert ask(proxy).status_code == 200
        with httpx.stream(
            "POST", f"{proxy.url}/chat/completions", json={**BODY, "model": "slow", "stream": True}
        ) as answer:
            next(answer.iter_raw())
            assert figures(proxy)[("headgate_llm_calls_under_way",)] == 1
            for pid in workers_of(proxy):
                os.kill(pid, signal.SIGKILL)
            proxy.wait_for("worker 1 .*started again")
            proxy.wait_for("worker 2 .*started again")
        assert ask(proxy).status_code == 200
        wait_until(lambda: figures(proxy)[("headgate_workers",)] == 2)
        told = figures(proxy)
        assert told["headgate_llm_calls_total", "answered", "chat", "m"] == 11
        assert told[("headgate_llm_calls_under_way",)] == 0 and told[("headgate_worker_restarts_total",)] == 2
        assert proxy.stop() == 0


def test_a_reload_reaches_all_workers_and_what_is_wrong_reaches_none(
    provider: Provider, tmp_path: Path, zone: str
) -> None:
    def limits() -> set[str]:
        return {ask(proxy).headers["x-ratelimit-limit-requests"] for _ in range(ENOUGH)}

    write(tmp_path, provider, "100000/hour", zone)
    with running(tmp_path, "--no-keys") as proxy:
        assert limits() == {"100000"}
        write(tmp_path, provider, "200000/hour", zone)
        proxy.process.send_signal(signal.SIGHUP)
        for number in (1, 2):
            proxy.wait_for(f"worker {number}: the policy and the providers were read again")
        assert limits() == {"200000"}
        (tmp_path / "providers.yaml").write_text("providers: [")
        proxy.process.send_signal(signal.SIGHUP)
        for number in (1, 2):
            proxy.wait_for(f"worker {number}: the old policy and providers stay in force")
        assert limits() == {"200000"}
        for pid in workers_of(proxy):  # what starts now does not look at the broken file
            os.kill(pid, signal.SIGKILL)
        for number in (1, 2):
            proxy.wait_for(f"worker {number} .*started again")
        assert limits() == {"200000"}
        assert proxy.stop() == 0


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_reload_while_workers_start_reaches_them_all(
    provider: Provider, tmp_path: Path, zone: str, deaths: int
) -> None:
    write(tmp_path, provider, "100000/hour", zone)
    with running(tmp_path, "--no-keys") as proxy:
        write(tmp_path, provider, "200000/hour", zone)
        for _ in range(deaths):  # one that dies young a second time is started again a little later
            seen = len(proxy.lines)
            for pid in workers_of(proxy):
                os.kill(pid, signal.SIGKILL)
            for number in (1, 2):
                proxy.wait_for(f"worker {number} .*started again", seen)
        proxy.process.send_signal(signal.SIGHUP)
        for number in (1, 2):
            proxy.wait_for(f"worker {number}: the policy and the providers were read again")
        assert {ask(proxy).headers["x-ratelimit-limit-requests"] for _ in range(ENOUGH)} == {"200000"}
        assert proxy.stop() == 0


def test_a_key_that_is_revoked_opens_nothing_at_any_worker(provider: Provider, tmp_path: Path, zone: str) -> None:
    write(tmp_path, provider, "100000/hour", zone)
    keys = str(tmp_path / "keys.json")
    made = run_headgate("llm", "key", "create", "one", "--keys", keys)
    [key] = re.findall(r"hg-[A-Za-z0-9_-]{20,}", made.stdout + made.stderr)
    with running(tmp_path, "--keys", keys) as proxy:
        headers = {"authorization": f"Bearer {key}"}
        assert {ask(proxy, headers=headers).status_code for _ in range(ENOUGH)} == {200}
        assert run_headgate("llm", "key", "revoke", "one", "--keys", keys).returncode == 0
        assert {ask(proxy, headers=headers).status_code for _ in range(ENOUGH)} == {401}
        assert {ask(proxy).status_code for _ in range(ENOUGH)} == {401}


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_lets_streams_end_and_sigint_cuts_and_settles_them(
    provider: Provider, tmp_path: Path, zone: str, sig: signal.Signals
) -> None:
    provider.behave("m", words=("a",) * 100, delay_s=0.02)
    write(tmp_path, provider, "1000/hour", zone)
    books = tmp_path / "books.jsonl"
    try:
        with running(tmp_path, "--no-keys", "--books", str(books)) as proxy:
            with httpx.stream("POST", f"{proxy.url}/chat/completions", json={**BODY, "stream": True}) as answer:
                parts = answer.iter_raw()
                text = next(parts)
                proxy.process.send_signal(sig)
                if sig == signal.SIGTERM:
                    text += b"".join(parts)
                    assert text.endswith(b"data: [DONE]\n\n") and text.count(b'"content"') == 100
                else:
                    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                        list(parts)
            assert proxy.process.wait(30) == 0
    finally:
        provider.behave("m")
    [settled] = [entry for line in books.read_text().splitlines() if (entry := json.loads(line))["kind"] == "settled"]
    assert settled["mode"] == ("exact" if sig == signal.SIGTERM else "at least")


def test_a_service_that_cannot_start_prints_one_reason_and_no_worker_starts(
    provider: Provider, tmp_path: Path, zone: str
) -> None:
    def told(**changes: str) -> str:
        policy, providers = write(tmp_path, provider, changes.get("limits", "9/hour"), changes.get("store", zone))
        if "providers" in changes:
            Path(providers).write_text(changes["providers"])
        ended = run_headgate(
            "llm", "serve", policy, "--providers", providers, "--no-keys", "--port", "0", "--workers", "2"
        )
        assert ended.returncode != 0 and "Traceback" not in ended.stderr, ended.stderr
        return ended.stderr

    assert "memory counts for each process alone, so 2 workers would let 2 times as much pass" in told(
        store="memory://"
    )
    assert "providers" in told(providers="providers: []")
    assert "limits" in told(limits="many/hour")
    ended = run_headgate("llm", "serve", "--example", "--workers", "2")
    assert ended.returncode != 0 and "--example is one process" in ended.stderr
