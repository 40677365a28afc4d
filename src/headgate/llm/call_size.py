"""How large a call can become: the tokens that its body sends, and the most that it lets the model make."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from headgate.errors import ArgumentError, brief_number, kind_of
from headgate.keys import whole_number
from headgate.llm.fallback_models import FIELDS as FALLING_BACK
from headgate.llm.fallback_models import other_models
from headgate.llm.gate_parts import GateParts
from headgate.llm.inputs import InputCount, count_input
from headgate.llm.known_calls import KnownCall
from headgate.llm.model_table import most_output as most_of_model
from headgate.llm.model_table import usual_values
from headgate.llm.terms import Terms, terms_asked
from headgate.llm.usage import MOST_TOKENS
from headgate.llm.web_searches import FIELDS as SEARCHING
from headgate.llm.web_searches import least_searches, most_searches
from headgate.policy.llm_settings import LlmSettings

Counted = int | InputCount
"""Tokens of input that were counted before."""

_MOST = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""What a body may tell the most output as; of several the largest counts."""

_MOST_OF = {
    "chat": _MOST[:2],
    "completions": _MOST[:1],
    "responses": _MOST[2:],
    "messages": _MOST[:1],
}
"""Which of them dialects have: providers pass over the others, which bound nothing."""

_ALSO_MOST = "n_predict"
"""What servers of llama.cpp obey before `max_tokens`, in every dialect; others pass over it."""

_BY_NOUGHT = "chat"
"""The dialect in which a most of 0 is none: OpenAI refuses it, and other servers take it for one that is not told."""

_MAKING_NONE = "embeddings"
"""The dialect whose answers are no tokens."""

_PROMPTS = "prompt"
"""Of completions: a text, a list of tokens, or a list of several of either, each of which is answered."""

_USUAL_MOST = _MOST[0]
_TIMES = ("n", "best_of")
_MOST_TIMES = 1024
_THOUSAND = 1000


class CallSize(NamedTuple):
    """Tokens of a call before it is made.

    `counted` is what the body shows, by the model's vocabulary or an estimate; `input` what is to be held for it, with
    what a factor and what is hidden add. `most` is the most output that it can make, `terms` what it asks for,
    `searches` how often the provider may search the web, and `others` are models besides its own that may answer.
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
    input_tokens: Counted | None,
    processing: object = None,
    dialect: str = "",
) -> CallSize:
    """The size of a call. Raises ArgumentError for numbers that a body cannot have.

    With `input_tokens` the body is not counted; a count of the body made before is treated as one made here.
    `processing` is "batch" for a call of a batch; `dialect` is the name of the body's, "" where that is not known.
    """
    terms: Terms = ()
    others: tuple[str, ...] = ()
    searches = known.least_searches
    if processing is None and _rare_fields().isdisjoint(body):
        of_model, told = known.most_output, body.get(_USUAL_MOST)
        if told is not None and not (type(told) is int and 0 <= told <= MOST_TOKENS):
            told = _count(_USUAL_MOST, told, least=0)
        if dialect == _MAKING_NONE:
            most = 0
        elif told is None or dialect == "responses" or (told == 0 and dialect == _BY_NOUGHT):
            most = settings.max_output if of_model is None else of_model
        else:
            most = told if of_model is None or told < of_model else of_model
    else:
        others = other_models(body, known.model)
        most = most_output(body, _most_of_all(known.most_output, others), settings, dialect)
        terms = terms_asked(body, processing)
        searches = max(searches, most_searches(body, settings, dialect), *map(least_searches, others))
    if input_tokens is not None and not isinstance(input_tokens, InputCount):
        is_plain = type(input_tokens) is int and 0 <= input_tokens <= MOST_TOKENS
        told = input_tokens if is_plain else _count("input_tokens", input_tokens, least=0)
        return _size((told, told, True, False, most, terms, searches, others))
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
    """A size of all its fields, made faster than by their names."""
    return tuple.__new__(CallSize, fields)


@cache
def _rare_fields() -> frozenset[str]:
    """Fields that say something of a call's size or terms, which most bodies do not have."""
    return frozenset([*_MOST[1:], _ALSO_MOST, *_TIMES, _PROMPTS, *SEARCHING, *FALLING_BACK, *usual_values()])


def _most_of_all(of_model: int | None, others: tuple[str, ...]) -> int | None:
    """The most output of any of several models, None where that of one is not known."""
    for other in others:
        of_other = most_of_model(other)
        if of_model is None or of_other is None:
            return None
        of_model = max(of_model, of_other)
    return of_model


def most_output(body: Mapping[str, Any], of_model: int | None, settings: LlmSettings, dialect: str = "") -> int:
    """The most tokens of output that a body allows, and its model makes if that is known (`of_model`).

    `dialect` is the name of the body's, "" where that is not known. Raises ArgumentError for what is no number of
    tokens.
    """
    most, times, bounding = -1, 1, _MOST_OF.get(dialect, _MOST)
    for name in _MOST:
        if body.get(name) is not None:
            told = _count(name, body[name], least=0)
            most = max(most, told) if name in bounding and (told or dialect != _BY_NOUGHT) else most
    for name in _TIMES:
        if body.get(name) is not None:
            times = max(times, _count(name, body[name], least=1, most=_MOST_TIMES))
    if dialect == _MAKING_NONE:
        return 0
    also = _also_most(body.get(_ALSO_MOST))
    if most < 0 or also is None:
        most = max(most, settings.max_output if of_model is None else of_model)
    most = max(most, also or 0)
    if of_model is not None and of_model < most:
        most = of_model
    return min(most * times * _prompts(body.get(_PROMPTS)), MOST_TOKENS)


def output_told(body: Mapping[str, Any]) -> int:
    """The most output that a body of a call names itself, 0 where it names none."""
    told = (whole_number(body.get(name)) for name in _MOST)
    return max((most for most in told if most is not None), default=0)


def _also_most(told: object) -> int | None:
    """What `n_predict` lets a model make: 0 where it is not there, None where it bounds nothing."""
    if told is None:
        return 0
    return told if type(told) is int and 0 <= told <= MOST_TOKENS else None


def _prompts(told: object) -> int:
    """How many prompts a body has, each of which is answered; 1 where it has none."""
    return max(1, sum(not isinstance(each, int) for each in told)) if isinstance(told, list | tuple) else 1


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
