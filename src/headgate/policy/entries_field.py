"""The field `entries` of a match in a policy file: a map of entries that must be present, or a list of all entries."""

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
_EXPECTED = (
    "must be a map from keys to values, such as {user: true}, or a list of all entries in their order, such as "
    "[{key: generic_key, value: api}, {key: user}]"
)


def read_entries(value: object) -> EntryConditions:
    """Read the conditions on a descriptor's entries. Raises ValueError with what would be right."""
    if not isinstance(value, dict | list) or not value:
        raise ValueError(f"{_EXPECTED}, not {'an empty map' if value == {} else shown(value)}")
    if len(value) > MOST_ENTRIES:
        raise ValueError(f"names {len(value)} entries, and a descriptor has {MOST_ENTRIES} at the most")
    patterns: list[EntryPattern] = []
    faults: dict[str | int, str] = {}
    whole = isinstance(value, list)
    for place, item in enumerate(value) if isinstance(value, list) else value.items():
        try:
            patterns.append(_listed_pattern(item) if whole else _pattern(place, item))
        except ValueError as error:
            faults[place] = str(error)
    if faults:
        raise FieldFaults(faults)
    return EntryConditions(tuple(patterns), whole)


_LISTED_FIELDS = ("key", "value", "except")


def _listed_pattern(entry: object) -> EntryPattern:
    """Read an entry of a list: {key: ..., value: ..., except: ...}."""
    if not isinstance(entry, dict) or "key" not in entry or not entry.keys() <= {*_LISTED_FIELDS}:
        raise ValueError(
            f"must be a map with key, and value or except where not any value is meant, such as "
            f"{{key: generic_key, value: api}}, not {_description(entry)}"
        )
    pattern = _pattern(entry["key"], entry.get("value", True), "value ")
    if "except" not in entry:
        return pattern
    excepted = _values(entry["except"], "except must be text or a list of texts")
    if excepted is None:
        raise ValueError("except must leave some values, and * stands for all of them")
    return EntryPattern(pattern.key, pattern.values, excepted)


def _description(entry: object) -> str:
    return f"a map with {', '.join(map(str, entry))[:60] or 'nothing'}" if isinstance(entry, dict) else shown(entry)


def _pattern(key: Any, values: object, prefix: str = "") -> EntryPattern:
    if not isinstance(key, str) or not key:
        raise ValueError(f"a key of an entry is text that is not empty, not {shown(key)}")
    if values is True:
        return EntryPattern(key)
    return EntryPattern(key, _values(values, f"{prefix}must be text, a list of texts, or true for any value"))


def _values(values: object, expected: str) -> EntryValues | None:
    """Read texts and patterns; None where one of them matches any value."""
    try:
        texts = list_of_texts(values)
    except ValueError:
        raise ValueError(f"{expected}, not {shown(values)}") from None
    if any(text and not text.strip("*") for text in texts):
        return None
    patterns = tuple(dict.fromkeys(text for text in texts if "*" in text))
    return EntryValues(frozenset(text for text in texts if "*" not in text), patterns)
