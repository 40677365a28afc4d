"""Settlements that could not reach the store: kept in this process, and sent when it answers again.

Each hold is settled once, by the store's own record, so one that is sent twice, because an answer was lost, changes
nothing. They are sent from a thread of their own, or a task on an event loop, at growing and jittered intervals, and as
soon as the breaker finds the store back; never in a request.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import ref

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.drive import drive, drive_async
from headgate.errors import ConfigError, HeadgateError, StoreError, StoreKeyError
from headgate.forks import register_for_forks
from headgate.holding import Settlement, place_of_id
from headgate.stores.guard.breaker import FAILURES, FIRST_PROBE_S, LAST_PROBE_S, jittered
from headgate.stores.guard.kept_order import put_last

log = logging.getLogger("headgate")

MOST_KEPT = 10_000
"""Settlements that a process keeps; what comes then is lost, and told so."""

CLOSE_WITHIN_US = 1_000_000
"""How long closing a store may take that still has to send some."""

Commit = Callable[[Clock | None], Callable[..., Any]]
"""What settles on the store itself, for limits on a clock."""


def settling_on(bind: Callable[..., Any]) -> Commit:
    """What settles holds of any limits on a store, by a clock of the caller's or its own."""

    def commit(clock: Clock | None) -> Callable[..., Any]:
        settle: Callable[..., Any] = bind((), clock=clock).commit
        return settle

    return commit


class Kept(NamedTuple):
    """A settlement as it was asked for."""

    actuals: tuple[int | None, ...]
    now_us: int | None
    clock: Clock | None

    def told(self, outcome: Any) -> Settlement:
        """What is answered as long as it is kept."""
        known = tuple(actual for actual in self.actuals if actual is not None)
        return Settlement(outcome, known if len(known) == len(self.actuals) else None, (), "later")


