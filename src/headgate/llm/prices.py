"""Prices of models: the operator's own, then those that `genai-prices` knows, without a network.

A model that neither knows has no price, which is not a price of 0: what to do then is the caller's written choice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headgate.errors import ConfigError
from headgate.forks import ProcessLock
from headgate.llm.model_prices import FIRST, LAST, UNKNOWN, ModelPrices, Span
from headgate.llm.model_table import own_name, usual_values
from headgate.llm.price import UNKNOWN_SEARCHES, Price, price_of
from headgate.llm.terms import Terms, terms_text, unusual
from headgate.money import read_money

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

LONGEST_MODEL = 200
"""Letters of a model's name; no longer one is looked up."""

_MOST_REMEMBERED = 1_000
_OWN = (
    "input", "output", "cache_read", "cache_write", "cache_write_hour", "reasoning",
    "audio_input", "audio_output", "image_output", "web_searches", "request",
)  # fmt: skip

_MAKERS = ("openai", "anthropic", "google", "mistral", "cohere", "x-ai", "deepseek")
"""The makers that are asked for a model of a name that tells no provider."""


class PriceBook:
    """Prices by the names of models.

    `own` are the operator's, in dollars for a million tokens: `{"my-model": {"input": "0.5", "output": "2"}}`, with any
    of `cache_read`, `cache_write`, `cache_write_hour`, `reasoning`, `audio_input`, `audio_output` and `image_output`,
    `web_searches` for a thousand (35, the highest of any provider, where that is not told) and `request` for each.
    `"my-model speed=fast"` has the price of these terms; `"my-model"` that of all others. Names match as in rules: in
    any letters, and with a provider's before them. Raises ConfigError for what is no price.
    """

    def __init__(self, own: Mapping[str, Mapping[str, object]] | None = None) -> None:
        self._own = {_own_key(name): _read_own(name, told) for name, told in (own or {}).items()}
        self._own_small = {(model.lower(), terms): price for (model, terms), price in self._own.items()}
        """The same by names in small letters."""

        self._models: dict[int, ModelPrices] = {}
        """By the `id` of what `genai-prices` knows of a model, which lasts as long as the process."""

        self._by_id: dict[str, ModelPrices] = {}
        self._by_name: OrderedDict[str, ModelPrices] = OrderedDict()
        self._unknown: OrderedDict[str, None] = OrderedDict()
        self._lock = ProcessLock()

    def price(self, model: str, at: datetime, terms: Terms | Mapping[str, str] = ()) -> Price | None:
        """The price of a model at a moment (UTC, if it has no time zone).

        `terms` are what a call got beside the usual, such as `{"speed": "fast"}` or `{"processing": "batch"}`. None for
        a model that is unknown, or is not paid by its tokens, and for terms whose price is not known.
        """
        return self.span(model, at, terms).price

    def span(self, model: str, at: datetime, terms: Terms | Mapping[str, str] = ()) -> Span:
        """`price`, and between which moments it holds."""
        if isinstance(terms, Mapping):
            terms = unusual(terms)
        own = self._own_price(model, terms)
        if own is not None:
            return Span(FIRST, LAST, own)
        known = self._find(model)
        return UNKNOWN if known is None else known.span(at if at.tzinfo else at.replace(tzinfo=UTC), terms)

    def dearest(
        self, model: str, at: datetime, lease: timedelta, terms: Terms | Mapping[str, str] = ()
    ) -> Price | None:
        """The highest price that can apply from a moment on until a lease ends, to be held; see `price`."""
        return self.dearest_span(model, at, lease, terms).price

    def dearest_span(self, model: str, at: datetime, lease: timedelta, terms: Terms | Mapping[str, str] = ()) -> Span:
        """`dearest`, and between which moments a call begins that is held so."""
        if isinstance(terms, Mapping):
            terms = unusual(terms)
        own = self._own_price(model, terms)
        if own is not None:
            return Span(FIRST, LAST, own)
        known = self._find(model)
        if known is None:
            return UNKNOWN
        return known.dearest_span(at if at.tzinfo else at.replace(tzinfo=UTC), lease, terms)

    def _own_price(self, model: str, terms: Terms) -> Price | None:
        """The operator's price: of these terms, or of all; by the name as it is written, else as rules match it."""
        if not self._own:
            return None
        names = ((self._own, model), (self._own_small, model.lower()), (self._own_small, own_name(model)))
        for own, name in names:
            found = (own.get((name, terms)) if terms else None) or own.get((name, ()))
            if found is not None:
                return found
        return None

    def _find(self, model: str) -> ModelPrices | None:
        """The prices of a model, None where there are none. What clients call models is remembered up to a bound."""
        known = self._by_id.get(model)
        if known is not None:
            return known
        if len(model) > LONGEST_MODEL:
            return None
        with self._lock.current:
            known = self._by_name.get(model)
            if known is not None:
                self._by_name.move_to_end(model)
            elif model in self._unknown:
                self._unknown.move_to_end(model)
            else:
                known = self._look_up(model)
            return known

    def _look_up(self, model: str) -> ModelPrices | None:
        """Look a model up, and remember it: what is known apart from what is not, and real names for good."""
        found = _look_up(model)
        if found is None:
            self._unknown[model] = None
            if len(self._unknown) > _MOST_REMEMBERED:
                self._unknown.popitem(last=False)
            return None
        known = self._models.get(id(found))
        if known is None:
            known = self._models[id(found)] = ModelPrices(found, _version())
        if model == found.id:
            self._by_id[model] = known
            return known
        self._by_name[model] = known
        if len(self._by_name) > _MOST_REMEMBERED:
            self._by_name.popitem(last=False)
        return known


