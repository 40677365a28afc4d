"""Decides which of the processes that share a store reports a soft limit: the first that claims it in the store."""

from __future__ import annotations

import logging
from hashlib import blake2b

from headgate.clock import Clock
from headgate.errors import HeadgateError
from headgate.holding import LONGEST_LEASE_US
from headgate.limiter import Limiter
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import Store

log = logging.getLogger("headgate")

_NAME = "headgate.warned"


class NotificationClaims:
    """Claims on reports of a policy's soft limits, shared by all processes on its store.

    `namespace` keeps policies apart. The store is called in the calling thread, and connected at the first call. A
    store in the memory of this process is shared with no other process; if the store does not answer, each process
    reports.
    """

    def __init__(self, store: Store, *, namespace: str = "", clock: Clock | None = None) -> None:
        self._store, self._namespace, self._clock = store.unguarded, namespace, clock
        self._is_unshared = isinstance(self._store, MemoryStore)
        self._limiter: Limiter | None = None
        self._has_logged = False

    def claim(self, name: tuple[str, ...], duration_us: int) -> bool:
        """Claim the report of a name for a duration; return False if another process has claimed it. Never raises."""
        if self._is_unshared:
            return True
        key = blake2b("\0".join((self._namespace, *name)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        try:
            if self._limiter is None:
                self._limiter = Limiter("1 concurrent", store=self._store, name=_NAME, clock=self._clock)
            claimed = bool(self._limiter.reserve(key, lease_us=min(max(duration_us, 1), LONGEST_LEASE_US)))
        except HeadgateError as error:
            if not self._has_logged:
                self._has_logged = True
                log.warning("each process reports soft limits by itself: %s", error)
            return True
        self._has_logged = False
        return claimed
