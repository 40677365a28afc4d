"""What one client can make the service hold and wait for, and how many connections a process has room for."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from typing import NamedTuple

from headgate.errors import ConfigError

log = logging.getLogger("headgate")

_OTHER_DESCRIPTORS = 64
"""What a process has open beside its connections, at the most: files, pipes, connections to a store."""


class Bounds(NamedTuple):
    """Bounds of the connections of one process: numbers, bytes, and seconds."""

    connections: int = 8192
    held_bytes: int = 64 << 20
    """Of requests that have not come whole, and of responses that are not read, on all connections."""

    head_bytes: int = 64 << 10
    """The request line and all header fields."""

    target_bytes: int = 16 << 10
    fields: int = 256
    body_bytes: int = 1 << 20
    head_s: float = 10.0
    body_s: float = 30.0
    """A body that comes steadily may take longer."""

    take_s: float = 30.0
    """How long a client may take to read its response."""

    idle_s: float = 180.0
    """Longer than gateways keep a connection that they do not use: they close it first, and never meet a closed one."""


def within_descriptors(bounds: Bounds, *, passed_on: int = 0, beside: int = 0) -> Bounds:
    """The bounds, with no more connections than this process and those it forks may each have descriptors for.

    `passed_on` are requests that take two more at one time, those of a connection within the process; `beside` are
    taken by what a process does not always have.
    Raises the soft limit on descriptors where it may. Raises ConfigError where too few are left to serve at all.
    """
    connections = bounds.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = _OTHER_DESCRIPTORS + beside
    wanted = connections + 2 * min(connections, passed_on) + others
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(connections, max(soft - others - 2 * passed_on, (soft - others) // 3 if passed_on else 0))
    if most < 1:
        raise ConfigError(f"ulimit -n: {soft} descriptors are too few to serve; let it have {wanted}")
    if most < connections:
        log.warning("at most %d connections of each process, for lack of descriptors (ulimit -n)", most)
    return bounds._replace(connections=most)
