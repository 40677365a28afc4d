"""A TCP proxy that makes a link bad on purpose: slow, cut, silent, or without replies.

It stands on a free port of the loopback before a server there, in a thread of its own, so that
clients of every kind can be tested through it:

    with TcpProxy(server.port) as proxy:
        proxy.delay(0.05)

A client of the proxy is always accepted, unless the link is cut. When the server itself refuses,
the client's connection is reset.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

HOST = "127.0.0.1"
HIGHEST_PORT = 54_999
"""A cluster's bus is 10,000 above the port of its clients, and there are 65,535 ports."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: what is not sent yet is forgotten, and the other end gets RST."""
ANSWER_WITHIN_S = 10


def hold_port(port: int = 0) -> socket.socket:
    """A port that is nobody else's for as long as the socket is open: this one, or any that is free.

    While nobody listens there, connections are refused. A server that sets SO_REUSEADDR before it
    binds, as most do, can listen there and stop and listen again, and the port is not lost in between.
    """
    while True:
        held = socket.socket()
        try:
            held.bind((HOST, port))
        except OSError:
            held.close()
            raise
        if port or held.getsockname()[1] <= HIGHEST_PORT:
            # Only now: to bind with it would not fail on a port that another socket holds in this way.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return held
        held.close()


class Link(Enum):
    """What the proxy does with what it reads."""

    WHOLE = "all is forwarded"
    CUT = "nobody is connected"
    SILENT = "nothing is forwarded, and nothing is closed"
    NO_REPLIES = "requests are forwarded, replies are dropped"
    REPLIES_HELD = "requests are forwarded, replies wait"


class TcpProxy:
    """A proxy before the server on a port of the loopback, until the end of the block.

    Its methods may be called from any thread; what they order holds when they return.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.accepted = 0
        """Connections that were ever accepted."""
        self.delay_s = 0.0
        self.greeting_s = 0.0
        self.link = Link.CUT
        self.forwarding = asyncio.Event()
        """Set unless the link is silent."""
        self.replying = asyncio.Event()
        """Set unless replies are held up."""
        self.forwarding.set()
        self.replying.set()
        self._held = hold_port()
        self.port: int = self._held.getsockname()[1]
        self._connections: set[_Connection] = set()
        self._listener: socket.socket | None = None
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.mend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.cut()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(ANSWER_WITHIN_S)
            self._loop.close()
            self._held.close()

    @property
    def connections(self) -> int:
        """Connections that are open now, as far as their clients are concerned."""
        return self._call(self._count())

    def delay(self, seconds: float) -> None:
        """From now on hold up all bytes for so long in each direction, so that a round trip takes twice as long.

        It outlasts mend(): `delay(0)` ends it.
        """
        self.delay_s = seconds

    def delay_greeting(self, seconds: float) -> None:
        """Forward nothing in the first seconds of each new connection, and everything as usual from then on."""
        self.greeting_s = seconds

    def cut(self) -> None:
        """Reset all connections, and refuse new ones until mend()."""
        self._call(self._change(Link.CUT))

    def silence(self) -> None:
        """Accept and read, and forward nothing in either direction until mend(): a link that is half open.

        What was read meanwhile is forwarded at mend(), as a network sends again what got lost, unless
        one end has closed the connection by then: the other end gets a reset, and never the bytes.
        """
        self._call(self._change(Link.SILENT))

    def swallow_replies(self) -> None:
        """Forward requests and drop their replies until mend().

        A connection that has lost a reply is reset at mend(): TCP never loses bytes from the middle.
        """
        self._call(self._change(Link.NO_REPLIES))

    def hold_replies(self) -> None:
        """Forward requests, and their replies only at mend(): what was asked for happens, and nobody knows yet."""
        self._call(self._change(Link.REPLIES_HELD))

    def mend(self) -> None:
        """Forward again, and accept connections again."""
        self._call(self._change(Link.WHOLE))

    def _call(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_WITHIN_S)

    async def _count(self) -> int:
        return sum(not connection.client_left for connection in self._connections)

    def _listen(self) -> None:
        self._listener = socket.socket()
        self._listener.setblocking(False)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((HOST, self.port))
        self._listener.listen(1024)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):  # the client has left again
            client, _ = listener.accept()
            self.accepted += 1
            connection = _Connection(self, client)
            self._connections.add(connection)
            connection.task.add_done_callback(lambda _: self._connections.discard(connection))

    async def _change(self, link: Link) -> None:
        self.link = link
        if link is Link.CUT and self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        ended = [each.task for each in self._connections if link is Link.CUT or (link is Link.WHOLE and each.torn)]
        for task in ended:
            task.cancel()
        if ended:
            await asyncio.wait(ended)
        if link is Link.SILENT:
            self.forwarding.clear()
        else:
            self.forwarding.set()
        if link is Link.REPLIES_HELD:
            self.replying.clear()
        else:
            self.replying.set()
        if link is not Link.CUT and self._listener is None:
            self._listen()


class _Connection:
    """One client's connection and that to the server, from accept to the close of both."""

    def __init__(self, proxy: TcpProxy, client: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = socket.socket()
        for sock in (self.client, self.server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_left = False
        self.torn = False
        """Bytes or an end got lost on the way, so that this connection can never be right again."""
        self.loop = asyncio.get_running_loop()
        # What was read, and when to forward it; b"" is an end, None a reset.
        self.requests: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()
        self.replies: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()
        self.task = self.loop.create_task(self._run())
        self.task.add_done_callback(self._close)

    async def _run(self) -> None:
        """Forward until both ends have closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(self.client, self.requests))
            await asyncio.sleep(self.proxy.greeting_s)
            await self._until_forwarding()
            await self.loop.sock_connect(self.server, (HOST, self.proxy.target_port))
            tasks.create_task(self._read(self.server, self.replies))
            tasks.create_task(self._write(self.requests, self.server))
            tasks.create_task(self._write(self.replies, self.client))

    def _close(self, task: asyncio.Task[None]) -> None:
        """Close both ends, with a reset unless both have closed by themselves."""
        whole = not task.cancelled() and task.exception() is None
        for sock in (self.client, self.server):
            if not whole:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            sock.close()

    async def _read(self, source: socket.socket, queue: asyncio.Queue[tuple[float, bytes | None]]) -> None:
        data: bytes | None = b"more"
        while data:
            try:
                data = await self.loop.sock_recv(source, 1 << 16)
            except OSError:
                data = None
            if not data:
                self.client_left = self.client_left or source is self.client
                self.torn = self.torn or self.proxy.link is Link.SILENT
            queue.put_nowait((self.loop.time() + self.proxy.delay_s, data))

    async def _write(self, queue: asyncio.Queue[tuple[float, bytes | None]], target: socket.socket) -> None:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - self.loop.time()))
            await self._until_forwarding()
            while target is self.client and not self.proxy.replying.is_set():
                await self.proxy.replying.wait()
            if data is None:
                raise ConnectionResetError
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            if target is self.client and self.proxy.link is Link.NO_REPLIES:
                self.torn = True
            else:
                await self.loop.sock_sendall(target, data)

    async def _until_forwarding(self) -> None:
        while not self.proxy.forwarding.is_set():
            await self.proxy.forwarding.wait()
