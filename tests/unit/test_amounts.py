"""Amounts of units: money in billionths and never as a float."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ArgumentError, ConfigError, FixedWindow
from headgate.amounts import amount_text, grouped_text, number_text, read_amount
from headgate.costs import Counted
from headgate.money import CURRENCIES, NANO, read_money
from headgate.units import LARGEST

MONEY: list[tuple[object, int]] = [
    (0, 0),
    (5, 5 * NANO),
    ("0.0123", 12_300_000),
    ("0.0123 usd", 12_300_000),
    (" 1_000.5 USD ", 1_000_500_000_000),
    ("1e-9", 1),
    ("1.5E+3", 1500 * NANO),
    (Decimal("0.0123"), 12_300_000),
    (Decimal("1E-9"), 1),
    (Decimal("0.1000000000000000000000"), 100_000_000),
    (Decimal("-0"), 0),
    (Decimal("0E-999999"), 0),
    ("4503599.627370496", LARGEST),
]


@pytest.mark.parametrize(("amount", "nano"), MONEY, ids=lambda value: str(value)[:20])
def test_money_is_counted_in_billionths_of_its_currency(amount: object, nano: int) -> None:
    assert read_amount(amount, "usd") == nano


NO_MONEY: list[tuple[Any, str]] = [
    (0.0123, 'text such as "0.0123", a Decimal or whole units as an int, not a float'),
    (True, "not a bool"),
    (None, "not None"),
    (b"5", "not a bytes"),
    ("", "is text such as"),
    ("1,5", "is text such as"),
    ("5 eur", "is text such as"),
    ("٣", "is text such as"),
    ("nan", "is text such as"),
    (Decimal("NaN"), "is a number, not NaN"),
    (Decimal("Infinity"), "is a number, not Infinity"),
    (
        "0.0000000001",
        'counted in billionths, and 0.0000000001 is finer: round it, as in amount.quantize(Decimal("1e-9"))',
    ),
    (Decimal("1E-999999"), "is finer"),
    (Decimal("1E+999999"), "is less than 10**40"),
    (-1, "a cost in usd is at least 0, not -1"),
    (Decimal("-0.5"), "a cost in usd is at least 0, not -0.5"),
    (4_503_600, "a cost in usd is at most 4503599.627370496"),
    ("1" + "0" * 39, "a cost in usd is at most"),
]


@pytest.mark.parametrize(("amount", "reason"), NO_MONEY, ids=lambda value: str(value)[:20])
def test_an_invalid_amount_of_money_is_refused_with_a_hint(amount: Any, reason: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        read_amount(amount, "usd")
    assert reason in str(caught.value)


def test_the_settings_of_decimal_change_no_amount() -> None:
    with localcontext(prec=3):
        assert read_amount(Decimal("4503599.627370496"), "usd") == LARGEST


@given(nano=st.integers(0, LARGEST), unit=st.sampled_from(["usd", "jpy"]))
def test_money_is_shown_in_the_currency_and_read_back(nano: int, unit: str) -> None:
    assert read_amount(number_text(nano, unit), unit) == nano
    assert read_amount(amount_text(nano, unit), unit) == nano
    assert grouped_text(nano, unit).replace(",", "") == number_text(nano, unit)


def test_amounts_are_shown_with_their_unit() -> None:
    assert (amount_text(900, "requests"), amount_text(900, "tokens")) == ("900", "900 tokens")
    assert amount_text(12_300_000, "usd") == "0.0123 usd"
    assert (grouped_text(1234567, "tokens"), grouped_text(1_234_567_800_000_000, "usd")) == ("1,234,567", "1,234,567.8")


@given(amount=st.decimals(0, 1000, allow_nan=False, allow_infinity=False))
def test_amounts_of_a_log_that_are_finer_than_a_billionth_are_rounded_up(amount: Decimal) -> None:
    nano = read_money(str(amount), "usd", round_up=True)
    assert 0 <= nano - amount * NANO < 1


def test_currencies_are_three_letters() -> None:
    assert {"usd", "eur", "chf", "jpy"} <= CURRENCIES
    assert all(len(code) == 3 and code.isalpha() and code.islower() for code in CURRENCIES)


@pytest.mark.parametrize("value", [0.5, True, None, "x", "0.0000000001"])
def test_an_invalid_amount_of_a_limit_is_refused_by_the_name_of_its_number(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^FixedWindow: limit"):
        FixedWindow(limit=value, period="day", of="usd")


@pytest.mark.parametrize("value", ["5", 0.5, None])
def test_units_but_money_are_counted_whole(value: Any) -> None:
    with pytest.raises(ConfigError, match="FixedWindow: limit must be a whole number"):
        FixedWindow(limit=value, period="day", of="tokens")
    with pytest.raises(ArgumentError, match="a cost in tokens is a whole number, not "):
        read_amount(value, "tokens")


COUNTED = Counted(("requests", "tokens", "usd"))


def test_a_settled_cost_is_the_charge_except_for_units_that_it_names() -> None:
    assert COUNTED.read_settled({"tokens": 5}, (1, 900, 20_000_000)) == (1, 5, 20_000_000)
    assert COUNTED.read_settled({"usd": "0.5", "requests": 0}, (1, 900, 20_000_000)) == (0, 900, 500_000_000)
    assert COUNTED.read_settled(3, (1, 900, 20_000_000)) == (3, 900, 20_000_000)
    assert Counted(("tokens",)).read_settled(7, (900,)) == (7,)
    assert Counted(("usd",)).read_settled("0.25", (900,)) == (250_000_000,)
    with pytest.raises(ArgumentError, match="no limit counts 'bytes'"):
        COUNTED.read_settled({"bytes": 5}, (1, 900, 0))
    assert COUNTED.read_actuals({"tokens": 5}) == (None, 5, None)
    assert COUNTED.read_actuals(3) == (3, None, None)
    assert COUNTED.read_actuals(None) == (None, None, None)
    assert Counted(("tokens",)).read_actuals(7) == (7,)


def test_a_part_of_a_cost_has_nothing_of_units_that_it_does_not_name() -> None:
    assert COUNTED.read_part({"tokens": 5}) == (0, 5, 0)
    assert COUNTED.read_part(COUNTED.as_read((1, 2, 3))) == (1, 2, 3)
    assert COUNTED.read_part(2) == (2, 0, 0)


def test_costs_that_were_read_are_not_converted_again() -> None:
    assert COUNTED.read(COUNTED.as_read((1, 2, 300))) == (1, 2, 300)
    assert Counted(("usd",)).as_read((300,)) == {"usd": 300}
    assert Counted(("tokens",)).as_read((300,)) == 300


def test_a_long_amount_is_shown_whole_up_to_forty_digits_and_briefly_beyond() -> None:
    for digits in (39, 40, 41):
        with pytest.raises(ValueError, match=r"9") as error:
            read_money(Decimal("0." + "9" * digits), "usd")
        shown = "0." + "9" * digits in str(error.value)
        assert shown == (digits < 40), str(error.value)
