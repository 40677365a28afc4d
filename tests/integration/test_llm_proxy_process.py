"""The proxy as a process: the example for newcomers, signals, and a process that is killed in the middle of a call."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from provider import Provider, running_provider
from running_proxy import PRICES, at, wait_until

from headgate.cli.commands import headgate

pytestmark = pytest.mark.integration

HTTP = httpx.Client(timeout=30)
BODY: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
READY = re.compile(r" on (http://[0-9.:]+)/v1;")


class Process:
    """A running proxy."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def post_chat(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        return HTTP.post(f"{self.url}/v1/chat/completions", json=body, headers=headers)


@contextmanager
def running(*arguments: str | Path) -> Iterator[Process]:
    """Run `headgate llm serve` with these arguments, on a free port."""
    with subprocess.Popen(
        [sys.executable, "-m", "headgate", "llm", "serve", *map(str, arguments), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            ready = READY.search(process.stderr.readline())
            assert ready is not None
            yield Process(process, ready[1])
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


def write(folder: Path, provider: Provider, limits: str, store: str = "memory://") -> tuple[Path, Path]:
    policy, providers = folder / "llm.yaml", folder / "providers.yaml"
    rule = {"name": "all", "by": ["model"], "limits": limits, "hold": "max"}
    document = {"version": 1, "namespace": "llm", "store": store, "llm": {"prices": PRICES}, "rules": [rule]}
    policy.write_text(json.dumps(document))
    providers.write_text(json.dumps({"providers": [at(provider)]}))
    return policy, providers


def test_a_newcomer_sees_a_budget_refuse(tmp_path: Path) -> None:
    body = {"model": "echo", "max_tokens": 50, "messages": [{"role": "user", "content": "hi there"}]}
    books = tmp_path / "books.jsonl"
    with running("--example", "--books", books) as proxy:
        assert proxy.post_chat(body).status_code == 401
        responses = [proxy.post_chat(body, authorization="Bearer hg-example") for _ in range(8)]
        first = responses[0].json()["choices"][0]["message"]["content"]
        statuses = [response.status_code for response in responses]
        assert first == "hi there" and statuses == sorted(statuses) and 3 <= statuses.count(200) <= 6
        assert responses[-1].json()["error"]["code"] == "insufficient_quota"
        assert responses[-1].headers["x-should-retry"] == "false"
        body["stream"] = True
        streamed = HTTP.post(
            f"{proxy.url}/v1/messages", json={**body, "max_tokens": 2}, headers={"x-api-key": "hg-example"}
        )
        assert "event: message_stop" in streamed.text or streamed.status_code == 429
        proxy.process.terminate()
        assert proxy.process.wait(30) == 0
    report = CliRunner().invoke(headgate, ["llm", "report", str(books), "--by", "user", "--format", "json"])
    assert report.exit_code == 0 and '"newcomer"' in report.stdout


def test_signals_reload_and_drain(provider: Provider, tmp_path: Path) -> None:
    policy, providers = write(tmp_path, provider, "1/hour")
    provider.behave("m", words=("a",) * 60, delay_s=0.01)
    with running(policy, "--providers", providers, "--no-keys") as proxy:
        assert proxy.post_chat(BODY).status_code == 200 and proxy.post_chat(BODY).status_code == 429
        policy.write_text("version: [")
        proxy.process.send_signal(signal.SIGHUP)
        assert proxy.process.stderr is not None
        assert "the old policy and providers stay in force" in proxy.process.stderr.readline()
        assert proxy.post_chat(BODY).status_code == 429
        write(tmp_path, provider, "5/hour")
        proxy.process.send_signal(signal.SIGHUP)
        wait_until(lambda: proxy.post_chat({**BODY, "stream": True}).status_code == 200)
        with HTTP.stream("POST", f"{proxy.url}/v1/chat/completions", json={**BODY, "stream": True}) as response:
            parts = response.iter_raw()
            text = next(parts)
            proxy.process.send_signal(signal.SIGTERM)
            text += b"".join(parts)
        assert text.endswith(b"data: [DONE]\n\n") and text.count(b'"content"') == 60
        assert proxy.process.wait(30) == 0


def test_a_killed_proxy_gives_nothing_back(provider: Provider, tmp_path: Path) -> None:
    # A call holds a little more than 200,000 of these 350,000 billionths, and would be settled with a tenth of it.
    policy, providers = write(tmp_path, provider, "0.00035 usd/day in UTC", f"shared://{tmp_path}/zone?size=1MiB")
    provider.behave("m", words=("a",) * 5000, delay_s=0.01)
    with (
        running(policy, "--providers", providers, "--no-keys") as proxy,
        HTTP.stream("POST", f"{proxy.url}/v1/chat/completions", json={**BODY, "stream": True}) as response,
    ):
        parts = response.iter_raw()
        next(parts)
        proxy.process.kill()
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            list(parts)
    provider.behave("m")
    with running(policy, "--providers", providers, "--no-keys") as proxy:
        refused = proxy.post_chat(BODY)
        assert refused.status_code == 429 and refused.json()["error"]["type"] == "insufficient_quota"
        assert proxy.post_chat({**BODY, "max_tokens": 20}).status_code == 200
