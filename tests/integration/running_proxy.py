"""A proxy of language models on a free port, in a thread of its own, with the entries of its books."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from provider import Provider

from headgate.llm.entry import Entry
from headgate.llm_proxy.own_key import KeyFinder
from headgate.llm_proxy.proxy_parts import ProxyOptions
from headgate.llm_proxy.server import ProxyServer, ProxySource
from headgate.supervisor.listener import address_of, listen

T = TypeVar("T")

PRICES = {"m": {"input": "1", "output": "2"}}
"""Dollars for a million tokens: an input token costs 1,000 billionths of a dollar, an output token 2,000."""

ALL = ["chat", "completions", "responses", "embeddings", "messages", "count_tokens", "models"]


class RunningProxy:
    """A running proxy, as a test sees it."""

    def __init__(self, server: ProxyServer, entries: list[Entry]) -> None:
        self.server = server
        self.entries = entries
        self.url = ""

    def settled(self, calls: int = 1) -> list[Entry]:
        """Wait until all held calls are settled; return the entries of so many that were settled last."""

        def all_settled() -> bool:
            held = sum(entry.kind == "held" for entry in self.entries)
            return held >= calls and held == sum(entry.kind == "settled" for entry in self.entries)

        wait_until(all_settled)
        return [entry for entry in self.entries if entry.kind == "settled"][-calls:]

    def count(self, kind: str) -> int:
        """How many entries there are of a kind."""
        return sum(entry.kind == kind for entry in self.entries)


class _Books:
    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)


@contextmanager
def running_proxy(
    folder: Path,
    rules: list[dict[str, Any]],
    providers: list[dict[str, Any]],
    *,
    keys: KeyFinder | None = None,
    llm: Mapping[str, Any] | None = None,
    tiers: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[RunningProxy]:
    """Run a proxy under these rules, in front of these providers."""
    entries: list[Entry] = []
    source = ProxySource(*files(folder, rules, providers, llm, tiers), keys, books=_Books(entries))
    stop, ready = asyncio.Event(), threading.Event()
    running: list[RunningProxy] = []
    failed: list[BaseException] = []
    loop = uvloop.new_event_loop()

    async def main() -> None:
        async with ProxyServer(source, ProxyOptions(**options)) as server:
            proxy = RunningProxy(server, entries)
            listener = listen("127.0.0.1", 0)
            await server.listen(listener)
            proxy.url = address_of(listener)
            running.append(proxy)
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(main())
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    if failed:
        raise failed[0]
    try:
        yield running[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
    assert not failed, failed


def files(
    folder: Path,
    rules: list[dict[str, Any]],
    providers: list[dict[str, Any]],
    llm: Mapping[str, Any] | None = None,
    tiers: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Write the files of a policy and of providers, as JSON, which is YAML."""
    policy, provider_file = folder / "llm.yaml", folder / "providers.yaml"
    document = {"version": 1, "namespace": "llm", "store": "memory://", "llm": {"prices": PRICES, **(llm or {})}}
    policy.write_text(json.dumps({**document, **({"tiers": tiers} if tiers else {}), "rules": rules}))
    provider_file.write_text(json.dumps({"providers": providers}))
    return policy, provider_file


def at(provider: Provider, name: str = "here", **more: Any) -> dict[str, Any]:
    """The entry of a running provider in a file of providers."""
    return {"name": name, "base_url": f"{provider.url}/v1", "dialects": ALL, **more}


def wait_until(condition: Callable[[], T], timeout: float = 30.0) -> T:
    """Wait until a condition is true."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)
    return result
