"""The fallback models of a body: routers call the next model of a list where one fails, so any of them may answer.

OpenRouter calls the list `models`, LiteLLM `fallbacks` (and has lists for some kinds of failure). The `model` of an
answer says which of them answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headgate.errors import ArgumentError, kind_of
from headgate.llm.call_subject import check_model
from headgate.llm.model_table import own_name

FIELDS = ("models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks")
"""The fields in which a body may name further models."""

_MOST_FALLBACKS = 32
_EXTRA_BODY = "extra_body"


def first_of(body: Mapping[str, Any]) -> object:
    """The first of the `models` of a body, which is the model of a body without `model`."""
    models = body.get(FIELDS[0])
    return models[0] if isinstance(models, list | tuple) and models else None


def other_models(body: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """The models besides its own that may answer a call. Raises ArgumentError for lists of anything else."""
    found: dict[str, None] = {}
    for field in FIELDS:
        for name in _names(body.get(field), field):
            found[name] = None
            if len(found) > _MOST_FALLBACKS + 1:
                raise ArgumentError(f"{field} of a call names at most {_MOST_FALLBACKS} further models")
    found.pop(model, None)
    return tuple(found)


def overridden(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The bodies that a router sends to fallbacks with fields of their own, which override those of the call."""
    bodies = []
    for fields in own_fields(body):
        extra = fields.get(_EXTRA_BODY)
        bodies.append({**body, **fields, **(extra if isinstance(extra, Mapping) else {})})
    return bodies


def own_fields(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields besides `model` of each fallback that has any, as LiteLLM takes them."""
    fallbacks = [each for field in FIELDS if isinstance(value := body.get(field), list | tuple) for each in value]
    own = [
        {name: value for name, value in fallback.items() if name != "model"}
        for fallback in fallbacks
        if isinstance(fallback, Mapping) and "model" in fallback
    ]
    return [fields for fields in own if fields]


def _names(value: object, field: str) -> Iterator[str]:
    """The models of a list: names, objects with a `model`, or mappings from a model to the next ones."""
    if value is None:
        return
    if not isinstance(value, list | tuple):
        raise ArgumentError(f"{field} of a call is a list of names of models, not {kind_of(value)}")
    for each in value:
        if isinstance(each, str):
            yield check_model(each)
        elif isinstance(each, Mapping) and "model" in each:
            yield check_model(each["model"])
        elif isinstance(each, Mapping) and all(isinstance(next_models, list | tuple) for next_models in each.values()):
            yield from (check_model(name) for next_models in each.values() for name in next_models)
        else:
            raise ArgumentError(f"{field} of a call is a list of names of models, not one with {kind_of(each)}")


def answering(reported: object, models: Sequence[str]) -> str | None:
    """The one of `models` that `reported`, the model of an answer, is, exactly or as its version; None if it is none.

    The events of a stream may report several names, a tuple: None, unless all of them name the same model.
    """
    if isinstance(reported, tuple):
        models_found = {answering(name, models) for name in reported}
        return models_found.pop() if len(models_found) == 1 else None
    if not isinstance(reported, str):
        return None
    own = own_name(reported)
    found = [model for model in models if own == own_name(model) or own.startswith(f"{own_name(model)}-")]
    return max(found, key=lambda model: len(own_name(model)), default=None)
