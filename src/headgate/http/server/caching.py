"""Forbids caches to store the response of a fallback, unless the response itself has fields for caches.

It is for a client over its limit, often with the status 200, and a cache in front would serve it to others. A 429 needs
no such field: caches must not store it (RFC 6585, section 4).
"""

from __future__ import annotations

from collections.abc import Iterable

NO_STORE = ("Cache-Control", "no-store")
"""The field that is added (RFC 9111, section 5.2.2.5)."""

_CACHE_FIELDS = frozenset({"cache-control", "expires"})


def has_no_cache_field(names: Iterable[str]) -> bool:
    """Whether a response with header fields of these names, in any case, has no field for caches."""
    return _CACHE_FIELDS.isdisjoint(map(str.lower, names))
