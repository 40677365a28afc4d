"""The end of a stream whose budget is used up: the events by which a provider ends one at its maximum of tokens.

Which choices, blocks and items of a response are still open is known from the events that were passed on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headgate.llm.dialects.response_end import ResponseEnd
from headgate.llm.usage import Usage, field_of

_DONE = b"data: [DONE]\n\n"


class StreamEnd:
    """Follows the events of one stream, so that it can be ended after any of them."""

    def __init__(self, dialect: str) -> None:
        """`dialect` is the name of a dialect with streams: chat, completions, responses or messages."""
        self._dialect = dialect
        self._last: Any = None
        """Of chat completions and completions: the last chunk, whose id and model are copied into the end."""

        self._open: dict[int, None] = {}
        """The choices or blocks that have begun and not ended."""

        self._has_begun = False
        self._response = ResponseEnd() if dialect == "responses" else None

    def read(self, event: Any) -> None:
        """Follow an event, a mapping or an object of a package."""
        if self._response is not None:
            self._response.read(event)
        elif self._dialect == "messages":
            self._read_message(event)
        else:
            self._read_chunk(event)

    def _read_chunk(self, event: Any) -> None:
        choices = field_of(event, "choices")
        if not isinstance(choices, list):
            return
        self._last = event
        for choice in choices:
            index = field_of(choice, "index")
            if not isinstance(index, int):
                continue
            self._has_begun = True
            if field_of(choice, "finish_reason") is None:
                self._open[index] = None
            else:
                self._open.pop(index, None)

    def _read_message(self, event: Any) -> None:
        kind, index = field_of(event, "type"), field_of(event, "index")
        if kind == "message_start":
            self._has_begun = True
        elif kind == "content_block_start" and isinstance(index, int):
            self._open[index] = None
        elif kind == "content_block_stop" and isinstance(index, int):
            self._open.pop(index, None)

    def cut(self, usage: Usage, *, reports_usage: bool = True) -> bytes:
        """The events that end the stream now, as if the call had reached its maximum number of tokens.

        `reports_usage` is whether the client of chat completions or completions requested usage; others always get it.
        """
        if self._response is not None:
            return self._response.cut(usage)
        if self._dialect == "messages":
            return self._cut_message(usage)
        return self._cut_chunks(usage, reports_usage=reports_usage)

    def _cut_chunks(self, usage: Usage, *, reports_usage: bool) -> bytes:
        chat = self._dialect == "chat"
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {
            "id": field_of(self._last, "id") or "cut",
            "object": field_of(self._last, "object") or kind,
            "created": field_of(self._last, "created") or 0,
            "model": field_of(self._last, "model") or "",
        }
        content: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        unfinished = self._open or ({} if self._has_begun else {0: None})
        choices = [{"index": index, **content, "logprobs": None, "finish_reason": "length"} for index in unfinished]
        events = _event(None, {**head, "choices": choices}) if choices else b""
        if reports_usage:
            events += _event(None, {**head, "choices": [], "usage": chat_usage(usage)})
        return events + _DONE

    def _cut_message(self, usage: Usage) -> bytes:
        events = b""
        if not self._has_begun:
            message: dict[str, Any] = {
                "id": "msg_cut", "type": "message", "role": "assistant", "model": "", "content": [],
                "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": usage.input, "output_tokens": 0},
            }  # fmt: skip
            events += _event("message_start", {"message": message})
        for index in self._open:
            events += _event("content_block_stop", {"index": index})
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        events += _event("message_delta", {"delta": delta, "usage": {"output_tokens": usage.output}})
        return events + _event("message_stop", {})


def cut_events(dialect: str, events: Any, usage: Usage, *, reports_usage: bool = True) -> bytes:
    """The end of a stream with these `events` so far, an iterable of mappings; see `StreamEnd`."""
    end = StreamEnd(dialect)
    for event in events:
        end.read(event)
    return end.cut(usage, reports_usage=reports_usage)


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Usage in the format of chat completions."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _event(name: str | None, fields: Mapping[str, Any]) -> bytes:
    """An event; a named one has its name in its data, too."""
    if name is None:
        return b"data: " + _json(fields) + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + _json({"type": name, **fields}) + b"\n\n"


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, default=str).encode("utf-8", "replace")
