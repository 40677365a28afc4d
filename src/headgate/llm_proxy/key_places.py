"""The place of the proxy's own keys, which an option names: a file or a Redis."""

from __future__ import annotations

from pathlib import Path

from headgate.errors import MissingExtraError
from headgate.llm_proxy.key_file import KeyFile
from headgate.llm_proxy.own_key import OwnKeys


def keys_at(place: str) -> OwnKeys:
    """The keys at a path, or at the URL of a Redis; raises ConfigError."""
    if "://" not in place:
        return KeyFile(Path(place))
    try:
        from headgate.llm_proxy.redis_keys import RedisKeys
    except ImportError as error:
        raise MissingExtraError("a place of keys on Redis", extra="redis", why=error) from error
    return RedisKeys(place)
