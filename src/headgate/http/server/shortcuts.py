"""Ways to a decision where nothing of a request matters but its peer: no request is made of a scope or an environ.

They are there for speed alone; all other limits go through `Enforcer.ask`. An enforcer has at most one, for its skin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.decision import Decision
from headgate.http.fields.ratelimit import Passing
from headgate.http.server.asgi_messages import adding
from headgate.http.server.wsgi_messages import telling

Shortcut = Callable[[Any, Any], Any]
"""Given a scope and `send`, or an environ and `start_response`: the same with the fields added where the request passes
at once, else the decision, which may have to be awaited; None where the request is to be asked for in the usual way.

Of routes it is given a scope and what the request counts under, and gives the decision, with the fields where it passes
at once. Raises StoreError.
"""

NOWHERE = "-"
"""The scope of requests that no route is for."""


def of_scopes(ask: Callable[[Any], Any], key_of: Callable[[str, str], Any], passing: Passing) -> Shortcut:
    """Decides for ASGI requests."""

    def asked_for_scope(scope: Any, send: Any) -> Any:
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            return None
        client = scope.get("client")
        decided = ask(key_of(client[0] if client else "", ""))
        told = passing(decided) if type(decided) is Decision else None
        return decided if told is None else adding(send, told) if told else send

    return asked_for_scope


def of_environs(ask: Callable[[Any], Any], key_of: Callable[[str, str], Any], passing: Passing) -> Shortcut:
    """Decides for WSGI requests."""

    def asked_for_environ(environ: Any, start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] == "OPTIONS":
            return None
        decision = ask(key_of(environ.get("REMOTE_ADDR", ""), ""))
        told = passing(decision)
        return decision if told is None else telling(start_response, told) if told else start_response

    return asked_for_environ


def of_one_scope(ask_within: Shortcut, scope: str) -> Shortcut:
    """Decides for routes that count together."""
    return lambda asgi_scope, counted_as: ask_within(asgi_scope, scope or NOWHERE)
