"""Where the record of a hold is in Redis: its key follows from the whole id alone, and is in the slot of its states."""

from __future__ import annotations

from binascii import crc_hqx
from functools import cache, lru_cache

from headgate.stores.redis.scripts import ID_LETTERS
from headgate.stores.redis.slot_map import RecordKey

SLOTS = 16384
"""Hash slots of a Cluster."""

_LETTERS = b"abcdefghijklmnopqrstuvwxyz012345"
_HALVES = [bytes((first, second)) for first in _LETTERS for second in _LETTERS]


def slot_of_tag(tag: bytes) -> int:
    """The slot of all keys with a hash tag."""
    return crc_hqx(tag, 0) % SLOTS


def record_name(prefix: str, whole_id: str, slot: int) -> RecordKey:
    """The Redis key of the record that a hold has in a slot; what is no slot is of an id that another store made."""
    return record_of(prefix, whole_id[-ID_LETTERS:].encode(), slot)


def record_of(prefix: str, letters: bytes, slot: int) -> RecordKey:
    """The same of the letters of a whole id."""
    return RecordKey(_slot_prefix(prefix, slot) + letters)


def record_prefix(prefix: str, name: bytes) -> bytes:
    """How the names of records in the slot of states begin; `name` is the Redis key of these."""
    start = len(prefix.encode()) + 2
    return _slot_prefix(prefix, slot_of_tag(name[start : name.index(b"}", start)]))


@lru_cache(SLOTS)
def _slot_prefix(prefix: str, slot: int) -> bytes:
    """How the names of all records in a slot begin."""
    return f"{prefix}:{{{tag_in_slot(slot % SLOTS)}}}:hold/".encode()


@cache
def tag_in_slot(slot: int) -> str:
    """A hash tag of four letters and digits in a slot.

    The checksum of a text is the exclusive or of those of its halves, each at its place and the other one of zeros.
    """
    for first_half in _HALVES:
        second_half = _second_halves().get(slot ^ crc_hqx(first_half + b"\0\0", 0) % SLOTS)
        if second_half is not None:
            return (first_half + second_half).decode()
    raise AssertionError("four letters reach every slot")


@cache
def _second_halves() -> dict[int, bytes]:
    """The second half of a tag by what it adds to the checksum."""
    return {crc_hqx(b"\0\0" + first_half, 0) % SLOTS: first_half for first_half in _HALVES}
