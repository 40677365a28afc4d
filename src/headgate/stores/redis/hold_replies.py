"""Parse the replies of the scripts for holds."""

from __future__ import annotations

from struct import Struct, error
from typing import Any, NamedTuple

from headgate.decision import Reading
from headgate.errors import ArgumentError, ConflictingId, StoreKeyError
from headgate.stores.redis.replies import unexpected_reply
from headgate.stores.redis.script_replies import bytes_of, numbers_of, readings_of
from headgate.units import LARGEST

_NUMBER = Struct("<H")
_STANDING = Struct("<Hdd")
_EXTENDED = Struct("<dBHH")
_ONE = Struct("<sHdHHdd")
_DEBT = Struct("<sHd")
IDENTITY = 16
"""Length in bytes of the identity of a hold's maker."""

IDENTITY_PARTS = (3, 6, 6)
"""How many of them are digests of its costs, limits and keys. The first byte of the identity is 1 for a hit."""

_NO_SLOTS: list[int] = []
DEBT_FITS = b"F"

Standings = dict[int, tuple[int, int]]
"""The current (remaining, reset_after_us) of limits, by their number among those of the caller."""


class Settled(NamedTuple):
    """The result of settling a hold in one slot: the outcome, the units of each group, standings, and other slots.

    The outcome is the scripts' letter: DEBT_FITS where nothing was done, since a debt is to be checked in other slots.
    """

    outcome: bytes
    actuals: list[int]
    standings: Standings
    other_slots: list[int]


class Extended(NamedTuple):
    """The result of extending a hold in one slot.

    `readings` are those of the decision about the additional units, for the limits of the hold that the caller has;
    `is_complete` is whether it has all of them. `former_end_us` is the former end of the lease; `added_part` is whether
    more was charged.
    """

    outcome: bytes
    standings: Standings
    other_slots: list[int]
    readings: dict[int, Reading]
    is_complete: bool
    former_end_us: float
    added_part: bool


class Conflict(NamedTuple):
    """Another hold with the same id: the identity of its maker, and its costs."""

    identity: bytes
    costs: tuple[int, ...]


