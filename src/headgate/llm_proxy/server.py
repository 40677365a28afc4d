"""The process of a proxy: its event loop, its port, what signals ask for, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import HeadgateError, MissingExtraError
from headgate.llm.entry import Books
from headgate.llm.gate import AsyncLlmGate
from headgate.llm.tokens import count_text
from headgate.llm_proxy.app import Proxy
from headgate.llm_proxy.client_connections import within_descriptors
from headgate.llm_proxy.example import ExampleProvider
from headgate.llm_proxy.metrics import ProxyMetrics
from headgate.llm_proxy.own_key import KeyFinder
from headgate.llm_proxy.provider_pool import ProviderPool
from headgate.llm_proxy.providers import ProviderSettings, check_serving, load_providers
from headgate.llm_proxy.proxy_parts import ProxyOptions, ProxyParts
from headgate.llm_proxy.reading_on import ReadingOn
from headgate.llm_proxy.upstream import Upstream
from headgate.observe.prometheus import leave_out_creation_times

try:
    import uvloop
except ImportError as error:
    raise MissingExtraError("the proxy of language models", extra="llm-proxy") from error

log = logging.getLogger("headgate")

_BACKLOG = 2048
_SHUTDOWN_S = 0.5


@dataclass(frozen=True)
class ProxySource:
    """What a proxy is made of. Without a file of providers it starts one of its own, as an example."""

    policy: Path
    providers: Path | None
    keys: KeyFinder | None
    store: str | None = None
    books: Books | None = None

    def read_providers(self) -> tuple[ProviderSettings, ...]:
        """The providers of the file; raises ConfigError, OSError."""
        if self.providers is None:
            return ()
        providers = load_providers(self.providers)
        check_serving(providers)
        return providers


def serve(source: ProxySource, *, host: str, port: int, options: ProxyOptions, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` gets the address once requests are answered.

    SIGHUP reads the policy and the providers again. Raises ConfigError, OSError where it cannot begin.
    """
    leave_out_creation_times()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ending, at_once = asyncio.Event(), asyncio.Event()

        def end() -> None:
            if ending.is_set():
                at_once.set()
            ending.set()

        async with ProxyServer(source, options) as server:
            loop.add_signal_handler(signal.SIGHUP, server.reload)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, end)
            gc.collect()
            gc.freeze()  # prices and vocabularies stay: to look through them again takes a tenth of a second
            announce(await server.listen(host, port))
            await ending.wait()
            await server.drain(at_once)

    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())


class ProxyServer:
    """One proxy on an event loop; for `async with`, at whose end all that is under way is cut off and settled."""

    def __init__(self, source: ProxySource, options: ProxyOptions) -> None:
        """Raises ConfigError, OSError for files that cannot be used."""
        self._source = source
        self._options = options
        self._providers = source.read_providers()
        self._metrics = ProxyMetrics(source.books)
        self.gate = AsyncLlmGate(source.policy, store=source.store, books=self._metrics)
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

    async def listen(self, host: str, port: int) -> str:
        """Answer on a port, 0 for a free one; the address. Raises OSError."""
        listener = _listen(host, port)
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self.proxy.connections.accept, sock=listener, backlog=_BACKLOG)
        return _address(listener)

    async def drain(self, at_once: asyncio.Event) -> None:
        """Close the port, and let calls that are under way end, for a while; `at_once` ends that."""
        self.proxy.draining = True
        self._stop_listening()
        waits = [asyncio.create_task(self.proxy.all_answered()), asyncio.create_task(at_once.wait())]
        await asyncio.wait(waits, timeout=self._options.drain_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.proxy.under_way:
            log.error("%d calls have not ended in their time: they are cut off, and settled", self.proxy.under_way)

    async def __aexit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.cancel()
        self._stop_listening()
        await self.proxy.break_off()
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
        """Put changed files in force, or none of them; the log says which."""
        try:
            providers = self._source.read_providers()
            self.gate.reload(self._source.policy)
            if self._example is None:
                self._pool.reload(providers)
        except (HeadgateError, OSError) as error:
            log.error("the old policy and providers stay in force: %s", error)
        else:
            log.info("the policy and the providers were read again")


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises OSError with the address where that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
