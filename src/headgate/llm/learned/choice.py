"""Which processes learn together: those that share a store."""

from __future__ import annotations

import logging
from typing import Any

from headgate.errors import ConfigError
from headgate.llm.learned.local import Learned, LocalLearned
from headgate.stores.protocol import Store
from headgate.stores.shared.store import SharedStore

log = logging.getLogger("headgate")

_REDIS = "headgate.stores.redis.store"
"""The module of the class of Redis stores, which is not imported where nothing uses it."""


def learned_for(store: Store, *, namespace: str = "") -> Learned:
    """What all processes that use a store learn together; this process alone for a store in its memory.

    The caller closes it. A Redis store that was given a client of redis.asyncio cannot be queried in a thread: then
    this process learns alone, and the log says so.
    """
    inner = store.unguarded
    if isinstance(inner, SharedStore):
        from headgate.llm.learned.file_samples import FileSamples
        from headgate.llm.learned.shared import SharedLearned

        return SharedLearned(FileSamples(inner.path), namespace=namespace)
    if not any(kind.__module__ == _REDIS for kind in type(inner).__mro__):
        return LocalLearned()
    from headgate.llm.learned.redis_samples import RedisSamples
    from headgate.llm.learned.shared import SharedLearned

    try:
        redis_store: Any = inner
        return SharedLearned(RedisSamples(redis_store), namespace=namespace)
    except ConfigError as error:
        log.warning("the usage of model calls is learned in this process alone: %s", error)
        return LocalLearned()
