"""The number of connections that a process has file descriptors for."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress

log = logging.getLogger("headgate")

_OTHER_DESCRIPTORS = 64
"""The most descriptors that a process has open besides connections: files, pipes, connections to a store."""


def within_descriptors(connections: int) -> int:
    """Return `connections`, or as many as there are descriptors for: each may need a second one, to a provider.

    Increases the soft limit on descriptors where that is permitted.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _OTHER_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(1, min(connections, (soft - _OTHER_DESCRIPTORS) // 2))
    if most < connections:
        log.warning("at most %d connections, for lack of descriptors (ulimit -n)", most)
    return most
