"""What a policy says of calls of language models, as data: groups of models, prices, how much a call holds."""

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
"""What a call tells of itself; in a policy of such calls each is an identity by its name."""

TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, UNCACHED_INPUT_TOKENS = (
    "tokens",
    "input_tokens",
    "output_tokens",
    "uncached_input_tokens",
)
USD = "usd"
CALL_UNITS = (REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, UNCACHED_INPUT_TOKENS, USD)
"""What limits of such calls may count."""

_MODELS_REMEMBERED = 4096
MODEL, FULL_MODEL = "model", "full_model"
"""Attributes of a call: the model's own name, and the name as it was sent, both in small letters."""


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """The section `llm` of a policy. Numbers are tokens, times microseconds."""

    models: FrozenMap[str, tuple[str, ...]]
    """Groups of models: names, or their beginnings with a `*`."""

    prices: FrozenMap[str, FrozenMap[str, str | int]]
    """The operator's own prices by model, in dollars for a million tokens."""

    unknown_price: str
    """What a call of a model without a price costs under a limit of money: "refuse", "free", or what a million tokens
    cost, as text in dollars."""

    hold: HoldMode
    expected_output: int
    """What a call is expected to make, where nothing is learned yet."""

    max_output: int
    """The most that a call can make, where neither it nor the model's table says."""

    hidden_input: int
    """What is held for each thing that a call refers to and does not show."""

    web_searches: int
    """How many searches of the web are held for a tool that makes them and says no bound."""

    slice: int
    """How much output is held at a time."""

    at_end: AtEnd
    lease_us: int
    webhook: str
    """The URL that is told of soft limits, "" for none."""


@lru_cache(maxsize=_MODELS_REMEMBERED)
def is_one_of(models: Sequence[str], model: str, full_model: str) -> bool:
    """Whether a model is meant by one of these names or beginnings, all in small letters."""
    return any(_is_meant(wanted, model) or _is_meant(wanted, full_model) for wanted in models)


def _is_meant(wanted: str, model: str) -> bool:
    return model.startswith(wanted[:-1]) if wanted.endswith("*") else model == wanted
