"""Hold first, settle later: the hold that a store is to make, and its answers.

A hold is found by its whole id, a text that contains all a store needs: settling takes no key. It is computed from the
key and the caller's name for the hold, or made of 128 random bits, and discloses neither. What each call does is in
docs/holding.md.
"""

from __future__ import annotations

import os
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple

from headgate import core
from headgate.clock import US_PER_SECOND
from headgate.decision import Decision, NamedLimit
from headgate.errors import ArgumentError, brief_number, kind_of
from headgate.keys import whole_number
from headgate.units import LARGEST

HOUR_US = 3_600_000_000

LONGEST_LEASE_US = 31 * 24 * HOUR_US
"""A lease is in [1, 31 days]."""

LEASE_S = 60
"""Seconds for which a hold keeps its places in flight, where the caller states no lease."""

LONGEST_REMEMBERED_US = 366 * 24 * HOUR_US
"""A caller may ask for a hold to be remembered longer than needed, for a time in [0, 366 days]."""

LONGEST_NAME = 1024
"""The most bytes of a hold's name; text counts as its UTF-8."""

SettleOutcome = Literal["settled", "already settled", "unknown"]
SettleDegraded = Literal["", "local", "later", "lost"]
ExtendOutcome = Literal["extended", "refused", "lapsed", "already settled", "unknown"]

Amounts = int | None | Sequence[int | None]
"""Units for each group of a hold, or one number for all; None for as much as is held."""

ID_PREFIX = "h1"
"""The beginning of a whole id."""

TO_ID = bytes.maketrans(b"+/", b"-_")
"""Translates two characters of base64 to those of an id."""

_FROM_ID = bytes.maketrans(b"-_", b"+/")
_ID = re.compile(ID_PREFIX + r"[A-Za-z0-9_-]{24}", re.ASCII)
_PERSONALIZATION = b"headgate hold"


class Hold(NamedTuple):
    """How the charge of an operation is to be held.

    `name` distinguishes the holds of one key (of the operation's first key, where it has several); None makes an id of
    128 random bits. The lease ends `lease_us` after the moment of decision, in [1, LONGEST_LEASE_US]. The hold is
    remembered until the later of its lease's end and its settlement, and from then on for the longest of an hour, the
    longest period of its limits and `remember_us`, see `remembered_us`.

    With `at_once` it is a hit that is charged once however often it is repeated: the hold is settled with its own
    cost as it is made, and has no lease (`lease_us` is 0).
    """

    name: str | bytes | None = None
    lease_us: int = 60_000_000
    remember_us: int = 0
    at_once: bool = False


class Reserved(NamedTuple):
    """The answer to `reserve`.

    `id` is the whole id, of a refusal too, where nothing is remembered under it. `repeated` is whether a hold of this
    id existed already: then nothing was charged now, and `decision` has the numbers of the first answer.
    """

    decision: Decision
    id: str
    repeated: bool


class Standing(NamedTuple):
    """The numbers of one limit after a settlement; `remaining` is below zero where it is in debt."""

    definition: NamedLimit
    remaining: int
    reset_after_us: int


class Settlement:
    """The answer to `commit`.

    `outcome` is "settled", "already settled" or "unknown". `actuals` has for each group the units that count: those
    of the first settling, whatever a later one says; None for "unknown". A limiter tells them in the order in which its
    limits write their units. `after` has the numbers of each limit at this moment, in the order of the limits; none for
    "unknown".

    `degraded` is "" where the store settled it. "local": the hold was made in this process in place of the store, and
    was settled there. "later": the store does not answer; the settlement is kept and sent to it as soon as it does, and
    `after` is empty, `actuals` None if it was to be settled as held. "lost": the store does not answer and too many
    settlements are kept already; the outcome is "unknown".
    """

    __slots__ = ("actuals", "after", "degraded", "outcome")

    outcome: SettleOutcome
    actuals: tuple[int, ...] | None
    after: tuple[Standing, ...]
    degraded: SettleDegraded

    def __init__(
        self,
        outcome: SettleOutcome,
        actuals: tuple[int, ...] | None,
        after: Sequence[Standing],
        degraded: SettleDegraded = "",
    ) -> None:
        self.outcome = outcome
        self.actuals = actuals
        self.after = tuple(after)
        self.degraded = degraded

    @property
    def actual(self) -> int | None:
        """The units that count, of the first group where there are several; None for "unknown"."""
        return self.actuals[0] if self.actuals else None

    def __repr__(self) -> str:
        degraded = f", degraded={self.degraded!r}" if self.degraded else ""
        return f"Settlement(outcome={self.outcome!r}, actual={self.actual}{degraded})"


