"""What caches may do with the response of a fallback: not store it, unless the response itself says what they may do.

It is for a client over its limit, often with the status 200, and a cache in front would give it to others. A 429 needs
no such field: caches must not store it (RFC 6585, section 4).
"""

from __future__ import annotations

from collections.abc import Iterable

NO_STORE = ("Cache-Control", "no-store")
"""The field that is added (RFC 9111, section 5.2.2.5)."""

_SPEAKING = frozenset({"cache-control", "expires"})


def has_no_cache_field(names: Iterable[str]) -> bool:
    """Whether a response whose header fields have these names, in any letters, tells caches nothing."""
    return _SPEAKING.isdisjoint(map(str.lower, names))
