"""A proxy on an event loop: its parts, its start, the reload of its files, and its end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headgate.errors import HeadgateError
from headgate.llm.entry import Books
from headgate.llm.gate import AsyncLlmGate
from headgate.llm.tokens import count_text
from headgate.llm_proxy.app import Proxy
from headgate.llm_proxy.descriptors import within_descriptors
from headgate.llm_proxy.example import ExampleProvider
from headgate.llm_proxy.metrics import ProxyMetrics
from headgate.llm_proxy.own_key import KeyFinder
from headgate.llm_proxy.provider_pool import ProviderPool
from headgate.llm_proxy.providers import ProviderSettings, check_serving, load_providers
from headgate.llm_proxy.proxy_parts import ProxyOptions, ProxyParts
from headgate.llm_proxy.reading_on import ReadingOn
from headgate.llm_proxy.upstream import Upstream
from headgate.observe.worker_files import Sharing
from headgate.policy.compiled import Policy
from headgate.policy.gate import read_policy
from headgate.stores.protocol import Store
from headgate.supervisor.listener import BACKLOG

log = logging.getLogger("headgate")

_SHUTDOWN_S = 0.5


class InForce(NamedTuple):
    """The policy and the providers, as the files were read last."""

    policy: Policy
    providers: tuple[ProviderSettings, ...]


@dataclass(frozen=True)
class ProxySource:
    """The files, keys, store and books of a proxy. Without a file of providers it starts an example provider."""

    policy: Path
    providers: Path | None
    keys: KeyFinder | None
    store: str | Store | None = None
    books: Books | None = None

    def read(self) -> InForce:
        """Read the files; raises PolicyError, ConfigError, OSError."""
        policy = read_policy(self.policy)
        if self.providers is None:
            return InForce(policy, ())
        providers = load_providers(self.providers)
        check_serving(providers)
        return InForce(policy, providers)


class ProxyServer:
    """One proxy on an event loop; for `async with`, at whose end all calls under way are cut off and settled."""

    def __init__(
        self,
        source: ProxySource,
        options: ProxyOptions,
        *,
        initial: InForce | None = None,
        sharing: Sharing | None = None,
        applied: Callable[[InForce], None] = lambda _: None,
    ) -> None:
        """Start with `initial`, or read the files; `applied` is called with each later policy that is put in force.

        `sharing` merges its metrics with those of other workers. Raises ConfigError, OSError for unusable files.
        """
        self._source = source
        self._options = options
        self._applied = applied
        initial = source.read() if initial is None else initial
        self._providers = initial.providers
        self._metrics = ProxyMetrics(source.books, sharing)
        self.gate = AsyncLlmGate(initial.policy, store=source.store, books=self._metrics)
        self._metrics.watch_coverage(self.gate.coverage)
        self._example = ExampleProvider() if source.providers is None else None
        self._listening: asyncio.Server | None = None

    async def __aenter__(self) -> ProxyServer:
        self._upstream = Upstream()
        if self._example is not None:
            self._providers = (await self._example.start(),)
        self._pool = ProviderPool(self._providers)
        options = self._options._replace(connections=within_descriptors(self._options.connections))
        reading_on = ReadingOn(options.read_on, options.read_on_s)
        self.proxy = Proxy(
            ProxyParts(self.gate, self._pool, self._upstream, self._source.keys, self._metrics, options, reading_on)
        )
        self._watches = [
            asyncio.create_task(watch) for watch in (self.proxy.watch_stalled(), self.proxy.connections.watch())
        ]
        await self.gate.warm_up()
        await asyncio.to_thread(count_text, "load the vocabulary", "gpt-5")
        return self

    async def listen(self, listener: socket.socket) -> None:
        """Answer on a listening socket."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self.proxy.connections.accept, sock=listener, backlog=BACKLOG)

    async def drain(self, at_once: asyncio.Event) -> None:
        """Close the port, and wait a while for the calls under way to end; `at_once` ends the wait."""
        self.proxy.draining = True
        self._stop_listening()
        waits = [asyncio.create_task(self.proxy.all_answered()), asyncio.create_task(at_once.wait())]
        await asyncio.wait(waits, timeout=self._options.drain_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.proxy.under_way:
            log.error("%d calls have not ended in time: they are cut off, and settled", self.proxy.under_way)

    async def __aexit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.cancel()
        self._stop_listening()
        await self.proxy.break_off()
        self._metrics.count_all()
        await self.proxy.server.shutdown(_SHUTDOWN_S)
        await self._upstream.close()
        await self.gate.close()
        if self._example is not None:
            await self._example.stop()

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def reload(self) -> None:
        """Read the files again and put all of them in force, or none; the log reports which."""
        try:
            read = self._source.read()
            self.gate.reload(read.policy)
            if self._example is None:
                self._pool.reload(read.providers)
        except (HeadgateError, OSError) as error:
            log.error("the old policy and providers stay in force: %s", error)
        else:
            self._applied(read)
            log.info("the policy and the providers were read again")
