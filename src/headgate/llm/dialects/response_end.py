"""The end of a stream of OpenAI's responses: what is open is closed, and the response is incomplete.

The last event tells the whole response, so its items are kept as they are made.
"""

from __future__ import annotations

import json
from typing import Any

from headgate.llm.usage import Usage

_TEXTS = {"response.output_text.delta": "text", "response.refusal.delta": "refusal"}
_WHOLE = ("response.created", "response.in_progress", "response.queued")
_ARGUMENTS = "response.function_call_arguments.delta"


class ResponseEnd:
    """Follows the events of one response; each is a mapping, as JSON has it."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._parts: dict[int, dict[int, dict[str, Any]]] = {}
        """By item and part: the parts of an item that is open, as they began."""

        self._made: dict[tuple[int, int], list[str]] = {}
        """By item and part: the texts of the deltas; of a call's arguments the part is -1."""

        self._done: set[int] = set()
        self._done_parts: set[tuple[int, int]] = set()
        self._number = -1

    def read(self, told: Any) -> None:
        """Follow what an event says; one of a wrong shape is none."""
        if not isinstance(told, dict):
            return
        kind, number = told.get("type"), told.get("sequence_number")
        if isinstance(number, int):
            self._number = max(self._number, number)
        if kind in _WHOLE and isinstance(told.get("response"), dict):
            self._response = told["response"]
        at = told.get("output_index")
        if isinstance(kind, str) and isinstance(at, int):
            self._read_item(kind, at, told)

    def _read_item(self, kind: str, at: int, told: dict[str, Any]) -> None:
        item, part, index = told.get("item"), told.get("part"), told.get("content_index")
        if kind in ("response.output_item.added", "response.output_item.done") and isinstance(item, dict):
            self._items[at] = item
            if kind.endswith(".done"):
                self._done.add(at)
        elif kind == _ARGUMENTS:
            self._made.setdefault((at, -1), []).append(str(told.get("delta", "")))
        elif isinstance(index, int):
            if kind in ("response.content_part.added", "response.content_part.done") and isinstance(part, dict):
                self._parts.setdefault(at, {})[index] = part
                if kind.endswith(".done"):
                    self._done_parts.add((at, index))
            elif kind in _TEXTS:
                self._made.setdefault((at, index), []).append(str(told.get("delta", "")))

    def cut(self, usage: Usage) -> bytes:
        """The events that end the response now, as if it had made its most tokens."""
        events = b"".join(self._close_item(at) for at in sorted(self._items) if at not in self._done)
        response = {
            **(self._response or {"id": "resp_cut", "object": "response", "created_at": 0, "model": ""}),
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": [self._items[at] for at in sorted(self._items)],
            "usage": response_usage(usage),
        }
        return events + self._event("response.incomplete", {"response": response})

    def _close_item(self, at: int) -> bytes:
        item, events = {**self._items[at], "status": "incomplete"}, b""
        content = []
        for index, part in sorted(self._parts.get(at, {}).items()):
            if (at, index) in self._done_parts:
                content.append(part)
                continue
            closed, closing = self._close_part(at, index, part, item.get("id"))
            events += closing
            content.append(closed)
        if content:
            item["content"] = content
        if (at, -1) in self._made:
            item["arguments"] = "".join(self._made[at, -1])
        self._items[at] = item
        return events + self._event("response.output_item.done", {"output_index": at, "item": item})

    def _close_part(self, at: int, index: int, part: dict[str, Any], item: Any) -> tuple[dict[str, Any], bytes]:
        place = {"item_id": item, "output_index": at, "content_index": index}
        name = "refusal" if part.get("type") == "refusal" else "text"
        text = "".join(self._made.get((at, index), []))
        events = b""
        if part.get("type") in ("refusal", "output_text"):
            part = {**part, name: text}
            kind = "response.refusal.done" if name == "refusal" else "response.output_text.done"
            events = self._event(kind, {**place, name: text, **({"logprobs": []} if name == "text" else {})})
        return part, events + self._event("response.content_part.done", {**place, "part": part})

    def _event(self, kind: str, told: dict[str, Any]) -> bytes:
        self._number += 1
        data = json.dumps(
            {"type": kind, "sequence_number": self._number, **told}, separators=(",", ":"), ensure_ascii=False
        )
        return f"event: {kind}\ndata: {data}\n\n".encode("utf-8", "replace")


def response_usage(usage: Usage) -> dict[str, Any]:
    """Usage as responses tell it."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
