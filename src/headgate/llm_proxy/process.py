"""One process of a proxy: its event loop, its port, its signal handlers, and its ending."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable

from headgate.errors import MissingExtraError
from headgate.llm_proxy.proxy_parts import ProxyOptions
from headgate.llm_proxy.server import ProxyServer, ProxySource
from headgate.observe.prometheus import leave_out_creation_times
from headgate.supervisor.link import SupervisorLink
from headgate.supervisor.listener import address_of, listen
from headgate.supervisor.reloading import reload_on_signal

try:
    import uvloop
except ImportError as error:
    raise MissingExtraError("the proxy of language models", extra="llm-proxy", why=error) from error

log = logging.getLogger("headgate")

_COLLECT_AFTER = 20_000
"""New objects before the garbage collector looks for cycles: each open stream has some, which it would traverse."""

_BEAT_S = 1.0


def serve(source: ProxySource, *, host: str, port: int, options: ProxyOptions, announce: Callable[[str], None]) -> None:
    """Serve in this process until SIGTERM or SIGINT; `announce` gets the address once requests are answered.

    SIGHUP reads the policy and the providers again; a second SIGTERM or SIGINT ends the process at once. Raises
    ConfigError, OSError where it cannot begin.
    """
    with listen(host, port) as listener:  # closed also if the server cannot begin
        _serve_on(listener, ProxyServer(source, options), announce)


def _serve_on(listener: socket.socket, server: ProxyServer, announce: Callable[[str], None]) -> None:

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ending, at_once = asyncio.Event(), asyncio.Event()

        def end() -> None:
            if ending.is_set():
                at_once.set()
            ending.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        async with server:
            reload_on_signal(server.reload)
            await server.listen(listener)
            announce(address_of(listener))
            await ending.wait()
            await server.drain(at_once)

    _run(main)


def work(server: ProxyServer, link: SupervisorLink) -> None:
    """Serve on a worker's socket until the supervisor ends it, or has ended itself.

    Signals may arrive twice, from the process group and from the supervisor: SIGTERM drains however often it arrives,
    SIGINT ends at once.
    """

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ending, at_once = asyncio.Event(), asyncio.Event()

        def interrupt() -> None:
            at_once.set()
            ending.set()

        def abandoned() -> None:
            loop.remove_reader(link.lifeline)
            log.error("the supervisor is gone: ending")
            ending.set()

        loop.add_signal_handler(signal.SIGTERM, ending.set)
        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_reader(link.lifeline, abandoned)
        beating = asyncio.create_task(_beat(link))
        try:
            async with server:
                reload_on_signal(server.reload)
                await server.listen(link.listener)
                link.report_ready()
                await ending.wait()
                await server.drain(at_once)
        finally:
            beating.cancel()

    _run(main)


async def _beat(link: SupervisorLink) -> None:
    while True:
        link.beat()
        await asyncio.sleep(_BEAT_S)


def _run(main: Callable[[], object]) -> None:
    leave_out_creation_times()
    gc.collect()
    gc.freeze()  # prices and vocabularies stay: to traverse them again takes a tenth of a second
    gc.set_threshold(_COLLECT_AFTER)
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())  # type: ignore[arg-type]