class Extension(NamedTuple):
    """The answer to `extend`.

    `outcome` is "extended"; "refused": the limits did not admit the additional units, nothing changed; "lapsed": the
    lease is over, the hold can only be settled; "already settled" or "unknown". `after` is as in `Settlement`. For
    "extended" and "refused", `decision` is the decision about the additional units.

    `degraded` is "" where the store answered, "local" for a hold that was made in this process in its place. "closed":
    the store does not answer, and the outcome is "refused": try again before the lease ends. Additional units may have
    been held all the same, so commit with an amount.
    """

    outcome: ExtendOutcome
    after: Sequence[Standing]
    decision: Decision | None
    degraded: Literal["", "local", "closed"] = ""


def whole_id(key: str, name: str | bytes, place: int) -> str:
    """The whole id of the hold of a name within a key (as encoded by `encode_key`).

    `place` is a number in [0, 65535] by which the store finds the key: on Redis the slot of a Cluster. Raises
    ArgumentError for an invalid name.
    """
    digest = blake2b(key.encode() + b"\0" + check_name(name), digest_size=16, person=_PERSONALIZATION).digest()
    return write_id(digest, place)


def new_id(place: int) -> str:
    """A whole id of 128 random bits."""
    return write_id(new_digest(), place)


def new_digest() -> bytes:
    """The 16 bytes of a hold without a name: random ones."""
    return os.urandom(16)


def write_id(digest: bytes, place: int) -> str:
    """A whole id as text: 26 letters, digits, `-` and `_`."""
    encoded = b2a_base64(digest + place.to_bytes(2, "big"), newline=False)
    return ID_PREFIX + encoded.translate(TO_ID).decode()


def read_id(text: object) -> tuple[bytes, int]:
    """Read a whole id as (the 16 bytes of the hold, its place); raises ArgumentError for anything else."""
    if not isinstance(text, str):
        raise ArgumentError(f"the id of a hold is text, as reserve and id_of give it, not {kind_of(text)}")
    if _ID.fullmatch(text) is None:
        raise ArgumentError(
            f"this is no id of a hold: that is {ID_PREFIX} and 24 letters, digits, - or _, as reserve and id_of give it"
        )
    raw = a2b_base64(text[len(ID_PREFIX) :].encode().translate(_FROM_ID))
    return raw[:16], int.from_bytes(raw[16:], "big")


def place_of_id(text: object) -> int:
    """The place in a whole id, as of `read_id`, but faster."""
    if type(text) is str and _ID.fullmatch(text) is not None:
        raw = a2b_base64(text[-4:].encode().translate(_FROM_ID))
        return raw[1] << 8 | raw[2]
    return read_id(text)[1]


def check_name(name: object) -> bytes:
    """The bytes of a hold's name, of text its UTF-8; raises ArgumentError for anything else."""
    if isinstance(name, str):
        try:
            raw = name.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"the id of a hold has a lone surrogate at character {error.start}") from None
    elif isinstance(name, bytes):
        raw = name
    else:
        raise ArgumentError(f"the id of a hold is text or bytes, not {kind_of(name)}")
    if not 0 < len(raw) <= LONGEST_NAME:
        raise ArgumentError(f"the id of a hold has 1 to {LONGEST_NAME} bytes, not {len(raw)}")
    return raw


