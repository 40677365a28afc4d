"""The units that limits count, by name, and amounts of them: requests, tokens, bytes, or the money of a request.

The caller chooses the name of a unit. A currency of ISO 4217 is one, too: it is counted in billionths, see
`headgate.money`.
"""

from __future__ import annotations

import re
from decimal import Decimal

from headgate.errors import ArgumentError, ConfigError, brief_number
from headgate.keys import check_cost, whole_number
from headgate.money import CURRENCIES, money_text, read_money
from headgate.units import LARGEST

REQUESTS = "requests"
"""The unit of a limit that names none."""

Amount = int | str | Decimal
"""An amount of a unit; of money a Decimal or text, or whole units of the currency as an int."""

LONGEST_UNIT = 64
UNIT = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_RESERVED = """
    per in concurrent fixed log counter bucket burst leaky queue stepwise
    us usec usecs microsecond microseconds ms msec msecs millisecond milliseconds s sec secs second seconds
    m min mins minute minutes h hr hrs hour hours d day days w wk wks week weeks
    mo month months mon mons quarter quarters y yr yrs year years
"""

SHORT_REQUESTS = frozenset(("r", "req", "reqs", "rq", "rqs"))
"""Other names of requests, in lower case. As separate units they would make limits that no request counts in."""

RESERVED_WORDS = SHORT_REQUESTS.union(_RESERVED.split())
"""Words with a different meaning in the text of limits, in lower case."""


def check_unit(name: object) -> str:
    """Check a unit's name and return its standard form, see `unit_named`. Raises ConfigError."""
    if not isinstance(name, str) or not UNIT.fullmatch(name) or len(name) > LONGEST_UNIT:
        raise ConfigError(
            f"a unit is a letter and up to {LONGEST_UNIT - 1} more letters, digits, _ or -, such as tokens, "
            f"not {name!r:.80}"
        )
    if name.lower() in RESERVED_WORDS:
        raise ConfigError(f'"{name}" has a meaning of its own in limits: choose another name for what is counted')
    return unit_named(name)


def unit_named(name: str) -> str:
    """The standard form of a unit's name: a currency in lower case, `request` as `requests`."""
    lower = name.lower()
    if lower in ("request", REQUESTS):
        return REQUESTS
    return lower if lower in CURRENCIES else name


def is_money(unit: str) -> bool:
    """Whether a unit is a currency, and so counted in billionths."""
    return unit in CURRENCIES


def read_amount(amount: object, unit: str) -> int:
    """Read an amount of a unit, in [0, 2**52]; of money in billionths. Raises ArgumentError."""
    if not is_money(unit):
        return check_cost(amount) if unit == REQUESTS else check_cost(amount, f"a cost in {unit}")
    try:
        nano = read_money(amount, unit)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    if nano < 0:
        raise ArgumentError(f"a cost in {unit} is at least 0, not {number_text(nano, unit)}")
    if nano > LARGEST:
        raise ArgumentError(f"a cost in {unit} is at most {number_text(LARGEST, unit)} (2**52 billionths)")
    return nano


def amount_text(amount: int, unit: str) -> str:
    """An amount as text for people: "900 tokens", "0.0123 usd", of requests the number alone."""
    if unit == REQUESTS:
        return str(amount)
    return f"{number_text(amount, unit)} {unit}"


def number_text(amount: int, unit: str) -> str:
    """An amount as text, without the name of its unit."""
    if not is_money(unit):
        return str(amount)
    return f"-{money_text(-amount)}" if amount < 0 else money_text(amount)


def grouped_text(amount: int, unit: str) -> str:
    """`number_text` with a comma between thousands."""
    if not is_money(unit):
        return f"{amount:,}"
    whole, point, rest = money_text(amount).partition(".")
    return f"{int(whole):,}{point}{rest}"


def base_unit(unit: str) -> str:
    """The unit of the stored integers: the unit itself, and of money a billionth of it, "nano-usd"."""
    return f"nano-{unit}" if is_money(unit) else unit


def check_limit_amount(kind: str, name: str, value: object, unit: str, *, least: int) -> int:
    """Read a number of a limit in [least, 2**52], of money in billionths; the ConfigError begins with `kind`."""
    number = whole_number(value) if not is_money(unit) else _money_number(kind, name, value, unit)
    if number is None:
        raise ConfigError(f"{kind}: {name} must be a whole number, not {value!r}")
    if number < least:
        lowest = amount_text(least, unit) if number >= 0 or not is_money(unit) else "0"
        raise ConfigError(f"{kind}: {name} must be at least {lowest}, not {_shown(number, unit)}")
    if number > LARGEST:
        most = f"{LARGEST} (2**52)" if not is_money(unit) else f"{amount_text(LARGEST, unit)} (2**52 billionths)"
        raise ConfigError(f"{kind}: {name} must be at most {most}, not {_shown(number, unit)}")
    return number


def _money_number(kind: str, name: str, value: object, unit: str) -> int:
    try:
        return read_money(value, unit)
    except ValueError as error:
        raise ConfigError(f"{kind}: {name}: {error}") from None


def _shown(number: int, unit: str) -> str:
    if not is_money(unit) or number.bit_length() > 128:
        return brief_number(number)
    return amount_text(number, unit)
