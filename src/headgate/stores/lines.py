"""The interface of waiting lines that a store keeps for all its processes, for both colours.

A store that has them gives its bound limits a `line`; without one, each process has lines of its own.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headgate.holding import Hold
from headgate.keys import Key
from headgate.operation import Operation


class LinePlace(NamedTuple):
    """The place of a key's line in a store, by names of the store's own."""

    keys: tuple[bytes, ...]


@dataclass(eq=False, slots=True)
class Ticket:
    """A caller's place in a line. `call` wakes the caller; until the caller waits, it only records the call.

    `number` identifies it in this process, `order` in the line. `is_first` is whether the store reported that its turn
    has come, `turn_us` the predicted moment of that, `planned` whether a plan of its process counts on it, `passed`
    whether it passed then, and not sooner. `abandon` leaves the line in place of a caller whose event loop (`loop`,
    None in a thread) was closed while it waited, and which never runs again.
    """

    costs: tuple[int, ...]
    number: int = 0
    order: int = 0
    called: bool = False
    is_first: bool = False
    wake: Callable[[], object] | None = None
    abandon: Callable[[], object] | None = None
    loop: AbstractEventLoop | None = None
    turn_us: int = 0
    planned: bool = True
    passed: bool = False

    @property
    def is_abandoned(self) -> bool:
        """Whether its caller never runs again; then `call` removes it from the line."""
        return self.loop is not None and self.loop.is_closed() and self.abandon is not None

    def call(self) -> None:
        self.called = True
        if self.wake is None:
            return
        try:
            self.wake()
        except RuntimeError:  # its event loop is closed
            abandon = self.abandon  # another thread may remove it meanwhile
            if abandon is not None:
                abandon()


class Joined(NamedTuple):
    """A place in line: its order number, the generation of the line, whether it is first, and the costs before it.

    The costs are those that the caller did not know; where the generation has changed, all.
    """

    order: int
    generation: bytes
    is_first: bool
    ahead: Sequence[tuple[int, ...]]


class Tickets(Protocol):
    """The tickets of this process in the lines of a store; while there are any, it listens for their calls."""

    @property
    def keepalive_us(self) -> int:
        """How often a process checks the turn of its first ticket in a line, which shows that it is alive."""
        ...

    @property
    def receives_calls(self) -> bool:
        """Whether calls of tickets reach this process now."""
        ...

    def add(self, ticket: Ticket) -> None:
        """Give a ticket its number, and wake it when it is called."""
        ...

    def remove(self, ticket: Ticket) -> None:
        """Stop waking a ticket."""
        ...


class StoreLine(Protocol):
    """The lines of the keys of some limits; each method returns the result, on an event loop an awaitable of it."""

    @property
    def turns(self) -> Tickets: ...

    def place(self, keys: tuple[Key, ...]) -> LinePlace:
        """The place of the line of these keys, which all limits share."""
        ...

    @property
    def decide_if_no_line(self) -> Callable[[LinePlace, Operation, Hold | None], Any] | None:
        """Decide an operation, or hold what it charges; None, and nothing is charged, where callers wait in line.

        The property itself is None where a separate check of the line costs nothing: then there is `is_waited_for`.
        """
        ...

    @property
    def is_waited_for(self) -> Callable[[LinePlace], Any] | None:
        """Whether callers are in line; the property itself is None where `decide_if_no_line` checks that."""
        ...

    def join(self, place: LinePlace, ticket: Ticket, since: int, generation: bytes) -> Any:
        """Join the line at its end; return `Joined`, or None where it is full.

        `since` and `generation` state which tickets the caller knows already.
        """
        ...

    def turn(self, place: LinePlace, ticket: Ticket) -> Any:
        """Whether a ticket is first in line; None for one that is not in line any more.

        The first ticket is called where places were freed and the message about that was lost.
        """
        ...

    def leave(self, place: LinePlace, ticket: Ticket, *, as_planned: bool) -> Any:
        """Leave the line; the first ticket is called.

        Plans are made anew unless the ticket left as planned, or no plan counts on it: it is the last, and not planned.
        """
        ...