def check_lease(lease_us: object) -> int:
    """Check that a lease is in [1, LONGEST_LEASE_US] microseconds; raises ArgumentError for anything else."""
    if type(lease_us) is int and 0 < lease_us <= LONGEST_LEASE_US:  # nearly all
        return lease_us
    number = whole_number(lease_us)
    if number is None:
        raise ArgumentError(f"a lease is a whole number of microseconds, not {kind_of(lease_us)}")
    if not 0 < number <= LONGEST_LEASE_US:
        is_time = number.bit_length() < 100
        seen = f"{number / US_PER_SECOND:.12g} s" if is_time else f"{brief_number(number)} us"
        raise ArgumentError(f"a lease is from 1 us to 31 days, not {seen}")
    return number


def check_remember(remember_us: object) -> int:
    """Check that a time to remember is in [0, LONGEST_REMEMBERED_US] us; raises ArgumentError for anything else."""
    number = whole_number(remember_us)
    if number is None:
        raise ArgumentError(f"how long to remember is a whole number of microseconds, not {kind_of(remember_us)}")
    if not 0 <= number <= LONGEST_REMEMBERED_US:
        raise ArgumentError(f"a hold is remembered for up to 366 days, not {brief_number(number)} us")
    return number


def check_amount(amount: object) -> int:
    """Check an amount, settled or additional, to be in [0, 2**52]; raises ArgumentError for anything else."""
    number = whole_number(amount)
    if number is None:
        raise ArgumentError(f"an amount is a whole number, not {kind_of(amount)}")
    if not 0 <= number <= LARGEST:
        raise ArgumentError(f"an amount is in [0, {LARGEST}] (up to 2**52), not {brief_number(number)}")
    return number


def lease_of(lease: float | None, lease_us: int | None) -> int:
    """A lease in microseconds: `lease_us`, or `lease` in seconds, or `LEASE_S` where both are None.

    Raises ArgumentError for an invalid lease.
    """
    if lease_us is None and type(lease) is int and 0 < lease <= LONGEST_LEASE_US // US_PER_SECOND:  # nearly all
        return lease * US_PER_SECOND
    if lease_us is None:
        return check_lease(_microseconds(LEASE_S if lease is None else lease, "a lease"))
    return check_lease(lease_us)


def remember_of(remember: float | None) -> int:
    """A time to remember in microseconds, from seconds, None for 0; raises ArgumentError for an invalid time."""
    return 0 if remember is None else check_remember(_microseconds(remember, "how long to remember"))


def amounts_of(amounts: object) -> list[int | None]:
    """Amounts as a list, from one for all groups of a hold or one for each; raises ArgumentError for invalid ones."""
    if type(amounts) is int and 0 <= amounts <= LARGEST:  # nearly all
        return [amounts]
    listed = amounts if isinstance(amounts, list | tuple) else (amounts,)
    return [None if amount is None else check_amount(amount) for amount in listed]


def remembered_us(limits: Sequence[NamedLimit], remember_us: int) -> int:
    """How long a hold of these limits is remembered after the later of its lease's end and its settlement."""
    periods = (limit.limit.period_us for limit in limits if limit.limit.is_rate)
    return max(HOUR_US, remember_us, *periods)


def _microseconds(seconds: object, subject: str) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ArgumentError(f"{subject} is a number of seconds, not {kind_of(seconds)}")
    if not abs(seconds) < LARGEST:  # refuses NaN, too
        shown = brief_number(seconds) if isinstance(seconds, int) else f"{seconds:.4g}"
        raise ArgumentError(f"{subject} is a time in seconds, not {shown}")
    return round(seconds * 1_000_000)


PythonSettlement = Settlement
if not TYPE_CHECKING and core.native is not None:
    Settlement = core.native.Settlement