class KeptSettlements:
    """The settlements that a process keeps for a store. Safe under threads; a forked process begins with none.

    `commit` and `commit_async` give what settles on the store itself. `settled` is called with the id of each that was
    sent.
    """

    def __init__(self, shown: str, commit: Commit, commit_async: Commit, settled: Callable[[str], object]) -> None:
        self.shown = shown
        self.sent = 0
        """How many were sent later."""

        self.lost = 0
        """How many were never sent: too many were kept, the store refused it, or it was closed before it answered."""

        self.listeners: list[Callable[[int, int, int], object]] = []
        """Called with how many are kept now, and how many were just sent and lost; on whatever thread."""

        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._done: dict[str, Kept] = {}
        """Those that were sent last, as many as are kept at the most."""

        self.commit, self.commit_async, self._settled = commit, commit_async, settled
        self._is_full = False
        self._sender: threading.Thread | asyncio.Task[None] | None = None
        self._wake: Callable[[], object] = threading.Event().set
        self._lock = threading.Lock()
        register_for_forks(self)

    def after_fork(self) -> None:
        """Keep none in a child process: the parent sends what it kept."""
        self._lock = threading.Lock()
        self._kept.clear()
        self._done.clear()
        self._sender, self._wake = None, threading.Event().set

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, whole_id: str) -> Settlement | None:
        """The answer to settling a hold again whose settlement is kept."""
        kept = self._kept.get(whole_id) if self._kept else None
        return None if kept is None else kept.told("already settled")

    def add(self, whole_id: str, actuals: Sequence[int | None], now_us: int | None, clock: Clock | None) -> Settlement:
        """Keep a settlement, and the answer to it; the first of a hold counts."""
        with self._lock:
            former = self._kept.get(whole_id) or self._done.get(whole_id)
            if former is not None:
                return former.told("already settled")
            kept = Kept(tuple(actuals), now_us, clock)
            has_room = len(self._kept) < MOST_KEPT
            if has_room:
                self._kept[whole_id] = kept
            is_first, self._is_full = not has_room and not self._is_full, not has_room
        self._count(lost=not has_room)
        if is_first:
            log.warning("%d settlements are kept for a store that does not answer; more are lost", MOST_KEPT)
        return kept.told("settled") if has_room else Settlement("unknown", None, (), "lost")

    def hasten(self) -> None:
        """Send all now: the store is back."""
        self._wake()
        if self._needs_sender():
            self._send_in_thread_if_possible()

    def send_in_thread(self) -> None:
        """Start a thread that sends what is kept, where none runs; if none can start, the next call tries again."""
        with self._lock:
            if self._needs_sender():
                wake = threading.Event()
                self._wake = wake.set
                sending = (ref(self), wake)
                self._sender = threading.Thread(target=_send_on, args=sending, name="headgate-settle", daemon=True)
                with suppress(RuntimeError):
                    self._sender.start()

    def send_in_task(self) -> None:
        """`send_in_thread` on an event loop."""
        # Whether the event loop of the last sender ended while there was something left to send.
        was_cut_off = isinstance(self._sender, asyncio.Task) and self._needs_sender()
        if was_cut_off and self._send_in_thread_if_possible():
            return
        with self._lock:
            if self._needs_sender():
                loop, wake = asyncio.get_running_loop(), asyncio.Event()
                self._wake = _waker(loop, wake)
                self._sender = loop.create_task(_send_async(ref(self), wake))

    def close(self) -> None:
        """Send what is kept, for as long as the store answers and a second is not over; the rest is lost."""
        drive(self._closing(self.commit))

    async def aclose(self) -> None:
        """`close` for an event loop."""
        await drive_async(self._closing(self.commit_async))

    def hand_over(self) -> None:
        """Send from a thread what a task can no longer send, since its event loop ends."""
        with self._lock:
            self._sender = None
        if self._kept:
            self._send_in_thread_if_possible()

    def is_done(self) -> bool:
        """Whether nothing is left to send; a sender that asks ends then."""
        with self._lock:
            if self._kept:
                return False
            self._sender = None
            return True

    def sending(self, commit: Commit, until_us: float = float("inf")) -> Generator[Any, Any, None]:
        """Send what is kept, as steps, until the store does not answer several times on end, or `until_us`."""
        failures, silent = 0, set[int]()
        with self._lock:
            waiting = list(self._kept.items())
        for whole_id, kept in waiting:
            if place_of_id(whole_id) in silent or self._kept.get(whole_id) is not kept:  # or it was sent
                continue
            if SYSTEM_CLOCK.now_us() >= until_us:
                return
            try:
                settle = commit(kept.clock)
            except ConfigError:  # the store cannot be asked from here: only threads can wait for it
                return
            try:
                yield settle(whole_id, kept.actuals, now_us=kept.now_us)
            except StoreKeyError as error:
                self._give_up(whole_id, error)
            except StoreError:
                silent.add(place_of_id(whole_id))
                with self._lock:
                    put_last(self._kept, whole_id)  # another server of a Cluster may answer
                if (failures := failures + 1) == FAILURES:
                    return
            except HeadgateError as error:
                self._give_up(whole_id, error)
            else:
                self._note_sent(whole_id, kept)
                failures, self._is_full = 0, False
                self._settled(whole_id)

    def _closing(self, commit: Commit) -> Generator[Any, Any, None]:
        if self._kept:
            yield from self.sending(commit, SYSTEM_CLOCK.now_us() + CLOSE_WITHIN_US)
            with self._lock:
                lost, self._kept = len(self._kept), OrderedDict()
            if lost:
                self._count(lost=lost)
                log.warning("%d settlements are lost: the store does not answer, and is closed: %s", lost, self.shown)
        self._wake()

    def _note_sent(self, whole_id: str, kept: Kept) -> None:
        with self._lock:
            if len(self._done) >= MOST_KEPT:
                del self._done[next(iter(self._done))]
            self._done[whole_id] = kept
            is_sent = self._kept.pop(whole_id, None) is not None
        self._count(sent=is_sent)

    def _give_up(self, whole_id: str, error: Exception) -> None:
        self._count(lost=self._kept.pop(whole_id, None) is not None)
        log.warning("a settlement is lost, the store refuses it: %s", error)

    def _count(self, *, sent: int = 0, lost: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.lost += lost
        for listener in self.listeners:
            listener(len(self._kept), int(sent), int(lost))

    def _needs_sender(self) -> bool:
        if not self._kept:
            return False
        sender = self._sender
        if isinstance(sender, asyncio.Task):
            return sender.done() or not sender.get_loop().is_running()
        return sender is None or not sender.is_alive()

    def _send_in_thread_if_possible(self) -> bool:
        """`send_in_thread`, and True, unless only an event loop can wait for the store."""
        try:
            self.commit(None)
        except ConfigError:
            return False
        self.send_in_thread()
        return True


def _waker(loop: asyncio.AbstractEventLoop, wake: asyncio.Event) -> Callable[[], object]:
    """What sets an event of a loop, from any thread; nothing once the loop is closed."""

    def wake_up() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    return wake_up


def _send_on(kept: ref[KeptSettlements], wake: threading.Event) -> None:
    pause_s = FIRST_PROBE_S
    while True:
        wake.wait(jittered(pause_s))
        wake.clear()
        settlements = kept()
        if settlements is None:
            return
        drive(settlements.sending(settlements.commit))
        if settlements.is_done():
            return
        del settlements  # while asleep, nothing keeps the store
        pause_s = min(2 * pause_s, LAST_PROBE_S)


async def _send_async(kept: ref[KeptSettlements], wake: asyncio.Event) -> None:
    try:
        await _send_on_loop(kept, wake)
    except asyncio.CancelledError:
        if (settlements := kept()) is not None:
            settlements.hand_over()
        raise


async def _send_on_loop(kept: ref[KeptSettlements], wake: asyncio.Event) -> None:
    pause_s = FIRST_PROBE_S
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(jittered(pause_s)):
                await wake.wait()
        wake.clear()
        settlements = kept()
        if settlements is None:
            return
        await drive_async(settlements.sending(settlements.commit_async))
        if settlements.is_done():
            return
        del settlements
        pause_s = min(2 * pause_s, LAST_PROBE_S)
