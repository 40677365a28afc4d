"""The body of `POST /v1/check`: one table of fields, from which it is read and from which its JSON Schema is made.

An error names the place, the kind of value seen and what would be right. Why this is no model of pydantic is in
docs/decisions/0036-the-body-of-a-check.md.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from headgate.errors import ArgumentError
from headgate.keys import check_cost
from headgate.policy.compiled import ALL_RULES
from headgate.policy.descriptor import Descriptor
from headgate.policy.request import Request
from headgate.service.checks.body_fields import (
    LONGEST_TEXT,
    BadBody,
    EntryList,
    HeaderMap,
    Text,
    no_such_field,
    refuse_value,
)
from headgate.units import LARGEST

MOST_REQUESTS = 1000
_MOST_UNITS = 16
_LONGEST_AMOUNT = 64


class Check(NamedTuple):
    """A request to be checked, and its cost."""

    request: Request | Descriptor
    cost: int | Mapping[str, int | str]
    """A number, or one for each unit; the policy defines which units there are."""

    ruleset: str = ALL_RULES
    """Only the rules of this ruleset apply; the policy defines which rulesets there are."""


REQUEST: Mapping[str, Text | HeaderMap] = {
    "method": Text("GET if it is not there"),
    "path": Text("with its query or without; / if it is not there", prefix="/"),
    "headers": HeaderMap("from name to text, or to a list of texts where a header is there several times"),
    "client_ip": Text("the peer's address; if it is not there, the request has none"),
    "host": Text("the header Host if it is not there"),
}
"""The fields of a request. Each is optional, and an argument of `Request`."""

ENTRIES = EntryList(
    "a descriptor, as Envoy asks with, in place of a request: each entry has a key and a value, in order"
)
"""The one field of a request that is a descriptor."""

_FIELDS = (*REQUEST, "entries")

_CHECK = ("request", "cost", "ruleset")
_OF_EACH = ("cost", "ruleset")
_BODY = ("request", "requests", *_OF_EACH)
RULESET = Text("the ruleset of the policy whose rules apply, as in /check/{ruleset}; default if it is not there")
COST_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": LARGEST},
        {
            "type": "object",
            "maxProperties": _MOST_UNITS,
            "additionalProperties": {
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": LARGEST},
                    {"type": "string", "maxLength": _LONGEST_AMOUNT},
                ]
            },
        },
    ],
    "default": 1,
    "description": "so many such requests, a multiple of each rule's own cost; 0 only looks. Or a map from what limits "
    'count to a number, of money text, as in {"requests": 1, "tokens": 900, "usd": "0.0123"}',
}


def body_schema() -> dict[str, Any]:
    """The JSON Schema of a body."""
    one = {"request": {"$ref": "#/$defs/request"}, "cost": {"$ref": "#/$defs/cost"}, "ruleset": RULESET.schema()}
    several = {
        "type": "array",
        "minItems": 1,
        "maxItems": MOST_REQUESTS,
        "items": {"anyOf": [{"$ref": "#/$defs/request"}, {"$ref": "#/$defs/check"}]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Body of POST /v1/check",
        "anyOf": [{"$ref": "#/$defs/check"}, closed({"requests": several}, "requests")],
        "$defs": {
            "request": request_schema(),
            "cost": COST_SCHEMA,
            "check": closed(one, "request"),
        },
    }


def request_schema() -> dict[str, Any]:
    """The JSON Schema of a request, or of a descriptor in its place."""
    properties = {name: field.schema() for name, field in REQUEST.items()}
    request = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"anyOf": [request, closed({"entries": ENTRIES.schema()}, "entries")]}


def closed(properties: dict[str, Any], required: str) -> dict[str, Any]:
    """The schema of a map with these fields and no others."""
    return {"type": "object", "properties": properties, "required": [required], "additionalProperties": False}


def read_body(body: bytes) -> tuple[list[Check], bool]:
    """The requests of a body, and whether the body has a list of them; raises BadBody."""
    value = parse_body(body)
    if type(value) is not dict:
        refuse_value("the body", 'a map with "request" or "requests"', value)
    if "request" in value and value.keys() <= _CHECK_NAMES:
        return [_read_check("", value)], False
    for name in value:
        if name not in _BODY:
            raise no_such_field("", name, _BODY)
    if ("request" in value) == ("requests" in value):
        raise BadBody('give one of "request" and "requests"')
    for name in _OF_EACH:
        if name in value:
            raise BadBody(f'"{name}" belongs to each of "requests"')
    requests = value["requests"]
    if type(requests) is not list or not 1 <= len(requests) <= MOST_REQUESTS:
        refuse_value("requests", f"a list of 1 to {MOST_REQUESTS} requests", requests)
    return [_read_item(f"requests[{index}]", item) for index, item in enumerate(requests)], True


_CHECK_NAMES = frozenset(_CHECK)


def _read_item(place: str, value: object) -> Check:
    """One of several: a request, or {"request": ..., "cost": ..., "ruleset": ...}."""
    if type(value) is dict and "request" in value:
        for name in value:
            if name not in _CHECK:
                raise no_such_field(place, name, _CHECK)
        return _read_check(f"{place}.", value)
    return read_check(place, {"request": value})


def _read_check(place: str, value: dict[str, Any]) -> Check:
    """A check whose fields have names that begin with `place`."""
    check = read_check(f"{place}request", value)
    if "ruleset" not in value:
        return check
    ruleset = value["ruleset"]
    if type(ruleset) is not str or len(ruleset) > LONGEST_TEXT:
        RULESET.refuse(f"{place}ruleset", ruleset)
    return check._replace(ruleset=ruleset)


def read_check(place: str, value: dict[str, Any]) -> Check:
    """A request and its cost; `place` is where the request is."""
    fields = value["request"]
    if type(fields) is not dict:
        refuse_value(place, 'a map such as {"method": "GET", "path": "/", "client_ip": "203.0.113.9"}', fields)
    if "entries" in fields:
        return Check(_read_descriptor(place, fields), _read_cost(place, value))
    arguments: dict[str, Any] = {}
    for name, content in fields.items():
        field = REQUEST.get(name)
        if isinstance(field, Text):
            if type(content) is not str or len(content) > LONGEST_TEXT or not content.startswith(field.prefix):
                field.refuse(f"{place}.{name}", content)
            arguments[name] = content
        elif field is None:
            raise no_such_field(place, name, _FIELDS)
        else:
            arguments[name] = field.read(f"{place}.{name}", content)
    method = arguments.pop("method", "GET")  # an unknown method is counted, not refused
    try:
        request = Request(**arguments)
    except ArgumentError as error:
        raise BadBody(f"{place}: {error}") from None
    request.method = method.upper()
    return Check(request, _read_cost(place, value))


def _read_descriptor(place: str, fields: dict[str, Any]) -> Descriptor:
    for name in fields:
        if name in REQUEST:
            raise BadBody(f'{place}: a descriptor, which "entries" are of, has no {name!r}')
        if name != "entries":
            raise no_such_field(place, name, _FIELDS)
    return Descriptor(ENTRIES.read(f"{place}.entries", fields["entries"]))


def _read_cost(place: str, value: dict[str, Any]) -> int | Mapping[str, int | str]:
    try:
        return read_cost(value["cost"]) if "cost" in value else 1
    except ArgumentError as error:
        raise BadBody(f"{place}: {error}") from None


def read_cost(cost: Any) -> int | Mapping[str, int | str]:
    """A cost in the form that a gate takes; the gate checks its units. Raises ArgumentError."""
    if type(cost) is not dict:
        if type(cost) is not int:
            refuse_value("a cost", "a whole number, or a map from units to amounts", cost)
        return check_cost(cost)
    if len(cost) > _MOST_UNITS:
        raise ArgumentError(f"a cost names at most {_MOST_UNITS} units, not {len(cost)}")
    for unit, amount in cost.items():
        if type(amount) is str and len(amount) <= _LONGEST_AMOUNT:
            continue
        if isinstance(amount, str):
            raise ArgumentError(f"a cost in {unit[:64]} is text of at most {_LONGEST_AMOUNT} characters")
        if type(amount) is not int:
            refuse_value(f"a cost in {unit[:64]}", 'a whole number, or of money text such as "0.0123"', amount)
        check_cost(amount, f"a cost in {unit[:64]}")
    return cost


def parse_body(body: bytes) -> Any:
    """The JSON value of a body; raises BadBody."""
    if not body:
        raise BadBody('the body is empty: send {"request": {"method": "GET", "path": "/"}}')
    try:
        return _DECODER.decode(body.decode("utf-8-sig" if body.startswith(BOM_UTF8) else "utf-8"))
    except RecursionError:
        raise BadBody("the body is nested too deep") from None
    except UnicodeDecodeError as error:
        raise BadBody(f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg[:1].lower()}{error.msg[1:]}".removesuffix(" at").removesuffix(" starting")
        place = len(error.doc[: error.pos].encode()) + (len(BOM_UTF8) if body.startswith(BOM_UTF8) else 0)
        raise BadBody(f"the body is not JSON: {reason} at byte {place}") from None
    except BadBody:
        raise
    except ValueError:
        raise BadBody("the body has a number of more digits than any that can be used") from None


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise BadBody(f"the field {repeated[:60]!r} is given twice")
    return value


def _no_constant(name: str) -> NoReturn:
    raise BadBody(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_fields, parse_constant=_no_constant)
