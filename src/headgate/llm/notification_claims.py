"""Decides which of the processes that share a store reports a soft limit: the first that claims it in the store."""

from __future__ import annotations

import logging
from collections import OrderedDict
from hashlib import blake2b

from headgate.clock import Clock
from headgate.errors import HeadgateError
from headgate.holding import LONGEST_LEASE_US
from headgate.limiter import Limiter
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import Store

log = logging.getLogger("headgate")

_NAME = "headgate.warned"
_MOST_PROCESSES = 1_000_000
_MOST_REMEMBERED = 10_000


class NotificationClaims:
    """Claims on reports of a policy's soft limits, shared by all processes on its store.

    `namespace` keeps policies apart. The store is called in the calling thread, and connected at the first call. A
    store in the memory of this process is shared with no other process; if the store does not answer, each process
    reports.
    """

    def __init__(self, store: Store, *, namespace: str = "", clock: Clock | None = None) -> None:
        self._store, self._namespace, self._clock = store.unguarded, namespace, clock
        self.is_shared = not isinstance(self._store, MemoryStore)
        """Whether other processes may claim the same reports."""

        self._limiter: Limiter | None = None
        self._ids: OrderedDict[str, str] = OrderedDict()
        """The claims of this process, by the keys of the reports."""

        self._has_logged = False

    def claim(self, name: tuple[str, ...], duration_us: int) -> bool:
        """Claim the report of a name for a duration; return False if it is claimed already. Never raises.

        The report stays claimed until the durations of all claims of all processes have ended, so a process that
        claims it again prolongs that.
        """
        if not self.is_shared:
            return True
        key = blake2b("\0".join((self._namespace, *name)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        try:
            is_first = self._hold(key, min(max(duration_us, 1), LONGEST_LEASE_US))
        except HeadgateError as error:
            if not self._has_logged:
                self._has_logged = True
                log.warning("each process reports soft limits by itself: %s", error)
            return True
        self._has_logged = False
        return is_first

    def _hold(self, key: str, lease_us: int) -> bool:
        """Hold a place of a key, of which each process has one; return whether no process had one."""
        if self._limiter is None:
            limit = f"{_MOST_PROCESSES} concurrent"
            self._limiter = Limiter(limit, store=self._store, name=_NAME, clock=self._clock)
        known = self._ids.pop(key, None)
        if known is not None and self._limiter.extend(known, lease_us=lease_us).outcome == "extended":
            self._ids[key] = known
            return False
        held = self._limiter.reserve(key, lease_us=lease_us)
        if held:
            self._ids[key] = held.id
            if len(self._ids) > _MOST_REMEMBERED:
                self._ids.popitem(last=False)
        return bool(held) and held.decision.remaining == _MOST_PROCESSES - 1
