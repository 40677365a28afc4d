"""Prices in integer billionths: the operator's, and those of genai-prices, compared with its own calculation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import genai_prices
import pytest
from genai_prices.data import providers
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ConfigError
from headgate.llm import prices
from headgate.llm.price import Price, Rate, price_of
from headgate.llm.prices import LONGEST_MODEL, PriceBook
from headgate.llm.usage import Usage
from versions import FAST_PRICES

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
BOOK = PriceBook()


def token_models() -> Iterator[tuple[str, str]]:
    """Models of the large makers that are priced by tokens."""
    for provider in providers:
        if provider.id in ("openai", "anthropic", "google", "mistral", "deepseek", "x-ai"):
            for model in provider.models:
                yield provider.id, model.id


MODELS = list(token_models())
usages = st.builds(
    lambda plain, read, write, hour, output, heard, spoken, drawn: Usage(
        plain + read + write + hour + heard, output + spoken + drawn, read, write + hour, hour,
        audio_input=heard, audio_output=spoken, image_output=drawn,
    ),
    *(st.integers(0, 600_000) for _ in range(8)),
)  # fmt: skip


@given(st.sampled_from(MODELS), usages, st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 1)))
def test_a_call_costs_what_genai_prices_says_rounded_up_to_a_billionth(
    model: tuple[str, str], usage: Usage, at: datetime
) -> None:
    at = at.replace(tzinfo=UTC)
    price = BOOK.price(model[1], at)
    if price is None:
        return
    model_info = prices._look_up(model[1])
    assert model_info is not None
    their_usage = genai_prices.Usage(
        input_tokens=usage.input,
        cache_read_tokens=usage.cache_read,
        cache_audio_read_tokens=0,  # usage as providers report it does not say which cached tokens are of audio
        cache_write_tokens=usage.cache_write,
        cache_write_1h_tokens=usage.cache_write_hour,
        output_tokens=usage.output,
        input_audio_tokens=usage.audio_input,
        output_audio_tokens=usage.audio_output,
        output_image_tokens=usage.image_output,
    )
    true = model_info.get_prices(at).calc_price(their_usage)["total_price"]
    if model_info.get_prices(at).requests_kcount is None:
        assert price.cost(usage) == math.ceil(Fraction(true) * 10**9)


def test_most_models_of_the_great_makers_have_a_price() -> None:
    priced = [model for _, model in MODELS if BOOK.price(model, NOON) is not None]
    assert len(priced) > 0.75 * len(MODELS), "the others are priced by the minute, the character or the page"


@pytest.mark.parametrize(
    ("model", "usage", "dollars"),
    [
        ("gpt-5", Usage(1000, 100), "0.00225"),
        ("gpt-5", Usage(1000, 100, cache_read=1000), "0.001125"),
        ("openai/gpt-5", Usage(1000, 100), "0.00225"),
        ("gpt-audio", Usage(1000, 100), "0.0035"),
        ("gpt-audio", Usage(1000, 100, audio_input=900, audio_output=80), "0.03437"),
        ("gemini-2.5-flash-image", Usage(100, 1300, image_output=1290), "0.038755"),
        ("claude-sonnet-4-6", Usage(1000, 100), "0.0045"),
        ("claude-sonnet-4-6", Usage(1000, 0, cache_write=1000, cache_write_hour=400), "0.00465"),
        ("gemini-2.5-pro", Usage(200_000, 0), "0.25"),
        ("gemini-2.5-pro", Usage(200_001, 10), "0.5001525"),
        ("text-embedding-3-small", Usage(1, 0), "0.00000002"),
    ],
)
def test_well_known_calls(model: str, usage: Usage, dollars: str) -> None:
    price = BOOK.price(model, NOON)
    assert price is not None and price.cost(usage) == Decimal(dollars) * 10**9
    assert price.version.startswith("genai-prices ")


@pytest.mark.parametrize("model", ["nobody-knows", "", "x" * (LONGEST_MODEL + 1), "whisper-1", "tts-1", "../gpt-5\0"])
def test_an_unknown_model_or_one_that_tokens_do_not_pay_has_no_price(model: str) -> None:
    assert BOOK.price(model, NOON) is None
    assert BOOK.dearest(model, NOON, timedelta(minutes=1)) is None


def test_the_dearest_price_of_a_lease_is_that_of_the_hours_it_touches() -> None:
    """Prices of DeepSeek double from 1 to 4 and from 6 to 10 o'clock, UTC."""
    cheap, dear = (BOOK.price("deepseek-flash", NOON.replace(hour=hour)) for hour in (0, 2))
    assert cheap is not None and dear is not None and dear.input.base == 2 * cheap.input.base
    midnight = NOON.replace(hour=0)
    hour = timedelta(hours=1)
    assert BOOK.dearest("deepseek-flash", midnight, hour - timedelta(seconds=1)) == cheap
    assert BOOK.dearest("deepseek-flash", midnight, hour) == dear
    assert BOOK.dearest("deepseek-flash", midnight, timedelta(hours=5)) == dear, "even across cheaper hours"
    assert BOOK.dearest("deepseek-flash", NOON.replace(hour=23), timedelta(hours=3)) == dear
    assert BOOK.dearest("deepseek-flash", NOON.replace(hour=5), timedelta(minutes=59)) == cheap


