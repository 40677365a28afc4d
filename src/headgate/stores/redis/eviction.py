"""Warn of a server that evicts keys when its memory is full: it then forgets limits without any error."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

log = logging.getLogger("headgate")

EVICTION_QUERY = ("INFO", "memory")
"""The query over a first connection. Where the server refuses it, its policy remains unknown."""

_HARMLESS = ("noeviction", "volatile-ttl")
"""The policies that docs/redis.md recommends."""

_FIELD = re.compile(rb"^(maxmemory|maxmemory_policy):([a-z0-9-]{1,40})\r?$", re.MULTILINE)


class EvictionNotice:
    """Logs once that a server of a store evicts keys."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._was_logged = False

    def check(self, replies: Sequence[Any]) -> None:
        """Check the replies to the commands of a first connection, of which EVICTION_QUERY is the last."""
        reply = replies[-1] if replies else None
        if self._was_logged or not isinstance(reply, bytes):
            return
        fields = {name.decode(): value.decode() for name, value in _FIELD.findall(reply)}
        policy = fields.get("maxmemory_policy", "noeviction")
        if policy in _HARMLESS or fields.get("maxmemory", "0") == "0":
            return
        self._was_logged = True
        log.warning(
            "%s evicts keys when its memory is full (maxmemory-policy %s): data is then lost; "
            "use noeviction, and a separate server",
            self._shown,
            policy,
        )
