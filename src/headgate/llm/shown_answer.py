"""The output that a whole answer without usage shows: its texts, its reasoning, its tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from headgate.llm.streams import StreamUsage
from headgate.llm.usage import field_of

_ARGUMENT_FIELDS = ("arguments", "input")
"""The fields of a tool call with its arguments: as text, or as an object."""


def shown_text(answer: Any) -> str:
    """The text that an answer of any dialect shows, a mapping or an object of a package; "" where it shows none.

    Other output, such as reasoning that is not shown, is not in it.
    """
    shown = StreamUsage()  # its events have the same fields
    for choice in _list(answer, "choices"):
        as_event = {"delta": field_of(choice, "message"), "text": field_of(choice, "text")}
        shown.read({"choices": [as_event]})
    calls = ""
    for item in (*_list(answer, "content"), *_list(answer, "output")):
        shown.read({"type": "content_block_delta", "delta": item})
        calls += "".join(_arguments(item))
    return shown.text + calls


def _arguments(item: Any) -> Iterator[str]:
    for name in _ARGUMENT_FIELDS:
        arguments = field_of(item, name)
        if isinstance(arguments, str):
            yield arguments
        elif isinstance(arguments, Mapping):
            yield json.dumps(arguments, ensure_ascii=False, default=str)


def _list(fields: Any, name: str) -> list[Any]:
    value = field_of(fields, name)
    return value if isinstance(value, list) else []
