"""Routers take a list of models in a body, and ask the next one where the one before fails: any of them may answer.

OpenRouter calls the list `models`, LiteLLM `fallbacks` (and lists for some kinds of failure). Which of them answered,
an answer tells by its `model`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headgate.errors import ArgumentError, kind_of
from headgate.llm.call_subject import check_model
from headgate.llm.model_table import own_name

FIELDS = ("models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks")
"""What a body may name further models by."""

_MOST = 32


def first_of(body: Mapping[str, Any]) -> object:
    """The model of a body that names none but in a list of `models`: the first of these."""
    models = body.get(FIELDS[0])
    return models[0] if isinstance(models, list | tuple) and models else None


def other_models(body: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """The models besides its own that may answer a call. Raises ArgumentError for lists of anything else."""
    found: dict[str, None] = {}
    for field in FIELDS:
        for name in _names(body.get(field), field):
            found[name] = None
            if len(found) > _MOST + 1:
                raise ArgumentError(f"{field} of a call names at most {_MOST} further models")
    found.pop(model, None)
    return tuple(found)


def _names(told: object, field: str) -> Iterator[str]:
    """The models of a list: names, objects with a `model`, or mappings from a model to the next ones."""
    if told is None:
        return
    if not isinstance(told, list | tuple):
        raise ArgumentError(f"{field} of a call is a list of names of models, not {kind_of(told)}")
    for each in told:
        if isinstance(each, str):
            yield check_model(each)
        elif isinstance(each, Mapping) and "model" in each:
            yield check_model(each["model"])
        elif isinstance(each, Mapping) and all(isinstance(more, list | tuple) for more in each.values()):
            yield from (check_model(name) for more in each.values() for name in more)
        else:
            raise ArgumentError(f"{field} of a call is a list of names of models, not one with {kind_of(each)}")


def answering(told: object, models: Sequence[str]) -> str | None:
    """Which of some models an answer says that it is of: a version of the name counts. None where it says nothing.

    The events of a stream may tell several names: None, unless all of them are of one of the models.
    """
    if isinstance(told, tuple):
        found_of_all = {answering(name, models) for name in told}
        return found_of_all.pop() if len(found_of_all) == 1 else None
    if not isinstance(told, str):
        return None
    own = own_name(told)
    found = [model for model in models if own == own_name(model) or own.startswith(f"{own_name(model)}-")]
    return max(found, key=lambda model: len(own_name(model)), default=None)
