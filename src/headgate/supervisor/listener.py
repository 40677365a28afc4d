"""Listening sockets: one port of one process, or one port that several processes share."""

from __future__ import annotations

import socket

from headgate.errors import ConfigError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a port that no other process has; port 0 takes a free one.

    Raises ConfigError that says what is wrong with the address.
    """
    return _listener(host, port, shared=False)


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """So many listening sockets on one port, over which the system spreads the connections; raises as `listen`.

    Sockets that share a port would share it with any other service of this user: so it is first taken alone.
    """
    with listen(host, port) as alone:
        host, port = alone.getsockname()[:2]
    return [_listener(host, port, shared=True) for _ in range(count)]


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """Where a listening socket is reached, as a URL."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _listener(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG, reuse_port=shared)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    listener.setblocking(False)
    return listener
