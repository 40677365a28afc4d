"""The short path for most settlements: of a few limits of one key, by the server's time.

`HoldCommands` settles all other holds, in steps.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from headgate.holding import Amounts, Settlement, Standing, amounts_of, place_of_id
from headgate.stores.redis.commands import SERVER_TIME, Commands, ScriptCall
from headgate.stores.redis.hold_calls import AS_HELD, FewLimits
from headgate.stores.redis.hold_names import record_name
from headgate.units import LARGEST

_PACK_ARGUMENT = Struct("<dd").pack
_HEAD = "<sHdH"
_STANDING = "Hdd"
_HEAD_FIELDS, _STANDING_FIELDS = 4, 3


class ShortCommits:
    """Settles holds of these limits by one call, where its reply has nothing but their standings."""

    def __init__(self, commands: Commands, few: FewLimits, order: list[int]) -> None:
        self._prefix = commands.prefix
        self._few = few
        self._reply = Struct(_HEAD + _STANDING * len(order))
        self._offsets = [
            (definition, _HEAD_FIELDS + _STANDING_FIELDS * order.index(number) + 1)
            for number, definition in enumerate(commands.definitions)
        ]
        """The offset of each limit's numbers in a reply."""

    @classmethod
    def of(cls, commands: Commands, few: FewLimits | None, order: list[int]) -> ShortCommits | None:
        """ShortCommits for limits that have their own scripts; else None."""
        return None if few is None else cls(commands, few, order)

    def call(self, whole_id: str, actual: Amounts) -> ScriptCall | None:
        """The call that settles a hold with one amount; None for several amounts.

        Raises ArgumentError for an invalid id or amount.
        """
        if type(actual) is int and 0 <= actual <= LARGEST:  # nearly all
            amount: float = actual
        else:
            amounts = amounts_of(actual)
            if len(amounts) != 1:
                return None
            amount = AS_HELD if amounts[0] is None else amounts[0]
        record = record_name(self._prefix, whole_id, place_of_id(whole_id))
        return ScriptCall(self._few.settle, [record], [_PACK_ARGUMENT(SERVER_TIME, amount), self._few.packed_limits])

    def settled(self, reply: Any) -> Settlement | None:
        """Parse a reply; None where it does not say that all of these limits were settled now."""
        if type(reply) is not bytes or len(reply) != self._reply.size:
            return None
        numbers = self._reply.unpack(reply)
        actual, standings = numbers[2], []
        if numbers[0] != b"S" or not 0 <= actual <= LARGEST:
            return None
        for definition, offset in self._offsets:
            remaining, reset_after_us = numbers[offset], numbers[offset + 1]
            if not (-LARGEST <= remaining <= LARGEST and 0 <= reset_after_us <= LARGEST and remaining.is_integer()):
                return None
            standings.append(Standing(definition, int(remaining), int(reset_after_us)))
        return Settlement("settled", (int(actual),), standings)
