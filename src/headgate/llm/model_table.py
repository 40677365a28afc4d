"""`models.toml`: special properties of models, by the longest prefix of their names."""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib import resources
from typing import Any

_PROVIDER = re.compile(r"^(?:.*/|(?:[a-z]{2,4}\.)?(?:anthropic|meta|mistral|amazon)\.|ft:)+")
"""Matches what precedes a model's own name: a provider, a router or a region, and the mark of a tuned model."""

_LONGEST_MODEL = 200
"""Results for longer names, which clients may invent, are not cached."""


def own_name(model: str) -> str:
    """The name of a model without its provider, in lower case."""
    return _PROVIDER.sub("", model.lower())


def find(table: str, model: str) -> Any:
    """The entry of a table for a model, None where it has none."""
    return (_find if len(model) <= _LONGEST_MODEL else _find.__wrapped__)(table, model)


@lru_cache(maxsize=2_000)
def _find(table: str, model: str) -> Any:
    models, name = _tables()[table], own_name(model)
    return max(
        ((len(prefix), models[prefix]) for prefix in models if name.startswith(prefix)),
        default=(0, None),
        key=lambda found: found[0],
    )[1]


def most_output(model: str) -> int | None:
    """The most tokens that a model generates in one answer, None where that is not known."""
    most: int | None = find("most_output", model)
    return most


@cache
def usual_values() -> dict[str, frozenset[str]]:
    """By the fields that change the price of a call, the values that do not."""
    return {name: frozenset(values) for name, values in _tables()["usual"].items()}


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("headgate.llm").joinpath("models.toml").read_text("utf-8"))
