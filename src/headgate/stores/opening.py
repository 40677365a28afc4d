"""Stores by URL: `memory://?max_keys=100000&on_full=refuse`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from headgate.errors import ConfigError
from headgate.stores.contract import Store
from headgate.stores.memory import MemoryStore


def open_store(url: str) -> Store:
    """The store of a URL; raises ConfigError that says what is wrong and never shows a password."""
    scheme = url.partition(":")[0].lower()
    opener = _OPENERS.get(scheme) if "://" in url else None
    if opener is None:
        known = ", ".join(f"{name}://" for name in _OPENERS)
        raise ConfigError(f"a store is one of {known}, not {_without_secrets(url)!r}")
    return opener(url)


def store_schemes() -> tuple[str, ...]:
    """The kinds of stores that a URL can name here."""
    return tuple(_OPENERS)


def _open_memory(url: str) -> Store:
    parts = urlsplit(url)
    if parts.netloc or parts.path not in ("", "/") or parts.fragment:
        raise ConfigError(f'the memory store is "memory://", with options after "?", not {_without_secrets(url)!r}')
    options: dict[str, Any] = {}
    for name, value in _options(parts.query, url):
        if name in ("max_keys", "max_log_entries"):
            options[name] = _number(name, value)
        elif name == "on_full":
            options[name] = value
        else:
            raise ConfigError(f'the memory store has the options max_keys, max_log_entries and on_full, not "{name}"')
    return MemoryStore(**options)


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


_OPENERS: dict[str, Callable[[str], Store]] = {"memory": _open_memory}
