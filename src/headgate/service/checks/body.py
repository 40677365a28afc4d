"""What `POST /v1/check` takes and gives: checked at the door, every fault with its place."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NamedTuple, NoReturn

from headgate.decision import Decision, LimitReading
from headgate.errors import ArgumentError
from headgate.http.refusal import headers_of
from headgate.keys import check_cost
from headgate.policy.request import Request

MOST_REQUESTS = 1000
_LONGEST_PATH = 8192
_MOST_HEADERS = 256


class Asked(NamedTuple):
    """A request to be judged, and its cost."""

    request: Request
    cost: int


class BadBody(ValueError):
    """A body that cannot be used; the text names the place, the value and what would be right."""


def read_body(body: bytes) -> tuple[list[Asked], bool]:
    """The requests of a body, and whether they came as a list."""
    value = _parse(body)
    if not isinstance(value, dict):
        _refuse("", 'a map with "request" or "requests"', value)
    _known_fields("", value, ("request", "requests", "cost"))
    if ("request" in value) == ("requests" in value):
        raise BadBody('give one of "request" and "requests"')
    if "request" in value:
        return [_read_asked("request", value["request"], value.get("cost", 1))], False
    if "cost" in value:
        raise BadBody('"cost" belongs to each of "requests"')
    requests = value["requests"]
    if not isinstance(requests, list) or not 1 <= len(requests) <= MOST_REQUESTS:
        _refuse("requests", f"a list of 1 to {MOST_REQUESTS} requests", requests)
    return [_read_item(f"requests[{index}]", item) for index, item in enumerate(requests)], True


def write_decision(decision: Decision) -> str:
    """A decision as JSON: seconds as numbers, null for never.

    Its parts are put together here: the encoder of the standard library takes as long as all else that is
    done for a request.
    """
    headers = ", ".join([f'"{name}": {_quoted(value)}' for name, value in headers_of(decision)])
    limits = ", ".join([_write_limit(reading) for reading in decision.limits])
    return (
        f'{{"allowed": {_word(decision.allowed)}, "rule": {_quoted(decision.rule) if decision.rule else "null"}, '
        f'"limit": {_word(decision.limit)}, "remaining": {_word(decision.remaining)}, '
        f'"reset_after": {_word(decision.reset_after)}, "retry_after": {_word(decision.retry_after)}, '
        f'"delay": {decision.delay}, "degraded": "{decision.degraded}", '
        f'"limits": [{limits}], "headers": {{{headers}}}}}'
    )


def _write_limit(reading: LimitReading) -> str:
    definition = reading.definition
    return (
        f'{{"name": {_quoted(definition.name)}, "rule": {_quoted(definition.rule)}, '
        f'"allowed": {_word(reading.allowed)}, "limit": {definition.limit.quota}, "remaining": {reading.remaining}, '
        f'"reset_after": {reading.reset_after_us / 1e6}, "retry_after": {_word(reading.retry_after)}, '
        f'"shadow": {_word(definition.shadow)}}}'
    )


def _word(value: bool | float | None) -> str:
    """A value that is no text, as JSON has it."""
    return "null" if value is None else "true" if value is True else "false" if value is False else repr(value)


def _parse(body: bytes) -> Any:
    if not body:
        raise BadBody('the body is empty: send {"request": {"method": "GET", "path": "/"}}')
    try:
        return _DECODER.decode(body.decode("utf-8-sig" if body.startswith(BOM_UTF8) else "utf-8"))
    except RecursionError:
        raise BadBody("the body is nested too deep") from None
    except UnicodeDecodeError as error:
        raise BadBody(f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        raise BadBody(f"the body is not JSON: {error.msg[:1].lower()}{error.msg[1:]} at byte {error.pos}") from None
    except ValueError as error:
        raise BadBody(str(error)) from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {doubled[:60]!r} is given twice")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_doubles, parse_constant=_no_constant)


def _read_item(place: str, value: object) -> Asked:
    """One of several: a request, or {"request": ..., "cost": ...}."""
    if isinstance(value, dict) and "request" in value:
        _known_fields(place, value, ("request", "cost"))
        return _read_asked(f"{place}.request", value["request"], value.get("cost", 1))
    return _read_asked(place, value, 1)


def _read_asked(place: str, value: object, cost: object) -> Asked:
    if not isinstance(value, dict):
        _refuse(place, 'a map such as {"method": "GET", "path": "/", "client_ip": "203.0.113.9"}', value)
    _known_fields(place, value, ("method", "path", "headers", "client_ip", "host"))
    texts = {
        name: _text(f"{place}.{name}", value[name]) for name in ("method", "path", "client_ip", "host") if name in value
    }
    if not texts.get("path", "/").startswith("/"):
        _refuse(f"{place}.path", 'a path that begins with "/"', texts["path"])
    try:
        request = Request(headers=_headers(f"{place}.headers", value.get("headers", {})), **texts)
        return Asked(request, check_cost(cost))
    except ArgumentError as error:
        raise BadBody(f"{place}: {error}") from None


def _headers(place: str, value: object) -> list[tuple[str, str]]:
    """Headers as a map from name to text, or to a list of texts where one is given several times."""
    if not isinstance(value, Mapping) or len(value) > _MOST_HEADERS:
        _refuse(place, f"a map of at most {_MOST_HEADERS} headers", value)
    pairs = []
    for name, content in value.items():
        for text in content if isinstance(content, list) else [content]:
            pairs.append((name, _text(f"{place}.{name[:60]}", text)))
    return pairs


def _text(place: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_PATH:
        _refuse(place, f"text of at most {_LONGEST_PATH} characters", value)
    return value


def _known_fields(place: str, value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in value:
        if name not in known:
            at = f"{place}: " if place else ""
            raise BadBody(f"{at}no such field {name[:60]!r}; there are {', '.join(known)}")


def _refuse(place: str, wanted: str, value: object) -> NoReturn:
    kind = {dict: "a map", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    seen = kind.get(type(value), "a number")
    if isinstance(value, list):
        seen = f"a list of {len(value)}"
    raise BadBody(f"{place or 'the body'} must be {wanted}, not {seen}")
