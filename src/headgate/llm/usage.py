"""The usage of a call as its answer reports it, in the dialects of OpenAI, Anthropic and compatible servers.

Unknown is not zero: an answer without usage, or with an impossible one, gives None.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import add
from typing import Any, NamedTuple

from headgate.errors import ArgumentError

MOST_TOKENS = 1 << 40
"""The most tokens that a usage can credibly report."""


_MESSAGE_FIELDS = ("cache_read_input_tokens", "cache_creation_input_tokens", "server_tool_use")
"""Fields that only Anthropic's usage has."""

_CACHED, _WRITTEN = (
    ("cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens"),
    "cache_creation_input_tokens",
)
_TOP_LEVEL_CACHE_FIELDS = frozenset((*_CACHED, _WRITTEN))
"""Fields next to `prompt_tokens` in which LiteLLM, DeepSeek and Moonshot report the cache reads and writes."""

_ITERATIONS_IN_TOTAL = ("message", "fallback_message")
"""The types of Anthropic's iterations whose tokens the usage itself counts. It leaves out others, which are charged
all the same: those of a compaction of the context, and of an advisor."""


class Usage(NamedTuple):
    """Tokens of a call, of which some are parts of others.

    `input` counts all input, including `cache_read` and `cache_write` (`cache_write_hour` is the part of the writes
    that is cached for an hour, not minutes); `output` counts all output, including `reasoning`. `web_searches` is the
    number of searches that the provider made, counted separately. `audio_input`, `audio_output` and `image_output` are
    the parts of input and output that are not text.
    """

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    cache_write_hour: int = 0
    reasoning: int = 0
    web_searches: int = 0
    audio_input: int = 0
    audio_output: int = 0
    image_output: int = 0


def read_usage(answer: Any) -> Usage | None:
    """Return the usage of a whole answer, a mapping or an object of the packages `openai` and `anthropic`, or None."""
    return usage_of(field_of(answer, "usage"))


def usage_of(fields: Any) -> Usage | None:
    """Parse a `usage` of any dialect; None for a value that is no usage, or an impossible one."""
    if fields is None:
        return None
    try:
        if field_of(fields, "prompt_tokens") is not None:
            return _of_openai(fields, "prompt", "completion")
        usage = _of_iteration(fields)
        for _, more in _additional_usage(fields):
            usage = Usage(*map(add, usage, more))
        return usage
    except _InvalidCount:
        return None


def additional_usage(fields: Any) -> tuple[tuple[str, Usage], ...]:
    """The usage of Anthropic's iterations that a message's own numbers leave out, each with its model.

    The model is "" where it is the call's own.
    """
    try:
        return () if fields is None or field_of(fields, "prompt_tokens") is not None else _additional_usage(fields)
    except _InvalidCount:
        return ()


def largest(first: Usage, second: Usage) -> Usage:
    """The larger of each number of two usages, with totals that are at least the sum of their parts."""
    sent, output, read, written, hour, reasoning, searches, audio_in, audio_out, images = map(max, first, second)
    sent, output = max(sent, read + written + audio_in), max(output, reasoning + audio_out + images)
    return Usage(sent, output, read, written, hour, reasoning, searches, audio_in, audio_out, images)


def credible(usage: Usage | None, sent: int) -> Usage | None:
    """The usage; None if it has no tokens although `sent` tokens of input were: unknown is not zero."""
    return None if usage is not None and sent and not (usage.input or usage.output) else usage


NO_PARTS = (0,) * (len(Usage._fields) - 2)
"""The fields behind input and output of a usage without parts."""


def check_parts(usage: Usage) -> None:
    """Raise ArgumentError for a usage, passed by a program, that no call can have, as its parts exceed a total.

    An example is an input without the tokens read from the cache, as in Anthropic's `input_tokens`.
    """
    sent, output, read, written, hour, reasoning, _, audio_in, audio_out, images = usage
    if sent < 0 or output < 0:
        raise ArgumentError(f"a call uses at least 0 tokens, not {sent} of input and {output} of output")
    for name, value in zip(Usage._fields, usage, strict=True):
        if value < 0:
            raise ArgumentError(f"{name} of a usage is at least 0, not {value}")
    for total, parts, name in (
        (sent, read + written + audio_in, "input, which counts cache_read, cache_write and audio_input"),
        (output, reasoning + audio_out + images, "output, which counts reasoning, audio_output and image_output"),
        (written, hour, "cache_write, which counts cache_write_hour"),
    ):
        if parts > total:
            raise ArgumentError(f"{name}, is at least their sum, {parts}, not {total}")


def reports_input(usage: Usage, sent: int) -> bool:
    """Whether a usage can be complete: one without input is not, if `sent` tokens of input were sent."""
    return usage.input > 0 or not sent


class _InvalidCount(Exception):
    """A value that is no number of tokens."""


