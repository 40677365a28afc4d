"""The calls of the scripts that hold, settle and extend charges, with their arguments as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, pack
from typing import NamedTuple

from headgate.clock import US_PER_SECOND
from headgate.stores.redis.borders import Borders
from headgate.stores.redis.commands import Commands, Member, ScriptCall
from headgate.stores.redis.hold_names import record_name
from headgate.stores.redis.hold_scripts import extend, reserve, reserve_few, settle, settle_few
from headgate.stores.redis.scripts import CHECK, CHECKED, DROP, FORGET, SETTLE, SHORTEN, TURN_BACK, Script

AS_HELD = -1.0
"""Stands for the held amount."""

TOKEN = 8
"""Random bytes that begin an epoch of a key's holds."""

_HOLD = Struct("<ddddBB16s8s").pack
_DOUBLE = Struct("<d").pack
_AMOUNT = Struct("<dd").pack
_NO_OTHERS = bytes(2)
_REFUSED = 2
_SLACK_S = 2
_OTHER_CLOCK_S = 86_400
"""How much longer a record is kept where another clock than the server's decides when it is over."""


class HoldTerms(NamedTuple):
    """The terms of a hold, besides its limits: times in microseconds, -1 for none or for the server's time.

    `identity` identifies its maker where the caller gave its id (`is_named`); `token` is random.
    """

    max_delay_us: float
    now_us: float
    lease_us: int
    remember_us: int
    at_once: bool
    is_named: bool
    identity: bytes
    token: bytes


class HoldShard(NamedTuple):
    """A slot, the record of a hold in it, and the numbers of the limits whose states are there.

    `is_listed` is whether the hold has places in flight and several names, each of which then has a list of such holds.
    """

    slot: int
    record: bytes
    numbers: list[int]
    is_listed: bool


class FewLimits(NamedTuple):
    """The scripts for exactly these few limits of one key, and the limits in the format that both scripts take."""

    reserve: Script
    settle: Script
    packed_limits: bytes


