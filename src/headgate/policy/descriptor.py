"""The descriptor entries that a gateway sends for a check: the other kind of subject besides `Request`.

The terms are Envoy's (envoy.extensions.common.ratelimit.v3.RateLimitDescriptor). The gateway has read the request and
sends what its configuration names, as entries of a key and a value, in order. Nothing else of the request is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from headgate.errors import ArgumentError
from headgate.policy.frozen_map import FrozenMap
from headgate.policy.subject import REPEATED

MOST_ENTRIES = 256
"""The most entries of a descriptor; gateways send a few."""

REMOTE_ADDRESS = "remote_address"
"""The key of the entry that contains the client's address."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Descriptor:
    """A gateway's description of a request: entries of a key and a value, in order. Nothing here is trusted.

    `entries` are pairs or a mapping. A key may occur several times; a value may be empty, a key may not. A descriptor
    has nothing of an HTTP request: no method, path, host or header. The client's address is the value of the entry
    `remote_address`.
    """

    entries: tuple[tuple[str, str], ...]

    method = path = host = endpoint = ""
    headers = FrozenMap[str, str]()

    def __init__(self, entries: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        object.__setattr__(self, "entries", _checked(entries))

    @property
    def client_ip(self) -> str:
        """The value of the entry `remote_address`, "" where there is none or there are several."""
        value = self.entry(REMOTE_ADDRESS)
        return "" if value is REPEATED else value

    def entry(self, key: str) -> str:
        """The value of the entries with a key; "" where there is none, `REPEATED` where there are different values.

        An empty value counts as none, as with headers.
        """
        found = ""
        for entry_key, value in self.entries:
            if entry_key == key and value:
                if found and value != found:
                    return REPEATED
                found = value
        return found

    def header(self, name: str) -> str:
        """Return "": an entry is no header."""
        return ""

    def cookie(self, name: str) -> str:
        """Return "": an entry is no cookie."""
        return ""

    def query(self, name: str) -> str:
        """Return "": an entry is no query parameter."""
        return ""

    def attribute(self, name: str) -> str:
        """Return "": a descriptor is no call of a language model."""
        return ""

    def __repr__(self) -> str:
        return f"Descriptor({', '.join(key for key, _ in self.entries)})"  # values may be secrets


def _checked(entries: Mapping[str, str] | Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    try:
        items = cast(Mapping[str, str], entries).items() if isinstance(entries, Mapping) else entries
        pairs = tuple([(key, value) for key, value in items])
        "".join([text for pair in pairs for text in pair])  # only texts can be joined
    except TypeError:
        raise ArgumentError("keys and values of a descriptor's entries are text") from None
    except ValueError:
        raise ArgumentError("entries of a descriptor are a mapping, or pairs of a key and a value") from None
    if not 0 < len(pairs) <= MOST_ENTRIES:
        raise ArgumentError(f"a descriptor has 1 to {MOST_ENTRIES} entries, not {len(pairs)}")
    if not all(key for key, _ in pairs):
        raise ArgumentError("a key of a descriptor's entries is empty: name what its value is")
    return pairs
