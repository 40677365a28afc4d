"""The lines of a process: tickets by key, in the order of their callers, and the plan of each line.

A signal handler that raises, such as the time limit of a task, may end a step anywhere. So a ticket is recorded first
and forgotten last, leaving a line may be repeated, and the locks are the interpreter's own: a `with` of a lock class
written in Python could end between acquiring the lock and recording that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from headgate.clock import Clock
from headgate.collector import call_later
from headgate.decision import NamedLimit
from headgate.forks import register_for_forks
from headgate.stores.lines import Ticket
from headgate.stores.protocol import Store
from headgate.waiting.plan import Plan
from headgate.waiting.steps import Costs


@dataclass(slots=True)
class Line:
    """The line of one key."""

    tickets: deque[Ticket] = field(default_factory=deque)
    plan: Plan | None = None
    ahead_us: int = 0
    """How far the clock of the store, which the plan's times are in, is ahead of the limits' own."""

    def call_first(self) -> None:
        tickets = self.tickets
        if tickets:
            tickets[0].call()


class Snapshot(NamedTuple):
    """A line as a process knew it at some moment: the callers up to `order` of a generation, `counted` in a plan."""

    order: int
    generation: bytes
    counted: int
    plan: Plan | None


@dataclass(slots=True)
class KnownLine:
    """A line of the store as this process knows it: the process's own tickets, by their order, and a plan of all."""

    tickets: list[tuple[int, Ticket]] = field(default_factory=list)
    plan: Plan | None = None
    order: int = 0
    generation: bytes = b""
    counted: int = 0
    """How many callers have been added to the plan."""

    ahead_us: int = 0
    entered: set[Ticket] = field(default_factory=set)
    call_freed: Callable[[], object] | None = None
    """Called when this process frees a place of the key, where the store's message might not arrive."""

    @property
    def snapshot(self) -> Snapshot:
        """The line as it is known now."""
        if self.plan is None:
            return Snapshot(0, self.generation, 0, None)
        return Snapshot(self.order, self.generation, self.counted, self.plan)

    def forget(self, ticket: Ticket) -> Ticket | None:
        """Remove a ticket; return the ticket that leads this process's own from now on.

        None if that ticket led before or is first in line already.
        """
        former = self.tickets
        self.tickets = [entry for entry in former if entry[1] is not ticket]
        self.entered.discard(ticket)
        was_removed_before = ticket.order and len(former) == len(self.tickets)  # it may have led
        if not self.tickets or not (was_removed_before or former[0][1] is ticket):
            return None
        leading = self.tickets[0][1]
        return None if leading.is_first else leading

    def uncounted(self, snapshot: Snapshot, ahead: Sequence[Costs]) -> Sequence[Costs] | None:
        """Of the callers `ahead`, which a snapshot did not know, those that have not been added to the plan since.

        None where the plan has been replaced since: the new one may count any of them.
        """
        if snapshot.plan is not None and snapshot.plan is not self.plan:
            return None
        return ahead[self.counted - snapshot.counted :]


def is_in_step(lock: Any, leave: Callable[[], object]) -> bool:
    """Whether this thread is in a step under the lock; then `leave` is called soon in another thread.

    This happens where the garbage collector runs during that step and ends a caller whose event loop was closed.
    """
    owned: bool = lock._is_owned()
    if owned:
        call_later(leave)
    return owned


class Lines:
    """The lines for the same limits of one store, shared by their limiters; `tickets` are those of all lines."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_key: dict[str, Line] = {}
        self.tickets: set[Ticket] = set()
        self.is_full_logged = False
        register_for_forks(self)

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return len(self.tickets)

    def call_abandoned(self, name: str) -> None:
        """Have callers that are first in a line leave if they never run again: nothing else would call them."""
        while (ticket := self._abandoned(name)) is not None:
            ticket.call()

    def _abandoned(self, name: str) -> Ticket | None:
        with self.lock:
            line = self.by_key.get(name)
            return line.tickets[0] if line is not None and line.tickets and line.tickets[0].is_abandoned else None

    def after_fork(self) -> None:
        """See `headgate.forks`."""
        self.lock = threading.RLock()
        for ticket in self.tickets:
            ticket.abandon = None
        self.tickets.clear()
        self.by_key.clear()


def shared_lines(store: Store, limits: tuple[NamedLimit, ...], clock: Clock) -> Lines:
    """The lines for these limits of a store, by this clock."""
    key = (tuple((limit.scope, limit.limit, limit.shadow, limit.group) for limit in limits), id(clock))
    with _sharing:
        lines = _by_store.setdefault(store.unguarded, WeakValueDictionary())
        return lines.setdefault(key, Lines())


_sharing = threading.Lock()
_by_store: WeakKeyDictionary[Store, WeakValueDictionary[Any, Lines]] = WeakKeyDictionary()
