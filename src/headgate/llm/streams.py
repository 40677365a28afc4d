"""The usage of a streamed answer, as its events report it in any dialect, and its text for streams without usage."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from headgate.llm.events import EventReader, ServerSentEvent
from headgate.llm.terms import reported_terms
from headgate.llm.usage import Usage, additional_usage, field_of, largest, usage_of
from headgate.llm.web_searches import with_shown

_FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")
_DELTA_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "text", "thinking", "partial_json")
"""Fields of a delta that carry generated text, in chat completions and in messages."""

_CALL_KINDS, _CALL_TEXTS = ("function", "custom"), ("name", "arguments", "input")
_PART_TEXTS = ("text", "thinking")
"""Fields of parts, of which some servers send a list in place of a text."""

_SIGNIFICANT = (b"[DONE]", b"message_", b'"response"')
"""Bytes of events that report more than text: ends, messages with usage, whole responses."""

_SIGNIFICANT_VALUES = tuple((name, name + b":null", name + b": null") for name in (b'"usage"', b'"finish_reason"'))
_TIER = b'"service_tier"'
_MODEL = b'"model"'
_TIER_VALUE = re.compile(rb'"service_tier"\s*:\s*"([^"]*)"')
_MOST_DEFERRED_BYTES = 128 * 1024
"""The most bytes of a stream that are kept unread."""

_MOST_TEXT = 4 * 1024 * 1024
"""The most characters of text that are kept, several times the output of any model. Further text is dropped, so that no
peer decides how much memory is used."""

_MOST_MODELS = 8
_LONGEST_MODEL = 256


class StreamUsage:
    """Reads the events of one answer in order: those of a server, or the objects that a client's package yields.

    `usage` is the usage reported so far, None if there is none; `is_final` is whether it is final, not an interim
    value; `has_ended` is whether the end of the stream was read.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.is_final = False
        self.has_ended = False
        self.was_cut = False
        """Whether the provider ended the answer because it reached its longest allowed length."""

        self.reports_searches = True
        """Whether the usage reports the number of web searches, which that of chat completions rarely does."""

        self._has_chunk_usage = False
        """Whether chunks of chat completions or completions have reported usage."""

        self._is_outdated = False
        """Whether text was generated after the last chunk that reported usage."""

        self._terms: dict[str, str] = {}
        self.additional: tuple[tuple[str, Usage], ...] = ()
        """The part of `usage` that a message's own numbers leave out, each with its model; see `additional_usage`."""

        self.response_id = ""
        """The id of a response that later calls may refer to; "" where there is none."""

        self._models: tuple[str, ...] = ()
        self._taken_texts = 0
        self._texts: list[str] = []
        self._text_length = 0
        self._deferred: dict[int, bytes] = {}
        """Events that are not read yet, by the index in `_texts` where their text belongs."""

        self._deferred_bytes = 0
        self._priority_index: int | None = None
        """The index of deferred events that carry a model or a service tier: they are read before any others."""

    @property
    def terms(self) -> dict[str, str]:
        """The reported fields that change the price of the call, such as its service tier and its speed."""
        self._read_priority()
        return self._terms

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the answering model: in the first event that names it, and in all other events that are read."""
        self._read_priority()
        return self._models

    @property
    def text(self) -> str:
        """The text generated so far, with the arguments of tool calls and the visible reasoning; used for counting."""
        while self._deferred:
            self._read_deferred()
        return "".join(self._texts)

    def take_text(self) -> str:
        """Return the text generated since the last call of this method."""
        while self._deferred:
            self._read_deferred()
        text = "".join(self._texts[self._taken_texts :])
        self._taken_texts = len(self._texts)
        return text

    def defer(self, events: bytes) -> bool:
        """Store whole events of a server unread until the text is requested, which is rare; return whether it was done.

        Events that may report usage or an end, or that may outdate a reported usage, are not deferred. Events that may
        carry a model or a service tier, as the first ones of a stream do, are read before the next ones, and so after
        they are passed on. At most `_MOST_DEFERRED_BYTES` stay unread.
        """
        if self._priority_index is not None:
            self._read_priority()
        if self._has_chunk_usage or self._may_be_significant(events):
            return False
        if (_MODEL in events and not self._models) or (_TIER in events and self._has_new_tier(events)):
            self._priority_index = len(self._texts)
        self._deferred[len(self._texts)] = events
        self._texts.append("")
        self._deferred_bytes += len(events)
        while self._deferred_bytes > _MOST_DEFERRED_BYTES:
            self._read_deferred()
        return True

    def _may_be_significant(self, events: bytes) -> bool:
        """Whether events may report usage or an end."""
        for name in _SIGNIFICANT:
            if name in events:
                return True
        for name, null, spaced_null in _SIGNIFICANT_VALUES:
            if name in events and events.count(name) > events.count(null) + events.count(spaced_null):
                return True
        return False

    def _has_new_tier(self, events: bytes) -> bool:
        """Whether events report another service tier than before."""
        known = self._terms.get("service_tier")
        return any(tier.decode("utf-8", "replace") != known for tier in _TIER_VALUE.findall(events))

    def _read_priority(self) -> None:
        """Read the deferred events that carry a model or a service tier, if there are any."""
        if self._priority_index is not None:
            self._read_deferred(self._priority_index)

    def _read_deferred(self, index: int | None = None) -> None:
        """Read the deferred events at an index, by default the earliest ones."""
        if index is None:
            index = next(iter(self._deferred))
        priority_index, self._priority_index = self._priority_index, None  # these were received before any read next
        events = self._deferred.pop(index)
        self._deferred_bytes -= len(events)
        texts, self._texts, is_outdated = self._texts, [], self._is_outdated
        for event in EventReader().feed(events):
            self.read_event(event)
        texts[index] = "".join(self._texts)
        self._texts, self._is_outdated = texts, is_outdated  # these events were received before any usage
        if priority_index != index:
            self._priority_index = priority_index

    def read_event(self, event: ServerSentEvent) -> bool:
        """Read one event of a server; return whether it carries usage alone.

        A client that did not request usage does not expect such an event.
        """
        if event.data == "[DONE]":
            self.end()
            return False
        if not event.data:
            return False
        try:
            payload = json.loads(event.data)
        except (ValueError, RecursionError):
            return False
        return self.read(payload)

    def end(self) -> None:
        """Note that the stream ended properly: the usage reported last is final."""
        self.has_ended = True
        self.is_final = self.usage is not None and not self._is_outdated

    def read(self, event: Any) -> bool:
        """Read the payload of an event, a mapping or an object; return the same as `read_event`."""
        if self._priority_index is not None:
            self._read_priority()
        kind = field_of(event, "type")
        if not isinstance(kind, str) or field_of(event, "choices") is not None:
            return self._read_chat(event)
        if kind.startswith("response."):
            self._read_response(kind, event)
        else:
            self._read_message(kind, event)
        return False

    def _read_chat(self, chunk: Any) -> bool:
        """Read a chunk of chat completions or completions. Some servers report usage in each; the last one counts."""
        tier = field_of(chunk, "service_tier")
        if tier is not None and tier != self._terms.get("service_tier"):  # every chunk repeats it
            self._note_terms(chunk)
        model = field_of(chunk, "model")
        if model is not None and model not in self._models:
            self._note_model(model)
        usage, choices = usage_of(field_of(chunk, "usage")), field_of(chunk, "choices")
        choices, before = choices if isinstance(choices, list) else [], len(self._texts)
        if usage is not None:
            self.usage, self.reports_searches, self._has_chunk_usage = usage, usage.web_searches > 0, True
            # Where every chunk reports usage, it is not final while other choices continue.
            self.is_final = all(field_of(choice, "finish_reason") is not None for choice in choices)
        for choice in choices:
            self.was_cut = self.was_cut or field_of(choice, "finish_reason") == "length"
            self._add_texts(choice, ("text",))
            delta = field_of(choice, "delta")
            self._add_texts(delta, _DELTA_TEXTS)
            calls = field_of(delta, "tool_calls")
            for call in calls if isinstance(calls, list) else ():
                for kind in _CALL_KINDS:
                    self._add_texts(field_of(call, kind), _CALL_TEXTS)
            self._add_texts(field_of(delta, "function_call"), _CALL_TEXTS)
            self._add_texts(field_of(delta, "audio"), ("transcript",))
        self._is_outdated = usage is None and (self._is_outdated or any(self._texts[before:]))
        self.is_final = self.is_final and not self._is_outdated
        return usage is not None and not choices

    def _read_response(self, kind: str, event: Any) -> None:
        """Read an event of OpenAI's responses, of which the last one reports everything."""
        if kind.endswith(".delta"):
            self._add_texts(event, ("delta",))
            return
        response = field_of(event, "response")
        self._note_model(field_of(response, "model"))
        if kind in _FINAL_EVENTS:
            self.has_ended, self.was_cut = True, kind == "response.incomplete"
            response_id = field_of(response, "id")
            self.response_id = response_id if isinstance(response_id, str) else ""
            self._note_terms(response)
            usage = usage_of(field_of(response, "usage"))
            if usage is not None:
                self.usage, self.is_final = with_shown(usage, response), True

    def _read_message(self, kind: str, event: Any) -> None:
        """Read an event of Anthropic's messages. Numbers are cumulative and may start at 0: the largest count."""
        if kind == "content_block_delta":
            self._add_texts(field_of(event, "delta"), _DELTA_TEXTS)
        elif kind == "message_start":
            message = field_of(event, "message")
            self._note_model(field_of(message, "model"))
            started = field_of(message, "usage")
            self._note_terms(started)
            self._grow(usage_of(started))
        elif kind == "message_delta":
            usage = field_of(event, "usage")
            usage = None if usage is None else {"input_tokens": 0, **_set_fields(usage)}
            self.was_cut = field_of(field_of(event, "delta"), "stop_reason") == "max_tokens"
            self.additional = additional_usage(usage) or self.additional
            self._grow(usage_of(usage), is_final=True)
        elif kind == "message_stop":
            self.has_ended = True

    def _note_model(self, model: Any) -> None:
        """Note a name of the answering model. Beyond the most names that a router may need, note one "" instead."""
        if isinstance(model, str) and model and model not in self._models and len(self._models) <= _MOST_MODELS:
            is_usual = len(self._models) < _MOST_MODELS and len(model) <= _LONGEST_MODEL
            self._models = (*self._models, model if is_usual else "")

    def _note_terms(self, fields: Any) -> None:
        self._terms |= reported_terms(fields)

    def _grow(self, usage: Usage | None, *, is_final: bool = False) -> None:
        if usage is None:
            return
        self.usage = usage if self.usage is None else largest(self.usage, usage)
        self.is_final = self.is_final or is_final

    def _add_texts(self, fields: Any, names: tuple[str, ...]) -> None:
        for name in names:
            text = field_of(fields, name)
            if isinstance(text, str):
                if self._text_length < _MOST_TEXT:
                    self._texts.append(text)
                    self._text_length += len(text)
            elif isinstance(text, list) and names is not _PART_TEXTS:
                for part in text:
                    self._add_part(part)

    def _add_part(self, part: Any) -> None:
        """Add a part of a text: a text, or, as for thinking, a list of texts."""
        self._add_texts(part, _PART_TEXTS)
        thinking = field_of(part, "thinking")
        for thought in thinking if isinstance(thinking, list) else ():
            self._add_texts(thought, _PART_TEXTS)


def _set_fields(item: Any) -> dict[str, Any]:
    """The fields of a mapping or an object that are not None, including those that its package does not know yet."""
    unknown = getattr(item, "model_extra", None) or {}
    fields = item if isinstance(item, Mapping) else {**getattr(item, "__dict__", {}), **unknown}
    return {name: value for name, value in fields.items() if value is not None}
