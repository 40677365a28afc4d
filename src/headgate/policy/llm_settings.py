"""The settings of a policy for calls of language models, as data: groups of models, prices, how much a call holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from headgate.amounts import REQUESTS
from headgate.policy.frozen_map import FrozenMap

HoldMode = Literal["max", "expected", "slices"]
AtEnd = Literal["cut", "debt"]

CALL_IDENTITIES = ("key", "user", "team", "organisation", "model", "tier")
"""The attributes of a call; in a policy of such calls each is an identity of the same name."""

TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, UNCACHED_INPUT_TOKENS = (
    "tokens",
    "input_tokens",
    "output_tokens",
    "uncached_input_tokens",
)
USD = "usd"
CALL_UNITS = (REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, UNCACHED_INPUT_TOKENS, USD)
"""The units that limits of such calls may count."""

_MODELS_CACHED = 4096
MODEL, FULL_MODEL = "model", "full_model"
"""Attributes of a call: the model's own name, and the name as it was sent, both in lower case."""


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """The section `llm` of a policy. Numbers are tokens, times microseconds."""

    models: FrozenMap[str, tuple[str, ...]]
    """Groups of models: names, or prefixes of names followed by `*`."""

    prices: FrozenMap[str, FrozenMap[str, str | int]]
    """The operator's own prices by model, in dollars for a million tokens."""

    unknown_price: str
    """The cost of a call of a model without a price under a limit of money: "refuse", "free", or the price of a million
    tokens, as text in dollars."""

    hold: HoldMode
    expected_output: int
    """The output that a call is expected to produce, where nothing is learned yet."""

    max_output: int
    """The most output that a call can produce, where neither the call nor the model's table states it."""

    hidden_input: int
    """The input that is held for each object that a call refers to and does not contain."""

    web_searches: int
    """The number of web searches that are held for a tool that makes them and states no bound."""

    slice: int
    """The output that is held at a time."""

    at_end: AtEnd
    lease_us: int
    webhook: str
    """The URL that is notified when a soft limit is reached; "" for none."""


@lru_cache(maxsize=_MODELS_CACHED)
def is_one_of(models: Sequence[str], model: str, full_model: str) -> bool:
    """Whether one of these names or patterns matches a model, all in lower case."""
    return any(_matches(pattern, model) or _matches(pattern, full_model) for pattern in models)


def _matches(pattern: str, model: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern
