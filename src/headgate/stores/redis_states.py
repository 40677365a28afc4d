"""Where states are in Redis, and what they look like there: for reading them outside the scripts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct, calcsize, unpack_from
from typing import Any

from headgate.algorithms import token_bucket, transition
from headgate.decision import NamedLimit, Reading
from headgate.errors import StoreKeyError
from headgate.stores.redis_scripts import MARKS, POWERS, limit_of
from headgate.units import LARGEST, CompiledLimit

State = tuple[Any, ...]

LONGEST_NAME = 128
"""Bytes of a key's text in the name of a Redis key; a longer one is named by its digest."""

_FORMS = {"fixed_window": "<ddI", "sliding_window": "<dddI", "sliding_log": "<dI"}
_BUCKET = "<ddI"
_FIELDS = {"fixed_window": "f", "sliding_window": "w", "token_bucket": "t", "leaky_bucket": "l", "leaky_queue": "q"}
_UNITS = Struct("<d").unpack_from
_SUMS = 1 << 53

UNITS = 8
"""Bytes of the units of a bucket that has too few; no other reply of one limit has as many."""


def key_name(prefix: str, text: str, definition: NamedLimit) -> bytes:
    """The Redis key of a limit's state: a hash for all limits of a rule and key, a list for each of their logs.

    All limits of one key have one hash tag. `text` comes from `encode_key`, so it has no brace and cannot
    choose where it lands.
    """
    name = text.encode()
    if len(name) > LONGEST_NAME:
        name = b"#" + blake2b(name, digest_size=20).hexdigest().encode()
    scope = definition.scope
    place = scope if is_log(definition) else scope[: scope.rindex("/") + 1]
    return b"%b:{%b}:%b" % (prefix.encode(), name, place.encode())


def field_name(definition: NamedLimit) -> str:
    """The field of a limit's state in its hash; nothing for a log."""
    if is_log(definition):
        return ""
    return f"{_FIELDS[definition.limit.algorithm]}{definition.scope.rpartition('.')[2]}"


def is_log(definition: NamedLimit) -> bool:
    """Whether a state is a list of its own."""
    return definition.limit.algorithm == "sliding_log"


def read_state(algorithm: str, value: bytes | Sequence[bytes]) -> tuple[CompiledLimit, State]:
    """The state in a value (of a log: in the elements of a list), and the numbers that it was written under.

    Raises StoreKeyError for what is none.
    """
    head = value[0] if isinstance(value, list) and value else value
    form = _FORMS.get(algorithm, _BUCKET)
    if not isinstance(head, bytes) or len(head) < calcsize(form):
        raise no_state(algorithm)
    *words, _ = unpack_from(form, head)
    mark = head[calcsize(form) :]
    if len(mark) not in MARKS or mark[0] not in POWERS or not all(abs(word) < _SUMS for word in words):
        raise no_state(algorithm)
    former = limit_of(algorithm, mark)
    if former.period == 0 or (former.refill == 0) != (len(mark) == min(MARKS)):
        raise no_state(algorithm)
    numbers = tuple(int(word) for word in words)
    if algorithm == "sliding_log":
        try:
            return former, _entries(numbers[0], [int(element) for element in value[1:]])
        except (ValueError, IndexError):
            raise no_state(algorithm) from None
    return former, numbers


def no_state(algorithm: str) -> StoreKeyError:
    """The error of what stands where a state does."""
    return StoreKeyError(f"a value is no state of a {algorithm}: another program wrote it, or it was damaged")


def read_charged(limit: CompiledLimit, reply: bytes, at: int) -> Reading:
    """What the state of a bucket that was charged at this very moment, in microseconds, tells of it."""
    (units,) = _UNITS(reply, at)
    if not -LARGEST <= units <= LARGEST:
        raise no_state(limit.algorithm)
    remaining, reset_after, next_after = token_bucket.measure(limit, (int(units), 0), 0)
    return Reading(True, remaining, reset_after, 0, next_after, 0)


def read_refused(limit: CompiledLimit, reply: bytes, cost: int) -> Reading:
    """What the units that a bucket has at this very moment tell, where they are too few for a cost."""
    (units,) = _UNITS(reply, 0)
    if not -LARGEST <= units <= LARGEST:
        raise no_state(limit.algorithm)
    state = (int(units), 0)
    remaining, reset_after, next_after = token_bucket.measure(limit, state, 0)
    return Reading(False, remaining, reset_after, token_bucket.admit(limit, state, 0, cost), next_after, 0)


def convert(limit: CompiledLimit, former: CompiledLimit, state: State, now_us: int) -> State | None:
    """A state in the numbers of this limit; None where it is the same as none."""
    if former == limit:
        return state
    return transition.convert(limit, state, now_us, former)


def _entries(offset: int, numbers: list[int]) -> State:
    """A log's entries (time, cost), from its sums."""
    entries = []
    before = numbers[0]
    for time, total in zip(numbers[1::2], numbers[2::2], strict=True):
        entries.append((time + offset, (total - before) % _SUMS))
        before = total
    return tuple(entries)
