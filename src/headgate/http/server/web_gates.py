"""The native gate in front of an application: it reads requests where their server put them.

All that is data is decided so, from the scope or the environ alone, and no request is made of it. What a Python
function has a say in goes through `Enforcer.ask`, and so does each request that the native core leaves to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate import core
from headgate.http.fields.ratelimit import writers_of
from headgate.policy.compiled import ALL_RULES
from headgate.policy.request import Request

NOWHERE = "-"
"""What requests count under that no route is for."""

Natively = Callable[[Any, Any], Any]
"""Given a scope and `send`, or an environ and `start_response`: the same, which then tells what remains, where the
request passes at once; else the decision, which may have to be awaited; None where the request is to be asked for
through `Enforcer.ask`. Raises StoreError.
"""


def web_gate(
    gate: Any,
    *,
    ruleset: str,
    cost: int,
    kind: type[Request],
    tells: bool | None,
    asynchronous: bool,
    websockets: bool,
) -> Any:
    """What decides for the requests of an application by the native gate of a policy; None where it cannot read them.

    `kind` is what would be made of them. `tells` is whether a response tells what remains, None where Python says it.
    """
    reading = kind.__dict__.get("native_reading")  # of this class: one that inherits from it may read something else
    if core.native is None or reading is None:
        return None
    return core.native.WebGate.of(
        gate,
        ruleset=ruleset,
        cost=cost,
        writer_of=_writer_of(asynchronous) if tells else tells,
        encoded=asynchronous,
        of_framework=reading == "framework",
        websockets=websockets,
        plain=False,
        endpoint="",
    )


def plain_web_gate(
    gate: Any, *, cost: int, tells: bool | None, asynchronous: bool, websockets: bool, endpoint: str
) -> Any:
    """`web_gate` of plain limits, `headgate.http.server.plain_rule`: all that they read is read alike by every class.

    `endpoint` is what all requests count under together, "" where each route counts by itself.
    """
    assert core.native is not None
    return core.native.WebGate.of(
        gate,
        ruleset=ALL_RULES,
        cost=cost,
        writer_of=_writer_of(asynchronous) if tells else tells,
        encoded=asynchronous,
        of_framework=False,
        websockets=websockets,
        plain=True,
        endpoint=endpoint,
    )


def _writer_of(encoded: bool) -> Callable[[Any], Any]:
    """What gives the writer of fields of decisions on some limits: as ASGI has them, or as text."""
    return _encoded_writer if encoded else _text_writer


def _encoded_writer(definitions: Any) -> Any:
    return writers_of(definitions).encoded


def _text_writer(definitions: Any) -> Any:
    return writers_of(definitions).text
