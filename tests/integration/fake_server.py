"""A server of the loopback that replies with whatever a test wants, as a broken proxy does."""

from __future__ import annotations

import re
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from tcp_proxy import HOST, hold_port

_COMMAND = re.compile(rb"\*[0-9]+\r\n\$[0-9]+\r\n([A-Za-z]+)\r\n")
_HANDSHAKE = (b"CLIENT", b"AUTH", b"SELECT", b"HELLO")


class FakeServer:
    """Replies `reply` to each command, and +OK to those that open a connection unless `opens` is not true.

    With `pause_s` it sends a byte at a time. While it `hangs_up`, it closes a connection that asks for something.
    """

    def __init__(self, reply: bytes, *, opens: bool = True, pause_s: float = 0.0) -> None:
        self.reply = reply
        self.opens = opens
        self.pause_s = pause_s
        self.hangs_up = False
        self._listener = hold_port()
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._ended = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def __enter__(self) -> Self:
        self._listener.listen(128)
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        _end(self._listener)
        self._accepting.join()  # it may just have accepted another one
        for client in self._open:
            _end(client)

    def _accept(self) -> None:
        while not self._ended:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            while data := client.recv(1 << 16):
                if self.hangs_up:
                    client.shutdown(socket.SHUT_RDWR)
                    return
                for name in _COMMAND.findall(data):
                    if self.opens and name.upper() in _HANDSHAKE:
                        client.sendall(b"+OK\r\n")
                    elif self.pause_s:
                        for byte in self.reply:
                            client.sendall(bytes([byte]))
                            time.sleep(self.pause_s)
                    else:
                        client.sendall(self.reply)
        except OSError:
            return


def _end(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
    opened.close()
