"""The bodies of `/v1/reserve`, `/v1/commit`, `/v1/cancel` and `/v1/extend`; errors name the place and what is valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headgate.errors import ArgumentError
from headgate.holding import LEASE_S, LONGEST_LEASE_US, LONGEST_NAME, LONGEST_REMEMBERED_US
from headgate.policy.descriptor import Descriptor
from headgate.policy.request import Request
from headgate.service.checks.body import COST_SCHEMA, closed, parse_body, read_check, read_cost, request_schema
from headgate.service.checks.body_fields import BadBody, no_such_field, refuse_value

Cost = int | Mapping[str, int | str]

_RESERVE = ("request", "cost", "lease", "id", "remember")
_ID = {"type": "string", "description": "as the answer to /v1/reserve has it"}
_LEASE = {
    "type": "number",
    "exclusiveMinimum": 0,
    "maximum": LONGEST_LEASE_US // 1_000_000,
    "default": LEASE_S,
    "description": "seconds",
}


class ReserveBody(NamedTuple):
    """The body of `/v1/reserve`: a request to be held."""

    request: Request | Descriptor
    cost: Cost
    lease: float
    id: str | None
    remember: float | None


class ExtendBody(NamedTuple):
    """The body of `/v1/extend`: a hold whose lease is to end later."""

    id: str
    lease: float
    more: Cost


def read_reserve(body: bytes) -> ReserveBody:
    """Read the body of `/v1/reserve`; raises BadBody."""
    value = _map(body, _RESERVE, "request")
    check = read_check("request", value)
    name = value.get("id")
    if name is not None and type(name) is not str:
        refuse_value("id", "text", name)
    return ReserveBody(check.request, check.cost, _seconds(value, "lease", LEASE_S), name, _seconds(value, "remember"))


def read_commit(body: bytes) -> tuple[str, Cost | None]:
    """The id and the amount of a commit, None for as much as is held; raises BadBody."""
    value = _map(body, ("id", "actual"), "id")
    return _id(value), None if value.get("actual") is None else _amount(value, "actual")


def read_cancel(body: bytes) -> str:
    """The id of a cancel; raises BadBody."""
    return _id(_map(body, ("id",), "id"))


def read_extend(body: bytes) -> ExtendBody:
    """Read the body of `/v1/extend`; raises BadBody."""
    value = _map(body, ("id", "lease", "more"), "id")
    return ExtendBody(_id(value), _seconds(value, "lease", LEASE_S), _amount(value, "more") if "more" in value else 0)


def holds_schema() -> dict[str, Any]:
    """The JSON Schema of the bodies, each under its name."""
    amount = {"$ref": "#/$defs/cost"}
    name = {"type": "string", "maxLength": LONGEST_NAME, "description": "a name for the hold within its key"}
    remember = {
        "type": "number",
        "minimum": 0,
        "maximum": LONGEST_REMEMBERED_US // 1_000_000,
        "description": "seconds for which it is remembered at least",
    }
    reserve = {"request": {"$ref": "#/$defs/request"}, "cost": amount, "lease": _LEASE, "id": name}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Bodies of holds",
        "anyOf": [{"$ref": f"#/$defs/{call}"} for call in ("reserve", "commit", "cancel", "extend")],
        "$defs": {
            "request": request_schema(),
            "cost": COST_SCHEMA,
            "reserve": closed({**reserve, "remember": remember}, "request"),
            "commit": closed({"id": _ID, "actual": amount}, "id"),
            "cancel": closed({"id": _ID}, "id"),
            "extend": closed({"id": _ID, "lease": _LEASE, "more": amount}, "id"),
        },
    }


def _map(body: bytes, names: tuple[str, ...], needed: str) -> dict[str, Any]:
    value: Any = parse_body(body)
    if type(value) is not dict:
        refuse_value("the body", f'a map with "{needed}"', value)
    for name in value:
        if name not in names:
            raise no_such_field("", name, names)
    if needed not in value:
        raise BadBody(f'"{needed}" is missing')
    fields: dict[str, Any] = value
    return fields


def _id(value: Mapping[str, Any]) -> str:
    content = value["id"]
    if type(content) is not str:
        refuse_value("id", "text, as the answer to /v1/reserve has it", content)
    return str(content)


def _seconds(value: Mapping[str, Any], name: str, usual: float | None = None) -> Any:
    seconds = value.get(name, usual)
    if seconds is not None and type(seconds) not in (int, float):
        refuse_value(name, "a number of seconds", seconds)
    return usual if seconds is None else seconds


def _amount(value: Mapping[str, Any], name: str) -> Cost:
    try:
        return read_cost(value[name])
    except ArgumentError as error:
        raise BadBody(f"{name}: {error}") from None