class HoldCalls:
    """The calls for limits that are decided together; `order` has the numbers of the limits in the order of a hold."""

    def __init__(self, commands: Commands, order: Sequence[int]) -> None:
        self._commands = commands
        members = [commands.members[number] for number in order]
        names = [commands.key_names[number][0] for number in order]
        self._limit_arguments = [bytes(member.kind for member in members)]
        for member, name in zip(members, names, strict=True):
            self._limit_arguments += [member.numbers, member.field.encode(), name.tail]
        self._borders = [member.borders for member in members]
        self.few = self._few_limits(members, len({name.tail for name in names}))
        self.are_few = self.few is not None
        """Whether they have their own scripts: a few limits of one key, none of them a shadow."""

    def record(self, whole_id: str, slot: int) -> bytes:
        """The key of the record of a hold in a slot."""
        return record_name(self._commands.prefix, whole_id, slot)

    def reserve(
        self, terms: HoldTerms, shard: HoldShard, names: list[bytes], costs: Sequence[int], others: Sequence[int]
    ) -> ScriptCall:
        """Hold the charges of the limits of a shard; `others` are the other slots that its record is to name."""
        commands = self._commands
        keys = list(dict.fromkeys(names[number] for number in shard.numbers))
        header = _HOLD(*terms) + pack("<HHHB", commands.groups, len(keys), len(shard.numbers), shard.is_listed)
        header += pack(f"<{len(costs)}d", *costs)
        for number in shard.numbers:
            group = commands.definitions[number].group
            header += _packed_limit(commands.members[number], group + 1, keys.index(names[number]) + 1)
        header += pack(f"<H{len(others)}H", len(others), *others)
        borders = [commands.members[number].borders for number in shard.numbers]
        return ScriptCall(reserve(), [shard.record, *keys], [header, *self._packed_borders(borders, terms.now_us)])

    def reserve_few(self, terms: HoldTerms, record: bytes, name: bytes, cost: int) -> ScriptCall:
        """`reserve` for a few limits of one key."""
        assert self.few is not None
        script, _, packed_limits = self.few
        seconds = (terms.lease_us + terms.remember_us) // US_PER_SECOND + _SLACK_S
        if terms.now_us >= 0:
            seconds += _OTHER_CLOCK_S
        arguments = [
            _HOLD(*terms) + _DOUBLE(cost),
            packed_limits,
            b"%d" % seconds,
            *self._packed_borders(self._borders, terms.now_us),
        ]
        return ScriptCall(script, [record, name], arguments)

    def settle(self, record: bytes, actuals: Sequence[float], now_us: float, *, other_slot: bool = False) -> ScriptCall:
        """Settle a hold of any limits with an amount for each group, or one for all; `other_slot` says that the slot is
        not that of its id."""
        return self._settle(record, actuals, now_us, SETTLE, 0.0, other_slot=other_slot)

    def settle_few(self, record: bytes, actual: float, now_us: float) -> ScriptCall:
        """Settle a hold of these few limits with their current numbers."""
        assert self.few is not None
        return ScriptCall(self.few.settle, [record], [_AMOUNT(now_us, actual), self.few.packed_limits])

    def check_debt(self, record: bytes, actuals: Sequence[float], now_us: float) -> ScriptCall:
        """Check whether a hold of any limits could be settled with these amounts; nothing changes."""
        return self._settle(record, actuals, now_us, CHECK, 0.0)

    def settle_checked(self, record: bytes, actuals: Sequence[float], now_us: float) -> ScriptCall:
        """`settle`, after the debts were checked in the other slots of the hold."""
        return self._settle(record, actuals, now_us, CHECKED, 0.0)

    def forget(self, record: bytes, now_us: float, *, is_listed: bool) -> ScriptCall:
        """Undo all charges of a hold, and forget it."""
        return self._settle(record, [0.0], now_us, FORGET, 0.0, other_slot=is_listed)

    def drop(self, record: bytes, now_us: float) -> ScriptCall:
        """Free the places of a hold of which a limit was reset, and forget it; its other charges stay."""
        return ScriptCall(settle(), [record], [_settle_argument(now_us, DROP, 0.0, [AS_HELD], other_slot=True), b""])

    def shorten(self, record: bytes, former_end_us: float, now_us: float, *, added_part: bool) -> ScriptCall:
        """Restore the former end of a lease, and undo the last charge of the hold if the extension `added_part`."""
        return self._settle(record, [AS_HELD], now_us, SHORTEN if added_part else TURN_BACK, former_end_us)

    def extend(
        self, record: bytes, lease_us: int, more: Sequence[int], now_us: float, *, other_slot: bool = False
    ) -> ScriptCall:
        """Prolong a lease and hold more: an amount for each group, or one for all; `other_slot` as in `settle`."""
        return self._extend(record, lease_us, more, now_us, int(other_slot))

    def refuse(self, record: bytes, lease_us: int, more: Sequence[int], now_us: float) -> ScriptCall:
        """`extend`, refused whatever the limits of this slot admit, since another slot has refused."""
        return self._extend(record, lease_us, more, now_us, _REFUSED)

    def _extend(self, record: bytes, lease_us: int, more: Sequence[int], now_us: float, slot_role: int) -> ScriptCall:
        header = pack(f"<ddBH{len(more)}d", now_us, lease_us, slot_role, len(more), *more)
        return ScriptCall(extend(), [record], [header, *self._limits_with_borders(now_us)])

    def _settle(
        self,
        record: bytes,
        actuals: Sequence[float],
        now_us: float,
        mode: int,
        former_end_us: float,
        *,
        other_slot: bool = False,
    ) -> ScriptCall:
        header = _settle_argument(now_us, mode, former_end_us, actuals, other_slot=other_slot)
        return ScriptCall(settle(), [record], [header, *self._limits_with_borders(now_us)])

    def _limits_with_borders(self, now_us: float) -> list[bytes]:
        """The limits as arguments of the scripts, with the borders of calendars after their numbers."""
        if not self._commands.have_borders:
            return self._limit_arguments
        arguments, moment_us = list(self._limit_arguments), self._commands.moment_us(now_us)
        for number, borders in enumerate(self._borders):
            if borders is not None:
                arguments[1 + 3 * number] += borders.around(moment_us)
        return arguments

    def _packed_borders(self, all_borders: Sequence[Borders | None], now_us: float) -> list[bytes]:
        """The borders of calendars as one argument, if there are any."""
        if not self._commands.have_borders:
            return []
        moment_us = self._commands.moment_us(now_us)
        return [b"".join(borders.around(moment_us) for borders in all_borders if borders is not None)]

    def _few_limits(self, members: Sequence[Member], names: int) -> FewLimits | None:
        commands = self._commands
        if commands.groups != 1 or names != 1 or not commands.are_few or any(member.shadow for member in members):
            return None
        limits = tuple((member.definition.limit.algorithm, member.field) for member in members)
        packed_limits = b"".join(_packed_limit(member, 1, 1) for member in members) + _NO_OTHERS
        return FewLimits(reserve_few(limits), settle_few(limits), packed_limits)


def _settle_argument(
    now_us: float, mode: int, former_end_us: float, actuals: Sequence[float], *, other_slot: bool
) -> bytes:
    """The first argument of the script that settles: what it is to do."""
    return pack(f"<dBBdH{len(actuals)}d", now_us, mode, other_slot, former_end_us, len(actuals), *actuals)


def _packed_limit(member: Member, group: int, name: int) -> bytes:
    """A limit in the format of a record; group and name are numbered from 1."""
    field, mark = member.field.encode(), member.numbers
    return pack("<HHBB", group, name, member.kind, len(field)) + field + pack("<B", len(mark)) + mark
