"""What a whole answer shows that it made, for one that tells no usage: its texts, its reasoning, its calls of tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from headgate.llm.streams import StreamUsage
from headgate.llm.usage import field_of

_CALLED = ("arguments", "input")
"""Of a call of a tool: as text, or as an object."""


def shown_text(answer: Any) -> str:
    """The text that an answer of any dialect shows, a mapping or an object of a package; "" where it shows none.

    What it made besides, as reasoning that is not shown, is not in it.
    """
    shown = StreamUsage()  # its events have the same fields
    for choice in _list(answer, "choices"):
        made = {"delta": field_of(choice, "message"), "text": field_of(choice, "text")}
        shown.read({"choices": [made]})
    calls = ""
    for item in (*_list(answer, "content"), *_list(answer, "output")):
        shown.read({"type": "content_block_delta", "delta": item})
        calls += "".join(_called(item))
    return shown.text + calls


def _called(item: Any) -> Iterator[str]:
    for name in _CALLED:
        told = field_of(item, name)
        if isinstance(told, str):
            yield told
        elif isinstance(told, Mapping):
            yield json.dumps(told, ensure_ascii=False, default=str)


def _list(told: Any, name: str) -> list[Any]:
    value = field_of(told, name)
    return value if isinstance(value, list) else []
