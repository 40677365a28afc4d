"""The tickets of this process in the lines of a zone, and the one thread that hears which of them is called.

The thread is there only while callers wait. It sleeps in the kernel, on a word of the zone that other processes change
to wake it, and it is the sign that this process is alive: it holds a lock of the zone that the kernel gives on where
the process dies, however it dies.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

from headgate.errors import StoreError, StoreTimeout, StoreUnavailable
from headgate.forks import register_for_forks
from headgate.stores.lines import Ticket
from headgate.stores.shared.system_threads import begin_thread

log = logging.getLogger("headgate")

LOOK_US = 500_000
"""How often a process that has callers in line looks for processes that died: it passes over their tickets."""

KEEP_US = 10_000_000
"""How often the first caller of a process asks whether it is in line still: it is, unless the zone was damaged."""

_PATIENCE_S = 10.0

Seat = tuple[int, int]
"""Where a process sits in a zone."""

UNTOLD = (0, 0)


class Standing(NamedTuple):
    """Where a ticket is: its process, its line, and (ticket, order) of the zone, `UNTOLD` until that is known."""

    seat: Seat
    name: bytes
    ticket: tuple[int, int] = UNTOLD


class _Listener:
    """The thread that listens; `began` is set when its seat is known, or why it has none."""

    def __init__(self, lines: Any, listen: Callable[[_Listener], None]) -> None:
        self._lines = lines
        self.began = threading.Event()
        self.seat: Seat | None = None
        self.error: StoreError | None = None
        self.ends = False
        self._thread = begin_thread(partial(listen, self), "headgate-turns")
        _listeners.add(self)

    def end(self) -> None:
        """Let the thread end, and wait for that."""
        self.ends = True
        if self.seat is not None:
            self._lines.wake(self.seat)
        self._thread.join(_PATIENCE_S)


class ZoneTurns:
    """The callers that wait in this process. `lines` are those of the zone, `shown` is what the log calls it."""

    hears = True
    """Without its thread, no caller waits in a line of the zone."""

    def __init__(self, lines: Any, shown: str) -> None:
        self._lines = lines
        self._shown = shown
        self._told_seats = False
        self._told_room = False
        self.keep_us = KEEP_US
        self.after_fork()
        register_for_forks(self)

    def after_fork(self) -> None:
        """Have no tickets; in a child process, those of its parent are the parent's. No other thread runs yet."""
        self._lock = threading.RLock()  # the garbage collector may end a caller in a thread that holds it
        self._numbers = 0
        self._tickets: dict[int, Ticket] = {}
        self._listener: _Listener | None = None
        self._left: set[int] = set()
        self.standing: dict[int, Standing] = {}
        """Where the tickets of this process are in the zone, by their numbers."""

    def add(self, ticket: Ticket) -> None:
        """Give a ticket its number, and wake it when it is called."""
        with self._lock:
            self._numbers += 1
            ticket.number = self._numbers
            self._tickets[ticket.number] = ticket

    def remove(self, ticket: Ticket) -> None:
        """Call it no more."""
        with self._lock:
            self._tickets.pop(ticket.number, None)

    def call(self, number: int) -> None:
        """The turn of a ticket has come, or places were freed."""
        with self._lock:
            ticket = self._tickets.get(number)
        if ticket is not None:
            ticket.is_first = True
            ticket.call()

    def seat(self) -> Seat | None:
        """Where this process sits, from now until none of its tickets is left; None where there is no seat left.

        Raises StoreError where the zone's lines are not to be had, or there is no room for a thread.
        """
        with self._lock:
            listener = self._listener
            if listener is None:
                try:
                    listener = self._listener = _Listener(self._lines, self._listen)
                except RuntimeError as error:  # no more threads, or the interpreter ends
                    raise StoreUnavailable(
                        f"{self._shown}: the thread that wakes waiting callers cannot be started: {error}"
                    ) from error
        if not listener.began.wait(_PATIENCE_S):
            raise StoreTimeout(f"the thread that wakes waiting callers of {self._shown} has not begun for 10 s")
        if listener.error is not None:
            raise listener.error
        if listener.seat is None and not self._told_seats:
            self._told_seats = True
            log.warning(
                "%s: callers of %d processes wait already, which is all that a zone of this size has room for: "
                "those of more are refused",
                self._shown, self._lines.most_processes,
            )  # fmt: skip
        return listener.seat

    def tell_full(self) -> None:
        """Tell the log, once, that there is no room for another ticket."""
        if not self._told_room:
            self._told_room = True
            log.warning(
                "%s: %d callers wait already, which is all that a zone of this size has room for: more are refused",
                self._shown, self._lines.most_callers,
            )  # fmt: skip

    def leave(self, number: int, *, as_planned: bool, planned: bool) -> None:
        """Take a ticket out of its line, if it is in one; the first of the line is called."""
        standing = self.standing.get(number)
        if standing is None:
            return
        seat, name, ticket = standing
        first = self._lines.leave(seat, number, name, ticket, as_planned=as_planned, planned=planned)
        self.standing.pop(number, None)
        if first is not None:
            self.call(first)

    def _listen(self, listener: _Listener) -> None:
        """Hear which tickets are called, until none is left."""

        def began(seat: Seat | None) -> None:
            listener.seat = seat
            if seat is None:
                self._end(listener)
            listener.began.set()

        def hear(called: Sequence[int] | None) -> bool:
            if called is None:  # this process was stopped, and its tickets are gone
                with self._lock:
                    called_again = list(self._tickets.values())
                for ticket in called_again:
                    ticket.is_first = False
                    ticket.call()
            for number in called or ():
                self.call(number)
            self._leave_for_those_that_left()
            with self._lock:
                goes_on = bool(self._tickets or self.standing) and not listener.ends
                if not goes_on and self._listener is listener:
                    self._listener = None
                return goes_on

        try:
            self._lines.listen(began, hear, LOOK_US)
        except StoreError as error:
            listener.error = error
        finally:
            self._end(listener)
            listener.began.set()

    def _leave_for_those_that_left(self) -> None:
        """Take tickets out whose callers are gone and could not: they were interrupted, or a process was stopped.

        A caller that is just leaving has the time until the next look.
        """
        with self._lock:
            gone = {number for number in list(self.standing) if number not in self._tickets}
        for number in gone & self._left:
            with suppress(StoreError):
                self.leave(number, as_planned=False, planned=True)
        self._left = gone

    def _end(self, listener: _Listener) -> None:
        with self._lock:
            if self._listener is listener:
                self._listener = None


_listeners: WeakSet[_Listener] = WeakSet()


@atexit.register
def _end_all() -> None:
    """Listen no more, as Python ends: no thread may come out of native code then. Callers that wait are passed over."""
    for listener in list(_listeners):
        listener.end()
