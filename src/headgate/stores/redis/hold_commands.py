"""The calls for holds on a Redis, and the meaning of the replies; without I/O, for both colours.

A hold is one record, made, settled and extended by one script call each. Where a Cluster keeps the states of a hold in
several slots, each has its own record under the same id. They are called in turn, first the slot of the id, whose
record names the others. A refusal by one undoes the charges of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from hashlib import blake2b
from os import urandom
from typing import Any

from headgate.clock import Clock
from headgate.decision import Reading
from headgate.errors import ArgumentError, StoreError, brief_number
from headgate.holding import (
    Amounts,
    Extension,
    Hold,
    Reserved,
    Settlement,
    SettleOutcome,
    Standing,
    amounts_of,
    check_amount,
    check_lease,
    check_remember,
    read_id,
    remembered_us,
    whole_id,
    write_id,
)
from headgate.keys import Key, check_now, encode_key
from headgate.operation import Operation
from headgate.stores.redis.codec import tag_of
from headgate.stores.redis.commands import NO_DELAY, SERVER_TIME, Commands, ScriptCall, ScriptSteps
from headgate.stores.redis.hold_calls import AS_HELD, TOKEN, HoldCalls, HoldShard, HoldTerms
from headgate.stores.redis.hold_names import slot_of_tag
from headgate.stores.redis.hold_replies import (
    DEBT_FITS,
    IDENTITY,
    IDENTITY_PARTS,
    Conflict,
    Extended,
    Settled,
    Standings,
    TooMuchDebt,
    conflicting,
    read_extended,
    read_reserved,
    read_settled,
    read_settled_few,
)
from headgate.stores.redis.new_holds import NewHolds
from headgate.stores.redis.short_commits import ShortCommits

_DIGEST = 16
_NO_IDENTITY = bytes(IDENTITY)
"""The identity of a hold whose id no caller has given."""


class HoldCommands:
    """Holds, settles and extends charges of limits that are decided together."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        definitions = commands.definitions
        self._order = sorted(range(len(definitions)), key=lambda number: definitions[number].scope)
        """The limits sorted by scope: a hold does not depend on the order in which its limits are written."""
        self._scopes = "\n".join(definitions[number].scope for number in self._order)
        self.calls = HoldCalls(commands, self._order)
        self._remember_us = remembered_us(definitions, 0)
        self.new = NewHolds.of(commands, self.calls.few, self._order, self._remember_us)
        self.short_commits = ShortCommits.of(commands, self.calls.few, self._order)
        """The short paths to a hold under a new id, and to its settlement; None where these limits have none."""

    def id_of(self, key: Key, name: str | bytes) -> str:
        """The whole id of a hold, given its name within a key."""
        text = encode_key(key)
        return whole_id(text, name, _slot_of(text))

    def reserve(self, operation: Operation, hold: Hold, clock: Clock | None) -> ScriptSteps:
        """Decide an operation and hold its charge; the generator returns a Reserved."""
        commands = self._commands
        keys, amounts, max_delay_us = operation.keys, operation.costs, operation.max_delay_us
        names, costs = commands.names(keys), commands.costs(amounts)
        name, lease_us, remember_us, at_once = hold
        if not operation.commit:
            raise ValueError("what is held is charged: the operation has to commit")
        if at_once:
            commands.check_hit()
        first = encode_key(keys[0]) if keys else ""
        slot, random = _slot_of(first), urandom(TOKEN + _DIGEST)
        id = write_id(random[TOKEN:], slot) if name is None else whole_id(first, name, slot)
        terms = HoldTerms(
            NO_DELAY if max_delay_us is None else max_delay_us, _moment(operation.now_us, clock),
            0 if at_once else check_lease(lease_us), max(self._remember_us, check_remember(remember_us)), at_once,
            name is not None, _NO_IDENTITY if name is None else self._identity(operation, hold), random[:TOKEN],
        )  # fmt: skip
        try:
            if self.calls.are_few:
                few = partial(self.calls.reserve_few, terms, self.calls.record(id, slot), names[0], costs[0])
                result = read_reserved((yield from self._execute(few)), len(names))
            else:
                result = yield from self._reserve_sharded(self._shards(names, id, slot), terms, names, costs, amounts)
        except StoreError as error:
            error.hold_id = id
            error.was_sent = error.was_sent or not self.calls.are_few  # of several calls, an earlier one perhaps was
            raise
        if isinstance(result, Conflict):
            raise conflicting(result, terms.identity, amounts)
        repeated, readings = result
        if self.calls.are_few and len(readings) > 1:
            readings = [reading for _, reading in sorted(zip(self._order, readings, strict=True))]
        return Reserved(commands.decision_of(readings, costs), id, repeated)

    def commit(self, id: str, actuals: Amounts, now_us: int | None, clock: Clock | None) -> ScriptSteps:
        """Settle a hold; the generator returns the Settlement."""
        _, slot = read_id(id)
        amounts = [AS_HELD if actual is None else actual for actual in amounts_of(actuals)]
        moment_us = _moment(now_us, clock)
        try:
            settled = yield from self._settle(id, slot, amounts, moment_us)
            if settled.outcome == DEBT_FITS:
                settled = yield from self._settle_debt(id, slot, settled.other_slots, amounts, moment_us)
            outcome, settled_with, standings, other_slots = settled
            for other in other_slots:
                # The amounts of the first slot count: concurrent settlements then send the same ones to the others.
                call = partial(
                    self.calls.settle, self.calls.record(id, other), settled_with, moment_us, other_slot=True
                )
                reply = yield from self._execute(call)
                standings |= read_settled(reply).standings
        except TooMuchDebt as debt:
            name = repr(self._commands.definitions[self._order[debt.number]].name) if debt.number >= 0 else "a limit"
            raise ArgumentError(
                f"{brief_number(debt.actual)} for {name} is so large a debt that its numbers pass 2**52"
            ) from None
        if outcome == b"U":
            return Settlement("unknown", None, ())
        outcome_text: SettleOutcome = "already settled" if outcome == b"A" else "settled"
        return Settlement(outcome_text, tuple(settled_with), self._standings(standings))

    def extend(
        self, id: str, lease_us: int, more: Sequence[int], now_us: int | None, clock: Clock | None
    ) -> ScriptSteps:
        """Prolong the lease of a hold, and hold more; the generator returns the Extension."""
        _, slot = read_id(id)
        check_lease(lease_us)
        amounts = [check_amount(amount) for amount in more]
        moment_us = _moment(now_us, clock)
        call = partial(self.calls.extend, self.calls.record(id, slot), lease_us, amounts, moment_us)
        extended = read_extended((yield from self._execute(call)))
        if extended.other_slots:
            extended = yield from self._extend_sharded(extended, id, slot, lease_us, amounts, moment_us)
        if extended.outcome == b"U":
            return Extension("unknown", (), None)
        standings = self._standings(extended.standings)
        if extended.outcome in (b"A", b"L"):
            return Extension("already settled" if extended.outcome == b"A" else "lapsed", standings, None)
        decision, definitions = None, self._commands.definitions
        if extended.is_complete and len(extended.readings) == len(definitions):
            by_group = amounts if len(amounts) > 1 else amounts * self._commands.groups
            readings = [extended.readings[self._order.index(number)] for number in range(len(definitions))]
            decision = self._commands.decision_of(readings, [by_group[definition.group] for definition in definitions])
        return Extension("extended" if extended.outcome == b"E" else "refused", standings, decision)

    def _execute(self, call: Callable[[], ScriptCall]) -> ScriptSteps:
        """The reply of a script, which is called again while its borders are those of another time."""
        reply = yield call()
        return (yield from self._commands.server_clock.retried(reply, call)) if self._commands.have_borders else reply

    def _settle(self, id: str, slot: int, amounts: list[float], now_us: float) -> Generator[ScriptCall, Any, Settled]:
        """Settle a hold in the slot of its id."""
        record, settled = self.calls.record(id, slot), None
        if self.calls.are_few and len(amounts) == 1:
            settled = read_settled_few((yield self.calls.settle_few(record, amounts[0], now_us)))
        if settled is None:  # the hold has other limits, or other numbers
            settled = read_settled((yield from self._execute(partial(self.calls.settle, record, amounts, now_us))))
        elif settled.outcome == b"Y":
            reply = yield from self._execute(partial(self.calls.settle, record, amounts, now_us))
            settled = settled._replace(standings=read_settled(reply).standings)
        return settled

    def _settle_debt(
        self, id: str, slot: int, other_slots: Sequence[int], amounts: list[float], now_us: float
    ) -> Generator[ScriptCall, Any, Settled]:
        """Settle a hold in the slot of its id after its debts were checked in all others."""
        for other in other_slots:
            record = self.calls.record(id, other)
            read_settled((yield from self._execute(partial(self.calls.check_debt, record, amounts, now_us))))
        call = partial(self.calls.settle_checked, self.calls.record(id, slot), amounts, now_us)
        return read_settled((yield from self._execute(call)))

    def _reserve_sharded(
        self, shards: list[HoldShard], terms: HoldTerms, names: list[bytes], costs: list[int], amounts: Sequence[int]
    ) -> Generator[ScriptCall, Any, tuple[bool, list[Reading]] | Conflict]:
        """Hold shard by shard; where one refuses, forget what the others hold and read the limits again."""
        commands, calls = self._commands, self.calls
        readings: dict[int, Reading] = {}
        charged: list[HoldShard] = []
        repeated = True
        for shard in shards:
            others = [] if charged else [other.slot for other in shards[1:]]
            try:
                reply = yield from self._execute(partial(calls.reserve, terms, shard, names, amounts, others))
                result = read_reserved(reply, len(shard.numbers))
            except StoreError:
                yield from self._forget(charged, terms.now_us)
                raise
            if isinstance(result, Conflict):
                yield from self._forget(charged, terms.now_us)
                return result
            repeated = repeated and result[0]
            readings |= dict(zip(shard.numbers, result[1], strict=True))
            if not all(readings[number].allowed or commands.definitions[number].shadow for number in shard.numbers):
                yield from self._forget(charged, terms.now_us)
                if len(shards) > 1:
                    now_us = None if terms.now_us < 0 else int(terms.now_us)
                    return False, (yield from commands.readings_after_refusal(names, costs, readings, now_us))
            charged.append(shard)
        return repeated, [readings[number] for number in range(len(names))]

    def _forget(self, shards: list[HoldShard], now_us: float) -> ScriptSteps:
        """Undo the charges of a hold that was refused."""
        for shard in shards:
            yield from self._execute(partial(self.calls.forget, shard.record, now_us, is_listed=shard.is_listed))

    def _extend_sharded(
        self, first: Extended, id: str, slot: int, lease_us: int, amounts: list[int], now_us: float
    ) -> Generator[ScriptCall, Any, Extended]:
        """Extend a hold in its other slots; where one refuses, undo the extension and collect the replies of all."""
        calls, replies, outcome = self.calls, {slot: first}, first.outcome
        if outcome not in (b"E", b"R"):  # only read the others
            lease_us, amounts = 1, [0]
        for other in first.other_slots if outcome != b"R" else ():
            call = partial(calls.extend, calls.record(id, other), lease_us, amounts, now_us, other_slot=True)
            replies[other] = read_extended((yield from self._execute(call)))
            if replies[other].outcome == b"R":
                outcome = b"R" if outcome == b"E" else outcome
                break
        if outcome == b"R":
            for each_slot in (slot, *first.other_slots):
                reply, record = replies.get(each_slot), calls.record(id, each_slot)
                if reply is not None and reply.outcome == b"E":
                    yield from self._execute(
                        partial(calls.shorten, record, reply.former_end_us, now_us, added_part=reply.added_part)
                    )
                if reply is None or reply.outcome == b"E":
                    call = partial(calls.refuse, record, lease_us, amounts, now_us)
                    replies[each_slot] = read_extended((yield from self._execute(call)))
        standings = {number: numbers for reply in replies.values() for number, numbers in reply.standings.items()}
        readings = {number: reading for reply in replies.values() for number, reading in reply.readings.items()}
        is_complete = all(reply.is_complete for reply in replies.values())
        return Extended(outcome, standings, [], readings, is_complete, first.former_end_us, first.added_part)

    def _shards(self, names: list[bytes], id: str, home: int) -> list[HoldShard]:
        """The limits of each slot, starting with the slot of the id; all together on a single server."""
        slot_of, record = self._commands.slot_of, self.calls.record
        is_listed = self._commands.count_in_flight and len(set(names)) > 1
        if slot_of is None:
            return [HoldShard(home, record(id, home), self._order, is_listed)]
        numbers: dict[int, list[int]] = {home: []}
        for number in self._order:
            numbers.setdefault(slot_of(names[number]), []).append(number)
        return [HoldShard(slot, record(id, slot), limits, is_listed) for slot, limits in numbers.items()]

    def _standings(self, standings: Standings) -> tuple[Standing, ...]:
        """The standings of the limits in their own order, which may differ from that of a hold."""
        definitions = self._commands.definitions
        if len(standings) == 1:
            [(number, (remaining, reset_after_us))] = standings.items()
            return (Standing(definitions[self._order[number]], remaining, reset_after_us),)
        in_order = sorted((self._order[number], numbers) for number, numbers in standings.items())
        return tuple(Standing(definitions[number], *numbers) for number, numbers in in_order)

    def _identity(self, operation: Operation, hold: Hold) -> bytes:
        """A digest of what must not differ where an id is given again: the kind, the costs, the limits and the keys."""
        texts = [encode_key(key) for key in operation.keys]
        parts = (repr(list(operation.costs)), self._scopes, repr(texts))
        return bytes([hold.at_once]) + b"".join(
            blake2b(part.encode(), digest_size=size).digest() for part, size in zip(parts, IDENTITY_PARTS, strict=True)
        )


def _slot_of(text: str) -> int:
    """The slot of the states of a key."""
    return slot_of_tag(tag_of(text))


def _moment(now_us: int | None, clock: Clock | None) -> float:
    """The moment to decide at, or SERVER_TIME."""
    if now_us is None and clock is not None:
        now_us = clock.now_us()
    return SERVER_TIME if now_us is None else check_now(now_us)
