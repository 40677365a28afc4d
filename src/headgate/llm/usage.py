"""What a call used, as its answer tells it, in the dialects of OpenAI and Anthropic and what speaks like them.

Unknown is not zero: an answer that tells no usage, or none that can be true, gives None.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import add
from typing import Any, NamedTuple

from headgate.errors import ArgumentError

MOST_TOKENS = 1 << 40
"""What tells more than that tells nonsense."""


_MESSAGES = ("cache_read_input_tokens", "cache_creation_input_tokens", "server_tool_use")
"""Fields that only Anthropic's usage has."""

_CACHED, _WRITTEN = (
    ("cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens"),
    "cache_creation_input_tokens",
)
_BESIDE_DETAILS = frozenset((*_CACHED, _WRITTEN))
"""Fields in which LiteLLM, DeepSeek and Moonshot tell beside `prompt_tokens` what of these the cache read and wrote."""

_ITERATIONS_IN_TOTAL = ("message", "fallback_message")
"""Kinds of Anthropic's iterations whose tokens the usage itself counts. Others it leaves out, though they are paid for:
those of a compaction of the context, and of an advisor."""


class Usage(NamedTuple):
    """Tokens of a call, of which some are parts of others.

    `input` counts all that was sent, `cache_read` and `cache_write` among it (`cache_write_hour` is the part of the
    writes that is kept for an hour, not minutes); `output` counts all that was made, `reasoning` among it.
    `web_searches` that the provider made are counted beside them. `audio_input`, `audio_output` and `image_output` are
    what of both was no text.
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
    """The usage of a whole answer, a mapping or an object of the `openai` or `anthropic` package; None if unknown."""
    return usage_of(field_of(answer, "usage"))


def usage_of(fields: Any) -> Usage | None:
    """A `usage` of any dialect; None for what is none, or cannot be true."""
    if fields is None:
        return None
    try:
        if field_of(fields, "prompt_tokens") is not None:
            return _of_openai(fields, "prompt", "completion")
        usage = _of_iteration(fields)
        for _, more in _beside(fields):
            usage = Usage(*map(add, usage, more))
        return usage
    except _Nonsense:
        return None


def made_beside(fields: Any) -> tuple[tuple[str, Usage], ...]:
    """What Anthropic made beside a message, of all that its usage tells: of each the model, "" for the call's own."""
    try:
        return () if fields is None or field_of(fields, "prompt_tokens") is not None else _beside(fields)
    except _Nonsense:
        return ()


def largest(one: Usage, other: Usage) -> Usage:
    """Of each number of two usages the larger, and wholes that are no smaller than their parts together."""
    sent, made, read, written, hour, thought, searches, heard, spoken, drawn = map(max, one, other)
    sent, made = max(sent, read + written + heard), max(made, thought + spoken + drawn)
    return Usage(sent, made, read, written, hour, thought, searches, heard, spoken, drawn)


def credible(usage: Usage | None, sent: int) -> Usage | None:
    """A usage; None for one of no tokens where some were sent: what is unknown is not zero."""
    return None if usage is not None and sent and not (usage.input or usage.output) else usage


NO_PARTS = (0,) * (len(Usage._fields) - 2)
"""What follows input and output in a usage without parts."""


def check_parts(usage: Usage) -> None:
    """Raise ArgumentError for a usage that a program tells and no call can have, of whose parts some are more than the
    whole: an input without what the cache read, as Anthropic's `input_tokens` are.
    """
    sent, made, read, written, hour, thought, _, heard, spoken, drawn = usage
    if sent < 0 or made < 0:
        raise ArgumentError(f"a call uses at least 0 tokens, not {sent} of input and {made} of output")
    for name, value in zip(Usage._fields, usage, strict=True):
        if value < 0:
            raise ArgumentError(f"{name} of a usage is at least 0, not {value}")
    for whole, parts, name in (
        (sent, read + written + heard, "input, which counts cache_read, cache_write and audio_input"),
        (made, thought + spoken + drawn, "output, which counts reasoning, audio_output and image_output"),
        (written, hour, "cache_write, which counts cache_write_hour"),
    ):
        if parts > whole:
            raise ArgumentError(f"{name}, is at least their sum, {parts}, not {whole}")


