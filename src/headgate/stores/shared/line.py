"""The line of a key in a zone: its callers of all processes of the host, in the order in which they came.

A ticket is in the memory of the zone. Joining, asking for one's turn and leaving are one native call each. See
docs/decisions/0047-a-line-in-a-zone.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from headgate.algorithms.table import is_in_flight
from headgate.decision import NamedLimit
from headgate.keys import Key, encode_key
from headgate.stores.lines import Joined, LinePlace, Ticket
from headgate.stores.shared.turns import Standing, ZoneTurns


class ZoneLine:
    """The lines of the keys of some limits; each method answers at once. `zone` is the native one."""

    ask = None
    """A look at the line costs next to nothing, and is a step of its own."""

    def __init__(self, zone: Any, turns: ZoneTurns, limits: Sequence[NamedLimit]) -> None:
        self._zone = zone
        self._lines = zone.lines
        self.turns = turns
        self._scopes = repr([(limit.scope, limit.shadow, limit.group) for limit in limits]).encode()
        self._for_places = any(is_in_flight(limit.limit.algorithm) for limit in limits)

    def place(self, keys: tuple[Key, ...]) -> LinePlace:
        """Where the line of a key is, which all limits have."""
        name = blake2b(self._scopes, digest_size=16)
        name.update(b"\0" + encode_key(keys[0]).encode("utf-8", "surrogatepass"))
        return LinePlace((name.digest() + bytes((self._zone.place_of(keys[0]), self._for_places)),))

    def is_waited_for(self, place: LinePlace) -> bool:
        """Whether callers are in line."""
        waited_for: bool = self._lines.is_waited_for(place.keys[0])
        return waited_for

    def join(self, place: LinePlace, ticket: Ticket, since: int, generation: bytes) -> Joined | None:
        """Stand last in line; `Joined`, or None where there is no room."""
        seat = self.turns.seat()
        if seat is None:
            return None
        [name] = place.keys
        standing = self.turns.standing
        standing[ticket.number] = Standing(seat, name)
        known = since, int(generation or b"0")
        came = self._lines.join(seat, ticket.number, name, ticket.costs, known)
        if came is None:
            del standing[ticket.number]
            self.turns.tell_full()
            return None
        number, order, renewed, is_first, ahead = came
        standing[ticket.number] = Standing(seat, name, (number, order))
        return Joined(order, b"%d" % renewed, is_first, ahead)

    def turn(self, place: LinePlace, ticket: Ticket) -> bool | None:
        """Whether a ticket is first in line; None if it is in none any more, as that of a process that was stopped."""
        standing = self.turns.standing.get(ticket.number)
        if standing is None:
            return None
        seat, name, told = standing
        first: bool | None = self._lines.is_first(seat, ticket.number, name, told)
        return first

    def leave(self, place: LinePlace, ticket: Ticket, *, as_planned: bool) -> None:
        """Step out of the line; the first one is called."""
        self.turns.leave(ticket.number, as_planned=as_planned, planned=ticket.planned)
