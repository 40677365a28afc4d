"""Money as integers of a billionth: the currencies, and how their amounts are read and written.

A float is never an amount: 0.1 + 0.2 is no number of billionths. Only `headgate.amounts` calls this module.
"""

from __future__ import annotations

import re
from decimal import Decimal

from headgate.errors import kind_of
from headgate.keys import whole_number

NANO = 10**9
"""Billionths in one unit of a currency."""

_CODES = """
    aed afn all amd aoa ars aud awg azn bam bbd bdt bgn bhd bif bmd bnd bob brl bsd btn bwp byn bzd cad cdf chf clp cny
    cop crc cup cve czk djf dkk dop dzd egp ern etb eur fjd fkp gbp gel ghs gip gmd gnf gtq gyd hkd hnl htg huf idr ils
    inr iqd irr isk jmd jod jpy kes kgs khr kmf kpw krw kwd kyd kzt lak lbp lkr lrd lsl lyd mad mdl mga mkd mmk mnt mop
    mru mur mvr mwk mxn myr mzn nad ngn nio nok npr nzd omr pab pen pgk php pkr pln pyg qar ron rsd rub rwf sar sbd scr
    sdg sek sgd shp sle sos srd ssp stn svc syp szl thb tjs tmt tnd top try ttd twd tzs uah ugx usd uyu uzs ved ves vnd
    vuv wst xaf xcd xcg xof xpf yer zar zmw zwg
"""

CURRENCIES = frozenset(_CODES.split())
"""The currencies of states in ISO 4217, in lower case, without its codes of funds, metals and tests."""

_DECIMAL = re.compile(r"[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_FARTHEST = 40
"""Powers of ten, up or down, beyond which an amount is not computed exactly: so the integers below stay small."""


def read_money(value: object, currency: str, *, round_up: bool = False) -> int:
    """Read an amount in billionths: from an int, which is whole units of the currency, a Decimal, or text.

    Text is "0.0123", or with the currency "0.0123 usd". An amount finer than a billionth is refused, or rounded up. The
    result has no bound. Raises ValueError, which states what would be right.
    """
    if isinstance(value, str):
        value = _decimal(value, currency)
    if isinstance(value, Decimal):
        return _billionths(value, currency, round_up=round_up)
    whole = whole_number(value)
    if whole is not None:
        return whole * NANO
    raise ValueError(
        f'an amount in {currency} is text such as "0.0123", a Decimal or whole units as an int, not {kind_of(value)}'
    )


def money_text(nano: int) -> str:
    """Billionths as text in units of the currency, without its name: "0.0123"."""
    whole, rest = divmod(nano, NANO)
    return f"{whole}.{rest:09}".rstrip("0") if rest else str(whole)


def _decimal(text: str, currency: str) -> Decimal:
    number, _, named = text.strip().partition(" ")
    if named.strip().lower() not in ("", currency) or not _DECIMAL.fullmatch(number):
        raise ValueError(f'an amount in {currency} is text such as "0.0123" or "0.0123 {currency}", not {text[:40]!r}')
    return Decimal(number)


def _billionths(amount: Decimal, currency: str, *, round_up: bool) -> int:
    if not amount.is_finite():
        raise ValueError(f"an amount in {currency} is a number, not {amount}")
    if amount and amount.adjusted() > _FARTHEST:
        raise ValueError(f"an amount in {currency} is less than 10**{_FARTHEST}, not {amount:.3E}")
    nano, rest = 0, 1
    if not amount or amount.adjusted() >= -_FARTHEST:
        numerator, denominator = amount.as_integer_ratio()
        nano, rest = divmod(numerator * NANO, denominator)
    if not rest:
        return nano
    if round_up:
        return nano + 1
    raise ValueError(
        f"{currency} is counted in billionths, and {_brief(amount)} is finer: round it, as in "
        'amount.quantize(Decimal("1e-9"))'
    )


def _brief(amount: Decimal) -> str:
    return (
        f"{amount:f}"
        if amount.adjusted() >= -_FARTHEST and len(amount.as_tuple().digits) < _FARTHEST
        else str(amount)[:40]
    )