def test_a_price_that_begins_within_a_lease_is_held() -> None:
    """Sonnet 4.6 was dearer above 200,000 tokens until 2026-03-13; DeepSeek V4 Pro became dearer on 2026-08-17."""
    eve = datetime(2026, 3, 12, 23, 59, 30, tzinfo=UTC)
    held = BOOK.dearest("claude-sonnet-4-6", eve, timedelta(minutes=1))
    assert held == BOOK.price("claude-sonnet-4-6", eve) != BOOK.price("claude-sonnet-4-6", NOON)
    assert held is not None and held.input.at(300_000) == 6 * 10**9
    eve = datetime(2026, 8, 16, 23, 59, 30, tzinfo=UTC)
    now, later = (BOOK.price("deepseek-v4-pro", eve + timedelta(minutes=minutes)) for minutes in (0, 1))
    assert now is not None and later is not None and later.input.base > now.input.base
    assert BOOK.dearest("deepseek-v4-pro", eve, timedelta(minutes=1)) == later


def test_the_tier_of_a_service_has_its_own_price() -> None:
    plain, fast = (BOOK.price("gpt-5", NOON, {"service_tier": tier}) for tier in ("", "priority"))
    assert plain is not None and fast is not None and fast.input.base > plain.input.base
    assert BOOK.price("gpt-5", NOON, {"service_tier": "auto", "speed": "standard"}) == plain


@pytest.mark.parametrize(
    ("model", "terms", "usage", "dollars"),
    [
        ("claude-opus-5", {}, Usage(1000, 100), "0.0075"),
        pytest.param("claude-opus-5", {"speed": "fast"}, Usage(1000, 100), "0.015", marks=FAST_PRICES),
        ("claude-opus-5", {"processing": "batch"}, Usage(1000, 100), "0.00375"),
        pytest.param("claude-opus-5", {"speed": "fast"}, Usage(3000, 0, 1000, 2000, 1000), "0.0335", marks=FAST_PRICES),
        ("claude-opus-5", {"processing": "batch"}, Usage(3000, 0, 1000, 2000, 1000), "0.008375"),
        ("claude-opus-5", {"processing": "batch"}, Usage(0, 0, web_searches=1), "0.01"),
        ("gpt-4.1", {"processing": "batch"}, Usage(1000, 100), "0.0014"),
    ],
)
def test_fast_mode_and_batches_have_prices_of_their_own(
    model: str, terms: dict[str, str], usage: Usage, dollars: str
) -> None:
    """Cache writes of 5 minutes cost 1.25 times the input of their mode, of an hour 2 times, reads a tenth."""
    price = BOOK.price(model, NOON, terms)
    assert price is not None and price.cost(usage) == Decimal(dollars) * 10**9


@pytest.mark.parametrize(
    ("model", "terms", "at"),
    [
        ("claude-haiku-4-5", {"speed": "fast"}, NOON),
        ("claude-opus-5", {"inference_geo": "us"}, NOON),
        ("claude-opus-5", {"service_tier": "priority"}, NOON),
        ("claude-opus-5", {"speed": "fast", "processing": "batch"}, NOON),
        ("claude-opus-5", {"processing": "batch"}, datetime(2026, 10, 13, 23, tzinfo=UTC)),
        ("claude-opus-5", {"made_up": "yes"}, NOON),
    ],
)
def test_a_model_without_a_known_price_has_none(model: str, terms: dict[str, str], at: datetime) -> None:
    assert BOOK.price(model, at, terms) is None and BOOK.dearest(model, at, timedelta(minutes=1), terms) is None
    assert BOOK.price(model, at) is not None


