"""Listening sockets: one port of one process, or one port that several processes share."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import suppress

from headgate.errors import ConfigError

BACKLOG = 2048

_CLOSED_WITHIN_S = 0.05
"""How long an event loop may take to close a listening socket."""

_HINTS = {
    errno.EADDRINUSE: "another program listens there: choose another --port, or 0 for a free one",
    errno.EADDRNOTAVAIL: "this host has no such address: choose another --host",
    errno.EACCES: "this user may not listen there: choose a --port from 1024 on",
}
_UNKNOWN_HOST = "--host takes an address of this host, such as 127.0.0.1 or ::1 (without brackets), or a name of it"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a port that no other process uses; port 0 chooses a free one.

    Raises ConfigError with the reason for an address that cannot be used.
    """
    return _listener(host, port, shared=False)


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets on one port, over which the system distributes the connections; raises as `listen`.

    Sockets that share a port would share it with any other service of this user, so it is first bound exclusively.
    """
    with listen(host, port) as exclusive:
        host, port = _bound_address(exclusive)
    return [_listener(host, port, shared=True) for _ in range(count)]


async def stop_listening(server: asyncio.AbstractServer, listener: socket.socket) -> list[socket.socket]:
    """Close the port of an event loop's server; return the connections that were established and wait to be accepted.

    The system resets waiting connections when the last descriptor of the port is closed, and an event loop closes its
    own with a delay. So a second descriptor keeps the port open until then, and is closed right after the last waiting
    connection was accepted.
    """
    try:
        port = listener.dup()
    except OSError:  # the process may open no more: waiting connections are reset
        server.close()
        return []
    server.close()
    await asyncio.sleep(_CLOSED_WITHIN_S)
    waiting = []
    with suppress(OSError):
        while True:
            waiting.append(port.accept()[0])
    port.close()
    return waiting


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """The URL of a listening socket."""
    host, port = _bound_address(listener)
    return f"{scheme}://{_host_text(host)}:{port}"


def _bound_address(listener: socket.socket) -> tuple[str, int]:
    """The host and port of a listening socket; an IPv6 address of one interface with its name, as fe80::1%eth0."""
    host, port, *more = listener.getsockname()
    interface = more[1] if more else 0
    return f"{host}%{socket.if_indextoname(interface)}" if interface else host, port


def _host_text(host: str) -> str:
    """A host in the form for a URL: an IPv6 address gets brackets, unless it has them."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _reason(error: OSError | OverflowError) -> str:
    """Why a port cannot be used, and what would be right."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    if error.errno == socket.EAI_NONAME:
        return f"{error.strerror}; {_UNKNOWN_HOST}"
    if hint := _HINTS.get(error.errno):
        return f"{os.strerror(error.errno)}; {hint}"
    return error.strerror or str(error)


def _listener(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=shared)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {_host_text(host)}:{port}: {_reason(error)}") from error
    except UnicodeError as error:
        reason = "that is no name of a host: each part between dots has 1 to 63 characters"
        raise ConfigError(f"cannot listen on {_host_text(host)}:{port}: {reason}") from error
    listener.setblocking(False)
    return listener
