"""What is asked of a Redis for holds, and what its answers mean; without any I/O, for both colours.

A hold is one record, made, settled and extended by one call of a script each. Where a Cluster keeps the states of a
hold in several slots, each has a record of its own under the same id, and is asked in turn, first the slot of the id,
whose record names the others. A refusal by one takes back what the others charged.
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
from headgate.stores.redis.commands import NO_DELAY, SERVERS_TIME, Commands, ScriptCall, ScriptSteps
from headgate.stores.redis.hold_calls import AS_HELD, TOKEN, HoldCalls, HoldHead, HoldPlace
from headgate.stores.redis.hold_names import slot_of_tag
from headgate.stores.redis.hold_replies import (
    FITS,
    IDENTITY,
    IDENTITY_PARTS,
    Conflict,
    Extended,
    Numbers,
    Settled,
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
_OWN_ID = bytes(IDENTITY)
"""The maker of a hold whose id no caller can give again."""


class HoldCommands:
    """What is asked to hold, settle and extend what limits charge that are decided together."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        definitions = commands.definitions
        self._order = sorted(range(len(definitions)), key=lambda number: definitions[number].scope)
        """The limits by their scopes: a hold is the same however its limits are written."""
        self._scopes = "\n".join(definitions[number].scope for number in self._order)
        self.calls = HoldCalls(commands, self._order)
        self._remember_us = remembered_us(definitions, 0)
        self.new = NewHolds.of(commands, self.calls.few, self._order, self._remember_us)
        self.short_commits = ShortCommits.of(commands, self.calls.few, self._order)
        """The short ways to a hold of an id that is just made, and to settle one; None where these limits have none."""

    def id_of(self, key: Key, name: str | bytes) -> str:
        """The whole id of the hold of a name within a key."""
        text = encode_key(key)
        return whole_id(text, name, _slot_of(text))

    def reserve(self, operation: Operation, hold: Hold, clock: Clock | None) -> ScriptSteps:
        """Decide an operation and hold what it charges; the generator's result is what was Reserved."""
        commands = self._commands
        keys, asked, max_delay_us = operation.keys, operation.costs, operation.max_delay_us
        names, costs = commands.names(keys), commands.costs(asked)
        name, lease_us, remember_us, at_once = hold
        if not operation.commit:
            raise ValueError("what is held is charged: the operation has to commit")
        if at_once:
            commands.check_hit()
        first = encode_key(keys[0]) if keys else ""
        slot, random = _slot_of(first), urandom(TOKEN + _DIGEST)
        text = write_id(random[TOKEN:], slot) if name is None else whole_id(first, name, slot)
        head = HoldHead(
            NO_DELAY if max_delay_us is None else max_delay_us,
            _moment(operation.now_us, clock),
            0 if at_once else check_lease(lease_us),
            max(self._remember_us, check_remember(remember_us)),
            at_once,
            name is not None,
            _OWN_ID if name is None else self._identity(operation, hold),
            random[:TOKEN],
        )
        try:
            if self.calls.are_few:
                few = partial(self.calls.reserve_few, head, self.calls.record(text, slot), names[0], costs[0])
                answer = read_reserved((yield from self._ask(few)), len(names))
            else:
                answer = yield from self._reserve_apart(self._places(names, text, slot), head, names, costs, asked)
        except StoreError as lost:
            lost.hold_id, lost.was_sent = text, lost.was_sent or not self.calls.are_few  # else others may have taken it
            raise
        if isinstance(answer, Conflict):
            raise conflicting(answer, head.identity, asked)
        repeated, readings = answer
        if self.calls.are_few and len(readings) > 1:
            readings = [reading for _, reading in sorted(zip(self._order, readings, strict=True))]
        return Reserved(commands.decision_of(readings, costs), text, repeated)

    def commit(self, text: str, actuals: Amounts, now_us: int | None, clock: Clock | None) -> ScriptSteps:
        """Settle a hold; the generator's result is the Settlement."""
        _, slot = read_id(text)
        given = [AS_HELD if actual is None else actual for actual in amounts_of(actuals)]
        moment_us = _moment(now_us, clock)
        try:
            settled = yield from self._settle(text, slot, given, moment_us)
            if settled.outcome == FITS:
                settled = yield from self._settle_debt(text, slot, settled.others, given, moment_us)
            outcome, settled_with, standing, others = settled
            for other in others:
                # What the first place was settled with counts: settlings that come together tell the others the same.
                call = partial(self.calls.settle, self.calls.record(text, other), settled_with, moment_us, further=True)
                reply = yield from self._ask(call)
                standing |= read_settled(reply).standing
        except TooMuchDebt as debt:
            name = repr(self._commands.definitions[self._order[debt.number]].name) if debt.number >= 0 else "a limit"
            raise ArgumentError(
                f"{brief_number(debt.actual)} for {name} is so large a debt that its numbers pass 2**52"
            ) from None
        if outcome == b"U":
            return Settlement("unknown", None, ())
        told: SettleOutcome = "already settled" if outcome == b"A" else "settled"
        return Settlement(told, tuple(settled_with), self._standings(standing))

    def extend(
        self, text: str, lease_us: int, more: Sequence[int], now_us: int | None, clock: Clock | None
    ) -> ScriptSteps:
        """Let the lease of a hold end later, and hold more; the generator's result is the Extension."""
        _, slot = read_id(text)
        check_lease(lease_us)
        asked = [check_amount(amount) for amount in more]
        moment_us = _moment(now_us, clock)
        call = partial(self.calls.extend, self.calls.record(text, slot), lease_us, asked, moment_us)
        found = read_extended((yield from self._ask(call)))
        if found.others:
            found = yield from self._extend_apart(found, text, slot, lease_us, asked, moment_us)
        if found.outcome == b"U":
            return Extension("unknown", (), None)
        after = self._standings(found.standing)
        if found.outcome in (b"A", b"L"):
            return Extension("already settled" if found.outcome == b"A" else "lapsed", after, None)
        decision, definitions = None, self._commands.definitions
        if found.whole and len(found.readings) == len(definitions):
            each = asked if len(asked) > 1 else asked * self._commands.groups
            readings = [found.readings[self._order.index(number)] for number in range(len(definitions))]
            decision = self._commands.decision_of(readings, [each[definition.group] for definition in definitions])
        return Extension("extended" if found.outcome == b"E" else "refused", after, decision)

    def _ask(self, call: Callable[[], ScriptCall]) -> ScriptSteps:
        """The reply of a script, called again while it had the borders of another time."""
        reply = yield call()
        return (yield from self._commands.servers_clock.inside(reply, call)) if self._commands.have_borders else reply

    def _settle(self, text: str, slot: int, given: list[float], now_us: float) -> Generator[ScriptCall, Any, Settled]:
        """Settle a hold in the slot of its id."""
        record, settled = self.calls.record(text, slot), None
        if self.calls.are_few and len(given) == 1:
            settled = read_settled_few((yield self.calls.settle_few(record, given[0], now_us)))
        if settled is None:  # a hold of other limits, or of other numbers
            settled = read_settled((yield from self._ask(partial(self.calls.settle, record, given, now_us))))
        elif settled.outcome == b"Y":
            reply = yield from self._ask(partial(self.calls.settle, record, given, now_us))
            settled = settled._replace(standing=read_settled(reply).standing)
        return settled

    def _settle_debt(
        self, text: str, slot: int, others: Sequence[int], given: list[float], now_us: float
    ) -> Generator[ScriptCall, Any, Settled]:
        """Settle a hold in the slot of its id once its debts are seen to fit in all others."""
        for other in others:
            record = self.calls.record(text, other)
            read_settled((yield from self._ask(partial(self.calls.check_debt, record, given, now_us))))
        call = partial(self.calls.settle_checked, self.calls.record(text, slot), given, now_us)
        return read_settled((yield from self._ask(call)))

    def _reserve_apart(
        self, places: list[HoldPlace], head: HoldHead, names: list[bytes], costs: list[int], asked: Sequence[int]
    ) -> Generator[ScriptCall, Any, tuple[bool, list[Reading]] | Conflict]:
        """Hold place by place; where one refuses, forget what the others hold, and look at the limits again."""
        commands, calls = self._commands, self.calls
        found: dict[int, Reading] = {}
        held: list[HoldPlace] = []
        repeated = True
        for place in places:
            others = [] if held else [other.slot for other in places[1:]]
            try:
                reply = yield from self._ask(partial(calls.reserve, head, place, names, asked, others))
                answer = read_reserved(reply, len(place.numbers))
            except StoreError:
                yield from self._forget(held, head.now_us)
                raise
            if isinstance(answer, Conflict):
                yield from self._forget(held, head.now_us)
                return answer
            repeated = repeated and answer[0]
            found |= dict(zip(place.numbers, answer[1], strict=True))
            if not all(found[number].allowed or commands.definitions[number].shadow for number in place.numbers):
                yield from self._forget(held, head.now_us)
                if len(places) > 1:
                    now_us = None if head.now_us < 0 else int(head.now_us)
                    return False, (yield from commands.refusal(names, costs, found, now_us))
            held.append(place)
        return repeated, [found[number] for number in range(len(names))]

    def _forget(self, places: list[HoldPlace], now_us: float) -> ScriptSteps:
        """Take back what was charged for a hold that is none."""
        for place in places:
            yield from self._ask(partial(self.calls.forget, place.record, now_us, listed=place.listed))

    def _extend_apart(
        self, first: Extended, text: str, slot: int, lease_us: int, asked: list[int], now_us: float
    ) -> Generator[ScriptCall, Any, Extended]:
        """Extend a hold in its other places; where one refuses, take back what was held on top and ask what all say."""
        calls, found, outcome = self.calls, {slot: first}, first.outcome
        if outcome not in (b"E", b"R"):  # only look at the others
            lease_us, asked = 1, [0]
        for other in first.others if outcome != b"R" else ():
            call = partial(calls.extend, calls.record(text, other), lease_us, asked, now_us, further=True)
            found[other] = read_extended((yield from self._ask(call)))
            if found[other].outcome == b"R":
                outcome = b"R" if outcome == b"E" else outcome
                break
        if outcome == b"R":
            for place in (slot, *first.others):
                own, record = found.get(place), calls.record(text, place)
                if own is not None and own.outcome == b"E":
                    yield from self._ask(partial(calls.shorten, record, own.former_end_us, now_us, added=own.added))
                if own is None or own.outcome == b"E":
                    call = partial(calls.refuse, record, lease_us, asked, now_us)
                    found[place] = read_extended((yield from self._ask(call)))
        standing = {number: numbers for each in found.values() for number, numbers in each.standing.items()}
        readings = {number: reading for each in found.values() for number, reading in each.readings.items()}
        whole = all(each.whole for each in found.values())
        return Extended(outcome, standing, [], readings, whole, first.former_end_us, first.added)

    def _places(self, names: list[bytes], text: str, home: int) -> list[HoldPlace]:
        """The limits of each slot, first those of the slot of the id; all together where there is one server."""
        slot_of, record = self._commands.slot_of, self.calls.record
        listed = self._commands.count_in_flight and len(set(names)) > 1
        if slot_of is None:
            return [HoldPlace(home, record(text, home), self._order, listed)]
        numbers: dict[int, list[int]] = {home: []}
        for number in self._order:
            numbers.setdefault(slot_of(names[number]), []).append(number)
        return [HoldPlace(slot, record(text, slot), own, listed) for slot, own in numbers.items()]

    def _standings(self, standing: Numbers) -> tuple[Standing, ...]:
        """What the limits have, in their order, which may be another one than that of a hold."""
        definitions = self._commands.definitions
        if len(standing) == 1:
            [(number, (remaining, reset_after_us))] = standing.items()
            return (Standing(definitions[self._order[number]], remaining, reset_after_us),)
        own = sorted((self._order[number], numbers) for number, numbers in standing.items())
        return tuple(Standing(definitions[number], *numbers) for number, numbers in own)

    def _identity(self, operation: Operation, hold: Hold) -> bytes:
        """What must be the same where an id is given again: the kind, the costs, the limits and the keys."""
        texts = [encode_key(key) for key in operation.keys]
        parts = (repr(list(operation.costs)), self._scopes, repr(texts))
        return bytes([hold.at_once]) + b"".join(
            blake2b(part.encode(), digest_size=size).digest() for part, size in zip(parts, IDENTITY_PARTS, strict=True)
        )


def _slot_of(text: str) -> int:
    """The slot of the states of a key."""
    return slot_of_tag(tag_of(text))


def _moment(now_us: int | None, clock: Clock | None) -> float:
    """The moment to decide at, in place of the server's."""
    if now_us is None and clock is not None:
        now_us = clock.now_us()
    return SERVERS_TIME if now_us is None else check_now(now_us)
