"""The native gate in front of an application: it reads requests from the scope or the environ of their server.

Where limits are plain data, it decides by the scope or the environ alone, and no request object is made. Where a
Python function takes part, `Enforcer.decide` decides, as it does on requests that the native core leaves to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate import core
from headgate.http.fields.ratelimit import writers_of
from headgate.policy.compiled import ALL_RULES
from headgate.policy.request import Request

NOWHERE = "-"
"""The name under which requests without a route count."""

NativeDecider = Callable[[Any, Any], Any]
"""Takes a scope and `send`, or an environ and `start_response`. Where the request passes at once, it returns a `send`
or `start_response` that adds the fields; else the decision, which may have to be awaited; None where `Enforcer.decide`
has to decide. Raises StoreError.
"""


def web_gate(
    gate: Any,
    *,
    ruleset: str,
    cost: int,
    kind: type[Request],
    writes_fields: bool | None,
    asynchronous: bool,
    websockets: bool,
) -> Any:
    """Return the web gate of a policy's native gate, for an application's requests; None where it cannot read them.

    `kind` is their class in Python. `writes_fields` is whether responses have RateLimit fields, None where Python
    writes others.
    """
    reading = kind.__dict__.get("native_reading")  # of this class: one that inherits from it may read something else
    if core.native is None or reading is None:
        return None
    return core.native.WebGate.of(
        gate,
        ruleset=ruleset,
        cost=cost,
        writer_of=_writer_of(asynchronous) if writes_fields else writes_fields,
        encoded=asynchronous,
        of_framework=reading == "framework",
        websockets=websockets,
        plain=False,
        endpoint="",
    )


def plain_web_gate(
    gate: Any, *, cost: int, writes_fields: bool | None, asynchronous: bool, websockets: bool, endpoint: str
) -> Any:
    """`web_gate` of plain limits, `headgate.http.server.plain_rule`: every class of requests reads their parts alike.

    `endpoint` is the name under which all requests count together, "" where each route counts by itself.
    """
    assert core.native is not None
    return core.native.WebGate.of(
        gate,
        ruleset=ALL_RULES,
        cost=cost,
        writer_of=_writer_of(asynchronous) if writes_fields else writes_fields,
        encoded=asynchronous,
        of_framework=False,
        websockets=websockets,
        plain=True,
        endpoint=endpoint,
    )


def _writer_of(encoded: bool) -> Callable[[Any], Any]:
    """Return the function that gives the writer of some limits' fields: bytes for ASGI if `encoded`, else text."""
    return _encoded_writer if encoded else _text_writer


def _encoded_writer(definitions: Any) -> Any:
    return writers_of(definitions).encoded


def _text_writer(definitions: Any) -> Any:
    return writers_of(definitions).text
