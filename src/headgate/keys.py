"""Checks the keys and costs that callers pass, and converts them into one form.

A key is text, or a tuple of parts. `encode_key` gives every key a unique text: parts are joined by
`|`, and characters that could be taken for a joint or for a Redis hash tag are percent-encoded, so two parts
cannot run together and no client chooses the Redis slot of its key.
"""

from __future__ import annotations

import re
from operator import index

from headgate.errors import ArgumentError, brief_number, kind_of
from headgate.units import LARGEST

Key = str | tuple[str | int, ...]

LONGEST_KEY = 8192
"""Bytes of UTF-8 that a key may have, all parts together."""

MOST_PARTS = 16
_SPECIAL = re.compile(r"[%|{}\x00-\x20\x7f]")


def encode_key(key: Key) -> str:
    """The text of a key, different for different keys; raises ArgumentError for an invalid key."""
    if type(key) is str and 0 < len(key) <= LONGEST_KEY and key.isascii() and _SPECIAL.search(key) is None:
        return key  # most keys
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple):
        raise ArgumentError(f"a key is text or a tuple of parts, not {kind_of(key)}")
    if not 0 < len(parts) <= MOST_PARTS:
        raise ArgumentError(f"a key has 1 to {MOST_PARTS} parts, not {len(parts)}")
    texts = [_part(part, index, alone=isinstance(key, str)) for index, part in enumerate(parts)]
    length = sum(len(text.encode()) for text in texts)
    if length > LONGEST_KEY:
        raise ArgumentError(f"a key has at most {LONGEST_KEY} bytes, not {length}; use a digest of it")
    return "|".join(_SPECIAL.sub(_escape, text) for text in texts)


def whole_number(value: object) -> int | None:
    """An integer as an `int` of no subclass; None for a bool and for anything that is no integer.

    Members of an `IntEnum`, NumPy's integers, and all others that have `__index__` are integers, too.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_cost(cost: object, named: str = "a cost") -> int:
    """Check a cost to be a whole number in [0, 2**52]; raises ArgumentError, which begins with `named`, for others."""
    number = whole_number(cost)
    if number is None:
        raise ArgumentError(f"{named} is a whole number, not {kind_of(cost)}")
    if number < 0:
        raise ArgumentError(f"{named} is at least 0, not {brief_number(number)}")
    if number > LARGEST:
        raise ArgumentError(f"{named} is at most {LARGEST} (2**52), not {brief_number(number)}")
    return number


def check_now(now_us: object) -> int:
    """Check a moment of a clock to be in [0, 2**52] microseconds; raises ArgumentError for anything else."""
    number = whole_number(now_us)
    if number is None:
        raise ArgumentError(f"a moment is a whole number of microseconds, not {kind_of(now_us)}")
    if not 0 <= number <= LARGEST:
        raise ArgumentError(f"a moment is in [0, {LARGEST}] microseconds since the epoch, not {brief_number(number)}")
    return number


def check_ago(ago_us: object) -> int:
    """Check how long ago something was, limited to the range of clocks; raises ArgumentError for an invalid time."""
    number = whole_number(ago_us)
    if number is None:
        raise ArgumentError(f"how long ago is a whole number of microseconds, not {kind_of(ago_us)}")
    if number < 0:
        raise ArgumentError(f"how long ago is at least 0, not {brief_number(number)}")
    return min(number, LARGEST)


def _part(part: object, index: int, *, alone: bool) -> str:
    name = "a key" if alone else f"part {index} of a key"
    if not isinstance(part, str):
        number = whole_number(part)
        if number is not None and number.bit_length() > 1024:
            raise ArgumentError(f"{name} is {brief_number(number)}: too long for a key")
        if number is not None:
            return str(number)
        raise ArgumentError(f"{name} is text or a whole number, not {kind_of(part)}")
    if not part:
        raise ArgumentError(f"{name} is empty: a missing identity must not mean that nothing is limited")
    try:
        part.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{name} has a lone surrogate at character {error.start}") from None
    return part


def _escape(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"
