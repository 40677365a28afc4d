"""Which of the processes that share a store tells of a soft limit: the first that asks for its one place there."""

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


class ToldOnce:
    """The soft limits of a policy that were told, by all processes on its store.

    `namespace` keeps policies apart. It asks the store in the thread that calls it, and connects at the first call. A
    store in the memory of this process has nothing to tell others; one that does not answer has each process tell.
    """

    def __init__(self, store: Store, *, namespace: str = "", clock: Clock | None = None) -> None:
        self._store, self._namespace, self._clock = store.unguarded, namespace, clock
        self._is_alone = isinstance(self._store, MemoryStore)
        self._places: Limiter | None = None
        self._complained = False

    def is_first(self, name: tuple[str, ...], duration_us: int) -> bool:
        """Whether no other process was told that before, for so long from now; never raises."""
        if self._is_alone:
            return True
        key = blake2b("\0".join((self._namespace, *name)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        try:
            if self._places is None:
                self._places = Limiter("1 concurrent", store=self._store, name=_NAME, clock=self._clock)
            first = bool(self._places.reserve(key, lease_us=min(max(duration_us, 1), LONGEST_LEASE_US)))
        except HeadgateError as error:
            if not self._complained:
                self._complained = True
                log.warning("each process tells of soft limits by itself: %s", error)
            return True
        self._complained = False
        return first
