"""Prices of models: the operator's own, then those of `genai-prices`, without a network.

A model in neither has no price, which is not a price of 0: the caller's configuration says what happens then.
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
"""The most characters of a model's name; longer names are not looked up."""

_MOST_CACHED_NAMES = 1_000
_OWN_FIELDS = (
    "input", "output", "cache_read", "cache_write", "cache_write_hour", "reasoning",
    "audio_input", "audio_output", "image_output", "web_searches", "request",
)  # fmt: skip

_MAKERS = ("openai", "anthropic", "google", "mistral", "cohere", "x-ai", "deepseek")
"""The makers that are searched for a model whose name has no provider."""


class PriceBook:
    """Prices by the names of models.

    `own` are the operator's, in dollars per million tokens: `{"my-model": {"input": "0.5", "output": "2"}}`, with any
    of `cache_read`, `cache_write`, `cache_write_hour`, `reasoning`, `audio_input`, `audio_output` and `image_output`,
    `web_searches` per thousand (35, the highest of any provider, where that is missing) and `request` for each request.
    `"my-model speed=fast"` has the price of these terms; `"my-model"` that of all others. Names match as in rules: case
    does not matter, nor does a provider's name before them. Raises ConfigError for an invalid price.
    """

    def __init__(self, own: Mapping[str, Mapping[str, object]] | None = None) -> None:
        self._own = {_own_key(name): _read_own(name, fields) for name, fields in (own or {}).items()}
        self._own_lower = {(model.lower(), terms): price for (model, terms), price in self._own.items()}
        """The same by names in lower case."""

        self._models: dict[int, ModelPrices] = {}
        """By the `id` of the `ModelInfo` of `genai-prices`, which lasts as long as the process."""

        self._by_id: dict[str, ModelPrices] = {}
        self._by_name: OrderedDict[str, ModelPrices] = OrderedDict()
        self._unknown: OrderedDict[str, None] = OrderedDict()
        self._lock = ProcessLock()

    def price(self, model: str, at: datetime, terms: Terms | Mapping[str, str] = ()) -> Price | None:
        """The price of a model at a time (UTC, if it has no time zone).

        `terms` are the unusual terms of a call, such as `{"speed": "fast"}` or `{"processing": "batch"}`. None for a
        model that is unknown, or is not priced by tokens, and for terms whose price is not known.
        """
        return self.span(model, at, terms).price

    def span(self, model: str, at: datetime, terms: Terms | Mapping[str, str] = ()) -> Span:
        """`price`, and the start and end of the time for which it holds."""
        if isinstance(terms, Mapping):
            terms = unusual(terms)
        own_price = self._own_price(model, terms)
        if own_price is not None:
            return Span(FIRST, LAST, own_price)
        prices = self._find(model)
        return UNKNOWN if prices is None else prices.span(at if at.tzinfo else at.replace(tzinfo=UTC), terms)

    def dearest(
        self, model: str, at: datetime, lease: timedelta, terms: Terms | Mapping[str, str] = ()
    ) -> Price | None:
        """The highest price that can apply from a time until a lease ends, for a hold; see `price`."""
        return self.dearest_span(model, at, lease, terms).price

    def dearest_span(self, model: str, at: datetime, lease: timedelta, terms: Terms | Mapping[str, str] = ()) -> Span:
        """`dearest`, and the start and end of the time for which calls are held by it."""
        if isinstance(terms, Mapping):
            terms = unusual(terms)
        own_price = self._own_price(model, terms)
        if own_price is not None:
            return Span(FIRST, LAST, own_price)
        prices = self._find(model)
        if prices is None:
            return UNKNOWN
        return prices.dearest_span(at if at.tzinfo else at.replace(tzinfo=UTC), lease, terms)

    def _own_price(self, model: str, terms: Terms) -> Price | None:
        """The operator's price: of these terms, or of all; by the exact name, else as rules match it."""
        if not self._own:
            return None
        names = ((self._own, model), (self._own_lower, model.lower()), (self._own_lower, own_name(model)))
        for own_prices, name in names:
            price = (own_prices.get((name, terms)) if terms else None) or own_prices.get((name, ()))
            if price is not None:
                return price
        return None

    def _find(self, model: str) -> ModelPrices | None:
        """The prices of a model, None where there are none. Names that clients send are cached up to a bound."""
        prices = self._by_id.get(model)
        if prices is not None:
            return prices
        if len(model) > LONGEST_MODEL:
            return None
        with self._lock.current:
            prices = self._by_name.get(model)
            if prices is not None:
                self._by_name.move_to_end(model)
            elif model in self._unknown:
                self._unknown.move_to_end(model)
            else:
                prices = self._look_up(model)
            return prices

    def _look_up(self, model: str) -> ModelPrices | None:
        """Look a model up, and cache the result: known and unknown names separately, the models' ids for good."""
        model_info = _look_up(model)
        if model_info is None:
            self._unknown[model] = None
            if len(self._unknown) > _MOST_CACHED_NAMES:
                self._unknown.popitem(last=False)
            return None
        prices = self._models.get(id(model_info))
        if prices is None:
            prices = self._models[id(model_info)] = ModelPrices(model_info, _version())
        if model == model_info.id:
            self._by_id[model] = prices
            return prices
        self._by_name[model] = prices
        if len(self._by_name) > _MOST_CACHED_NAMES:
            self._by_name.popitem(last=False)
        return prices


