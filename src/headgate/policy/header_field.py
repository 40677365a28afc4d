"""Which headers a request must have, as a `match` of a policy says it: read here, and described for editors."""

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
    """The name of a header; raises ValueError."""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ValueError(f"{value!r} is no name of a header")
    return value


def read_headers(value: object) -> dict[str, tuple[str, ...] | bool]:
    """For each name the values of which a request must have one, True for any; raises ValueError."""
    if not isinstance(value, dict) or not value:
        told = "an empty map" if value == {} else shown(value)
        raise ValueError(f"must be a map from names of headers to values, such as {{X-Plan: gold}}, not {told}")
    headers: dict[str, tuple[str, ...] | bool] = {}
    faults: dict[Any, str] = {}
    spelled: dict[str, str] = {}
    for name, wanted in value.items():
        try:
            own = header_name(name)
            same = spelled.setdefault(own.lower().replace("_", "-"), own)
            if same is not own:
                raise ValueError(f"is the header {same!r} again: write its values as one list")
            headers[own] = _values(wanted)
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
