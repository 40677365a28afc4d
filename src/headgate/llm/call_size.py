"""How large a call can become: the tokens of its input, and the most output that it lets the model generate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from headgate.errors import ArgumentError, brief_number, kind_of
from headgate.keys import whole_number
from headgate.llm.fallback_models import FIELDS as FALLING_BACK
from headgate.llm.fallback_models import other_models, overridden
from headgate.llm.gate_parts import GateParts
from headgate.llm.inputs import InputCount, count_input
from headgate.llm.known_calls import KnownCall
from headgate.llm.model_table import most_output as most_of_model
from headgate.llm.model_table import usual_values
from headgate.llm.terms import Terms, requested_terms
from headgate.llm.usage import MOST_TOKENS
from headgate.llm.web_searches import FIELDS as SEARCHING
from headgate.llm.web_searches import least_searches, most_searches
from headgate.policy.llm_settings import LlmSettings

InputTokens = int | InputCount
"""Tokens of input that were counted before."""

_MAX_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Fields of a body that limit the output; of several the largest counts."""

_MAX_FIELDS_OF = {
    "chat": _MAX_FIELDS[:2],
    "completions": _MAX_FIELDS[:1],
    "responses": _MAX_FIELDS[2:],
    "messages": _MAX_FIELDS[:1],
}
"""Those that each dialect has: providers ignore the others, which therefore limit nothing."""

_LLAMA_MAX = "n_predict"
"""The field that llama.cpp's servers obey before `max_tokens`, in every dialect; other servers ignore it."""

_ZERO_IS_UNLIMITED = "chat"
"""The dialect in which a limit of 0 is none: OpenAI refuses it, and other servers treat it as absent."""

_WITHOUT_OUTPUT = "embeddings"
"""The dialect whose answers have no tokens."""

_PROMPTS = "prompt"
"""The field of completions that is a text, a list of tokens, or a list of several of either, each answered on its own.
"""

_USUAL_MAX = _MAX_FIELDS[0]
_TIMES = ("n", "best_of")
_MOST_TIMES = 1024
_THOUSAND = 1000


class CallSize(NamedTuple):
    """Tokens of a call before it is made.

    `counted` are the tokens of the body, by the model's vocabulary or an estimate; `input` are those to hold: `counted`
    with a learned factor, and with tokens for content that the body refers to and does not show, which `hides` states.
    `most` is the most output that the call can have, `terms` are the requested terms, `searches` is how often the
    provider may search the web, and `others` are models besides the call's own that may answer.
    """

    input: int
    counted: int
    is_exact: bool
    hides: bool
    most: int
    terms: Terms = ()
    searches: int = 0
    others: tuple[str, ...] = ()