def _of_openai(fields: Any, input_name: str, output_name: str) -> Usage:
    """Parse OpenAI's usage, whose fields begin with `prompt` and `completion`, or with `input` and `output`.

    Anthropic's usage of messages that neither read nor wrote the cache has the latter form, too.
    """
    of_input, of_output = (
        field_of(fields, f"{input_name}_tokens_details"),
        field_of(fields, f"{output_name}_tokens_details"),
    )
    read, written, hour = _count(of_input, "cached_tokens"), _count(of_input, "cache_write_tokens"), 0
    if type(fields) is not dict or not _TOP_LEVEL_CACHE_FIELDS.isdisjoint(fields):
        read = max(read, *(_count(fields, name) for name in _CACHED))
        written = max(written, _count(fields, _WRITTEN))
        hour = _count(field_of(of_input, "cache_creation_token_details"), "ephemeral_1h_input_tokens")
    return _consistent(
        _count(fields, f"{input_name}_tokens", needed=True),
        _count(fields, f"{output_name}_tokens"),
        total=_count(fields, "total_tokens"),
        cache_read=read,
        cache_write=written,
        cache_write_hour=hour,
        reasoning=_reasoning(of_output),
        audio_input=_count(of_input, "audio_tokens"),
        audio_output=_count(of_output, "audio_tokens"),
        image_output=_count(of_output, "image_tokens"),
    )._replace(web_searches=_count(field_of(fields, "server_tool_use"), "web_search_requests"))


def _additional_usage(fields: Any) -> tuple[tuple[str, Usage], ...]:
    """See `additional_usage`; raises _InvalidCount."""
    iterations = field_of(fields, "iterations")
    if not isinstance(iterations, list):
        return ()
    additional = [iteration for iteration in iterations if field_of(iteration, "type") not in _ITERATIONS_IN_TOTAL]
    models = [field_of(iteration, "model") for iteration in additional]
    return tuple(
        (model if isinstance(model, str) else "", _of_iteration(iteration))
        for model, iteration in zip(models, additional, strict=True)
    )


def _reasoning(details: Any) -> int:
    """The tokens of reasoning, which Anthropic calls thinking."""
    return 0 if details is None else max(_count(details, "reasoning_tokens"), _count(details, "thinking_tokens"))


def _of_iteration(fields: Any) -> Usage:
    """Parse the usage of a response or a message, or of one iteration of a message."""
    if any(field_of(fields, name) is not None for name in _MESSAGE_FIELDS):
        return _of_messages(fields)
    return _of_openai(fields, "input", "output")


def _of_messages(fields: Any) -> Usage:
    """Parse the usage of Anthropic's messages, whose `input_tokens` leave out cache reads and writes."""
    read, written = _count(fields, "cache_read_input_tokens"), _count(fields, "cache_creation_input_tokens")
    hour = _count(field_of(fields, "cache_creation"), "ephemeral_1h_input_tokens")
    searches = _count(field_of(fields, "server_tool_use"), "web_search_requests")
    return _consistent(
        _count(fields, "input_tokens", needed=True) + read + written,
        _count(fields, "output_tokens"),
        total=0,
        cache_read=read,
        cache_write=written,
        cache_write_hour=hour,
        reasoning=_reasoning(field_of(fields, "output_tokens_details")),
    )._replace(web_searches=searches)


def _consistent(
    sent: int,
    output: int,
    *,
    total: int,
    cache_read: int,
    cache_write: int,
    cache_write_hour: int = 0,
    reasoning: int = 0,
    audio_input: int = 0,
    audio_output: int = 0,
    image_output: int = 0,
) -> Usage:
    """Make a usage whose parts do not exceed their totals; where numbers contradict each other, the larger one counts.

    Where the total exceeds input plus output, the rest is output: some servers leave reasoning out of their output.
    """
    cache_write = max(cache_write, cache_write_hour)
    sent = max(sent, cache_read + cache_write, audio_input)
    output = max(output, reasoning + audio_output + image_output, total - sent)
    audio_input = min(audio_input, sent - cache_read - cache_write)  # cached audio costs what cache reads cost
    return Usage(
        sent, output, cache_read, cache_write, cache_write_hour, reasoning,
        audio_input=audio_input, audio_output=audio_output, image_output=image_output,
    )  # fmt: skip


def _count(fields: Any, name: str, *, needed: bool = False) -> int:
    """A number of tokens, 0 where the field is absent and not `needed`; raises _InvalidCount for an impossible one."""
    value = field_of(fields, name)
    if value is None and not needed:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise _InvalidCount
    return value


def field_of(fields: Any, name: str) -> Any:
    """A field of a mapping or an attribute of an object; None if there is none."""
    if type(fields) is dict:  # parsed JSON, the usual case: this runs for each field of each event of a stream
        return fields.get(name)
    return fields.get(name) if isinstance(fields, Mapping) else getattr(fields, name, None)
