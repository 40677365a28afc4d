"""The usage of a streamed answer: what its events tell, in any dialect, and the text that was made if they never do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from headgate.llm.events import EventReader, ServerSentEvent
from headgate.llm.terms import terms_told
from headgate.llm.usage import Usage, field_of, largest, made_beside, usage_of
from headgate.llm.web_searches import with_shown

_ENDS = ("response.completed", "response.incomplete", "response.failed")
_MAKING = ("content", "reasoning_content", "reasoning", "refusal", "text", "thinking", "partial_json")
"""Fields of a delta in which text is made, in chat completions and in messages."""

_CALLING, _CALLED = ("function", "custom"), ("name", "arguments", "input")
_PARTS = ("text", "thinking")
"""Of parts, which some servers make in place of a text."""

_TELLING = (b"[DONE]", b"message_", b'"response"')
"""What events have that tell more than text: ends, messages with usage, whole responses."""

_TELLING_UNLESS_NULL = tuple((name, name + b":null", name + b": null") for name in (b'"usage"', b'"finish_reason"'))
_TIER = b'"service_tier"'
_MODEL = b'"model"'
_TOLD_TIER = re.compile(rb'"service_tier"\s*:\s*"([^"]*)"')
_MOST_LEFT_BYTES = 128 * 1024
"""So much of a stream is kept unread."""

_MOST_TEXT = 4 * 1024 * 1024
"""So many characters of text are kept, several times what any model makes: what comes beyond is passed over, so that no
peer decides how much is kept."""

_MOST_MODELS = 8
_LONGEST_MODEL = 256


class StreamUsage:
    """Reads the events of one answer, one after another: of a server, or the objects that a client's package gives.

    `usage` is what was told, None if nothing was (yet); `is_final` whether that is the whole truth, not what was known
    on the way; `has_ended` whether the end of the stream was seen.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.is_final = False
        self.has_ended = False
        self.was_cut = False
        """Whether the provider ended the answer since it was as long as it may be."""

        self.tells_searches = True
        """Whether its usage tells how often the web was searched, as that of chat completions rarely does."""

        self._is_told_in_chunks = False
        """Whether chunks of chat completions or completions have told usage."""

        self._is_outdated = False
        """Whether more was made since a chunk told usage."""

        self._terms: dict[str, str] = {}
        self.beside: tuple[tuple[str, Usage], ...] = ()
        """What of `usage` was made beside a message, each with its model; see `made_beside`."""

        self.response_id = ""
        """The id of a response that later calls may refer to; "" where there is none."""

        self._models: tuple[str, ...] = ()
        self._taken = 0
        self._texts: list[str] = []
        self._kept = 0
        self._left: dict[int, bytes] = {}
        """Events that are not read yet, by the place among the texts where theirs belongs."""

        self._left_bytes = 0
        self._owed: int | None = None
        """The place of what was left though it tells a model or a service tier: to be read before anything else is."""

    @property
    def terms(self) -> dict[str, str]:
        """What the call got that changes its price, as it was told: its service tier, its speed."""
        self._read_owed()
        return self._terms

    @property
    def models(self) -> tuple[str, ...]:
        """What its events call the model that answers: the first event that names it, and all that are read."""
        self._read_owed()
        return self._models

    @property
    def text(self) -> str:
        """All text that was made so far, arguments of calls and reasoning that is shown among it: to be counted."""
        while self._left:
            self._read_left()
        return "".join(self._texts)

    def take_text(self) -> str:
        """The text that was made since this was asked last."""
        while self._left:
            self._read_left()
        text = "".join(self._texts[self._taken :])
        self._taken = len(self._texts)
        return text

    def leave(self, events: bytes) -> bool:
        """Leave whole events of a server unread until the text is asked for, which it rarely is; whether that was done.

        It is not where they may tell usage or an end, or outdate a usage that was told. Where they may tell a model or
        a service tier, as the first ones of a stream do, they are read before the next ones, and so after they are
        passed on. Of what is left, so much is kept and the rest is read.
        """
        if self._owed is not None:
            self._read_owed()
        if self._is_told_in_chunks or self._may_tell(events):
            return False
        if (_MODEL in events and not self._models) or (_TIER in events and self._tells_tier(events)):
            self._owed = len(self._texts)
        self._left[len(self._texts)] = events
        self._texts.append("")
        self._left_bytes += len(events)
        while self._left_bytes > _MOST_LEFT_BYTES:
            self._read_left()
        return True

    def _may_tell(self, events: bytes) -> bool:
        """Whether events may tell usage or an end."""
        for name in _TELLING:
            if name in events:
                return True
        for name, null, spaced_null in _TELLING_UNLESS_NULL:
            if name in events and events.count(name) > events.count(null) + events.count(spaced_null):
                return True
        return False

    def _tells_tier(self, events: bytes) -> bool:
        """Whether events tell another service tier than before."""
        known = self._terms.get("service_tier")
        return any(tier.decode("utf-8", "replace") != known for tier in _TOLD_TIER.findall(events))

    def _read_owed(self) -> None:
        """Read what tells a model or a service tier."""
        if self._owed is not None:
            self._read_left(self._owed)

    def _read_left(self, place: int | None = None) -> None:
        """Read what was left at a place, or the first of it."""
        if place is None:
            place = next(iter(self._left))
        owed, self._owed = self._owed, None  # what is read here was left before anything that is read next
        events = self._left.pop(place)
        self._left_bytes -= len(events)
        texts, self._texts, is_outdated = self._texts, [], self._is_outdated
        for event in EventReader().feed(events):
            self.read_event(event)
        texts[place] = "".join(self._texts)
        self._texts, self._is_outdated = texts, is_outdated  # it came before any usage
        if owed != place:
            self._owed = owed

    def read_event(self, event: ServerSentEvent) -> bool:
        """Read an event of a server; whether it tells usage alone, which a client that did not ask does not expect."""
        if event.data == "[DONE]":
            self.end()
            return False
        if not event.data:
            return False
        try:
            told = json.loads(event.data)
        except (ValueError, RecursionError):
            return False
        return self.read(told)

    def end(self) -> None:
        """The stream ended as it should: what was told last is the truth."""
        self.has_ended = True
        self.is_final = self.usage is not None and not self._is_outdated

    def read(self, told: Any) -> bool:
        """Read what an event says, a mapping or an object; the answer is that of `read_event`."""
        if self._owed is not None:
            self._read_owed()
        kind = field_of(told, "type")
        if not isinstance(kind, str) or field_of(told, "choices") is not None:
            return self._read_chat(told)
        if kind.startswith("response."):
            self._read_response(kind, told)
        else:
            self._read_message(kind, told)
        return False

    def _read_chat(self, told: Any) -> bool:
        """A chunk of chat completions or completions; some servers tell usage in each, and the last counts."""
        tier = field_of(told, "service_tier")
        if tier is not None and tier != self._terms.get("service_tier"):  # each chunk tells it
            self._note_terms(told)
        model = field_of(told, "model")
        if model is not None and model not in self._models:
            self._note_model(model)
        usage, choices = usage_of(field_of(told, "usage")), field_of(told, "choices")
        choices, before = choices if isinstance(choices, list) else [], len(self._texts)
        if usage is not None:
            self.usage, self.tells_searches, self._is_told_in_chunks = usage, usage.web_searches > 0, True
            # Where each chunk tells it, what it is while other choices go on is not the whole truth.
            self.is_final = all(field_of(choice, "finish_reason") is not None for choice in choices)
        for choice in choices:
            self.was_cut = self.was_cut or field_of(choice, "finish_reason") == "length"
            self._made(choice, ("text",))
            delta = field_of(choice, "delta")
            self._made(delta, _MAKING)
            calls = field_of(delta, "tool_calls")
            for call in calls if isinstance(calls, list) else ():
                for kind in _CALLING:
                    self._made(field_of(call, kind), _CALLED)
            self._made(field_of(delta, "function_call"), _CALLED)
            self._made(field_of(delta, "audio"), ("transcript",))
        self._is_outdated = usage is None and (self._is_outdated or any(self._texts[before:]))
        self.is_final = self.is_final and not self._is_outdated
        return usage is not None and not choices

    def _read_response(self, kind: str, told: Any) -> None:
        """An event of OpenAI's responses, whose last one tells all."""
        if kind.endswith(".delta"):
            self._made(told, ("delta",))
            return
        response = field_of(told, "response")
        self._note_model(field_of(response, "model"))
        if kind in _ENDS:
            self.has_ended, self.was_cut = True, kind == "response.incomplete"
            response_id = field_of(response, "id")
            self.response_id = response_id if isinstance(response_id, str) else ""
            self._note_terms(response)
            usage = usage_of(field_of(response, "usage"))
            if usage is not None:
                self.usage, self.is_final = with_shown(usage, response), True

    def _read_message(self, kind: str, told: Any) -> None:
        """An event of Anthropic's messages: numbers are cumulative, and may be 0 at first, so the largest count."""
        if kind == "content_block_delta":
            self._made(field_of(told, "delta"), _MAKING)
        elif kind == "message_start":
            message = field_of(told, "message")
            self._note_model(field_of(message, "model"))
            started = field_of(message, "usage")
            self._note_terms(started)
            self._grow(usage_of(started))
        elif kind == "message_delta":
            usage = field_of(told, "usage")
            usage = None if usage is None else {"input_tokens": 0, **_fields(usage)}
            self.was_cut = field_of(field_of(told, "delta"), "stop_reason") == "max_tokens"
            self.beside = made_beside(usage) or self.beside
            self._grow(usage_of(usage), is_final=True)
        elif kind == "message_stop":
            self.has_ended = True

    def _note_model(self, model: Any) -> None:
        """Note a name of the model that answers; of more names than any router has use for, one that no model has."""
        if isinstance(model, str) and model and model not in self._models and len(self._models) <= _MOST_MODELS:
            is_usual = len(self._models) < _MOST_MODELS and len(model) <= _LONGEST_MODEL
            self._models = (*self._models, model if is_usual else "")

    def _note_terms(self, told: Any) -> None:
        self._terms |= terms_told(told)

    def _grow(self, usage: Usage | None, *, is_final: bool = False) -> None:
        if usage is None:
            return
        self.usage = usage if self.usage is None else largest(self.usage, usage)
        self.is_final = self.is_final or is_final

    def _made(self, told: Any, names: tuple[str, ...]) -> None:
        for name in names:
            text = field_of(told, name)
            if isinstance(text, str):
                if self._kept < _MOST_TEXT:
                    self._texts.append(text)
                    self._kept += len(text)
            elif isinstance(text, list) and names is not _PARTS:
                for part in text:
                    self._made_part(part)

    def _made_part(self, part: Any) -> None:
        """A part of a text: a text, or a list of texts, as what is thought is."""
        self._made(part, _PARTS)
        thought = field_of(part, "thinking")
        for each in thought if isinstance(thought, list) else ():
            self._made(each, _PARTS)


def _fields(told: Any) -> dict[str, Any]:
    """The fields of a mapping or an object that are told, those too that its package does not know yet."""
    more = getattr(told, "model_extra", None) or {}
    fields = told if isinstance(told, Mapping) else {**getattr(told, "__dict__", {}), **more}
    return {name: value for name, value in fields.items() if value is not None}