def size_of(
    body: Mapping[str, Any],
    known: KnownCall,
    settings: LlmSettings,
    parts: GateParts,
    input_tokens: InputTokens | None,
    processing: object = None,
    dialect: str = "",
) -> CallSize:
    """Return the size of a call. Raises ArgumentError for numbers that a body cannot have.

    With `input_tokens` the body is not counted; an InputCount of the body is treated as if it was counted here.
    `processing` is "batch" for a call of a batch; `dialect` is the name of the body's dialect, "" if it is not known.
    """
    terms: Terms = ()
    others: tuple[str, ...] = ()
    searches = known.least_searches
    if processing is None and _rare_fields().isdisjoint(body):
        of_model, stated = known.most_output, body.get(_USUAL_MAX)
        if stated is not None and not (type(stated) is int and 0 <= stated <= MOST_TOKENS):
            stated = _count(_USUAL_MAX, stated, least=0)
        if dialect == _WITHOUT_OUTPUT:
            most = 0
        elif stated is None or dialect == "responses" or (stated == 0 and dialect == _ZERO_IS_UNLIMITED):
            most = settings.max_output if of_model is None else of_model
        else:
            most = stated if of_model is None or stated < of_model else of_model
    else:
        others = other_models(body, known.model)
        bodies = [body, *overridden(body)]
        of_model = _most_of_all(known.most_output, others)
        most = max(most_output(each, of_model, settings, dialect) for each in bodies)
        terms = requested_terms(body, processing)
        for each in bodies:
            if requested_terms(each, processing) != terms:
                own = next(name for name in usual_values() if each.get(name) != body.get(name))
                raise ArgumentError(f"{own} of a fallback is that of its call, not {str(each.get(own))[:40]!r}")
        searching = (most_searches(each, settings, dialect) for each in bodies)
        searches = max(searches, *searching, *map(least_searches, others))
    if input_tokens is not None and not isinstance(input_tokens, InputCount):
        is_plain = type(input_tokens) is int and 0 <= input_tokens <= MOST_TOKENS
        stated = input_tokens if is_plain else _count("input_tokens", input_tokens, least=0)
        return _size((stated, stated, True, False, most, terms, searches, others))
    counted = count_input(body, known.model) if input_tokens is None else input_tokens
    sent = counted.tokens
    if not counted.is_exact:
        sent = -(-sent * parts.learned.input_permille(known.model) // _THOUSAND)
    if counted.hides:
        earlier = body.get("previous_response_id")
        remembered = parts.remembered(earlier) if isinstance(earlier, str) else None
        unknown = max(1, counted.hidden) - (remembered is not None)
        sent += (remembered or 0) + settings.hidden_input * unknown
    sent = min(sent, MOST_TOKENS)
    return CallSize(sent, counted.tokens, counted.is_exact, counted.hides, most, terms, searches, others)


def _size(fields: tuple[Any, ...]) -> CallSize:
    """Make a size of all its fields, which is faster than passing them by name."""
    return tuple.__new__(CallSize, fields)


@cache
def _rare_fields() -> frozenset[str]:
    """The fields that affect a call's size or terms and that most bodies do not have."""
    return frozenset([*_MAX_FIELDS[1:], _LLAMA_MAX, *_TIMES, _PROMPTS, *SEARCHING, *FALLING_BACK, *usual_values()])


def _most_of_all(of_model: int | None, others: tuple[str, ...]) -> int | None:
    """The most output of any of several models; None if that of one of them is not known."""
    for other in others:
        of_other = most_of_model(other)
        if of_model is None or of_other is None:
            return None
        of_model = max(of_model, of_other)
    return of_model


def most_output(body: Mapping[str, Any], of_model: int | None, settings: LlmSettings, dialect: str = "") -> int:
    """The most tokens of output that a body allows and its model can generate (`of_model`, None if that is not known).

    `dialect` is the name of the body's dialect, "" if it is not known. Raises ArgumentError for a value that is no
    number of tokens.
    """
    most, times, limiting = -1, 1, _MAX_FIELDS_OF.get(dialect, _MAX_FIELDS)
    for name in _MAX_FIELDS:
        if body.get(name) is not None:
            stated = _count(name, body[name], least=0)
            most = max(most, stated) if name in limiting and (stated or dialect != _ZERO_IS_UNLIMITED) else most
    for name in _TIMES:
        if body.get(name) is not None:
            times = max(times, _count(name, body[name], least=1, most=_MOST_TIMES))
    if dialect == _WITHOUT_OUTPUT:
        return 0
    llama_max = _llama_max(body.get(_LLAMA_MAX))
    if most < 0 or llama_max is None:
        most = max(most, settings.max_output if of_model is None else of_model)
    most = max(most, llama_max or 0)
    if of_model is not None and of_model < most:
        most = of_model
    return min(most * times * _prompts(body.get(_PROMPTS)), MOST_TOKENS)


def stated_max_output(body: Mapping[str, Any]) -> int:
    """The most output that the body of a call states itself; 0 if it states none."""
    stated = (whole_number(body.get(name)) for name in _MAX_FIELDS)
    return max((most for most in stated if most is not None), default=0)


def _llama_max(value: object) -> int | None:
    """The most output that `n_predict` allows: 0 if it is absent, None if it limits nothing."""
    if value is None:
        return 0
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def _prompts(prompt: object) -> int:
    """The number of prompts of a body, each of which is answered; 1 if it has none."""
    return max(1, sum(not isinstance(part, int) for part in prompt)) if isinstance(prompt, list | tuple) else 1


def _count(name: str, value: object, *, least: int, most: int = MOST_TOKENS) -> int:
    if type(value) is int and least <= value <= most:  # nearly all
        return value
    number = whole_number(value)
    if number is None:
        shown = repr(value)[:40] if isinstance(value, str | float) else kind_of(value)
        raise ArgumentError(f"{name} of a call is a whole number, not {shown}")
    if not least <= number <= most:
        raise ArgumentError(f"{name} of a call is from {least} to {most}, not {brief_number(number)}")
    return number
