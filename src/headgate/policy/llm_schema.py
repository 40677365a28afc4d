"""The section `llm` of a policy file as a model, and the fields of rules that belong to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import urlsplit

from headgate.holding import LONGEST_LEASE_US
from headgate.money import read_money
from headgate.periods import parse_period
from headgate.policy.llm_settings import CALL_UNITS, AtEnd, HoldMode
from headgate.policy.model_parts import (
    AfterValidator,
    BeforeValidator,
    Field,
    Name,
    Part,
    Texts,
    WithJsonSchema,
)
from headgate.policy.problems import Path, shown
from headgate.units import LARGEST

_MODEL = re.compile(r"[^\s*]{1,200}\*?|\*")
_PERCENT = re.compile(r"([0-9]{1,3}) ?%")
_URL = re.compile(r"https?://[^\s/?#]+\S*", re.ASCII)
_PRICE_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}


def models_of(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check the names and patterns of a list of models and return them in lower case; raises ValueError."""
    for value in values:
        if not _MODEL.fullmatch(value):
            raise ValueError(f'{shown(value)} is no model: write its name, or its beginning and a *, as in "gpt-5*"')
    return tuple(value.lower() for value in values)


def _price(value: object) -> str | int:
    """Check a price in dollars for a million tokens, in the form that a price book takes."""
    if isinstance(value, float):
        raise ValueError(f'{value!r} has no exact value: write it in quotes, as in "{value!r}"')
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f'must be dollars for a million tokens, such as "0.5", not {shown(value)}')
    nano = read_money(value, "usd", round_up=True)
    if not 0 <= nano <= LARGEST:
        raise ValueError(f"must be at least 0 and at most 4503599 dollars, not {shown(value)}")
    return value


Price = Annotated[Any, BeforeValidator(_price), WithJsonSchema(_PRICE_SCHEMA)]


def _unknown_price(value: object) -> object:
    if isinstance(value, dict) and list(value) == ["usd_per_million"]:
        return str(_price(value["usd_per_million"]))
    if value not in ("refuse", "free"):
        raise ValueError(f'must be refuse, free or {{usd_per_million: "10"}}, not {shown(value)}')
    return value


def read_lease(value: object) -> int:
    """Read a lease, in microseconds. Raises ValueError with what would be right."""
    if not isinstance(value, str):
        raise ValueError(f'must be a time such as "10m", not {shown(value)}')
    lease_us = parse_period(value)
    if lease_us > LONGEST_LEASE_US:
        raise ValueError(f"must be at most 31 days, not {shown(value)}")
    return lease_us


def read_warn(value: object) -> int:
    """Read a share of a limit in percent, in [1, 100]. Raises ValueError with what would be right."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match[1]) <= 100:
        raise ValueError(f'must be a share such as "80%", from 1% to 100%, not {shown(value)}')
    return int(match[1])


def _webhook(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_reachable = bool(_URL.fullmatch(value) and parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:  # an unclosed bracket, or an invalid port
        is_reachable = False
    if not is_reachable:
        raise ValueError('must be a URL such as "https://hooks.example.com/budgets"')  # it may have a secret in it
    return value


Models = Annotated[Texts, AfterValidator(models_of)]
_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class LlmModel(Part):
    """Calls of language models: groups of models, their prices, and how much a call holds."""

    models: dict[Name, Models] = Field(
        {}, description="groups of models that a match may name: names, or prefixes of names followed by *"
    )
    prices: dict[str, dict[str, Price]] = Field(
        {}, description="your own prices by model, in dollars for a million tokens: input, output, cache_read, ..."
    )
    unknown_price: Annotated[
        Any,
        BeforeValidator(_unknown_price),
        WithJsonSchema({"anyOf": [{"enum": ["refuse", "free"]}, {"type": "object", "required": ["usd_per_million"]}]}),
    ] = Field("refuse", description="what a call of a model without a price comes to under a limit of money")
    hold: HoldMode = Field("expected", description="how much output a call holds, for rules that do not state it")
    expected_output: _Count = Field(
        1000, description="tokens that a call is expected to produce, where nothing is learned yet"
    )
    max_output: _Count = Field(16_384, description="tokens that a call can produce, where nothing else states it")
    hidden_input: Annotated[int, Field(ge=0, le=1_000_000_000)] = Field(
        8192, description="tokens that are held for each object that a call refers to and does not contain"
    )
    web_searches: Annotated[int, Field(ge=0, le=1000)] = Field(
        5, description="web searches that are held for a tool that makes them and states no bound"
    )
    slice: _Count = Field(256, description="tokens of output that are held at a time by rules that hold slices")
    at_end: AtEnd = Field("cut", description="what happens to a stream for which no slice can be held")
    lease: Annotated[Any, BeforeValidator(read_lease), WithJsonSchema({"type": "string", "examples": ["10m"]})] = Field(
        600_000_000, description="how long a call keeps its place in flight, if it is never settled"
    )
    webhook: Annotated[str, AfterValidator(_webhook)] | None = Field(
        None, description="the URL that is notified when a soft limit is reached"
    )


WARN_SCHEMA = {"type": "string", "pattern": "^[0-9]{1,3} ?%$", "examples": ["80%"]}
Warn = Annotated[Any, BeforeValidator(read_warn), WithJsonSchema(WARN_SCHEMA)]


def rule_problems(path: Path, rule: Any, units: tuple[str, ...], *, of_calls: bool) -> Iterator[tuple[Path, str]]:
    """Yield the problems of a rule's model; `of_calls` if the policy is for calls of language models."""
    if not of_calls:
        places: list[Path] = [(name,) for name in ("warn", "hold", "at_end") if getattr(rule, name) is not None]
        if rule.match is not None and rule.match.model is not None:
            places.append(("match", "model"))
        for place in places:
            yield (*path, *place), "is for calls of language models: the policy needs the section llm"
        return
    for unit in units:
        if unit not in CALL_UNITS:
            yield (*path, "limits"), f"no call tells {unit}: there are {', '.join(CALL_UNITS)}"
    if rule.cost is not None:
        yield (*path, "cost"), "a call tells what it costs itself: leave it out"
