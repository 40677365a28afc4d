"""Stores by URL: `memory://?max_keys=100000&on_full=refuse`, `shared:///dev/shm/headgate?size=64MiB`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlencode

from headgate.decision import ON_STORE_ERROR
from headgate.errors import ConfigError, MissingExtraError
from headgate.stores.guard.fallback import read_share
from headgate.stores.guard.store import GuardedStore
from headgate.stores.memory import ON_FULL, MemoryStore
from headgate.stores.protocol import Store
from headgate.stores.redis.url import GUARD_OPTIONS, is_redis, read_url
from headgate.stores.shared.store import SharedStore, can_share
from headgate.stores.url_parts import check_options, masked, scheme_of, split_url


def open_store(url: str) -> Store:
    """Open the store of a URL; raises ConfigError, which states what is wrong and never shows a password."""
    read_options, build = _kind_of(url)
    return build(**read_options(url))


def store_of(store: object) -> Store:
    """The store that a caller passed, as a store or as its URL; raises ConfigError for anything else."""
    if isinstance(store, str):
        return open_store(store)
    if not isinstance(store, Store):
        kind = type(store)
        hint = ": give a client of redis-py to RedisStore" if kind.__module__.partition(".")[0] == "redis" else ""
        raise ConfigError(f'a store is a URL such as "memory://" or a store, not a {kind.__name__}{hint}')
    return store


def check_store_url(url: str) -> None:
    """Raise ConfigError for a URL that names no store; nothing is opened."""
    read_options, _ = _kind_of(url)
    read_options(url)


def store_schemes() -> tuple[str, ...]:
    """The schemes of the stores that this process can open."""
    built_in = [kind for kind in _KINDS if kind != "shared" or can_share()]
    return (*built_in, *(_REDIS if find_spec("redis") else ()))


def existing_zone(path_or_url: str) -> SharedStore:
    """The store of an existing zone, named by its path or by the URL of a shared store."""
    if "://" not in path_or_url:
        return SharedStore.existing(path_or_url)
    if scheme_of(path_or_url) != "shared://":
        raise ConfigError(f'a zone is named by its path or as "shared:///path", not {_kind_shown(path_or_url)}')
    options = _shared_options(path_or_url)
    return SharedStore.existing(options["path"], mode=options.get("mode"))


def _kind_of(url: str) -> tuple[Callable[[str], dict[str, Any]], Callable[..., Store]]:
    if is_redis(url):
        return _redis_options, _open_redis
    kind = _KINDS.get(url.partition("://")[0].lower()) if "://" in url else None
    if kind is None:
        known = ", ".join(f"{name}://" for name in (*_KINDS, *_REDIS))
        raise ConfigError(f"a store is one of {known}, not {_kind_shown(url)}")
    return kind


def _kind_shown(url: str) -> str:
    """The text in place of a scheme, with a similar scheme as a hint, without anything that may be a password."""
    scheme = re.split("[:/]", url, maxsplit=1)[0].lower()
    near = get_close_matches(scheme, (*_KINDS, *_REDIS), n=1, cutoff=0.6)
    hint = f': did you mean "{near[0]}://"?' if near and not url.lower().startswith(f"{near[0]}://") else ""
    return (repr(masked(url)) if masked(url) else "a text without a scheme, which is not shown") + hint


def _memory_options(url: str) -> dict[str, Any]:
    parts = split_url(url)
    if parts.credentials or parts.host or parts.path not in ("", "/"):
        raise ConfigError('the memory store is "memory://", with options after "?", and nothing between')
    check_options(parts.options, ("max_keys", "max_log_entries", "max_holds", "on_full"), "the memory store")
    return {name: _on_full(value) if name == "on_full" else _number(name, value) for name, value in parts.options}


def _shared_options(url: str) -> dict[str, Any]:
    parts = split_url(url)
    if parts.credentials or parts.host or len(parts.path) < 2:
        raise ConfigError('the shared store is "shared:///path/of/a/file", with three slashes and options after "?"')
    if re.search(":.*@", parts.path):
        raise ConfigError('the shared store has no user and no password; in a path, ":" is written %3A and "@" %40')
    path = unquote_to_bytes(parts.path)
    if b"\0" in path:
        raise ConfigError("a path has no NUL in it, which %00 stands for")
    check_options(parts.options, ("size", "log_percent", "max_holds", "on_full", "mode"), "the shared store")
    options: dict[str, Any] = {"path": os.fsdecode(path)}
    for name, value in parts.options:
        if name == "size":
            options[name] = _bytes(value)
        elif name in ("log_percent", "max_holds"):
            options[name] = _number(name, value)
        elif name == "on_full":
            options[name] = _on_full(value)
        else:
            if not re.fullmatch("0?[0-7]{3}", value):
                raise ConfigError(f"the store option mode is three octal digits such as 660, not {value[:40]!r}")
            options[name] = int(value, 8)
    return options


def _redis_options(url: str) -> dict[str, Any]:
    """The options of a Redis store's guard, and the URL of its server without them."""
    parts = split_url(url)
    server_options = [(name, value) for name, value in parts.options if name not in GUARD_OPTIONS]
    body, mark, _ = url.partition("?")
    server = body + (mark + urlencode(server_options, quote_via=quote) if server_options else "")
    form = scheme_of(server)
    read_url(server)
    guard_options = [option for option in parts.options if option[0] in GUARD_OPTIONS]
    check_options(guard_options, GUARD_OPTIONS, "the store")
    guard: dict[str, Any] = {}
    for name, value in guard_options:
        if name == "on_error":
            if value not in ON_STORE_ERROR:
                raise ConfigError(f"{form}: on_error is one of {', '.join(ON_STORE_ERROR)}, not {value[:40]!r}")
            guard[name] = value
        elif name == "local_share":
            if not re.fullmatch(r"[01]|0?\.[0-9]{1,6}", value) or float(value) == 0.0:
                raise ConfigError(f"{form}: local_share is a number above 0, up to 1, not {value[:40]!r}")
            guard[name] = float(value)
        else:
            if value not in ("yes", "no"):
                raise ConfigError(f"{form}: remember is yes or no, not {value[:40]!r}")
            guard[name] = value == "yes"
    read_share(guard.get("local_share", 1))
    return {"server": server, **guard}


def redis_store() -> Any:
    """The class of Redis stores; raises MissingExtraError where its libraries are not installed."""
    try:
        from headgate.stores.redis.store import RedisStore
    except ImportError as error:
        raise MissingExtraError("the Redis store", extra="redis", why=error) from error
    return RedisStore


def _open_redis(server: str, **guard: Any) -> Store:
    return GuardedStore(redis_store()(server), **guard)


def _on_full(value: str) -> str:
    if value not in ON_FULL:
        raise ConfigError(f"on_full is one of {', '.join(ON_FULL)}, not {value[:40]!r}")
    return value


def _bytes(value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15})(B|KiB|MiB|GiB|TiB|)", value)
    if match is None:
        raise ConfigError(
            f"the store option size is a number with KiB, MiB, GiB or TiB, such as 64MiB, not {value[:40]!r}"
        )
    return int(match[1]) << {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}.get(match[2], 0)


def _number(name: str, value: str) -> int:
    digits = value.replace("_", "")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise ConfigError(f"the store option {name} is a whole number, not {value[:40]!r}")
    return int(digits)


_REDIS = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")
_KINDS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[..., Store]]] = {
    "memory": (_memory_options, MemoryStore),
    "shared": (_shared_options, SharedStore),
}
