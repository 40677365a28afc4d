"""The number of input tokens of a call's body: messages, tools, schemas, images, as OpenAI and Anthropic define them.

A body may refer to content that it does not include (an earlier response, a conversation, a file): then `hides` is true
and the count is too low. Bodies of wrong shape are counted as far as they are text: the provider validates them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headgate.errors import ArgumentError
from headgate.llm.fallback_models import own_fields
from headgate.llm.model_table import find
from headgate.llm.tokens import LONG, count_text, is_loaded
from headgate.llm.usage import field_of

_EACH_MESSAGE, _REPLY, _EACH_TOOL = 3, 3, 8
"""The tokens that a chat format adds: around each message, before the reply, around each tool."""

_HIDING_FIELDS = ("previous_response_id", "conversation", "prompt_id")
_STORED_PROMPT = "prompt"
"""In responses: a prompt that is stored at the provider, by its id. In completions it is a text."""

_HIDDEN_PARTS = (
    "file", "input_file", "document", "item_reference", "input_audio", "audio_url", "video", "video_url",
    "container_upload",
)  # fmt: skip
_SHOWN_SOURCES = {"text": "data", "content": "content"}
"""The types of sources of documents that a body includes, and the field with the text."""

_IMAGES = ("image_url", "input_image", "image", "computer_screenshot", "image_generation_call")
_TEXTS = ("system", "instructions", "input", "prompt", "suffix")
_TEXT_FIELDS = frozenset({"content", "output", "tool_calls", "text", "thinking", "refusal", "name", "role"})
_SCHEMAS_OF_PARTS = frozenset({"function", "input", "arguments"})
_FREE_FIELDS = frozenset({
    "type", "id", "index", "call_id", "tool_call_id", "tool_use_id", "cache_control", "status", "is_error",
    "annotations", "logprobs", "signature",
})  # fmt: skip
"""Fields of parts: texts, those read as JSON, and those that no model reads. Any other field is counted as JSON, so
that a field that is not known yet is not free."""

_SCHEMAS = ("prediction", "response_format", "text", "functions", "output_config", "output_format")
_UNREAD_FIELDS = frozenset({
    "model", "models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "stream", "stream_options",
    "max_tokens", "max_completion_tokens", "max_output_tokens", "max_tool_calls", "n", "best_of", "echo", "stop",
    "stop_sequences", "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
    "logit_bias", "logprobs", "top_logprobs", "user", "metadata", "store", "service_tier", "speed", "inference_geo",
    "tool_choice", "function_call", "parallel_tool_calls", "reasoning", "reasoning_effort", "thinking", "verbosity",
    "modalities", "audio", "include", "truncation", "background", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "web_search_options", "encoding_format", "dimensions", "container", "betas",
    "mcp_servers", "provider", "route", "transforms", "extra_headers", "extra_query", "timeout",
})  # fmt: skip
"""Fields of a body that no model reads."""

_KNOWN_FIELDS = _UNREAD_FIELDS.union(_HIDING_FIELDS, _TEXTS, _SCHEMAS, ("messages", "tools"))
_LONGEST_SETTING = 64
"""An unknown field of at most this length is a setting; a longer one is counted, since a model may read it."""

_GATE_ARGUMENTS = frozenset((
    "body", "key", "user", "team", "organisation", "tier", "input_tokens", "id", "request", "dialect", "processing",
))  # fmt: skip
"""The arguments of a gate that are no fields of a body."""

_DEEPEST_NESTING = 40


class InputCount(NamedTuple):
    """The input tokens of a body, whether a provider counts exactly as many, and whether the body hides more.

    `hidden` is how many things the body refers to and does not include: files, an earlier response, a conversation.
    """

    tokens: int
    is_exact: bool
    hides: bool
    hidden: int = 0


def count_input(body: Mapping[str, Any], model: str) -> InputCount:
    """The tokens of a call's body, of chat completions, completions, responses, embeddings or messages.

    Raises ArgumentError for a body that is nested too deeply to be read.
    """
    counting = _Counting(model)
    counting.tokens += _REPLY if "messages" in body else 0
    counting.hidden = sum(body.get(name) is not None for name in _HIDING_FIELDS)
    counting.hidden += isinstance(body.get(_STORED_PROMPT), Mapping)
    messages = body.get("messages")
    if not isinstance(messages, list | tuple):
        counting.add_schema(messages)  # no provider accepts it, and nothing is free by accident
        messages = []
    for message in messages:
        counting.tokens += _EACH_MESSAGE
        counting.add(message, 0)
    for name in _TEXTS:
        if (text := body.get(name)) is not None:
            counting.add(text, 0)
    tools = body.get("tools")
    if not isinstance(tools, list | tuple):
        counting.add_schema(tools)
        tools = []
    for tool in tools:
        counting.tokens += _EACH_TOOL
        counting.add_schema(tool)
    if tools:
        counting.tokens += find("tools", model) or 0
    for name in _SCHEMAS:
        if (schema := body.get(name)) is not None:
            counting.add_schema(schema)
    for name in body.keys() - _KNOWN_FIELDS:
        counting.add_unknown(body[name])
    for fields in own_fields(body):
        counting.add_unknown(fields)
    is_exact = counting.is_exact and not counting.hidden and not counting.is_estimated
    return InputCount(counting.tokens, is_exact, counting.hidden > 0, counting.hidden)


async def count_input_async(body: Mapping[str, Any], model: str) -> InputCount:
    """`count_input` on an event loop: long texts, and the first one, are counted in a thread."""
    if is_loaded(model) and not _is_long(body):
        return count_input(body, model)
    return await asyncio.to_thread(count_input, body, model)


async def with_input_counted(model: object, arguments: dict[str, Any]) -> dict[str, Any]:
    """A gate's arguments for a call, with `input_tokens`, which are counted unless they are given."""
    body = arguments.get("body")
    fields = {name: value for name, value in arguments.items() if name not in _GATE_ARGUMENTS}
    fields = {**body, **fields} if isinstance(body, Mapping) else fields
    name = fields.get("model") if model is None else model
    if arguments.get("input_tokens") is not None or not isinstance(name, str):
        return arguments
    return {**arguments, "input_tokens": await count_input_async(fields, name)}


