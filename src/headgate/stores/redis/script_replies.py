"""Parse the replies of scripts: readings of limits, and states."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, unpack
from typing import Any

from headgate.algorithms.table import is_in_flight
from headgate.decision import NamedLimit, Reading
from headgate.errors import StoreError, StoreKeyError
from headgate.stores.protocol import StatesAt
from headgate.stores.redis.codec import convert, field_name, is_log, read_state
from headgate.stores.redis.replies import unexpected_reply
from headgate.units import LARGEST

_unpack_admitted = Struct("<3d").unpack


def readings_of(reply: Any, count: int) -> list[Reading]:
    """Parse the readings of `count` limits from the reply of a script."""
    if count == 1 and len(reply) == 24:  # most replies
        remaining, reset_after_us, next_after_us = _unpack_admitted(reply)
        if 0 <= remaining <= LARGEST and 0 <= reset_after_us <= LARGEST and 0 <= next_after_us <= LARGEST:
            return [Reading(True, int(remaining), int(reset_after_us), 0, int(next_after_us), 0)]
    reply = bytes_of(reply)
    if len(reply) == 24 * count:
        numbers = numbers_of(reply, 3 * count, row=3)
        return [
            Reading(True, numbers[start], numbers[start + 1], 0, numbers[start + 2], 0)
            for start in range(0, 3 * count, 3)
        ]
    numbers = numbers_of(reply, 5 * count, row=5)
    readings = []
    for start in range(0, 5 * count, 5):
        remaining, reset_after_us, next_after_us, retry_after_us, delay_us = numbers[start : start + 5]
        wait_us = None if retry_after_us < 0 else retry_after_us
        readings.append(Reading(wait_us == 0, remaining, reset_after_us, wait_us, next_after_us, delay_us))
    return readings


def bytes_of(reply: Any) -> bytes:
    """The reply of a script, which is a string of doubles, as bytes."""
    if type(reply) is bytes:
        return reply
    if isinstance(reply, bytearray | memoryview):
        return bytes(reply)
    raise unexpected_reply(reply, "a script's answer")


def numbers_of(reply: bytes, count: int, *, row: int = 0) -> list[int]:
    """The integers in a reply, from -1 up to LARGEST; the first of each `row` may be as low as -LARGEST, a debt."""
    if len(reply) != 8 * count:
        raise StoreError(f"a script replied with {len(reply)} bytes, which are not {count} numbers")
    numbers = unpack(f"<{count}d", reply)
    if not all(-1 <= number <= LARGEST and number == int(number) for number in numbers) and not (
        row
        and all(
            (-1 if index % row else -LARGEST) <= number <= LARGEST and number == int(number)
            for index, number in enumerate(numbers)
        )
    ):
        raise StoreKeyError("a state holds numbers that are not a limit's: another program wrote it, or it was damaged")
    return [int(number) for number in numbers]


def lease_end_of(reply: bytes) -> int:
    """The end of the last lease, from the reply for places in flight that were forgotten."""
    [end_us] = numbers_of(reply, 1)
    return end_us


def states_at(definitions: Sequence[NamedLimit], replies: Sequence[Any], now_us: int) -> StatesAt:
    """Parse the states that were read, as the transitions of these limits take them."""
    states: list[tuple[Any, ...] | None] = []
    for definition, reply in zip(definitions, replies, strict=True):
        limit = definition.limit.compiled
        if is_in_flight(limit.algorithm):
            states.append(None)  # no transition reads leases
            continue
        value, others = _fields(reply, field_name(definition).encode()) if is_log(definition) else (reply, {})
        states.append(None if value is None else convert(limit, *read_state(limit.algorithm, value, others), now_us))
    return StatesAt(states, now_us)


def _fields(reply: Any, field: bytes) -> tuple[Any, dict[int, bytes]]:
    """The field of a limit among all fields of a hash, and the other fields of its log by their number."""
    fields = reply if isinstance(reply, dict) else {}
    if isinstance(reply, list) and len(reply) % 2 == 0:
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
    elif reply is not None and not isinstance(reply, dict):
        raise unexpected_reply(reply, "the fields of a hash")
    field_prefix = field + b":"
    others = {int(name[len(field_prefix) :]): value for name, value in fields.items() if name.startswith(field_prefix)}
    return fields.get(field), others
