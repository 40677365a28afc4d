"""Fields of the bodies of checks: the values that each takes, its JSON Schema, and the error for any other value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn

from headgate.errors import ArgumentError
from headgate.policy.descriptor import MOST_ENTRIES

LONGEST_TEXT = 8192
_MOST_HEADERS = 256
_FLOAT = "a number with a fraction or an exponent"


class BadBody(ArgumentError):
    """A body that cannot be used; the message names the place, the value and what would be right."""

    code: ClassVar[str] = "body"


class Text(NamedTuple):
    """A field that is text."""

    about: str
    prefix: str = ""

    def schema(self) -> dict[str, Any]:
        """The field's JSON Schema."""
        pattern = {"pattern": f"^{self.prefix}"} if self.prefix else {}
        return {"type": "string", "maxLength": LONGEST_TEXT, **pattern, "description": self.about}

    def refuse(self, place: str, value: object) -> NoReturn:
        """Raise BadBody for a value that is no such text."""
        if isinstance(value, str) and len(value) <= LONGEST_TEXT:
            refuse_value(place, f'a path that begins with "{self.prefix}"', value)
        refuse_value(place, f"text of at most {LONGEST_TEXT} characters", value)


class HeaderMap(NamedTuple):
    """A field that is a map from name to text, or to a list of texts where a header occurs several times."""

    about: str

    def schema(self) -> dict[str, Any]:
        """The field's JSON Schema."""
        text = {"type": "string", "maxLength": LONGEST_TEXT}
        return {
            "type": "object",
            "maxProperties": _MOST_HEADERS,
            "additionalProperties": {"anyOf": [text, {"type": "array", "items": text}]},
            "description": self.about,
        }

    def read(self, place: str, value: Any) -> Mapping[str, str] | Iterable[tuple[str, str]]:
        """The headers in the form that a `Request` takes; raises BadBody."""
        if type(value) is not dict or len(value) > _MOST_HEADERS:
            refuse_value(place, f"a map of at most {_MOST_HEADERS} headers", value)
        for text in value.values():
            if type(text) is not str or len(text) > LONGEST_TEXT:
                return self._read_lists(place, value)
        return value

    def _read_lists(self, place: str, value: dict[str, Any]) -> list[tuple[str, str]]:
        pairs = []
        for name, content in value.items():
            for text in content if isinstance(content, list) else [content]:
                if type(text) is not str or len(text) > LONGEST_TEXT:
                    refuse_value(f"{place}.{name[:60]}", f"text of at most {LONGEST_TEXT} characters", text)
                pairs.append((name, text))
        return pairs


class EntryList(NamedTuple):
    """A field that is a list of a descriptor's entries; as in protobuf's JSON, an absent value is empty."""

    about: str

    def schema(self) -> dict[str, Any]:
        """The field's JSON Schema."""
        text = {"type": "string", "maxLength": LONGEST_TEXT}
        entry = {
            "type": "object",
            "properties": {"key": {**text, "minLength": 1}, "value": text},
            "required": ["key"],
            "additionalProperties": False,
        }
        return {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_ENTRIES,
            "items": entry,
            "description": self.about,
        }

    def read(self, place: str, value: Any) -> list[tuple[str, str]]:
        """The entries in the form that a `Descriptor` takes; raises BadBody."""
        if type(value) is not list or not 1 <= len(value) <= MOST_ENTRIES:
            refuse_value(place, f"a list of 1 to {MOST_ENTRIES} entries", value)
        return [self._read_entry(f"{place}[{index}]", entry) for index, entry in enumerate(value)]

    def _read_entry(self, place: str, entry: Any) -> tuple[str, str]:
        if type(entry) is not dict or "key" not in entry:
            refuse_value(place, 'a map such as {"key": "generic_key", "value": "api"}', entry)
        for name, text in entry.items():
            if name not in ("key", "value"):
                raise no_such_field(place, name, ("key", "value"))
            if type(text) is not str or len(text) > LONGEST_TEXT:
                refuse_value(f"{place}.{name}", f"text of at most {LONGEST_TEXT} characters", text)
        if not entry["key"]:
            raise BadBody(f"{place}.key is empty: name what the value is")
        return entry["key"], entry.get("value", "")


def no_such_field(place: str, name: str, fields: Iterable[str]) -> BadBody:
    """The error for a field that does not exist; `fields` are those that do."""
    prefix = f"{place}: " if place else ""
    return BadBody(f"{prefix}no such field {name[:60]!r}; there are {', '.join(fields)}")


def refuse_value(place: str, expected: str, value: object) -> NoReturn:
    """Raise BadBody for a value at a place, with its kind and what would be right."""
    kinds = {dict: "a map", str: "text", bool: "true or false", type(None): "null", float: _FLOAT}
    kind = kinds.get(type(value), "a number")
    if isinstance(value, list):
        kind = f"a list of {len(value)}"
    raise BadBody(f"{place} must be {expected}, not {kind}")
