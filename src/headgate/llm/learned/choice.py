"""Which processes learn together: those that share a store."""

from __future__ import annotations

import logging
from typing import Any

from headgate.errors import ConfigError
from headgate.llm.learned.here import Learned, LearnedHere
from headgate.stores.protocol import Store
from headgate.stores.shared.store import SharedStore

log = logging.getLogger("headgate")

_REDIS = "headgate.stores.redis.store"
"""Where the class of Redis stores is, which is not imported where nothing uses it."""


def learned_for(store: Store, *, namespace: str = "") -> Learned:
    """What is learned by all processes that use a store: by this one alone for a store in its memory.

    It is to be closed. A Redis store that was given a client of redis.asyncio cannot be asked in a thread: then this
    process learns alone, and the log says so.
    """
    inner = store.unguarded
    if isinstance(inner, SharedStore):
        from headgate.llm.learned.in_file import FileSamples
        from headgate.llm.learned.shared import SharedLearned

        return SharedLearned(FileSamples(inner.path), namespace=namespace)
    if not any(kind.__module__ == _REDIS for kind in type(inner).__mro__):
        return LearnedHere()
    from headgate.llm.learned.on_redis import RedisSamples
    from headgate.llm.learned.shared import SharedLearned

    try:
        servers: Any = inner
        return SharedLearned(RedisSamples(servers), namespace=namespace)
    except ConfigError as error:
        log.warning("what calls of models used is learned in this process alone: %s", error)
        return LearnedHere()
