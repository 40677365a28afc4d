"""The short path for most holds: under a new id, of a few limits of one key.

`HoldCommands` makes all other holds, in steps.
"""

from __future__ import annotations

from binascii import b2a_base64
from os import urandom
from struct import Struct
from typing import Any

from headgate.clock import US_PER_SECOND
from headgate.decision import Decision, Reading
from headgate.holding import ID_PREFIX, TO_ID
from headgate.keys import Key, check_cost, encode_key
from headgate.stores.redis.codec import tag_of
from headgate.stores.redis.commands import Commands, ScriptCall
from headgate.stores.redis.hold_calls import FewLimits
from headgate.stores.redis.hold_names import record_of, slot_of_tag
from headgate.stores.redis.hold_replies import IDENTITY, Conflict, read_reserved
from headgate.stores.redis.replies import unexpected_reply
from headgate.units import LARGEST

_PACK_HEADER = Struct("<ddddBB16s8sd").pack
_READING = "ddd"
_UNKNOWN = bytes(IDENTITY)
_TOKEN = 8
_DIGEST = 16
_SLACK_S = 2


class NewHolds:
    """Makes holds of these limits by the server's time."""

    def __init__(self, commands: Commands, few: FewLimits, order: list[int], remember_us: int) -> None:
        self._commands = commands
        self._name = commands.key_names[0][0]
        self._few = few
        self._order = order
        self._remember_us = remember_us
        self._reply = Struct("<s" + _READING * len(order))
        self._offsets = [1 + len(_READING) * order.index(number) for number in range(len(order))]
        """The offsets of each limit's numbers in a reply."""

    @classmethod
    def of(cls, commands: Commands, few: FewLimits | None, order: list[int], remember_us: int) -> NewHolds | None:
        """NewHolds for limits that have their own scripts and no calendars; else None."""
        return None if few is None or commands.have_borders else cls(commands, few, order, remember_us)

    def call(self, key: Key, cost: int, lease_us: int) -> tuple[str, ScriptCall]:
        """(the whole id of a hold, the call that makes it). Raises ArgumentError for an invalid key or cost."""
        tag = tag_of(encode_key(key))
        if type(cost) is not int or not 0 <= cost <= LARGEST:
            cost = check_cost(cost)
        slot, random = slot_of_tag(tag), urandom(_TOKEN + _DIGEST)
        letters = b2a_base64(random[_TOKEN:] + slot.to_bytes(2, "big"), newline=False).translate(TO_ID)
        header = _PACK_HEADER(-1.0, -1.0, lease_us, self._remember_us, False, False, _UNKNOWN, random[:_TOKEN], cost)
        seconds = b"%d" % ((lease_us + self._remember_us) // US_PER_SECOND + _SLACK_S)
        keys = [record_of(self._commands.prefix, letters, slot), self._name.with_tag(tag)]
        return ID_PREFIX + letters.decode(), ScriptCall(
            self._few.reserve, keys, [header, self._few.packed_limits, seconds]
        )

    def decided(self, reply: Any, cost: int) -> Decision:
        """The decision about a hold of this cost, from a reply."""
        order = self._order
        if type(reply) is bytes and len(reply) == self._reply.size:  # most replies
            numbers, readings = self._reply.unpack(reply), []
            for offset in self._offsets:
                remaining, reset_after_us, next_after_us = numbers[offset : offset + 3]
                if not (0 <= remaining <= LARGEST and 0 <= reset_after_us <= LARGEST and 0 <= next_after_us <= LARGEST):
                    break
                readings.append(Reading(True, int(remaining), int(reset_after_us), 0, int(next_after_us), 0))
            else:
                if numbers[0] == b"N":
                    return self._commands.decision_of(readings, [cost] * len(readings))
        result = read_reserved(reply, len(order))
        if isinstance(result, Conflict):  # no hold has an id that was just made
            raise unexpected_reply(reply, "what was held")
        readings = [reading for _, reading in sorted(zip(order, result[1], strict=True))]
        return self._commands.decision_of(readings, [cost] * len(order))
