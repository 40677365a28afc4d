"""Conditions on a descriptor's entries, and the parts of keys that entries give.

The key of an entry is compared exactly; its value exactly, or with a pattern in which each `*` matches any text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headgate.policy.identity import REPEATED_IDENTITY, EntriesIdentity, EntryIdentity, Parts
from headgate.policy.key_parts import CREDENTIALS, bounded, digest, is_list, one_spelling, plain_token
from headgate.policy.subject import REPEATED, Subject


@dataclass(frozen=True, slots=True)
class EntryValues:
    """Values of an entry: these texts, and all that match one of these patterns."""

    texts: frozenset[str]
    patterns: tuple[str, ...] = ()

    def has(self, value: str) -> bool:
        """Whether a value is one of them."""
        return value in self.texts or any(is_like(pattern, value) for pattern in self.patterns)

    def __str__(self) -> str:
        return " or ".join(map(repr, sorted({*self.texts, *self.patterns})))


@dataclass(frozen=True, slots=True)
class EntryPattern:
    """A condition on one entry: its key and its values; `values` None for any, `excepted` None for no exception."""

    key: str
    values: EntryValues | None = None
    excepted: EntryValues | None = None

    def is_met_by(self, value: str) -> bool:
        """Whether an entry of this key with this value meets the condition."""
        if self.excepted is not None and self.excepted.has(value):
            return False
        return self.values is None or self.values.has(value)

    @property
    def expected(self) -> str:
        """The values as text; "" for any."""
        excepted = "" if self.excepted is None else f"other than {self.excepted}"
        return " ".join(filter(None, ("" if self.values is None else str(self.values), excepted)))


@dataclass(frozen=True, slots=True)
class EntryConditions:
    """Conditions on a descriptor: it has an entry of each pattern, in any order, whatever else it has.

    With `whole`, it has exactly one entry of each pattern, in their order, and no others.
    """

    patterns: tuple[EntryPattern, ...]
    whole: bool = False

    def why_not(self, subject: Subject, some: Callable[[Iterable[bool]], bool]) -> str:
        """Why a subject does not meet the conditions; "" where it does.

        `some` is `any` or `all`: it decides over the values of a key that occurs several times.
        """
        entries = subject.entries
        if self.whole:
            return self._mismatch_of_whole(entries)
        for pattern in self.patterns:
            values = [value for key, value in entries if key == pattern.key]
            if not values:
                return f"entry {pattern.key} is not there"
            if not some(pattern.is_met_by(value) for value in values):
                return f"entry {pattern.key} is not {pattern.expected}"
        return ""

    def _mismatch_of_whole(self, entries: tuple[tuple[str, str], ...]) -> str:
        keys, expected_keys = [key for key, _ in entries], [pattern.key for pattern in self.patterns]
        if keys != expected_keys:
            return f"the entries are {' > '.join(keys) or '(none)'}, not {' > '.join(expected_keys)}"
        for place, (pattern, (_, value)) in enumerate(zip(self.patterns, entries, strict=True), 1):
            if not pattern.is_met_by(value):
                return f"entry {place}, {pattern.key}, is not {pattern.expected}"
        return ""

    def __str__(self) -> str:
        texts = [f"{pattern.key} {pattern.expected}" if pattern.expected else pattern.key for pattern in self.patterns]
        return (" > " if self.whole else " and ").join(texts)


def is_like(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern, in which each `*` matches any text, or none."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    place, end = len(first), len(text) - len(last)
    for part in middle:  # the first occurrence is as good as any later one
        place = text.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True


def entries_text(entries: Iterable[tuple[str, str]]) -> str:
    """All entries in their order as one text, different for different entries: `generic_key=api&user=7`."""
    return "&".join([f"{_escaped(key)}={_escaped(value)}" for key, value in entries])


def entries_of_text(text: str) -> list[tuple[str, str]]:
    """The entries of a text that `entries_text` has written; [] for any other text."""
    pairs = [pair.partition("=") for pair in text.split("&")]
    if not all(key and equals for key, equals, _ in pairs):
        return []
    return [(_unescaped(key), _unescaped(value)) for key, _, value in pairs]


def _unescaped(text: str) -> str:
    return text.replace("%3D", "=").replace("%26", "&").replace("%25", "%")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("&", "%26").replace("=", "%3D")


def extractor_of_entries(identity: EntryIdentity | EntriesIdentity) -> Callable[[Subject], Parts | None]:
    """A function that gives the parts of a key from one entry, or from all entries together."""
    return _of_entry(identity) if isinstance(identity, EntryIdentity) else _of_entries(identity)


def _of_entry(identity: EntryIdentity) -> Callable[[Subject], Parts | None]:
    """Extract one entry; its value is read like that of a header, except for white space around it."""
    key, secret, repeated = identity.entry, identity.secret, (REPEATED_IDENTITY, identity.name)
    credentials = key.lower() in CREDENTIALS

    def entry(subject: Subject) -> Parts | None:
        value = subject.entry(key)
        if not value:
            return None
        if value is REPEATED or (secret and "," in value and is_list(value)):
            return repeated
        spelled = one_spelling(value) if credentials else plain_token(value)
        return (digest(spelled) if secret else bounded(spelled),)

    return entry


def _of_entries(identity: EntriesIdentity) -> Callable[[Subject], Parts | None]:
    part_of = digest if identity.secret else bounded

    def entries(subject: Subject) -> Parts | None:
        sent = subject.entries
        return (part_of(entries_text(sent)),) if sent else None

    return entries