def _is_long(body: Mapping[str, Any]) -> bool:
    """Whether the texts of a body have more characters than are counted at once on an event loop."""
    remaining, parts = LONG, list[Any]([body])
    while parts and remaining >= 0:
        part = parts.pop()
        if isinstance(part, Mapping | list | str):
            remaining -= len(part)
            if not isinstance(part, str):
                parts += part.values() if isinstance(part, Mapping) else part
    return remaining < 0


class _Counting:
    """The running count of a body."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.tokens = 0
        self.is_exact = True
        self.is_estimated = False
        self.hidden = 0

    def add(self, part: Any, depth: int) -> None:
        """Count a text, a part, a message, or a list of them; a list of numbers is a list of tokens.

        Messages may be the objects of a provider's package.
        """
        kind = type(part)
        if kind is str or isinstance(part, str):
            self._add_text(part)
        elif kind is dict:  # as most are: to find out that something is a Mapping takes long
            self._add_part(part, depth)
        elif isinstance(part, list | tuple):
            numbers = sum(isinstance(each, int) for each in part)
            self.tokens += numbers
            if depth > _DEEPEST_NESTING:
                self._add_text(_json(part))
                return
            for each in part if numbers < len(part) else []:
                self.add(each, depth + 1)
        elif isinstance(part, Mapping):
            self._add_part(part, depth)
        elif callable(dump := getattr(part, "model_dump", None)):
            self.add(dump(exclude_none=True), depth + 1)

    def add_schema(self, part: Any) -> None:
        """Count a tool or a schema, which a model reads as JSON text."""
        if part is not None:
            self.is_estimated = True
            self._add_text(part if isinstance(part, str) else _json(part))

    def add_unknown(self, part: Any) -> None:
        """Count an unknown field, such as documents that a server puts into its prompt: a model may read it."""
        if isinstance(part, str | list | tuple | Mapping):
            text = part if isinstance(part, str) else _json(part)
            if len(text) > _LONGEST_SETTING:
                self.is_estimated = True
                self._add_text(text)

    def _add_part(self, part: Mapping[str, Any], depth: int) -> None:
        kind = part.get("type")
        if depth > _DEEPEST_NESTING:
            self._add_text(_json(part))
        elif kind in _IMAGES:
            self.is_estimated = True
            self.tokens += find("images", self._model)
            self._add_shown(part, depth)
        elif kind == "document" and (shown := _shown_document(part)) is not None:
            self.add(shown, depth)
            self._add_shown({name: value for name, value in part.items() if name != "source"}, depth)
        elif kind in _HIDDEN_PARTS:
            self.hidden += 1
            self._add_shown(part, depth)
        else:
            for name, value in part.items():
                if name in _TEXT_FIELDS:
                    self.add(value, depth + 1)
                elif name in _SCHEMAS_OF_PARTS or (name not in _FREE_FIELDS and _is_text(value)):
                    self.add_schema(value)

    def _add_shown(self, part: Mapping[str, Any], depth: int) -> None:
        """Count the texts beside a file or an image, in a part or in a message of such a type."""
        for name, value in part.items():
            if name in _TEXT_FIELDS:
                self.add(value, depth + 1)
            elif not isinstance(value, str):
                self._add_text(" ".join(_texts(value, 0)))

    def _add_text(self, text: str) -> None:
        tokens, is_exact = count_text(text, self._model)
        self.tokens += tokens
        if not is_exact:
            self.is_exact = False


def _is_text(part: Any) -> bool:
    """Whether a model may read a value as more than a word."""
    return part is not None and not isinstance(part, bool | int | float)


def _json(part: Any) -> str:
    try:
        return json.dumps(part, ensure_ascii=False, separators=(",", ":"), default=str)
    except (ValueError, RecursionError):  # no provider accepts it, and nothing is free by accident
        raise ArgumentError(
            "the body of a call is nested too deeply, or in itself: its tokens cannot be counted"
        ) from None


def _shown_document(part: Mapping[str, Any]) -> list[Any] | None:
    """The texts of a document of Anthropic's messages, whose source is a text or parts; None for a file."""
    source = part.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    field = _SHOWN_SOURCES.get(kind) if isinstance(kind, str) else None
    shown = None if field is None else field_of(source, field)
    return None if shown is None else [part.get("title"), part.get("context"), shown]


def _texts(part: Any, depth: int) -> Iterator[str]:
    """The texts in a field of a part that refers to a file."""
    if isinstance(part, Mapping) and depth < _DEEPEST_NESTING:
        for name, value in part.items():
            if name == "text" and isinstance(value, str):
                yield value
            elif not isinstance(value, str):
                yield from _texts(value, depth + 1)
    elif isinstance(part, list) and depth < _DEEPEST_NESTING:
        for each in part:
            yield from _texts(each, depth + 1)
