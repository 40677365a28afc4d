"""The lines of a process: tickets by key, in the order of their callers, and the plan of each line."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from headgate.clock import Clock
from headgate.decision import NamedLimit
from headgate.stores.lines import Ticket
from headgate.stores.protocol import Store
from headgate.waiting.forks import forgotten_in_children
from headgate.waiting.plan import Plan


@dataclass(slots=True)
class Line:
    """The line of one key."""

    tickets: deque[Ticket] = field(default_factory=deque)
    plan: Plan | None = None
    ahead_us: int = 0
    """How far the clock of the store, which the plan is told in, is ahead of the limits' own."""

    def call_first(self) -> None:
        tickets = self.tickets
        if tickets:
            tickets[0].call()


@dataclass(slots=True)
class KnownLine:
    """What this process knows of a line that the store keeps: its own tickets, by their order, and a plan of all."""

    tickets: list[tuple[int, Ticket]] = field(default_factory=list)
    plan: Plan | None = None
    order: int = 0
    generation: bytes = b""
    ahead_us: int = 0
    entered: int = 0


class Lines:
    """The lines for the same limits of one store, whichever limiters they are of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[str, Line] = {}
        self.waiting = 0
        self.told_full = False
        forgotten_in_children(self)

    def forget(self) -> None:
        """See `headgate.waiting.forks`."""
        self.lock = threading.Lock()
        for line in self.by_key.values():
            for ticket in line.tickets:
                ticket.abandon = None
        self.by_key.clear()
        self.waiting = 0


def shared_lines(store: Store, limits: tuple[NamedLimit, ...], clock: Clock) -> Lines:
    """The lines for these limits of a store, by this clock."""
    key = (tuple((limit.scope, limit.limit, limit.shadow, limit.group) for limit in limits), id(clock))
    with _sharing:
        lines = _by_store.setdefault(store.unguarded, WeakValueDictionary())
        return lines.setdefault(key, Lines())


_sharing = threading.Lock()
_by_store: WeakKeyDictionary[Store, WeakValueDictionary[Any, Lines]] = WeakKeyDictionary()
