"""The line of a key on Redis: its callers of all processes, in the order in which the server heard of them.

A ticket is a member of a sorted set in the slot of the key's states. Joining, asking for one's turn and leaving are one
call of one script each, by the server's clock. See docs/decisions/0046-a-line-on-redis.md.
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
from headgate.stores.redis.replies import no_answer
from headgate.stores.redis.scripts import Script, script_of
from headgate.stores.redis.turns import Turns

MOST_TICKETS = 100_000
"""Callers of all processes that may wait for one key."""

_WAITED_FOR = b"W"
_FIRST, _FREED = 1, 2
_HEAD = 28
"""Letters of a ticket before its costs: its process, and its number in that."""


class RedisLine:
    """The lines of the keys of some limits; each method gives what came, on an event loop an awaitable."""

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
        """Where the line of a key is, which all limits have."""
        names = self._commands.names(keys)
        line = min(names) + b"line%d" % len(keys)
        definitions = self._commands.definitions
        called = {
            name + b"line@" for name, each in zip(names, definitions, strict=True) if is_in_flight(each.limit.algorithm)
        }
        return LinePlace((line, line + b"+", *sorted(called)))

    def decide_if_no_line(self, place: LinePlace, operation: Operation, hold: Hold | None) -> Any:
        """Decide an operation, or hold what it charges; None, and nothing is charged, where callers wait in line."""
        if hold is None:
            return self._drive(_unless_waited_for(self._commands.decide(operation, self._clock), place))
        return self._drive(_unless_waited_for(self._holds.reserve(operation, hold, self._clock), place))

    def join(self, place: LinePlace, ticket: Ticket, since: int, generation: bytes) -> Any:
        """Stand last in line; `Joined`, or None where it is full.

        `since` and `generation` tell which tickets the caller knows of already.
        """
        what = (b"%d" % MOST_TICKETS, b"%d" % since, generation)
        return self._drive(self._joining(self._call(b"J", place, ticket, *what)))

    def turn(self, place: LinePlace, ticket: Ticket) -> Any:
        """Whether a ticket is first in line, and called if a place was freed; None if it is not in line."""
        return self._drive(self._turning(self._call(b"T", place, ticket), ticket))

    def leave(self, place: LinePlace, ticket: Ticket, *, as_planned: bool) -> Any:
        """Step out of the line; the first one is called."""
        how = b"1" if as_planned else b"0" if ticket.planned else b"2"
        return self._drive(self._leaving(self._call(b"L", place, ticket, how)))

    def _call(self, what: bytes, place: LinePlace, ticket: Ticket, *more: bytes) -> ScriptCall:
        turns = self.turns
        oldest = b"%012d" % turns.oldest(ticket.number)
        member = turns.process + b"%012d" % ticket.number + b",".join(b"%d" % cost for cost in ticket.costs)
        alive = b"%d" % turns.alive_ms
        return ScriptCall(line_script(), list(place.keys), [what, turns.process, member, oldest, alive, *more])

    def _joining(self, call: ScriptCall) -> ScriptSteps:
        reply = yield call
        if reply == b"F":
            return None
        if not isinstance(reply, list) or len(reply) < 3:
            raise no_answer(reply, "a ticket")
        number, generation, is_first, *ahead = reply
        try:
            costs = [tuple(int(cost) for cost in bytes(member)[_HEAD:].split(b",")) for member in ahead]
            return Joined(int(number), bytes(generation), bool(int(is_first)), costs)
        except (TypeError, ValueError) as error:
            raise StoreError("the line of a key holds what are no tickets") from error

    def _turning(self, call: ScriptCall, ticket: Ticket) -> ScriptSteps:
        reply = yield call
        if reply == _FREED:
            ticket.called = True
        return None if reply == b"U" else reply in (_FIRST, _FREED)

    def _leaving(self, call: ScriptCall) -> ScriptSteps:
        reply = yield call
        if isinstance(reply, bytes):
            self.turns.call(reply)


@cache
def line_script() -> Script:
    """The script of a line."""
    return script_of("line")


def _unless_waited_for(steps: ScriptSteps, place: LinePlace) -> ScriptSteps:
    """Steps whose first call does nothing where there is a line: None is their result then."""
    call = next(steps)
    if _takes_any_keys(call.script):
        reply = yield ScriptCall(_is_waited_for(), [place.keys[0]], [])
        if reply != _WAITED_FOR:
            reply = yield call
    else:
        reply = yield ScriptCall(_with_look(call.script), [*call.keys, place.keys[0]], call.arguments)
    if reply == _WAITED_FOR:
        steps.close()
        return None
    try:
        while True:
            reply = yield steps.send(reply)
    except StopIteration as stop:
        return stop.value


@cache
def _takes_any_keys(script: Script) -> bool:
    return "#KEYS" in script.text


@cache
def _is_waited_for() -> Script:
    return _script("if redis.pcall('EXISTS', KEYS[1]) == 1 then return 'W' end\nreturn 0\n")


@cache
def _with_look(script: Script) -> Script:
    return _script(f"if redis.pcall('EXISTS', KEYS[#KEYS]) == 1 then return 'W' end\n{script.text}")


def _script(text: str) -> Script:
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())
