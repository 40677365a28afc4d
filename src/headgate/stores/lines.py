"""Lines of waiting callers that a store keeps for all its processes: what it offers, without a colour.

A store that has them gives its bound limits a `line`; where there is none, each process has lines of its own.
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
    """Where the line of a key is in a store, by names of the store's own."""

    keys: tuple[bytes, ...]


@dataclass(eq=False, slots=True)
class Ticket:
    """A place in a line. `call` wakes its caller; until that waits, it only notes the call.

    `number` is its own in this process, `order` that of the line. `is_first` is whether the store said that its turn
    has come, `turn_us` when it was planned to come, `planned` whether a plan of its process counts on that, `passed`
    whether it passed then, and not sooner. `abandon` leaves the line in place of a caller whose event loop (`loop`,
    None in a thread) was closed while it waited, which never runs again.
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
        """Whether its caller never runs again; a call makes it leave."""
        return self.loop is not None and self.loop.is_closed() and self.abandon is not None

    def call(self) -> None:
        self.called = True
        if self.wake is None:
            return
        try:
            self.wake()
        except RuntimeError:  # its event loop is closed
            abandon = self.abandon  # another thread may have it leave meanwhile
            if abandon is not None:
                abandon()


class Joined(NamedTuple):
    """A place in line: its order number, the generation of the line, whether it is first, and the costs before it.

    The costs are those that the caller did not know of; of another generation than it knew, all.
    """

    order: int
    generation: bytes
    is_first: bool
    ahead: Sequence[tuple[int, ...]]


class Tickets(Protocol):
    """The tickets of this process in the lines of a store; while there are any, it listens which are called."""

    @property
    def keepalive_us(self) -> int:
        """How often a process asks for its first ticket in a line, so that it is known to be alive."""
        ...

    @property
    def receives_calls(self) -> bool:
        """Whether this process hears now which tickets are called."""
        ...

    def add(self, ticket: Ticket) -> None:
        """Give a ticket its number, and wake it when it is called."""
        ...

    def remove(self, ticket: Ticket) -> None:
        """Call it no more."""
        ...


class StoreLine(Protocol):
    """The lines of the keys of some limits; each method gives what came, on an event loop an awaitable."""

    @property
    def turns(self) -> Tickets: ...

    def place(self, keys: tuple[Key, ...]) -> LinePlace:
        """Where the line of a key is, which all limits have."""
        ...

    @property
    def decide_if_no_line(self) -> Callable[[LinePlace, Operation, Hold | None], Any] | None:
        """Decide an operation, or hold what it charges; None, and nothing is charged, where callers wait in line.

        None where a look at the line costs no call of its own: then there is `is_waited_for`.
        """
        ...

    @property
    def is_waited_for(self) -> Callable[[LinePlace], Any] | None:
        """Whether callers are in line; None where `decide_if_no_line` looks."""
        ...

    def join(self, place: LinePlace, ticket: Ticket, since: int, generation: bytes) -> Any:
        """Stand last in line; `Joined`, or None where it is full.

        `since` and `generation` tell which tickets the caller knows of already.
        """
        ...

    def turn(self, place: LinePlace, ticket: Ticket) -> Any:
        """Whether a ticket is first in line; None for one that is not in line any more.

        A first one is called where places were freed and the message of that was lost.
        """
        ...

    def leave(self, place: LinePlace, ticket: Ticket, *, as_planned: bool) -> Any:
        """Step out of the line; the first one is called.

        Plans are made anew unless the ticket left as planned, or no plan counts on it: it is the last, and not planned.
        """
        ...
