"""The end of a stream of OpenAI's responses: open items and parts are closed, and the response is incomplete.

The last event has the whole response, so its items are kept as they are generated.
"""

from __future__ import annotations

import json
from typing import Any

from headgate.llm.usage import Usage

_TEXT_DELTAS = ("response.output_text.delta", "response.refusal.delta", "response.reasoning_text.delta")
_TEXT_FIELDS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}
"""The types of parts with a text, and its field."""

_RESPONSE_EVENTS = ("response.created", "response.in_progress", "response.queued")
_ARGUMENT_DELTAS = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.code_interpreter_call_code.delta": "code",
}
"""Deltas of the arguments of calls, and the field of the item that has them."""


class ResponseEnd:
    """Follows the events of one response; each is a mapping, as parsed from JSON."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._parts: dict[int, dict[int, dict[str, Any]]] = {}
        """By item and part: the parts of an open item, as they began."""

        self._deltas: dict[tuple[int, int], list[str]] = {}
        """By item and part: the texts of the deltas; a call's arguments have the part -1."""

        self._argument_fields: dict[int, str] = {}
        self._done: set[int] = set()
        self._done_parts: set[tuple[int, int]] = set()
        self._sequence_number = -1

    def read(self, event: Any) -> None:
        """Follow an event; one of a wrong shape is ignored."""
        if not isinstance(event, dict):
            return
        kind, sequence_number = event.get("type"), event.get("sequence_number")
        if isinstance(sequence_number, int):
            self._sequence_number = max(self._sequence_number, sequence_number)
        if kind in _RESPONSE_EVENTS and isinstance(event.get("response"), dict):
            self._response = event["response"]
        output_index = event.get("output_index")
        if isinstance(kind, str) and isinstance(output_index, int):
            self._read_item(kind, output_index, event)

    def _read_item(self, kind: str, output_index: int, event: dict[str, Any]) -> None:
        item, part, index = event.get("item"), event.get("part"), event.get("content_index")
        if kind in ("response.output_item.added", "response.output_item.done") and isinstance(item, dict):
            self._items[output_index] = item
            if kind.endswith(".done"):
                self._done.add(output_index)
        elif kind in _ARGUMENT_DELTAS:
            self._argument_fields[output_index] = _ARGUMENT_DELTAS[kind]
            self._deltas.setdefault((output_index, -1), []).append(str(event.get("delta", "")))
        elif isinstance(index, int):
            if kind in ("response.content_part.added", "response.content_part.done") and isinstance(part, dict):
                self._parts.setdefault(output_index, {})[index] = part
                if kind.endswith(".done"):
                    self._done_parts.add((output_index, index))
            elif kind in _TEXT_DELTAS:
                self._deltas.setdefault((output_index, index), []).append(str(event.get("delta", "")))

    def cut(self, usage: Usage) -> bytes:
        """The events that end the response now, as if it had reached its maximum number of tokens."""
        events = b"".join(
            self._close_item(output_index) for output_index in sorted(self._items) if output_index not in self._done
        )
        response = {
            **(self._response or {"id": "resp_cut", "object": "response", "created_at": 0, "model": ""}),
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": [self._items[output_index] for output_index in sorted(self._items)],
            "usage": response_usage(usage),
        }
        return events + self._event("response.incomplete", {"response": response})

    def _close_item(self, output_index: int) -> bytes:
        item, events = {**self._items[output_index], "status": "incomplete"}, b""
        content = []
        for index, part in sorted(self._parts.get(output_index, {}).items()):
            if (output_index, index) in self._done_parts:
                content.append(part)
                continue
            closed, closing = self._close_part(output_index, index, part, item.get("id"))
            events += closing
            content.append(closed)
        if content:
            item["content"] = content
        if output_index in self._argument_fields:
            item[self._argument_fields[output_index]] = "".join(self._deltas[output_index, -1])
        self._items[output_index] = item
        return events + self._event("response.output_item.done", {"output_index": output_index, "item": item})

    def _close_part(
        self, output_index: int, index: int, part: dict[str, Any], item: Any
    ) -> tuple[dict[str, Any], bytes]:
        place = {"item_id": item, "output_index": output_index, "content_index": index}
        kind, text = part.get("type"), "".join(self._deltas.get((output_index, index), []))
        events = b""
        if isinstance(kind, str) and kind in _TEXT_FIELDS:
            name = _TEXT_FIELDS[kind]
            part = {**part, name: text}
            logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            events = self._event(f"response.{kind}.done", {**place, name: text, **logprobs})
        return part, events + self._event("response.content_part.done", {**place, "part": part})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        self._sequence_number += 1
        data = json.dumps(
            {"type": kind, "sequence_number": self._sequence_number, **fields},
            separators=(",", ":"),
            ensure_ascii=False,
        )
        return f"event: {kind}\ndata: {data}\n\n".encode("utf-8", "replace")


def response_usage(usage: Usage) -> dict[str, Any]:
    """Usage in the format of responses."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