def read_reserved(reply: Any, count: int) -> tuple[bool, list[Reading]] | Conflict:
    """(whether the reply repeats an earlier one, the readings of `count` limits), or the other hold with the id."""
    reply = bytes_of(reply)
    status = reply[:1]
    if status in (b"N", b"R"):
        return status == b"R", readings_of(reply[1:], count) if count else []
    if status != b"C" or len(reply) % 8 != 1 or len(reply) < 1 + IDENTITY:
        raise unexpected_reply(reply, "what was held")
    costs = reply[1 + IDENTITY :]
    return Conflict(reply[1 : 1 + IDENTITY], tuple(numbers_of(costs, len(costs) // 8)))


def conflicting(other: Conflict, identity: bytes, costs: tuple[int, ...]) -> ConflictingId:
    """The error where an id is given again for another hold."""
    if other.identity[0] != identity[0]:
        kinds = ("a hold", "a hit")
        return ConflictingId(f"this id is that of {kinds[other.identity[0]]}, and is now given to {kinds[identity[0]]}")
    if other.costs != tuple(costs):
        former, new = (values[0] if len(values) == 1 else values for values in (other.costs, tuple(costs)))
        return ConflictingId(f"this id was given with cost {former}, and is now given with {new}")
    limits = slice(1 + IDENTITY_PARTS[0], 1 + IDENTITY_PARTS[0] + IDENTITY_PARTS[1])
    difference = "limits" if other.identity[limits] != identity[limits] else "keys"
    return ConflictingId(f"this id was given with other {difference}; what is new needs an id of its own")


class TooMuchDebt(Exception):
    """A debt too large for exact numbers, of a limit by its number (-1: not the caller's); nothing was changed."""

    def __init__(self, number: int, actual: int) -> None:
        super().__init__(number, actual)
        self.number, self.actual = number, actual


def read_settled_few(reply: Any) -> Settled | None:
    """Parse the reply of the script for a few limits; None where the script for any limits is needed."""
    if len(reply) == _ONE.size:  # most replies
        outcome, _, actual, _, _, remaining, reset_after_us = _ONE.unpack(reply)
        if outcome == b"S" and 0 <= actual <= LARGEST and -LARGEST <= remaining <= LARGEST >= reset_after_us >= 0:
            return Settled(outcome, [int(actual)], {0: (int(remaining), int(reset_after_us))}, _NO_SLOTS)
    return None if bytes_of(reply) == b"X" else read_settled(reply)


def read_settled(reply: Any) -> Settled:
    """Parse the reply of a settlement; raises ArgumentError where the hold cannot be settled in this way."""
    reply = bytes_of(reply)
    outcome = _outcome(reply, b"SAUYF")
    if outcome == DEBT_FITS:
        return Settled(outcome, [], {}, [slot for (slot,) in _NUMBER.iter_unpack(reply[1:])])
    if outcome == b"U":
        return Settled(outcome, [], {}, [])
    try:
        (groups,) = _NUMBER.unpack_from(reply, 1)
        position = 3 + 8 * groups
        actuals = numbers_of(reply[3:position], groups)
        standings, other_slots = _read_standings(reply[position:])
    except error as cause:
        raise unexpected_reply(reply, "what became of a hold") from cause
    return Settled(outcome, actuals, standings, other_slots)


def read_extended(reply: Any) -> Extended:
    """Parse the reply of an extension; raises ArgumentError where the hold cannot be extended in this way."""
    reply = bytes_of(reply)
    outcome = _outcome(reply, b"ERLAU")
    if outcome == b"U":
        return Extended(outcome, {}, [], {}, False, 0.0, False)
    try:
        if outcome in (b"L", b"A"):
            return Extended(outcome, *_read_standings(reply[1:]), {}, False, 0.0, False)
        former_end_us, added_part, count, length = _EXTENDED.unpack_from(reply, 1)
        position = 1 + _EXTENDED.size
        numbers = Struct(f"<{count}H").unpack_from(reply, position)
        position += 2 * count
        listed = readings_of(reply[position : position + length], count) if count else []
        readings = {number - 1: reading for number, reading in zip(numbers, listed, strict=True) if number}
        standings, other_slots = _read_standings(reply[position + length :])
    except error as cause:
        raise unexpected_reply(reply, "what became of a hold") from cause
    return Extended(outcome, standings, other_slots, readings, 0 not in numbers, former_end_us, added_part == 1)


def _outcome(reply: bytes, outcomes: bytes) -> bytes:
    outcome = reply[:1]
    if outcome == b"D" and len(reply) == _DEBT.size:
        _, number, actual = _DEBT.unpack(reply)
        raise TooMuchDebt(number - 1, int(actual))
    if reply == b"B":
        raise ArgumentError(
            "a calendar window of this hold is over, or has another period since, and these limits lack it: "
            "extend the hold through limits that have it"
        )
    if outcome == b"G" and len(reply) == 3:
        (groups,) = _NUMBER.unpack_from(reply, 1)
        raise ArgumentError(f"this hold has {groups} amounts: give one for each, or one for all")
    if not outcome or outcome not in outcomes:
        raise unexpected_reply(reply, "what became of a hold")
    return outcome


def _read_standings(reply: bytes) -> tuple[Standings, list[int]]:
    (count,) = _NUMBER.unpack_from(reply)
    end = _NUMBER.size + count * _STANDING.size
    if len(reply) < end:
        raise unexpected_reply(reply, "what limits have")
    standings = {}
    for number, remaining, reset_after_us in _STANDING.iter_unpack(reply[_NUMBER.size : end]):
        if not (_is_integer(remaining) and _is_integer(reset_after_us) and reset_after_us >= 0):
            raise StoreKeyError("a state holds numbers that are not a limit's: another program wrote it")
        standings[number - 1] = (int(remaining), int(reset_after_us))
    return standings, [slot for (slot,) in _NUMBER.iter_unpack(reply[end:])]


def _is_integer(number: float) -> bool:
    return -LARGEST <= number <= LARGEST and number == int(number)
