"""The records in books, and their fields: the same names in JSON lines and in the columns of a database.

Books are append-only. The gate writes entries with what a call held, used and cost; corrections, closings of a month
and counts of lost entries are other records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, get_args

from headgate.llm.entry import Caller, Entry, EntryKind, SettleMode
from headgate.llm.usage import Usage
from headgate.units import LARGEST


class Correction(NamedTuple):
    """An entry of kind "corrected": its usage and its cost, where not None, replace those recorded before."""

    entry: Entry
    reason: str = ""
    author: str = ""


class Dropped(NamedTuple):
    """The number of entries lost up to a time, because the books could not be written as fast as they arrived."""

    at_us: int
    entries: int


class Closing(NamedTuple):
    """A closed month of a time zone, with the sums that it had: fields of `headgate.llm.books.sums.Sums` by name."""

    at_us: int
    month: str
    zone: str
    sums: Mapping[str, int]
    author: str = ""


Name = TypeVar("Name", bound=str)
Record = Entry | Correction | Dropped | Closing

_TEXTS = ("key", "user", "team", "organisation", "tier", "model")
_HELD = ("held_input", "held_output", "held_cost", "lease_us")
_USAGE = Usage._fields
_KINDS: dict[Any, EntryKind] = {kind: kind for kind in get_args(EntryKind)}
_MODES: dict[Any, SettleMode] = {mode: mode for mode in get_args(SettleMode)}

FIELDS = (
    "kind", "id", "at_us", *_TEXTS, *_HELD, "mode", *_USAGE, "cost", "price", "limit", "admitted_us",
    "reason", "author", "dropped", "month", "zone", "sums", "estimate",
)  # fmt: skip
"""All fields that a record can have, in the order of a database's columns."""

_MAY_BE_ZERO = frozenset(("at_us", "held_input", "held_output", "held_cost", "input", "output", "cost", "estimate"))
"""The fields whose 0 is written; of others 0 is omitted."""


def fields_of(record: Record) -> dict[str, Any]:
    """The fields of a record that are not empty: texts, integers, and `sums`, a dict of integers."""
    if isinstance(record, Dropped):
        return {"kind": "dropped", "at_us": record.at_us, "dropped": record.entries}
    if isinstance(record, Closing):
        fields = {"kind": "closed", "at_us": record.at_us, "month": record.month, "zone": record.zone}
        return _without_empty(fields | {"author": record.author, "sums": dict(record.sums)})
    extra: dict[str, Any] = {}
    if isinstance(record, Correction):
        extra = {"reason": record.reason, "author": record.author}
        record = record.entry
    caller, usage = record.caller, record.usage
    fields = {
        "kind": record.kind, "id": record.id, "at_us": record.at_us, "key": caller.key, "user": caller.user,
        "team": caller.team, "organisation": caller.organisation, "tier": caller.tier, "model": record.model,
        "held_input": record.held_input, "held_output": record.held_output, "held_cost": record.held_cost,
        "lease_us": record.lease_us, "mode": record.mode, **({} if usage is None else usage._asdict()),
        "cost": record.cost, "price": record.price, "limit": record.limit, "admitted_us": record.admitted_us,
        "estimate": record.estimate,
    }  # fmt: skip
    return _without_empty(fields | extra if extra else fields)


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if type(value) is not str or value.isascii() else _encodable(value)
        for name, value in fields.items()
        if value or (value == 0 and name in _MAY_BE_ZERO)
    }


def _encodable(text: str) -> str:
    """The text with lone surrogates escaped, so that every encoding of Unicode can write it."""
    return text.encode("utf-8", "backslashreplace").decode()


def record_of(fields: Mapping[str, Any]) -> Record:
    """Parse a record from its fields, where None is an omitted one; raises ValueError that says what is wrong."""
    record_kind = fields.get("kind")
    at_us = _number(fields, "at_us")
    if record_kind == "dropped":
        return Dropped(at_us, _number(fields, "dropped"))
    if record_kind == "closed":
        return Closing(at_us, _text(fields, "month"), _text(fields, "zone"), _sums(fields), _text(fields, "author"))
    kind, mode = _one_of(_KINDS, fields, "kind"), _one_of(_MODES, fields, "mode")
    entry = Entry(
        kind,
        _text(fields, "id"),
        at_us,
        Caller(*[_text(fields, name) for name in _TEXTS[:-1]]),
        _text(fields, "model"),
        _number(fields, "held_input"),
        _number(fields, "held_output"),
        _number_or_none(fields, "held_cost"),
        _number(fields, "lease_us", 0),
        mode,
        None if fields.get("input") is None else Usage(*[_number(fields, name, 0) for name in _USAGE]),
        _number_or_none(fields, "cost"),
        _text(fields, "price"),
        _text(fields, "limit"),
        _number(fields, "admitted_us", 0),
        _number_or_none(fields, "estimate"),
    )
    if kind == "corrected":
        return Correction(entry, _text(fields, "reason"), _text(fields, "author"))
    return entry


def _one_of(allowed: Mapping[Any, Name], fields: Mapping[str, Any], name: str) -> Name:
    value = fields.get(name) or ""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} is unknown in books: {value!r:.40}")
    return allowed[value]


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if type(value) is not str:
        raise ValueError(f"{name} is a text, not {value!r:.40}")
    return value


def _number(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = _number_or_none(fields, name)
    if value is not None:
        return value
    if default is None:
        raise ValueError(f"{name} is missing")
    return default


def _number_or_none(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 0 or (name.endswith("_us") and value > LARGEST):
        raise ValueError(f"{name} is a whole number of at least 0, not {value!r:.40}")
    return value


def _sums(fields: Mapping[str, Any]) -> dict[str, int]:
    sums = fields.get("sums")
    if not isinstance(sums, Mapping) or not all(type(value) is int for value in sums.values()):
        raise ValueError(f"sums are whole numbers by name, not {sums!r:.40}")
    return {str(name): value for name, value in sums.items()}
