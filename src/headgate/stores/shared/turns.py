"""The tickets of this process in the lines of a zone, and the one thread that receives their calls.

The thread runs only while callers wait. It sleeps in the kernel, on a word of the zone that other processes change
to wake it, and it is the sign that this process is alive: it holds a lock of the zone that the kernel passes on when
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
from headgate.stores.shared.system_threads import start_thread

log = logging.getLogger("headgate")

SCAN_US = 500_000
"""How often a process with callers in line looks for processes that died, to skip their tickets."""

KEEPALIVE_US = 10_000_000
"""How often the first caller of a process checks that it is still in line: it is, unless the zone was damaged."""

_TIMEOUT_S = 10.0

Seat = tuple[int, int]
"""The slot of a process in a zone."""

UNNUMBERED = (0, 0)


class LineEntry(NamedTuple):
    """A ticket in a line: its process, its line, and the zone's (ticket, order), `UNNUMBERED` until these are known."""

    seat: Seat
    name: bytes
    ticket: tuple[int, int] = UNNUMBERED


class _Listener:
    """The thread that listens; `started` is set when its seat, or the reason why it has none, is known."""

    def __init__(self, lines: Any, listen: Callable[[_Listener], None]) -> None:
        self._lines = lines
        self.started = threading.Event()
        self.seat: Seat | None = None
        self.error: StoreError | None = None
        self.is_ending = False
        self._thread = start_thread(partial(listen, self), "headgate-turns")
        _listeners.add(self)

    def end(self) -> None:
        """End the thread, and wait for its end."""
        self.is_ending = True
        if self.seat is not None:
            self._lines.wake(self.seat)
        self._thread.join(_TIMEOUT_S)


class ZoneTurns:
    """The callers that wait in this process. `lines` are those of the zone, `shown` is its name in the log."""

    receives_calls = True
    """True: without its thread, no caller waits in a line of the zone."""

    def __init__(self, lines: Any, shown: str) -> None:
        self._lines = lines
        self._shown = shown
        self._is_seats_warning_logged = False
        self._is_room_warning_logged = False
        self.keepalive_us = KEEPALIVE_US
        self.after_fork()
        register_for_forks(self)

    def after_fork(self) -> None:
        """Have no tickets in a child process: those of the parent are the parent's. No other thread runs yet."""
        self._lock = threading.RLock()  # the garbage collector may end a caller in the thread that holds it
        self._numbers = 0
        self._tickets: dict[int, Ticket] = {}
        self._listener: _Listener | None = None
        self._abandoned: set[int] = set()
        self.entries: dict[int, LineEntry] = {}
        """The entries of this process's tickets in the zone, by the numbers of the tickets."""

    def add(self, ticket: Ticket) -> None:
        """Give a ticket its number, and wake it when it is called."""
        with self._lock:
            self._numbers += 1
            ticket.number = self._numbers
            self._tickets[ticket.number] = ticket

    def remove(self, ticket: Ticket) -> None:
        """Stop waking a ticket."""
        with self._lock:
            self._tickets.pop(ticket.number, None)

    def call(self, number: int) -> None:
        """Wake a ticket whose turn has come, or for which places were freed."""
        with self._lock:
            ticket = self._tickets.get(number)
        if ticket is not None:
            ticket.is_first = True
            ticket.call()

    def seat(self) -> Seat | None:
        """The seat of this process, from now until none of its tickets is left; None where all seats are taken.

        Raises StoreError where the zone's lines cannot be used, or no thread can be started.
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
        if not listener.started.wait(_TIMEOUT_S):
            raise StoreTimeout(f"the thread that wakes waiting callers of {self._shown} has not begun for 10 s")
        if listener.error is not None:
            raise listener.error
        if listener.seat is None and not self._is_seats_warning_logged:
            self._is_seats_warning_logged = True
            log.warning(
                "%s: callers of %d processes wait already, which is all that a zone of this size has room for: "
                "those of more are refused",
                self._shown, self._lines.most_processes,
            )  # fmt: skip
        return listener.seat

    def warn_full(self) -> None:
        """Log, once, that there is no room for another ticket."""
        if not self._is_room_warning_logged:
            self._is_room_warning_logged = True
            log.warning(
                "%s: %d callers wait already, which is all that a zone of this size has room for: more are refused",
                self._shown, self._lines.most_callers,
            )  # fmt: skip

    def leave(self, number: int, *, as_planned: bool, planned: bool) -> None:
        """Remove a ticket from its line, if it is in one; the first of the line is called."""
        entry = self.entries.get(number)
        if entry is None:
            return
        seat, name, ticket = entry
        first = self._lines.leave(seat, number, name, ticket, as_planned=as_planned, planned=planned)
        self.entries.pop(number, None)
        if first is not None:
            self.call(first)

    def _listen(self, listener: _Listener) -> None:
        """Receive the calls of tickets, until none is left."""

        def start(seat: Seat | None) -> None:
            listener.seat = seat
            if seat is None:
                self._end(listener)
            listener.started.set()

        def receive(called: Sequence[int] | None) -> bool:
            if called is None:  # this process was stopped, and its tickets are gone
                with self._lock:
                    tickets = list(self._tickets.values())
                for ticket in tickets:
                    ticket.is_first = False
                    ticket.call()
            for number in called or ():
                self.call(number)
            self._remove_abandoned()
            with self._lock:
                goes_on = bool(self._tickets or self.entries) and not listener.is_ending
                if not goes_on and self._listener is listener:
                    self._listener = None
                return goes_on

        try:
            self._lines.listen(start, receive, SCAN_US)
        except StoreError as error:
            listener.error = error
        finally:
            self._end(listener)
            listener.started.set()

    def _remove_abandoned(self) -> None:
        """Remove the tickets of callers that ended without leaving: they were interrupted, or a process was stopped.

        A caller that is just leaving has time until the next call of this.
        """
        with self._lock:
            abandoned = {number for number in list(self.entries) if number not in self._tickets}
        for number in abandoned & self._abandoned:
            with suppress(StoreError):
                self.leave(number, as_planned=False, planned=True)
        self._abandoned = abandoned

    def _end(self, listener: _Listener) -> None:
        with self._lock:
            if self._listener is listener:
                self._listener = None


_listeners: WeakSet[_Listener] = WeakSet()


@atexit.register
def _end_all() -> None:
    """End all listeners, as Python ends: no thread may return from native code then. Waiting callers are skipped."""
    for listener in list(_listeners):
        listener.end()
