"""Bounds of what one client can make the service hold and wait for, and of the connections of a process."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from typing import NamedTuple

from headgate.errors import ConfigError

log = logging.getLogger("headgate")

_OTHER_DESCRIPTORS = 64
"""The most descriptors that a process has open beside its connections: files, pipes, connections to a store."""


class Bounds(NamedTuple):
    """Bounds of the connections of one process: numbers, bytes, and seconds."""

    connections: int = 8192
    held_bytes: int = 64 << 20
    """Of incomplete requests and of unread responses, on all connections."""

    head_bytes: int = 64 << 10
    """The request line and all header fields."""

    target_bytes: int = 16 << 10
    fields: int = 256
    body_bytes: int = 1 << 20
    head_s: float = 10.0
    body_s: float = 30.0
    """A body that arrives steadily may take longer."""

    take_s: float = 30.0
    """How long a client may take to read its response."""

    idle_s: float = 180.0
    """Longer than gateways keep an idle connection: they close it first, and never send on a closed one."""


def within_descriptors(bounds: Bounds, *, passed_on: int = 0, extra: int = 0) -> Bounds:
    """The bounds, with no more connections than this process and each that it forks has descriptors for.

    `passed_on` is the number of requests at one time that take two more descriptors, for a connection within the
    process; `extra` is the number of descriptors for parts that not every process has.
    Raises the soft limit on descriptors where it may. Raises ConfigError where too few are left to serve at all.
    """
    connections = bounds.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = _OTHER_DESCRIPTORS + extra
    needed = connections + 2 * min(connections, passed_on) + reserved
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(connections, max(soft - reserved - 2 * passed_on, (soft - reserved) // 3 if passed_on else 0))
    if most < 1:
        raise ConfigError(f"ulimit -n: {soft} descriptors are too few to serve; let it have {needed}")
    if most < connections:
        log.warning("at most %d connections of each process, for lack of descriptors (ulimit -n)", most)
    return bounds._replace(connections=most)
