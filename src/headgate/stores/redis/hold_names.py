"""The Redis key of a hold's record: it follows from the whole id alone, and is in the slot of the hold's states."""

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
    """The Redis key of the record of a hold in a slot; the ids of other stores may name an invalid slot."""
    return record_of(prefix, whole_id[-ID_LETTERS:].encode(), slot)


def record_of(prefix: str, letters: bytes, slot: int) -> RecordKey:
    """`record_name`, given the letters of the whole id."""
    return RecordKey(_slot_prefix(prefix, slot) + letters)


def record_prefix(prefix: str, name: bytes) -> bytes:
    """The prefix of the records in the slot of some states; `name` is the Redis key of these states."""
    start = len(prefix.encode()) + 2
    return _slot_prefix(prefix, slot_of_tag(name[start : name.index(b"}", start)]))


@lru_cache(SLOTS)
def _slot_prefix(prefix: str, slot: int) -> bytes:
    """The prefix of all records in a slot."""
    return f"{prefix}:{{{tag_in_slot(slot % SLOTS)}}}:hold/".encode()


@cache
def tag_in_slot(slot: int) -> str:
    """A hash tag of four letters and digits whose slot is this one.

    The checksum of a text is the exclusive or of the checksums of its halves, each with zeros for the other half.
    """
    for first_half in _HALVES:
        second_half = _second_halves().get(slot ^ crc_hqx(first_half + b"\0\0", 0) % SLOTS)
        if second_half is not None:
            return (first_half + second_half).decode()
    raise AssertionError("four letters reach every slot")


@cache
def _second_halves() -> dict[int, bytes]:
    """The second halves of tags by their part of the checksum."""
    return {crc_hqx(b"\0\0" + half, 0) % SLOTS: half for half in _HALVES}
