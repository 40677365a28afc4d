"""The keys and formats of states in Redis, for reading them outside the scripts."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from struct import Struct, calcsize, error, unpack_from
from typing import Any

from headgate.algorithms import token_bucket, transition
from headgate.algorithms.table import REDIS_FORMS
from headgate.decision import NamedLimit, Reading
from headgate.errors import StoreKeyError
from headgate.stores.redis.scripts import MARKS, POWERS, limit_of
from headgate.units import LARGEST, CompiledLimit

State = tuple[Any, ...]

LONGEST_NAME = 128
"""Bytes of a key's text in a Redis key; a longer text is replaced by its digest."""

_SLIDING = ("sliding_window", "sliding_log")
_LOG = Struct("<dIB")
_MOVED = Struct("<HHdIII")
_BEFORE = Struct("<d")
_IN_SEVERAL = 2
_NARROW, _WIDE = (10, 6, 1 << 32), (14, 7, 1 << 53)
"""Bytes of an entry, bytes of its time, and the modulus of the sums."""

_NO_OTHERS: Mapping[int, bytes] = {}
_UNITS = _BEFORE.unpack_from
_SUMS = 1 << 53

UNITS = 8
"""Length in bytes of the reply with the units of a bucket that has too few; no other of one limit is as long."""


class KeyName:
    """Makes the Redis key of the hash with the states of all limits of a rule and key.

    All limits of one key have one hash tag.
    """

    __slots__ = ("_head", "tail")

    def __init__(self, prefix: str, definition: NamedLimit) -> None:
        scope = definition.scope
        self._head = prefix.encode() + b":{"
        self.tail = b"}:" + scope[: scope.rindex("/") + 1].encode()

    def of(self, text: str) -> bytes:
        """The Redis key for a text from `encode_key`, which has no brace and so cannot choose its slot."""
        name = text.encode()
        return self._head + (name if len(name) <= LONGEST_NAME else _digest_name(name)) + self.tail

    def with_tag(self, tag: bytes) -> bytes:
        """The Redis key for a text with this `tag_of`."""
        return self._head + tag + self.tail


def tag_of(text: str) -> bytes:
    """The hash tag of a key, given its text from `encode_key`."""
    name = text.encode()
    return name if len(name) <= LONGEST_NAME else _digest_name(name)


def _digest_name(name: bytes) -> bytes:
    """The digest that replaces a long name."""
    return b"#" + blake2b(name, digest_size=20).hexdigest().encode()


def field_name(definition: NamedLimit) -> str:
    """The field of a limit's state in its hash. A long log has more fields, such as "w0:7", beside "w0"."""
    return f"{REDIS_FORMS[definition.limit.algorithm].field}{definition.scope.rpartition('.')[2]}"


def is_log(definition: NamedLimit) -> bool:
    """Whether a limit's state may be a log, in several fields."""
    return definition.limit.algorithm in _SLIDING


def read_state(algorithm: str, value: object, others: Mapping[int, bytes] = _NO_OTHERS) -> tuple[CompiledLimit, State]:
    """Parse a field: the limit that its state was written under, and the state; `others` are more fields of a long log.

    A state of a sliding window may be of either kind. Raises StoreKeyError for an invalid state.
    """
    if not isinstance(value, bytes):
        raise invalid_state(algorithm)
    if algorithm in _SLIDING:
        algorithm = "sliding_log" if len(value) % 2 == 0 else "sliding_window"
    try:
        former, state = _read_log(value, others) if algorithm == "sliding_log" else _read(algorithm, value)
    except (error, IndexError, KeyError, ValueError, OverflowError) as cause:
        raise invalid_state(algorithm) from cause
    if former.period == 0 or (former.refill != 0) != REDIS_FORMS[algorithm].refills:
        raise invalid_state(algorithm)
    return former, state


def _read(algorithm: str, value: bytes) -> tuple[CompiledLimit, State]:
    form = REDIS_FORMS[algorithm].pack
    *numbers, _ = unpack_from(form, value)
    return _former_limit(algorithm, value[calcsize(form) :]), tuple(map(_integer, numbers))


def _read_log(value: bytes, others: Mapping[int, bytes]) -> tuple[CompiledLimit, State]:
    end_at = len(value) - min(MARKS) - _LOG.size
    offset, _, form = _LOG.unpack_from(value, end_at)
    former = _former_limit("sliding_log", value[-min(MARKS) :])
    start, end, skip, copied, moved = 0, 0, 0, 0, 0.0
    if form >= _IN_SEVERAL:
        end_at -= _MOVED.size
        skip, copied, moved, _, start, end = _MOVED.unpack_from(value, end_at)
    length = end_at - _BEFORE.size
    (base,) = _BEFORE.unpack_from(value, length)
    width, parts, modulus = _WIDE if form % _IN_SEVERAL else _NARROW
    chunks = [(value[copied:length], base)]
    if start < end <= start + len(others):
        fields = [others[number] for number in range(start, end)]
        chunks = [(field[: -_BEFORE.size], *_BEFORE.unpack(field[-_BEFORE.size :])) for field in fields]
        chunks.append((value[copied:length], moved))
        if skip:
            first = chunks[0][0]
            dropped, remaining = first[: skip * width], first[skip * width :]
            chunks[0] = (remaining, int.from_bytes(dropped[parts - width :], "little"))
    entries = []
    for chunk, sum_before in chunks:  # each field has its own sum before it, since later fields may be amended
        before = _integer(sum_before)
        for position in range(0, len(chunk), width):
            total = int.from_bytes(chunk[position + parts : position + width], "little")
            time = int.from_bytes(chunk[position : position + parts], "little") + _integer(offset)
            if total != before:  # otherwise all its units were given back
                entries.append((time, (total - before) % modulus))
            before = total
    return former, tuple(entries)


def _former_limit(algorithm: str, mark: bytes) -> CompiledLimit:
    if len(mark) not in MARKS or mark[0] not in POWERS:
        raise ValueError("not the numbers of a limit")
    return limit_of(algorithm, mark)


def _integer(word: float) -> int:
    if not abs(word) < _SUMS:
        raise ValueError("not an integer")
    return int(word)


def invalid_state(algorithm: str) -> StoreKeyError:
    """The error of a value that is not a state."""
    return StoreKeyError(f"a value is not the state of a {algorithm}: another program wrote it, or it was damaged")


def read_charged(limit: CompiledLimit, reply: bytes, at: int) -> Reading:
    """The reading of a bucket, in microseconds, from its state just after it was charged."""
    (units,) = _UNITS(reply, at)
    if not -LARGEST <= units <= LARGEST:
        raise invalid_state(limit.algorithm)
    remaining, reset_after, next_after = token_bucket.measure(limit, (int(units), 0), 0)
    return Reading(True, remaining, reset_after, 0, next_after, 0)


def read_refused(limit: CompiledLimit, reply: bytes, cost: int) -> Reading:
    """The reading of a bucket from its current units, which are too few for a cost."""
    (units,) = _UNITS(reply, 0)
    if not -LARGEST <= units <= LARGEST:
        raise invalid_state(limit.algorithm)
    state = (int(units), 0)
    remaining, reset_after, next_after = token_bucket.measure(limit, state, 0)
    return Reading(False, remaining, reset_after, token_bucket.admit(limit, state, 0, cost), next_after, 0)


def convert(limit: CompiledLimit, former: CompiledLimit, state: State, now_us: int) -> State | None:
    """Convert a state to the numbers of this limit; None where it equals no state."""
    if former == limit:
        return state
    return transition.convert(limit, state, now_us, former)
