"""Prices of models: the operator's own, then those that `genai-prices` knows, without a network.

A model that neither knows has no price, which is not a price of 0: what to do then is the caller's written choice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from functools import cache, reduce
from importlib.metadata import version
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any

from headgate.errors import ConfigError
from headgate.llm.model_table import own_name
from headgate.llm.price import Price, Rate, price_of
from headgate.money import NANO, read_money

if TYPE_CHECKING:
    from genai_prices.types import ConditionalPrice, ModelInfo

LONGEST_MODEL = 200
"""Letters of a model's name; no longer one is looked up."""

_MOST_REMEMBERED = 1_000
_OWN = ("input", "output", "cache_read", "cache_write", "cache_write_hour", "reasoning", "web_searches", "request")
_KEYS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_hour": "cache_write_1h_mtok",
    "reasoning": "output_reasoning_mtok",
}


_MAKERS = ("openai", "anthropic", "google", "mistral", "cohere", "x-ai", "deepseek")
"""Who are asked for a model of a name that tells no provider."""


class PriceBook:
    """Prices by the names of models.

    `own` are the operator's, in dollars for a million tokens: `{"my-model": {"input": "0.5", "output": "2"}}`, with any
    of `cache_read`, `cache_write`, `cache_write_hour` and `reasoning`, `web_searches` for a thousand and `request` for
    each. Raises ConfigError for what is no price.
    """

    def __init__(self, own: Mapping[str, Mapping[str, object]] | None = None) -> None:
        self._own = {name: _read_own(name, told) for name, told in (own or {}).items()}
        self._known: OrderedDict[str, ModelInfo | None] = OrderedDict()
        self._lock = Lock()

    def price(self, model: str, at: datetime, *, service_tier: str | None = None) -> Price | None:
        """The price of a model at a moment; None for a model that is unknown, or is not paid by its tokens."""
        own = self._own.get(model)
        if own is not None:
            return own
        known = self._find(model)
        return None if known is None else _compiled(known, at, service_tier)

    def dearest(self, model: str, at: datetime, lease: timedelta, *, service_tier: str | None = None) -> Price | None:
        """The highest price that can apply from a moment on until a lease ends, to be held; see `price`."""
        own = self._own.get(model)
        if own is not None:
            return own
        known = self._find(model)
        if known is None:
            return None
        prices = [_compiled(known, moment, service_tier) for moment in _moments(known, at, at + lease)]
        found = [price for price in prices if price is not None]
        return reduce(Price.dearest, found) if len(found) == len(prices) else None

    def _find(self, model: str) -> ModelInfo | None:
        """What `genai-prices` knows of a model; names that clients send are remembered up to a bound."""
        if len(model) > LONGEST_MODEL:
            return None
        with self._lock:
            if model in self._known:
                self._known.move_to_end(model)
                return self._known[model]
            found = self._known[model] = _look_up(model)
            if len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)
            return found


def _look_up(model: str) -> ModelInfo | None:
    """Look a model up, by its name and without a provider's before it; None where there is none."""
    if find_spec("genai_prices") is None:
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


def _compiled(known: ModelInfo, at: datetime, service_tier: str | None) -> Price | None:
    told = known.get_prices(at, {"service_tier": service_tier} if service_tier else None)
    rates: dict[str, Rate] = {}
    for name, key in _KEYS.items():
        rate = getattr(told, key)
        if rate is not None:
            rates[name] = _rate(rate)
    if "input" not in rates:
        return None
    searches, requests = told.web_searches_kcount, told.requests_kcount
    return price_of(
        rates.pop("input"),
        rates.pop("output", Rate(0)),
        **rates,
        web_searches=0 if searches is None else _rate(searches).base,
        request=0 if requests is None else -(-_rate(requests).base // 1000),
        version=_version(),
    )


def _rate(told: Any) -> Rate:
    if isinstance(told, Decimal):
        return Rate(_billionths(told))
    return Rate(_billionths(told.base), tuple((tier.start, _billionths(tier.price)) for tier in told.tiers))


def _billionths(dollars: Decimal) -> int:
    return int((dollars * NANO).to_integral_value(ROUND_CEILING))


def _moments(known: ModelInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """Moments at which each price that applies from a moment to another one does."""
    yield start
    yield end
    prices: list[ConditionalPrice] = known.prices if isinstance(known.prices, list) else []
    for conditional in prices:
        for name in ("start_time", "end_time"):
            time = getattr(conditional.constraint, name, None)
            if time is not None:
                day = datetime.combine(start.astimezone(UTC).date(), time, time.tzinfo or UTC)
                yield from (moment for days in range(3) if start <= (moment := day + timedelta(days=days)) <= end)


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
    return price_of(**read, version="own")