def has_price_list() -> bool:
    """Whether the list of prices is installed, which `headgate[llm]` does."""
    return find_spec("genai_prices") is not None


def _look_up(model: str) -> ModelInfo | None:
    """Look a model up, by its name and without a provider's before it; None where there is none."""
    if not has_price_list():
        return None
    from genai_prices.data_snapshot import DataSnapshot

    for name in dict.fromkeys((model, own_name(model))):
        snapshot = DataSnapshot(providers=_providers(), from_auto_update=False)  # its memory of names has no bound
        for maker in (None, *_MAKERS):
            with suppress(LookupError):
                return snapshot.find_provider_model(name, None, maker, None)[1]
    return None


@cache
def _providers() -> Any:
    from genai_prices.data import providers

    return providers


@cache
def _version() -> str:
    return f"genai-prices {version('genai-prices')}"


def _own_key(name: str) -> tuple[str, Terms]:
    """The model and the terms of a price of the operator's: `my-model speed=fast`. Raises ConfigError."""
    model, *words = name.split(" ")
    if not model:
        raise ConfigError(f"prices.{name}: a price has the name of a model")
    if "*" in model:  # as groups of models and rules may have, which would never be found
        raise ConfigError(f"prices.{name}: a price is that of one model: write a name without *")
    pairs = [word.partition("=") for word in words]
    if not all(field in usual_values() and value for field, _, value in pairs):
        raise ConfigError(
            f"prices.{name}: after a model's name may follow {', '.join(usual_values())}, such as speed=fast"
        )
    told = {field: value for field, _, value in pairs}
    terms = unusual(told)
    if len(terms) != len(pairs):
        raise ConfigError(f"prices.{name}: {terms_text(tuple(told.items()))} is what calls usually have: leave it out")
    return model, terms


def _read_own(model: str, told: Mapping[str, object]) -> Price:
    """A price that the operator wrote; raises ConfigError."""
    unknown = [name for name in told if name not in _OWN]
    if unknown:
        raise ConfigError(f"prices.{model}: there is no {unknown[0]!r}; there are {', '.join(_OWN)}")
    missing = [name for name in ("input", "output") if name not in told]
    if missing:
        raise ConfigError(f"prices.{model}: {missing[0]} is missing: dollars for a million tokens, 0 if they are free")
    read = {}
    for name, value in told.items():
        try:
            read[name] = read_money(value, "usd", round_up=True)
        except ValueError as error:
            raise ConfigError(f"prices.{model}.{name}: {error}") from None
        if read[name] < 0:
            raise ConfigError(f"prices.{model}.{name}: a price is at least 0, not {value!r}")
    return price_of(**{"web_searches": UNKNOWN_SEARCHES, **read}, version="own")
