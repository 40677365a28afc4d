"""The responses of limits in the OpenAPI document of an application."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headgate.http.fields.dialects import fields_of
from headgate.http.refusal import PROBLEM_JSON, QUOTA_EXCEEDED
from headgate.http.server.routes import is_exempt
from headgate.integrations.starlette.routing import flat
from headgate.limiter import Limiter

Responses = dict[int | str, dict[str, Any]]
"""Descriptions of responses for FastAPI, by their status."""


def documented(
    schema: dict[str, Any], routes: Sequence[Any], dialects_of: Callable[[Any], Iterable[str | Sequence[str]]]
) -> dict[str, Any]:
    """Return an OpenAPI document with the responses of limits, where it does not describe them yet.

    `dialects_of` gives the dialects of the fields of each limit of a route.
    """
    for route in flat(routes):
        methods = getattr(route, "methods", None)  # a websocket has none
        if not methods or not getattr(route, "include_in_schema", True) or is_exempt(getattr(route, "endpoint", None)):
            continue
        operations = schema.get("paths", {}).get(getattr(route, "path_format", None), {})
        for headers in dialects_of(route):
            for method in methods & {name.upper() for name in operations}:
                documented = operations[method.lower()].setdefault("responses", {})
                for status, response in responses_of(headers).items():
                    documented.setdefault(str(status), response)
    return schema


def responses_of(headers: str | Sequence[str]) -> Responses:
    """Return the description of a refusal, with fields of these dialects."""
    described: dict[str, Any] = {
        "Retry-After": {"description": "Seconds until the request would pass", "schema": {"type": "integer"}}
    }
    for name, _ in fields_of(headers)(Limiter("1/second").peek("anyone")):
        described[name] = {"description": "What remains of the limits", "schema": {"type": "string"}}
    problem = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "example": QUOTA_EXCEEDED},
            "title": {"type": "string"},
            "status": {"type": "integer", "example": 429},
            "detail": {"type": "string"},
            "retry-after-ms": {"type": "integer"},
            "violated-policies": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["type", "title", "status", "detail", "violated-policies"],
    }
    content = {PROBLEM_JSON: {"schema": problem}}
    return {429: {"description": "Too Many Requests", "headers": described, "content": content}}