def has_price_list() -> bool:
    """Whether the list of prices is installed, as `headgate[llm]` does."""
    return find_spec("genai_prices") is not None


def _look_up(model: str) -> ModelInfo | None:
    """Look a model up, by its name with and without its provider; None where there is none."""
    if not has_price_list():
        return None
    from genai_prices.data_snapshot import DataSnapshot

    for name in dict.fromkeys((model, own_name(model))):
        snapshot = DataSnapshot(providers=_providers(), from_auto_update=False)  # its cache of names has no bound
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
    """Parse the model and the terms of an operator's price: `my-model speed=fast`. Raises ConfigError."""
    model, *term_words = name.split(" ")
    if not model:
        raise ConfigError(f"prices.{name}: a price has the name of a model")
    if "*" in model:  # valid in groups of models and in rules, but such a price would never be found
        raise ConfigError(f"prices.{name}: a price is that of one model: write a name without *")
    pairs = [word.partition("=") for word in term_words]
    if not all(field in usual_values() and value for field, _, value in pairs):
        raise ConfigError(
            f"prices.{name}: after a model's name may follow {', '.join(usual_values())}, such as speed=fast"
        )
    fields = {field: value for field, _, value in pairs}
    terms = unusual(fields)
    if len(terms) != len(pairs):
        raise ConfigError(
            f"prices.{name}: {terms_text(tuple(fields.items()))} is what calls usually have: leave it out"
        )
    return model, terms


def _read_own(model: str, fields: Mapping[str, object]) -> Price:
    """Parse a price that the operator wrote; raises ConfigError."""
    unknown = [name for name in fields if name not in _OWN_FIELDS]
    if unknown:
        raise ConfigError(f"prices.{model}: there is no {unknown[0]!r}; there are {', '.join(_OWN_FIELDS)}")
    missing = [name for name in ("input", "output") if name not in fields]
    if missing:
        raise ConfigError(f"prices.{model}: {missing[0]} is missing: dollars for a million tokens, 0 if they are free")
    parsed = {}
    for name, value in fields.items():
        try:
            parsed[name] = read_money(value, "usd", round_up=True)
        except ValueError as error:
            raise ConfigError(f"prices.{model}.{name}: {error}") from None
        if parsed[name] < 0:
            raise ConfigError(f"prices.{model}.{name}: a price is at least 0, not {value!r}")
    return price_of(**{"web_searches": UNKNOWN_SEARCHES, **parsed}, version="own")
