"""The lines of a process: tickets by key, in the order of their callers, and the plan of each line."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from headgate.clock import Clock
from headgate.decision import NamedLimit
from headgate.forks import told_of_forks
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
    """How far the clock of the store, which the plan is told in, is ahead of the limits' own."""

    def call_first(self) -> None:
        tickets = self.tickets
        if tickets:
            tickets[0].call()


class Known(NamedTuple):
    """What a process knew of a line at some moment: the callers up to `order` of a generation, `counted` in a plan."""

    order: int
    generation: bytes
    counted: int
    plan: Plan | None


@dataclass(slots=True)
class KnownLine:
    """What this process knows of a line that the store keeps: its own tickets, by their order, and a plan of all."""

    tickets: list[tuple[int, Ticket]] = field(default_factory=list)
    plan: Plan | None = None
    order: int = 0
    generation: bytes = b""
    counted: int = 0
    """How many callers the plan has been told of."""

    ahead_us: int = 0
    entered: int = 0
    call_freed: Callable[[], object] | None = None
    """What is called when this process frees a place of the key, where the store might not call."""

    @property
    def now(self) -> Known:
        """What is known at the moment."""
        if self.plan is None:
            return Known(0, self.generation, 0, None)
        return Known(self.order, self.generation, self.counted, self.plan)

    def uncounted(self, knew: Known, ahead: Sequence[Costs]) -> Sequence[Costs] | None:
        """Of the callers `ahead` that were not known before, those that the plan has not been told of since.

        None where it is another plan, which may know any of them.
        """
        if knew.plan is not None and knew.plan is not self.plan:
            return None
        return ahead[self.counted - knew.counted :]


class LineLock:
    """A lock for steps in which the garbage collector may end a caller whose event loop was closed.

    That caller steps out of its line in the thread that holds the lock: not at once, but when the step is over.
    """

    __slots__ = ("_later", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._later: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        later: list[Callable[[], object]] | None = None
        if self._later:
            later, self._later = self._later, []
        self._lock.release()
        for leave in later or ():
            leave()

    def puts_off(self, leave: Callable[[], object]) -> bool:
        """Whether this thread is in such a step already, and will do this when it is over."""
        is_in_step: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        if is_in_step:
            self._later.append(leave)
        return is_in_step


class Lines:
    """The lines for the same limits of one store, whichever limiters they are of."""

    def __init__(self) -> None:
        self.lock = LineLock()
        self.by_key: dict[str, Line] = {}
        self.waiting = 0
        self.told_full = False
        told_of_forks(self)

    def call_abandoned(self, name: str) -> None:
        """Have callers that stand first in a line leave if they never run again: nothing else would call them."""
        while (ticket := self._abandoned(name)) is not None:
            ticket.call()

    def _abandoned(self, name: str) -> Ticket | None:
        with self.lock:
            line = self.by_key.get(name)
            return line.tickets[0] if line is not None and line.tickets[0].is_abandoned else None

    def after_fork(self) -> None:
        """See `headgate.forks`."""
        self.lock = LineLock()
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
