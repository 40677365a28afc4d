"""`models.toml`: what is special to models, by the longest beginning of their names."""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib import resources
from typing import Any

_PROVIDER = re.compile(r"^(?:.*/|(?:[a-z]{2,4}\.)?(?:anthropic|meta|mistral|amazon)\.|ft:)+")
"""What stands before a model's own name: a provider's or a router's, a region's, and that it is tuned."""

_MOST_LETTERS = 200
"""What is found for longer names, which clients make up, is not remembered."""


def own_name(model: str) -> str:
    """The name of a model without a provider's before it, in small letters."""
    return _PROVIDER.sub("", model.lower())


def find(table: str, model: str) -> Any:
    """What a table says of a model, None where it says nothing."""
    return (_find if len(model) <= _MOST_LETTERS else _find.__wrapped__)(table, model)


@lru_cache(maxsize=2_000)
def _find(table: str, model: str) -> Any:
    known, name = _tables()[table], own_name(model)
    return max(
        ((len(begins), known[begins]) for begins in known if name.startswith(begins)),
        default=(0, None),
        key=lambda found: found[0],
    )[1]


def most_output(model: str) -> int | None:
    """The most tokens that a model makes in one answer, None where that is not known."""
    most: int | None = find("most_output", model)
    return most


@cache
def usual_values() -> dict[str, frozenset[str]]:
    """By the fields that change the price of a call, the values that do not."""
    return {name: frozenset(values) for name, values in _tables()["usual"].items()}


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("headgate.llm").joinpath("models.toml").read_text("utf-8"))