def test_a_price_of_the_operators_may_be_that_of_some_terms() -> None:
    book = PriceBook(
        {"claude-opus-5": {"input": 1, "output": 2}, "claude-opus-5 speed=fast": {"input": 3, "output": 4}}
    )
    plain, fast, other = (
        book.price("claude-opus-5", NOON, terms) for terms in ({}, {"speed": "fast"}, {"service_tier": "flex"})
    )
    assert plain is not None and fast is not None and plain == other
    assert (plain.input.base, fast.input.base) == (10**9, 3 * 10**9)
    only = PriceBook({"claude-opus-5 inference_geo=us": {"input": 3, "output": 4}})
    assert only.price("claude-opus-5", NOON, {"inference_geo": "us"}) == fast
    assert only.price("claude-opus-5", NOON) == BOOK.price("claude-opus-5", NOON)


def test_prices_use_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object, **__: object) -> None:
        raise AssertionError("a price was asked for over a network")

    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setattr("socket.getaddrinfo", connect)
    assert PriceBook().price("gpt-5-mini", NOON) is not None
    assert not get_snapshot().from_auto_update


def test_the_operators_prices_win() -> None:
    book = PriceBook(
        {"gpt-5": {"input": "1", "output": Decimal("2.5")}, "mine": {"input": 0, "output": "0.0000000001"}}
    )
    price = book.price("gpt-5", NOON)
    assert price is not None and price.cost(Usage(1000, 100)) == 1_250_000 and price.version == "own"
    assert book.dearest("gpt-5", NOON, timedelta(1)) == price
    free = book.price("mine", NOON)
    assert free is not None and free.cost(Usage(10**9, 1)) == 1, "rounded up twice"


@pytest.mark.parametrize("name", ["GPT-5", "openai/gpt-5", "Azure/GPT-5"])
def test_the_operators_prices_win_under_any_name_that_rules_match(name: str) -> None:
    book = PriceBook({"Gpt-5": {"input": "100", "output": "100"}, "router/GPT-5": {"input": "7", "output": "7"}})
    price = book.price(name, NOON)
    assert price is not None and price.version == "own" and price.cost(Usage(1000, 0)) == 100_000_000
    assert book.dearest(name, NOON, timedelta(1)) == price
    routed, dated = book.price("ROUTER/gpt-5", NOON), book.price("gpt-5-2025-08-07", NOON)
    assert routed is not None and routed.cost(Usage(1000, 0)) == 7_000_000, "the full name comes first"
    assert dated is not None and dated.version != "own", "a version is another model"


def test_audio_and_images_are_held_at_what_they_cost() -> None:
    price = BOOK.dearest("gpt-audio", NOON, timedelta(minutes=10))
    assert price is not None
    assert price.most(1000, 100) == price.cost(Usage(1000, 100, audio_input=1000, audio_output=100)) == 38_400_000
    own_price = PriceBook({"m": {"input": "1", "output": "2", "audio_output": "3", "image_output": "50"}}).price(
        "m", NOON
    )
    assert own_price is not None and own_price.most(1000, 100) == 1_000_000 + 5_000_000
    assert own_price.cost(Usage(1000, 100, audio_input=7, audio_output=10, image_output=20)) == 1_000_000 + 1_170_000


def test_an_operators_price_of_the_exact_name_comes_first() -> None:
    book = PriceBook({"m": {"input": "1", "output": "1"}, "M": {"input": "2", "output": "2"}})
    assert [book.price(name, NOON) for name in ("m", "M")] == [
        PriceBook({"a": {"input": each, "output": each}}).price("a", NOON) for each in ("1", "2")
    ]


