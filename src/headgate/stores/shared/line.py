"""The line of a key in a zone: the callers of all processes of the host, in the order of their arrival.

A ticket is in the memory of the zone. To join, to check for the turn and to leave are one native call each. See
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
from headgate.stores.shared.turns import LineEntry, ZoneTurns


class ZoneLine:
    """The lines of the keys of some limits; each method returns at once. `zone` is the native zone."""

    decide_if_no_line = None
    """None: to check the line costs next to nothing, and is a separate step."""

    def __init__(self, zone: Any, turns: ZoneTurns, limits: Sequence[NamedLimit]) -> None:
        self._zone = zone
        self._lines = zone.lines
        self.turns = turns
        self._scopes = repr([(limit.scope, limit.shadow, limit.group) for limit in limits]).encode()
        self._counts_places = any(is_in_flight(limit.limit.algorithm) for limit in limits)

    def place(self, keys: tuple[Key, ...]) -> LinePlace:
        """The place of the line of these keys, which all limits share."""
        name = blake2b(self._scopes, digest_size=16)
        name.update(b"\0" + encode_key(keys[0]).encode("utf-8", "surrogatepass"))
        return LinePlace((name.digest() + bytes((self._zone.place_of(keys[0]), self._counts_places)),))

    def is_waited_for(self, place: LinePlace) -> bool:
        """Whether callers are in line."""
        waited_for: bool = self._lines.is_waited_for(place.keys[0])
        return waited_for

    def join(self, place: LinePlace, ticket: Ticket, since: int, generation: bytes) -> Joined | None:
        """Join the line at its end; return `Joined`, or None where there is no room."""
        seat = self.turns.seat()
        if seat is None:
            return None
        [name] = place.keys
        entries = self.turns.entries
        entries[ticket.number] = LineEntry(seat, name)
        known = since, int(generation or b"0")
        joined = self._lines.join(seat, ticket.number, name, ticket.costs, known)
        if joined is None:
            del entries[ticket.number]
            self.turns.warn_full()
            return None
        number, order, new_generation, is_first, ahead = joined
        entries[ticket.number] = LineEntry(seat, name, (number, order))
        return Joined(order, b"%d" % new_generation, is_first, ahead)

    def turn(self, place: LinePlace, ticket: Ticket) -> bool | None:
        """Whether a ticket is first in line; None if it is in no line any more, as after its process was stopped."""
        entry = self.turns.entries.get(ticket.number)
        if entry is None:
            return None
        seat, name, zone_ticket = entry
        is_first: bool | None = self._lines.is_first(seat, ticket.number, name, zone_ticket)
        return is_first

    def leave(self, place: LinePlace, ticket: Ticket, *, as_planned: bool) -> None:
        """Leave the line; the first ticket is called."""
        self.turns.leave(ticket.number, as_planned=as_planned, planned=ticket.planned)