def tells_input(usage: Usage, sent: int) -> bool:
    """Whether a usage can be the whole truth: one of no input is not, where some was sent."""
    return usage.input > 0 or not sent


class _Nonsense(Exception):
    """A number of tokens that is none."""


def _of_openai(fields: Any, sent: str, made: str) -> Usage:
    """OpenAI's usage, which calls what was sent and made `prompt` and `completion`, or `input` and `output`.

    Anthropic's, too, of messages that read and wrote no cache.
    """
    of_sent, of_made = field_of(fields, f"{sent}_tokens_details"), field_of(fields, f"{made}_tokens_details")
    read, written, hour = _count(of_sent, "cached_tokens"), _count(of_sent, "cache_write_tokens"), 0
    if type(fields) is not dict or not _BESIDE_DETAILS.isdisjoint(fields):
        read = max(read, *(_count(fields, name) for name in _CACHED))
        written = max(written, _count(fields, _WRITTEN))
        hour = _count(field_of(of_sent, "cache_creation_token_details"), "ephemeral_1h_input_tokens")
    return _consistent(
        _count(fields, f"{sent}_tokens", needed=True),
        _count(fields, f"{made}_tokens"),
        total=_count(fields, "total_tokens"),
        cache_read=read,
        cache_write=written,
        cache_write_hour=hour,
        reasoning=_reasoning(of_made),
        audio_input=_count(of_sent, "audio_tokens"),
        audio_output=_count(of_made, "audio_tokens"),
        image_output=_count(of_made, "image_tokens"),
    )._replace(web_searches=_count(field_of(fields, "server_tool_use"), "web_search_requests"))


def _beside(fields: Any) -> tuple[tuple[str, Usage], ...]:
    """The iterations of a message that its own numbers leave out."""
    iterations = field_of(fields, "iterations")
    if not isinstance(iterations, list):
        return ()
    found = [each for each in iterations if field_of(each, "type") not in _ITERATIONS_IN_TOTAL]
    models = [field_of(each, "model") for each in found]
    return tuple(
        (model if isinstance(model, str) else "", _of_iteration(each))
        for model, each in zip(models, found, strict=True)
    )


def _reasoning(details: Any) -> int:
    """What of the output was reasoning, or thinking, as Anthropic calls it."""
    return 0 if details is None else max(_count(details, "reasoning_tokens"), _count(details, "thinking_tokens"))


def _of_iteration(fields: Any) -> Usage:
    """Usage of responses or messages, or of one iteration of a message."""
    if any(field_of(fields, name) is not None for name in _MESSAGES):
        return _of_messages(fields)
    return _of_openai(fields, "input", "output")


def _of_messages(fields: Any) -> Usage:
    """Anthropic's messages, whose `input_tokens` leave out what the cache read and wrote."""
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
    made: int,
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
    """A usage whose parts are no larger than the whole; of numbers that differ, the larger counts.

    Where the total is more than what was sent and made, the rest was made: some servers leave reasoning out of what
    they call output.
    """
    cache_write = max(cache_write, cache_write_hour)
    sent = max(sent, cache_read + cache_write, audio_input)
    made = max(made, reasoning + audio_output + image_output, total - sent)
    audio_input = min(audio_input, sent - cache_read - cache_write)  # what the cache read of it costs what that does
    return Usage(
        sent, made, cache_read, cache_write, cache_write_hour, reasoning,
        audio_input=audio_input, audio_output=audio_output, image_output=image_output,
    )  # fmt: skip


def _count(fields: Any, name: str, *, needed: bool = False) -> int:
    """A number of tokens, 0 where it is not told; raises _Nonsense for what cannot be one."""
    value = field_of(fields, name)
    if value is None and not needed:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise _Nonsense
    return value


def field_of(fields: Any, name: str) -> Any:
    """A field of a mapping or of an object; None where it has none."""
    if type(fields) is dict:  # of JSON: asked for each field of each event of a stream
        return fields.get(name)
    return fields.get(name) if isinstance(fields, Mapping) else getattr(fields, name, None)