@pytest.mark.parametrize(
    ("price", "message"),
    [
        ({"input": "1"}, "prices.m: output is missing: dollars for a million tokens, 0 if they are free"),
        ({"output": "1"}, "prices.m: input is missing"),
        ({"input": 0.5, "output": 1}, "prices.m.input: an amount in usd is text"),
        ({"input": "x", "output": 1}, "prices.m.input: "),
        ({"input": -1, "output": 1}, "prices.m.input: a price is at least 0, not -1"),
        ({"input": 1, "output": 1, "cached": 1}, "prices.m: there is no 'cached'; there are input, output, cache_read"),
        ({"input": True, "output": 1}, "prices.m.input: "),
        ({"input": None, "output": 1}, "prices.m.input: "),
    ],
)
def test_an_invalid_price_is_an_error_that_names_its_place(price: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PriceBook({"m": price})
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("m fast", "prices.m fast: after a model's name may follow service_tier, speed, inference_geo, processing"),
        ("m sped=fast", "prices.m sped=fast: after a model's name"),
        ("m speed=", "prices.m speed=: after a model's name"),
        ("m*", "prices.m*: a price is that of one model: write a name without *"),
        ("", "prices.: a price has the name of a model"),
        ("m speed=standard", "prices.m speed=standard: speed=standard is what calls usually have: leave it out"),
    ],
)
def test_an_invalid_name_of_a_model_or_of_terms_is_an_error(name: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PriceBook({name: {"input": 1, "output": 1}})
    assert str(raised.value).startswith(says)


def test_names_that_clients_make_up_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_MOST_CACHED_NAMES", 10)
    book = PriceBook()
    assert book.price("gpt-5", NOON) is not None
    for number in range(30):
        assert book.price(f"made-up-{number}", NOON) is None
        assert book.price(f"router-{number}/gpt-5", NOON) is not None
        assert book.price(f"router-{number}/gpt-5", NOON, {"service_tier": f"tier-{number}"}) is None
        assert book.dearest(f"router-{number}/gpt-5", NOON, timedelta(seconds=number)) is not None
    assert (len(book._unknown), len(book._by_name), list(book._by_id), len(book._models)) == (10, 10, ["gpt-5"], 1)
    [known] = book._models.values()
    assert len(known._spans) == 1 and len(known._dearest) <= 16
    assert not get_snapshot()._provider_misses, "the unbounded cache is not used"


BORDERS = [
    datetime(2026, 3, 13, tzinfo=UTC),
    datetime(2026, 8, 17, tzinfo=UTC),
    *(datetime(2026, 11, 22, hour, tzinfo=UTC) for hour in (0, 1, 4, 6, 10)),
]
near_borders = st.builds(
    lambda border, sign, by: border + sign * by,
    st.sampled_from(BORDERS),
    st.sampled_from([-1, 1]),
    st.sampled_from([timedelta(), timedelta(microseconds=1), timedelta(seconds=59), timedelta(hours=3)]),
)
TIMED = ["deepseek-flash", "deepseek-v4-pro", "claude-sonnet-4-6", "gpt-5", "claude-opus-4-8"]
leases = st.sampled_from([timedelta(), timedelta(seconds=60), timedelta(hours=2), timedelta(days=200)])
all_terms = st.sampled_from(
    [{}, {"service_tier": "priority"}, {"service_tier": "flex"}, {"speed": "fast"}, {"processing": "batch"}, {"x": "y"}]
)


@given(st.lists(st.tuples(st.sampled_from(TIMED), near_borders, leases, all_terms), max_size=20))
def test_a_cached_price_is_the_same_as_a_new_one(
    queries: list[tuple[str, datetime, timedelta, dict[str, str]]],
) -> None:
    for model, at, lease, terms in queries:
        fresh = PriceBook()
        assert BOOK.price(model, at, terms) == fresh.price(model, at, terms)
        held = fresh.dearest(model, at, lease, terms)
        assert BOOK.dearest(model, at, lease, terms) == held
        later = fresh.price(model, at + lease, terms)
        assert held is None or (later is not None and held.most(10**6, 10**6) >= later.most(10**6, 10**6))
        assert held is not None or terms


def test_moments_of_any_time_zone_have_the_same_price() -> None:
    elsewhere = timezone(timedelta(hours=9))
    for hour in range(24):
        at = NOON.replace(hour=hour)
        price = PriceBook().price("deepseek-flash", at)
        assert BOOK.price("deepseek-flash", at.astimezone(elsewhere)) == price
        assert BOOK.price("deepseek-flash", at.replace(tzinfo=None)) == price, "without a time zone, UTC"


rates = st.builds(
    Rate,
    st.integers(0, 10**11),
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**11)), max_size=3).map(
        lambda steps: tuple(sorted(dict(steps).items()))
    ),
)
some_prices = st.builds(
    price_of,
    rates,
    rates,
    cache_read=rates,
    cache_write=rates,
    cache_write_hour=rates,
    reasoning=rates,
    request=st.integers(0, 10**9),
    version=st.just("test"),
)


@given(some_prices, some_prices, usages)
def test_the_dearest_of_two_prices_is_never_below_either(one: Price, other: Price, usage: Usage) -> None:
    assert one.dearest(other).cost(usage) >= max(one.cost(usage), other.cost(usage))
    assert one.dearest(one) == one or one.dearest(one).cost(usage) == one.cost(usage)


@given(some_prices, usages)
def test_no_usage_costs_more_than_the_most_of_its_tokens(price: Price, usage: Usage) -> None:
    assert price.cost(usage) <= price.most(usage.input, usage.output)
