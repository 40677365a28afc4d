"""The entries that a match names, as its file says them: a map of those that must be there, or a list of all."""

from __future__ import annotations

from typing import Any

from headgate.policy.descriptor import MOST_ENTRIES
from headgate.policy.entries import EntryConditions, EntryPattern, EntryValues
from headgate.policy.model_parts import ONE_OR_MORE, list_of_texts
from headgate.policy.problems import FieldFaults, shown

_VALUES = {"anyOf": [{"const": True}, *ONE_OR_MORE["anyOf"]]}
ENTRIES_SCHEMA = {
    "anyOf": [
        {
            "type": "object",
            "additionalProperties": _VALUES,
            "minProperties": 1,
            "maxProperties": MOST_ENTRIES,
            "examples": [{"generic_key": "api", "user": True}],
        },
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"key": {"type": "string", "minLength": 1}, "value": _VALUES, "except": ONE_OR_MORE},
                "required": ["key"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": MOST_ENTRIES,
            "examples": [[{"key": "generic_key", "value": "api"}, {"key": "user", "except": ["admin", "test-*"]}]],
        },
    ]
}
_WANTED = (
    "must be a map from keys to values, such as {user: true}, or a list of all entries in their order, such as "
    "[{key: generic_key, value: api}, {key: user}]"
)


def read_entries(value: object) -> EntryConditions:
    """Which entries a descriptor must have. Raises ValueError with what would be right."""
    if not isinstance(value, dict | list) or not value:
        raise ValueError(f"{_WANTED}, not {'an empty map' if value == {} else shown(value)}")
    if len(value) > MOST_ENTRIES:
        raise ValueError(f"names {len(value)} entries, and a descriptor has {MOST_ENTRIES} at the most")
    patterns: list[EntryPattern] = []
    faults: dict[str | int, str] = {}
    whole = isinstance(value, list)
    for place, one in enumerate(value) if isinstance(value, list) else value.items():
        try:
            patterns.append(_listed(one) if whole else _pattern(place, one))
        except ValueError as error:
            faults[place] = str(error)
    if faults:
        raise FieldFaults(faults)
    return EntryConditions(tuple(patterns), whole)


_LISTED = ("key", "value", "except")


def _listed(entry: object) -> EntryPattern:
    """An entry of a list: {key: ..., value: ..., except: ...}."""
    if not isinstance(entry, dict) or "key" not in entry or not entry.keys() <= {*_LISTED}:
        raise ValueError(
            f"must be a map with key, and value or except where not any value is meant, such as "
            f"{{key: generic_key, value: api}}, not {_seen(entry)}"
        )
    pattern = _pattern(entry["key"], entry.get("value", True), "value ")
    if "except" not in entry:
        return pattern
    excepted = _values(entry["except"], "except must be text or a list of texts")
    if excepted is None:
        raise ValueError("except must leave some values, and * stands for all of them")
    return EntryPattern(pattern.key, pattern.values, excepted)


def _seen(entry: object) -> str:
    return f"a map with {', '.join(map(str, entry))[:60] or 'nothing'}" if isinstance(entry, dict) else shown(entry)


def _pattern(key: Any, values: object, named: str = "") -> EntryPattern:
    if not isinstance(key, str) or not key:
        raise ValueError(f"a key of an entry is text that is not empty, not {shown(key)}")
    if values is True:
        return EntryPattern(key)
    return EntryPattern(key, _values(values, f"{named}must be text, a list of texts, or true for any value"))


def _values(values: object, wanted: str) -> EntryValues | None:
    """Texts and patterns; None where one of them stands for any value."""
    try:
        texts = list_of_texts(values)
    except ValueError:
        raise ValueError(f"{wanted}, not {shown(values)}") from None
    if any(text and not text.strip("*") for text in texts):
        return None
    patterns = tuple(dict.fromkeys(text for text in texts if "*" in text))
    return EntryValues(frozenset(text for text in texts if "*" not in text), patterns)
