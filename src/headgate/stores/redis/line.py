"""The line of a key on Redis: its waiting callers of all processes, in the order in which the server received them.

A ticket is a member of a sorted set in the slot of the key's states. Joining, querying a turn and leaving are one call
of one script each, by the server's clock. See docs/decisions/0046-a-line-on-redis.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha1
from typing import Any

from headgate.algorithms.table import is_in_flight
from headgate.clock import Clock
from headgate.errors import StoreError
from headgate.holding import Hold
from headgate.keys import Key
from headgate.operation import Operation
from headgate.stores.lines import Joined, LinePlace, Ticket
from headgate.stores.redis.commands import Commands, ScriptCall, ScriptSteps
from headgate.stores.redis.hold_commands import HoldCommands
from headgate.stores.redis.replies import unexpected_reply
from headgate.stores.redis.scripts import Script, script_of
from headgate.stores.redis.turns import Turns

MOST_TICKETS = 100_000
"""Callers of all processes that may wait for one key."""

_LINE_EXISTS = b"W"
_FIRST, _FREED = 1, 2
_HEAD = 28
"""Letters of a ticket before its costs: its process, and its number in the process."""


class RedisLine:
    """The lines of the keys of some limits; each method returns its result, on an event loop an awaitable of it."""

    is_waited_for = None
    """Looking for a line is no call of its own: `decide_if_no_line` does it on the way."""

    def __init__(
        self,
        commands: Commands,
        holds: HoldCommands,
        clock: Clock | None,
        turns: Turns,
        drive: Callable[[ScriptSteps], Any],
    ) -> None:
        self._commands = commands
        self._holds = holds
        self._clock = clock
        self._drive = drive
        self.turns = turns

    def place(self, keys: tuple[Key, ...]) -> LinePlace:
        """The place of the line of these keys, which all limits share."""
        names = self._commands.names(keys)
        line = min(names) + b"line%d" % len(keys)
        definitions = self._commands.definitions
        freed_lines = {
            name + b"line@"
            for name, definition in zip(names, definitions, strict=True)
            if is_in_flight(definition.limit.algorithm)
        }
        return LinePlace((line, line + b"+", *sorted(freed_lines)))

    def decide_if_no_line(self, place: LinePlace, operation: Operation, hold: Hold | None) -> Any:
        """Decide an operation, or hold its charge; None, without a charge, where callers wait in line."""
        if hold is None:
            return self._drive(_unless_line_exists(self._commands.decide(operation, self._clock), place))
        return self._drive(_unless_line_exists(self._holds.reserve(operation, hold, self._clock), place))

    def join(self, place: LinePlace, ticket: Ticket, since: int, generation: bytes) -> Any:
        """Join the end of the line; returns `Joined`, or None where it is full.

        `since` and `generation` tell the script which tickets the caller already knows.
        """
        arguments = (b"%d" % MOST_TICKETS, b"%d" % since, generation)
        return self._drive(self._join_steps(self._call(b"J", place, ticket, *arguments)))

    def turn(self, place: LinePlace, ticket: Ticket) -> Any:
        """Whether a ticket is first in line, and called if a place was freed; None if it is not in line."""
        return self._drive(self._turn_steps(self._call(b"T", place, ticket), ticket))

    def leave(self, place: LinePlace, ticket: Ticket, *, as_planned: bool) -> Any:
        """Leave the line; its first ticket is called."""
        departure = b"1" if as_planned else b"0" if ticket.planned else b"2"
        return self._drive(self._leave_steps(self._call(b"L", place, ticket, departure)))

    def _call(self, action: bytes, place: LinePlace, ticket: Ticket, *more: bytes) -> ScriptCall:
        turns = self.turns
        oldest = b"%012d" % turns.oldest(ticket.number)
        member = turns.process + b"%012d" % ticket.number + b",".join(b"%d" % cost for cost in ticket.costs)
        alive = b"%d" % turns.alive_ms
        return ScriptCall(line_script(), list(place.keys), [action, turns.process, member, oldest, alive, *more])

    def _join_steps(self, call: ScriptCall) -> ScriptSteps:
        reply = yield call
        if reply == b"F":
            return None
        if not isinstance(reply, list) or len(reply) < 3:
            raise unexpected_reply(reply, "a ticket")
        number, generation, is_first, *ahead = reply
        try:
            costs = [tuple(int(cost) for cost in bytes(member)[_HEAD:].split(b",")) for member in ahead]
            return Joined(int(number), bytes(generation), bool(int(is_first)), costs)
        except (TypeError, ValueError) as error:
            raise StoreError("the line of a key holds members that are not tickets") from error

    def _turn_steps(self, call: ScriptCall, ticket: Ticket) -> ScriptSteps:
        reply = yield call
        if reply == _FREED:
            ticket.called = True
        return None if reply == b"U" else reply in (_FIRST, _FREED)

    def _leave_steps(self, call: ScriptCall) -> ScriptSteps:
        reply = yield call
        if isinstance(reply, bytes):
            self.turns.call(reply)


@cache
def line_script() -> Script:
    """The script of a line."""
    return script_of("line")


def _unless_line_exists(steps: ScriptSteps, place: LinePlace) -> ScriptSteps:
    """Steps whose first call does nothing where there is a line; their result is None then."""
    call = next(steps)
    if _counts_keys(call.script):
        reply = yield ScriptCall(_line_check(), [place.keys[0]], [])
        if reply != _LINE_EXISTS:
            reply = yield call
    else:
        reply = yield ScriptCall(_checking_line(call.script), [*call.keys, place.keys[0]], call.arguments)
    if reply == _LINE_EXISTS:
        steps.close()
        return None
    try:
        while True:
            reply = yield steps.send(reply)
    except StopIteration as stop:
        return stop.value


@cache
def _counts_keys(script: Script) -> bool:
    return "#KEYS" in script.text


@cache
def _line_check() -> Script:
    return _script("if redis.pcall('EXISTS', KEYS[1]) == 1 then return 'W' end\nreturn 0\n")


@cache
def _checking_line(script: Script) -> Script:
    return _script(f"if redis.pcall('EXISTS', KEYS[#KEYS]) == 1 then return 'W' end\n{script.text}")


def _script(text: str) -> Script:
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())
