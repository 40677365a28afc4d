"""Stores by URL: `memory://?max_keys=100000&on_full=refuse`, `shared:///dev/shm/headgate?size=64MiB`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode, urlsplit

from headgate.errors import ConfigError, MissingExtraError
from headgate.stores.contract import Store
from headgate.stores.fallback import CHOICES, read_share
from headgate.stores.guard import GuardedStore
from headgate.stores.memory import ON_FULL, MemoryStore
from headgate.stores.redis_url import is_redis, read_url
from headgate.stores.shared import SharedStore, can_share


def open_store(url: str) -> Store:
    """The store of a URL; raises ConfigError that says what is wrong and never shows a password."""
    read_options, build = _kind_of(url)
    return build(**read_options(url))


def check_store_url(url: str) -> None:
    """Raise ConfigError for a URL that names no store; nothing is opened."""
    read_options, _ = _kind_of(url)
    read_options(url)


def store_schemes() -> tuple[str, ...]:
    """The kinds of stores that can be opened here."""
    here = [kind for kind in _KINDS if kind != "shared" or can_share()]
    return (*here, *(_REDIS if find_spec("redis") else ()))


def existing_zone(path_or_url: str) -> SharedStore:
    """The store of a zone that is there already, named by its path or by the URL of a shared store."""
    if "://" not in path_or_url:
        return SharedStore.existing(path_or_url)
    if not path_or_url.startswith("shared:"):
        raise ConfigError(f'a zone is named by its path or as "shared:///path", not {_without_secrets(path_or_url)!r}')
    options = _shared_options(path_or_url)
    return SharedStore.existing(options["path"], mode=options.get("mode"))


def _kind_of(url: str) -> tuple[Callable[[str], dict[str, Any]], Callable[..., Store]]:
    if is_redis(url):
        return _redis_options, _open_redis
    kind = _KINDS.get(url.partition(":")[0].lower()) if "://" in url else None
    if kind is None:
        known = ", ".join(f"{name}://" for name in (*_KINDS, *_REDIS))
        raise ConfigError(f"a store is one of {known}, not {_without_secrets(url)!r}")
    return kind


def _memory_options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.netloc or parts.path not in ("", "/") or parts.fragment:
        raise ConfigError(f'the memory store is "memory://", with options after "?", not {_without_secrets(url)!r}')
    options: dict[str, Any] = {}
    for name, value in _options(parts.query, url):
        if name in ("max_keys", "max_log_entries"):
            options[name] = _number(name, value)
        elif name == "on_full":
            options[name] = _on_full(value)
        else:
            raise ConfigError(f'the memory store has the options max_keys, max_log_entries and on_full, not "{name}"')
    return options


def _shared_options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/") or parts.path == "/" or parts.fragment:
        raise ConfigError(
            'the shared store is "shared:///path/of/a/file", with three slashes and options after "?", '
            f"not {_without_secrets(url)!r}"
        )
    options: dict[str, Any] = {"path": os.fsdecode(unquote_to_bytes(parts.path))}
    for name, value in _options(parts.query, url):
        if name == "size":
            options[name] = _bytes(value)
        elif name == "log_percent":
            options[name] = _number(name, value)
        elif name == "on_full":
            options[name] = _on_full(value)
        elif name == "mode":
            if not re.fullmatch("0?[0-7]{3}", value):
                raise ConfigError(f"the store option mode is three octal digits such as 660, not {value[:40]!r}")
            options[name] = int(value, 8)
        else:
            raise ConfigError(f'the shared store has the options size, log_percent, on_full and mode, not "{name}"')
    return options


def _redis_options(url: str) -> dict[str, Any]:
    """How a Redis is guarded, and its own URL: without what the guard is told."""
    body, mark, query = url.partition("?")
    guard: dict[str, Any] = {}
    own = []
    for name, value in _options(query, url):
        if name == "on_error":
            if value not in CHOICES:
                raise ConfigError(f"on_error is one of {', '.join(CHOICES)}, not {value[:40]!r}")
            guard[name] = value
        elif name == "local_share":
            if not re.fullmatch(r"[01]|0?\.[0-9]{1,6}", value):
                raise ConfigError(f"local_share is a number above 0, up to 1, not {value[:40]!r}")
            guard[name] = float(value)
        elif name == "remember":
            if value not in ("yes", "no"):
                raise ConfigError(f"remember is yes or no, not {value[:40]!r}")
            guard[name] = value == "yes"
        else:
            own.append((name, value))
    read_share(guard.get("local_share", 1))
    server = body + (mark + urlencode(own) if own else "")
    read_url(server)
    return {"server": server, **guard}


def redis_store() -> Any:
    """The class of Redis stores; raises MissingExtraError where what it needs is not installed."""
    try:
        from headgate.stores.redis_store import RedisStore
    except ModuleNotFoundError as error:
        raise MissingExtraError("the Redis store", extra="redis") from error
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


def _options(query: str, url: str) -> list[tuple[str, str]]:
    try:
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ConfigError(f"cannot read the options of {_without_secrets(url)!r}: {error}") from error
    names = [name for name, _ in options]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'the store option "{name}" is given twice')
    return options


def _number(name: str, value: str) -> int:
    digits = value.replace("_", "")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise ConfigError(f"the store option {name} is a whole number, not {value!r}")
    return int(digits)


def _without_secrets(url: str) -> str:
    """A URL for a message: without user and password, and not too long."""
    head, at, tail = url.partition("@")
    shown = f"{head.partition('://')[0]}://***@{tail}" if at else url
    return shown[:120]


_REDIS = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")
_KINDS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[..., Store]]] = {
    "memory": (_memory_options, MemoryStore),
    "shared": (_shared_options, SharedStore),
}
