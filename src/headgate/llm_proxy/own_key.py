"""Keys that the proxy itself issues: shown once and stored as digests, so that a stolen file contains no key."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from headgate.errors import ConfigError

PREFIX = "hg-"
_RANDOM_BYTES = 32
_START_CHARACTERS = 8
"""The number of a key's first characters that are stored, so that people recognise it: 5 of its 43 random ones."""

_LONGEST_TEXT = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,99}")


class OwnKey(NamedTuple):
    """The stored record of a key. Times are microseconds since the epoch, None for never."""

    name: str
    digest: str
    """SHA-256 of the key, in hexadecimal digits."""

    start: str
    """The key's first characters."""

    created_us: int
    expires_us: int | None = None
    revoked_us: int | None = None
    user: str = ""
    team: str = ""
    organisation: str = ""
    tier: str = ""
    names_users: bool = False
    """Whether its calls may name their user in a header: for the key of a program that many people use."""

    def is_active(self, now_us: int) -> bool:
        """Whether the proxy accepts the key at this time."""
        return self.revoked_us is None and (self.expires_us is None or now_us < self.expires_us)

    def state(self, now_us: int) -> str:
        """`active`, `revoked` or `expired`."""
        if self.revoked_us is not None:
            return "revoked"
        return "active" if self.is_active(now_us) else "expired"


class KeyFinder(Protocol):
    """Finds keys by their digests."""

    async def find(self, digest: str) -> OwnKey | None:
        """Find the key of a digest, also a revoked or expired one; None if there is none."""
        ...


class OwnKeys(KeyFinder, Protocol):
    """Stores keys, and finds them."""

    def check(self) -> int:
        """Return the number of keys; raises ConfigError where none can be read."""
        ...

    def all(self) -> list[OwnKey]:
        """All keys, in the order of their creation."""
        ...

    def add(self, key: OwnKey) -> None:
        """Store a new key; raises ConfigError where one of its name is active."""
        ...

    def revoke(self, name: str, now_us: int) -> int:
        """Revoke the keys of a name, which are refused from then on; return how many were revoked."""
        ...


def digest_of(key: str) -> str:
    """The stored digest of a key: SHA-256, in hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def new_key(name: str, *, now_us: int, **fields: Any) -> tuple[str, OwnKey]:
    """Make a key, and its record with these fields. Raises ConfigError for a name or a field that is invalid."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the name of a key is up to 100 letters, digits and . _ @ : -, not {name[:40]!r}")
    for field in ("user", "team", "organisation", "tier"):
        text = fields.get(field, "")
        if len(text) > _LONGEST_TEXT or (text and not text.isprintable()):
            raise ConfigError(f"the {field} of a key is up to {_LONGEST_TEXT} printable characters, not {text[:40]!r}")
    expires_us = fields.get("expires_us")
    if expires_us is not None and expires_us <= now_us:
        raise ConfigError("a new key expires in the future: give a later moment")
    key = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    return key, OwnKey(name, digest_of(key), key[:_START_CHARACTERS], now_us, **fields)


def add_to(keys: list[OwnKey], key: OwnKey) -> list[OwnKey]:
    """Return the keys and the new one; raises ConfigError where an active one has its name."""
    if any(other.name == key.name and other.is_active(key.created_us) for other in keys):
        raise ConfigError(f"a key named {key.name} is active: choose another name, or revoke it first")
    return [*keys, key]


def revoked_in(keys: list[OwnKey], name: str, now_us: int) -> tuple[list[OwnKey], int]:
    """Return the keys with those of a name revoked, and how many were revoked."""
    changed = [key._replace(revoked_us=now_us) if key.name == name and key.revoked_us is None else key for key in keys]
    return changed, sum(new is not old for new, old in zip(changed, keys, strict=True))


def key_values(key: OwnKey) -> dict[str, Any]:
    """A key's fields for JSON, without empty ones."""
    return {name: value for name, value in key._asdict().items() if value not in (None, "", False)}


def read_key(fields: Any, place: str) -> OwnKey:
    """Make a key of its JSON fields; raises ConfigError with its place where they are no key."""
    if not isinstance(fields, Mapping):
        raise ConfigError("a key is an object", path=place)
    values: dict[str, Any] = {}
    for name, value in fields.items():
        kind = _KINDS.get(name)
        if kind is None:
            raise ConfigError(f"a key has no field {str(name)[:40]!r}; there are {', '.join(_KINDS)}", path=place)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(f"is {_KIND_NAMES[kind]}", path=f"{place}.{name}")
        values[name] = value
    for name in ("name", "digest", "start", "created_us"):
        if name not in values:
            raise ConfigError(f"lacks {name}", path=place)
    if not re.fullmatch("[0-9a-f]{64}", values["digest"]):
        raise ConfigError("is a SHA-256 in 64 hexadecimal digits", path=f"{place}.digest")
    return OwnKey(**values)


_TEXTS = ("name", "digest", "start", "user", "team", "organisation", "tier")
_KINDS: dict[str, type] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("created_us", "expires_us", "revoked_us"), int),
    "names_users": bool,
}
_KIND_NAMES = {str: "text", int: "a whole number of microseconds", bool: "true or false"}
