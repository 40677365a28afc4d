"""The field `header` of a `match` in a policy file: reads it, and has its JSON Schema for editors."""

from __future__ import annotations

import re
from typing import Any

from headgate.policy.model_parts import ONE_OR_MORE, list_of_texts
from headgate.policy.problems import FieldFaults, shown

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

HEADERS_SCHEMA = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"const": True}, *ONE_OR_MORE["anyOf"]]},
    "minProperties": 1,
}
"""The JSON Schema of the field."""


def header_name(value: object) -> str:
    """Check the name of a header and return it; raises ValueError."""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ValueError(f"{value!r} is no name of a header")
    return value


def read_headers(value: object) -> dict[str, tuple[str, ...] | bool]:
    """Read for each name the values of which a request must have one, True for any; raises ValueError."""
    if not isinstance(value, dict) or not value:
        description = "an empty map" if value == {} else shown(value)
        raise ValueError(f"must be a map from names of headers to values, such as {{X-Plan: gold}}, not {description}")
    headers: dict[str, tuple[str, ...] | bool] = {}
    faults: dict[Any, str] = {}
    names_by_key: dict[str, str] = {}
    for name, values in value.items():
        try:
            checked_name = header_name(name)
            first_name = names_by_key.setdefault(checked_name.lower().replace("_", "-"), checked_name)
            if first_name is not checked_name:
                raise ValueError(f"is the header {first_name!r} again: write its values as one list")
            headers[checked_name] = _values(values)
        except ValueError as error:
            faults[name] = str(error)
    if faults:
        raise FieldFaults(faults)
    return headers


def _values(value: object) -> tuple[str, ...] | bool:
    if value is True:
        return True
    if not isinstance(value, str | list):
        raise ValueError(f"must be text, a list of texts, or true for any value, not {shown(value)}")
    values = list_of_texts(value)
    for text in values:
        if text != text.strip():
            raise ValueError(
                f"{shown(text)} never matches, as values are compared without the white space around them: "
                f"write {shown(text.strip())}"
            )
    return values
