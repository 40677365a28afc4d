"""Settlements that could not reach the store: this process keeps them, and sends them when the store answers again.

The store settles each hold once, by its own record, so a settlement that is sent twice, because an answer was lost,
changes nothing. A separate thread, or a task on an event loop, sends them at growing and jittered intervals, and as
soon as the breaker finds that the store is back; never in a request.
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
from headgate.stores.guard.settlement_order import put_last

log = logging.getLogger("headgate")

MAX_PENDING = 10_000
"""The most settlements that a process keeps; further ones are lost, and their outcome says so."""

CLOSE_WITHIN_US = 1_000_000
"""How long closing a store may take while settlements are pending."""

Committer = Callable[[Clock | None], Callable[..., Any]]
"""Gives the function that settles on the store itself, for limits with this clock."""


def committer_of(bind: Callable[..., Any]) -> Committer:
    """The committer of a store with this `bind`: for holds of any limits, by the caller's clock or the store's."""

    def commit(clock: Clock | None) -> Callable[..., Any]:
        settle: Callable[..., Any] = bind((), clock=clock).commit
        return settle

    return commit


class PendingSettlement(NamedTuple):
    """A settlement as the caller requested it."""

    actuals: tuple[int | None, ...]
    now_us: int | None
    clock: Clock | None

    def as_settlement(self, outcome: Any) -> Settlement:
        """The answer to the caller as long as the settlement is pending."""
        known = tuple(actual for actual in self.actuals if actual is not None)
        return Settlement(outcome, known if len(known) == len(self.actuals) else None, (), "later")


class PendingSettlements:
    """The settlements that a process keeps for a store. Safe under threads; a forked process begins with none.

    `on_settled` is called with the id of each hold whose settlement was sent.
    """

    def __init__(
        self, shown: str, committer: Committer, committer_async: Committer, on_settled: Callable[[str], object]
    ) -> None:
        self.shown = shown
        self.sent = 0
        """How many were sent later."""

        self.lost = 0
        """How many were never sent: too many were pending, the store refused, or it was closed before it answered."""

        self.listeners: list[Callable[[int, int, int], object]] = []
        """Called with how many are pending now, and how many were just sent and lost; on any thread."""

        self._pending: OrderedDict[str, PendingSettlement] = OrderedDict()
        self._recent: dict[str, PendingSettlement] = {}
        """The latest that were sent, at most `MAX_PENDING`."""

        self.committer, self.committer_async, self._on_settled = committer, committer_async, on_settled
        self._is_full = False
        self._sender: threading.Thread | asyncio.Task[None] | None = None
        self._wake: Callable[[], object] = threading.Event().set
        self._lock = threading.Lock()
        register_for_forks(self)

    def after_fork(self) -> None:
        """Keep none in a child process: the parent sends its pending settlements itself."""
        self._lock = threading.Lock()
        self._pending.clear()
        self._recent.clear()
        self._sender, self._wake = None, threading.Event().set

    def __len__(self) -> int:
        return len(self._pending)

    def find(self, whole_id: str) -> Settlement | None:
        """The answer to a repeated settlement of a hold whose first one is pending."""
        pending = self._pending.get(whole_id) if self._pending else None
        return None if pending is None else pending.as_settlement("already settled")

    def add(self, whole_id: str, actuals: Sequence[int | None], now_us: int | None, clock: Clock | None) -> Settlement:
        """Keep a settlement, and return the answer to it; of several for one hold the first counts."""
        with self._lock:
            former = self._pending.get(whole_id) or self._recent.get(whole_id)
            if former is not None:
                return former.as_settlement("already settled")
            pending = PendingSettlement(tuple(actuals), now_us, clock)
            has_room = len(self._pending) < MAX_PENDING
            if has_room:
                self._pending[whole_id] = pending
            is_first, self._is_full = not has_room and not self._is_full, not has_room
        self._count(lost=not has_room)
        if is_first:
            log.warning("%d settlements are kept for a store that does not answer; more are lost", MAX_PENDING)
        return pending.as_settlement("settled") if has_room else Settlement("unknown", None, (), "lost")

    def hasten(self) -> None:
        """Send all now, as the store is back."""
        self._wake()
        if self._needs_sender():
            self._send_in_thread_if_possible()

    def send_in_thread(self) -> None:
        """Start a thread that sends what is pending, unless one runs; if none can start, the next call tries again."""
        with self._lock:
            if self._needs_sender():
                wake = threading.Event()
                self._wake = wake.set
                args = (ref(self), wake)
                self._sender = threading.Thread(target=_run_sender, args=args, name="headgate-settle", daemon=True)
                with suppress(RuntimeError):
                    self._sender.start()

    def send_in_task(self) -> None:
        """`send_in_thread` on an event loop."""
        was_cut_off = isinstance(self._sender, asyncio.Task) and self._needs_sender()
        if was_cut_off and self._send_in_thread_if_possible():
            return
        with self._lock:
            if self._needs_sender():
                loop, wake = asyncio.get_running_loop(), asyncio.Event()
                self._wake = _waker(loop, wake)
                self._sender = loop.create_task(_run_sender_async(ref(self), wake))

    def close(self) -> None:
        """Send what is pending while the store answers, for at most a second; the rest is lost."""
        drive(self._closing(self.committer))

    async def aclose(self) -> None:
        """`close` for an event loop."""
        await drive_async(self._closing(self.committer_async))

    def hand_over(self) -> None:
        """Send from a thread what a task can no longer send because its event loop ends."""
        with self._lock:
            self._sender = None
        if self._pending:
            self._send_in_thread_if_possible()

    def is_done(self) -> bool:
        """Whether nothing is left to send; then the sender that calls this has to end."""
        with self._lock:
            if self._pending:
                return False
            self._sender = None
            return True

    def sending(self, committer: Committer, until_us: float = float("inf")) -> Generator[Any, Any, None]:
        """Send what is pending, as steps, until the store fails several times in a row, or until `until_us`."""
        failures, silent_places = 0, set[int]()
        with self._lock:
            to_send = list(self._pending.items())
        for whole_id, pending in to_send:
            if place_of_id(whole_id) in silent_places or self._pending.get(whole_id) is not pending:  # or it was sent
                continue
            if SYSTEM_CLOCK.now_us() >= until_us:
                return
            try:
                settle = committer(pending.clock)
            except ConfigError:  # this caller cannot use the store: only threads can wait for it
                return
            try:
                yield settle(whole_id, pending.actuals, now_us=pending.now_us)
            except StoreKeyError as error:
                self._give_up(whole_id, error)
            except StoreError:
                silent_places.add(place_of_id(whole_id))
                with self._lock:
                    put_last(self._pending, whole_id)  # another server of a Cluster may answer
                if (failures := failures + 1) == FAILURES:
                    return
            except HeadgateError as error:
                self._give_up(whole_id, error)
            else:
                self._note_sent(whole_id, pending)
                failures, self._is_full = 0, False
                self._on_settled(whole_id)

    def _closing(self, committer: Committer) -> Generator[Any, Any, None]:
        if self._pending:
            yield from self.sending(committer, SYSTEM_CLOCK.now_us() + CLOSE_WITHIN_US)
            with self._lock:
                lost, self._pending = len(self._pending), OrderedDict()
            if lost:
                self._count(lost=lost)
                log.warning("%d settlements are lost: the store does not answer, and is closed: %s", lost, self.shown)
        self._wake()

    def _note_sent(self, whole_id: str, pending: PendingSettlement) -> None:
        with self._lock:
            if len(self._recent) >= MAX_PENDING:
                del self._recent[next(iter(self._recent))]
            self._recent[whole_id] = pending
            is_sent = self._pending.pop(whole_id, None) is not None
        self._count(sent=is_sent)

    def _give_up(self, whole_id: str, error: Exception) -> None:
        self._count(lost=self._pending.pop(whole_id, None) is not None)
        log.warning("a settlement is lost, the store refuses it: %s", error)

    def _count(self, *, sent: int = 0, lost: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.lost += lost
        for listener in self.listeners:
            listener(len(self._pending), int(sent), int(lost))

    def _needs_sender(self) -> bool:
        if not self._pending:
            return False
        sender = self._sender
        if isinstance(sender, asyncio.Task):
            return sender.done() or not sender.get_loop().is_running()
        return sender is None or not sender.is_alive()

    def _send_in_thread_if_possible(self) -> bool:
        """`send_in_thread`, and return True, unless only an event loop can wait for the store."""
        try:
            self.committer(None)
        except ConfigError:
            return False
        self.send_in_thread()
        return True


def _waker(loop: asyncio.AbstractEventLoop, wake: asyncio.Event) -> Callable[[], object]:
    """A function that sets an event of a loop, from any thread; it does nothing once the loop is closed."""

    def wake_up() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    return wake_up


def _run_sender(reference: ref[PendingSettlements], wake: threading.Event) -> None:
    pause_s = FIRST_PROBE_S
    while True:
        wake.wait(jittered(pause_s))
        wake.clear()
        settlements = reference()
        if settlements is None:
            return
        drive(settlements.sending(settlements.committer))
        if settlements.is_done():
            return
        del settlements  # the pause must not keep the store alive
        pause_s = min(2 * pause_s, LAST_PROBE_S)


async def _run_sender_async(reference: ref[PendingSettlements], wake: asyncio.Event) -> None:
    try:
        await _run_sender_on_loop(reference, wake)
    except asyncio.CancelledError:
        if (settlements := reference()) is not None:
            settlements.hand_over()
        raise


async def _run_sender_on_loop(reference: ref[PendingSettlements], wake: asyncio.Event) -> None:
    pause_s = FIRST_PROBE_S
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(jittered(pause_s)):
                await wake.wait()
        wake.clear()
        settlements = reference()
        if settlements is None:
            return
        await drive_async(settlements.sending(settlements.committer_async))
        if settlements.is_done():
            return
        del settlements
        pause_s = min(2 * pause_s, LAST_PROBE_S)
