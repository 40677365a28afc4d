"""The end of a stream whose budget is at its end: the events with which a provider ends one that made its most tokens.

What is still open (choices, blocks, items of a response) is known from the events that were passed on.
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
        """Of chat completions and completions: the last chunk, whose id and model the end has, too."""

        self._open: dict[int, None] = {}
        """Choices, or blocks, that began and have not ended."""

        self._has_begun = False
        self._response = ResponseEnd() if dialect == "responses" else None

    def read(self, told: Any) -> None:
        """Follow what an event says, a mapping or an object of a package."""
        if self._response is not None:
            self._response.read(told)
        elif self._dialect == "messages":
            self._read_message(told)
        else:
            self._read_chunk(told)

    def _read_chunk(self, told: Any) -> None:
        choices = field_of(told, "choices")
        if not isinstance(choices, list):
            return
        self._last = told
        for choice in choices:
            index = field_of(choice, "index")
            if not isinstance(index, int):
                continue
            self._has_begun = True
            if field_of(choice, "finish_reason") is None:
                self._open[index] = None
            else:
                self._open.pop(index, None)

    def _read_message(self, told: Any) -> None:
        kind, index = field_of(told, "type"), field_of(told, "index")
        if kind == "message_start":
            self._has_begun = True
        elif kind == "content_block_start" and isinstance(index, int):
            self._open[index] = None
        elif kind == "content_block_stop" and isinstance(index, int):
            self._open.pop(index, None)

    def cut(self, usage: Usage, *, reports_usage: bool = True) -> bytes:
        """The events that end the stream now, as if the call had made its most tokens.

        `reports_usage` is whether the client of chat completions or completions asked for usage; the others always do.
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
        made: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        unfinished = self._open or ({} if self._has_begun else {0: None})
        choices = [{"index": index, **made, "logprobs": None, "finish_reason": "length"} for index in unfinished]
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


def cut_events(dialect: str, told: Any, usage: Usage, *, reports_usage: bool = True) -> bytes:
    """The end of a stream whose events so far were `told`, an iterable of mappings; see `StreamEnd`."""
    end = StreamEnd(dialect)
    for each in told:
        end.read(each)
    return end.cut(usage, reports_usage=reports_usage)


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Usage as chat completions tell it."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _event(name: str | None, told: Mapping[str, Any]) -> bytes:
    """An event; a named one says its name in its data, too."""
    if name is None:
        return b"data: " + _json(told) + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + _json({"type": name, **told}) + b"\n\n"


def _json(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False, default=str).encode("utf-8", "replace")
