"""Which scopes requests were counted under, where routing is Starlette's or FastAPI's."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.http.front import Front
from headgate.integrations.starlette_record import Record

HOW = ("natively", "step by step")
"""How a limit is asked: in one native call where that can be, or never so."""


def options_of(how: str) -> dict[str, Any]:
    """What has limits asked in this way."""
    return {} if how == "natively" else {"on_decision": lambda request, decision: None}


def note_scopes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which the template of each request is added that is judged from now on."""
    scopes: list[str] = []
    judge = Record.judge

    async def judge_and_note(record: Record, front: Front, scope: Any, template: str) -> Any:
        scopes.append(template)
        return await judge(record, front, scope, template)

    monkeypatch.setattr(Record, "judge", judge_and_note)
    return scopes
