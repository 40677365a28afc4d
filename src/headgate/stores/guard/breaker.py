"""A circuit breaker: without one, every request would wait for a store that does not answer.

While it is closed, calls go to the store. After some consecutive failures it opens, and none do; a probe in
the background, at growing and jittered intervals, finds out when the store is back. Then it is half
open: a growing share of the calls goes to the store, so that not all come back at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import MethodType
from typing import Any
from weakref import ref

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND, Clock
from headgate.errors import ConfigError, HeadgateError, StoreError, StoreKeyError
from headgate.forks import register_for_forks

log = logging.getLogger("headgate")

_JITTER = random.SystemRandom()
"""Of the system: the seed of a program remains its own, and the forked workers of one process do not probe in step."""

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"

FAILURES = 3
"""Consecutive failures after which it opens."""

FIRST_PROBE_S = 0.1
LAST_PROBE_S = 2.0
MAX_LOGGED_ERRORS = 20
"""How many different errors of single keys are logged."""

RAMP_S = 0.5
"""How long it is half open."""

CALM_S = 10.0
"""A store that fails again sooner is probed at the interval reached before: it answers probes, but no calls."""


class Breaker:
    """Whether calls go to a store. Safe under threads, and after a fork."""

    def __init__(
        self,
        shown: str,
        *,
        failures: int = FAILURES,
        first_probe_s: float = FIRST_PROBE_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.shown = shown
        self._clock = clock
        self.state = CLOSED
        self.opened = 0
        """How often it has opened."""

        self.listeners: list[Callable[[Exception | None], object]] = []
        """Called with the error when it opens, with None when the store is back; on whatever thread finds out."""

        self._most_failures = failures
        self._first_probe_s = self._pause_s = first_probe_s
        self.failures = 0
        """Consecutive failures up to now."""

        self._logged_errors: set[str] = set()
        self._half_open_us = 0
        self._share_sum = 0.0
        """While it is half open each call adds the share of that moment; at each whole number one goes through."""

        self._prober: threading.Thread | asyncio.Task[None] | None = None
        self._needs_event_loop = False
        """Whether only an event loop can call the store, and no thread."""

        self._pid = 0
        self._lock = threading.Lock()
        register_for_forks(self)

    def after_fork(self) -> None:
        """Begin with a new lock; the state of the store is the same in a child process."""
        self._lock = threading.Lock()

    def lets_through(self) -> bool:
        """Whether a call may go to the store now."""
        if self.state == CLOSED:
            return True
        with self._lock:
            if self.state != HALF_OPEN:
                return self.state == CLOSED
            share = (self._clock.now_us() - self._half_open_us) / (RAMP_S * US_PER_SECOND)
            if share >= 1:
                self.state = CLOSED
                return True
            self._share_sum += share
            if self._share_sum < 1:
                return False
            self._share_sum -= 1
            return True

    def succeeded(self) -> None:
        """Record a call that the store answered."""
        if self.failures:
            self.failures = 0

    def failed(self, error: Exception) -> None:
        """Record a call that failed. The error of one key or of one server of a Cluster says nothing about others."""
        if isinstance(error, StoreKeyError):
            if str(error) not in self._logged_errors and len(self._logged_errors) < MAX_LOGGED_ERRORS:
                self._logged_errors.add(str(error))
                log.warning("a request is decided without the store: %s", str(error))
            return
        if _is_of_one_server(error):
            return
        with self._lock:
            self.failures += 1
            if self.state == OPEN or (self.state == CLOSED and self.failures < self._most_failures):
                return
            self.state = OPEN
            self.opened += 1
            if self._clock.now_us() - self._half_open_us > CALM_S * US_PER_SECOND:
                self._pause_s = self._first_probe_s
        log.warning("the store does not answer, requests are decided without it: %s", str(error))
        for listener in self.listeners:
            listener(error)

    def close(self) -> None:
        """Reset the state and end the probes: no more calls will follow."""
        with self._lock:
            self.state = CLOSED
            self.failures = 0
        if isinstance(self._prober, asyncio.Task) and not self._prober.get_loop().is_closed():
            self._prober.get_loop().call_soon_threadsafe(self._prober.cancel)

    def probe_in_thread(self, probe: Callable[[], object]) -> None:
        """Start a thread that finds out when the store is back, unless one runs.

        Where the system cannot start one, or the interpreter is ending, the next call tries again.
        """
        if not self._needs_prober():
            return
        with self._lock:
            if self._needs_prober():
                self._pid = os.getpid()
                self._prober = threading.Thread(
                    target=self._run_probes, args=(_WeakProbe(probe),), name="headgate-probe", daemon=True
                )
                with suppress(RuntimeError):
                    self._prober.start()

    def probe_in_task(
        self, probe: Callable[[], Awaitable[object]], thread_probe: Callable[[], object] | None = None
    ) -> None:
        """`probe_in_thread` on an event loop.

        A program may run an event loop for each request, which ends before a probe is due: then a thread probes.
        """
        if not self._needs_prober():
            return
        if thread_probe is not None and self._was_cut_off() and not self._needs_event_loop:
            self.probe_in_thread(thread_probe)
        else:
            self._pid = os.getpid()
            self._prober = asyncio.get_running_loop().create_task(self._run_probes_async(_WeakProbe(probe)))

    def _needs_prober(self) -> bool:
        if self.state != OPEN:
            return False
        prober = self._prober
        if prober is None or self._pid != os.getpid():
            return True
        if isinstance(prober, asyncio.Task):
            return prober.done() or not prober.get_loop().is_running()
        return not prober.is_alive()

    def _was_cut_off(self) -> bool:
        """Whether the last probes ended with their event loop, before the store was back."""
        prober = self._prober
        return (
            isinstance(prober, asyncio.Task)
            and self._pid == os.getpid()
            and (prober.cancelled() or not prober.get_loop().is_running())
        )

    def _run_probes(self, weak_probe: _WeakProbe) -> None:
        while self.state == OPEN:
            threading.Event().wait(self._next_pause_s())
            if (probe := weak_probe()) is None:  # the store is gone
                return
            try:
                probe()
            except ConfigError:  # only an event loop can call it
                self._needs_event_loop = True
                return
            except HeadgateError as error:
                if _is_of_one_server(error):  # other servers of the Cluster answer
                    self._enter_half_open()
            else:
                self._enter_half_open()
            del probe  # the pause must not keep the store alive

    async def _run_probes_async(self, weak_probe: _WeakProbe) -> None:
        while self.state == OPEN:
            await asyncio.sleep(self._next_pause_s())
            if (probe := weak_probe()) is None:
                return
            try:
                await probe()
            except HeadgateError as error:
                if _is_of_one_server(error):
                    self._enter_half_open()
            else:
                self._enter_half_open()
            del probe

    def _next_pause_s(self) -> float:
        """How long to wait until the next probe; the one after it comes later."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LAST_PROBE_S)
        return jittered(pause_s)

    def _enter_half_open(self) -> None:
        with self._lock:
            if self.state != OPEN:  # it was closed meanwhile
                return
            self.state = HALF_OPEN
            self._half_open_us = self._clock.now_us()
            self.failures = 0
            self._share_sum = 0.0
        log.warning("the store answers again: %s", self.shown)
        for listener in self.listeners:
            listener(None)


class _WeakProbe:
    """A weak reference to a method of a store; calling it returns the method, None once the store is gone.

    `weakref.WeakMethod` works with callbacks, which fail where the garbage collector takes the store while the thread
    that has the reference ends: no caller can catch that error.
    """

    __slots__ = ("_function", "_store")

    def __init__(self, probe: Callable[[], Any]) -> None:
        assert isinstance(probe, MethodType)
        self._store, self._function = ref(probe.__self__), probe.__func__

    def __call__(self) -> Callable[[], Any] | None:
        store = self._store()
        return None if store is None else MethodType(self._function, store)


def _is_of_one_server(error: Exception) -> bool:
    return isinstance(error, StoreError) and error.server != ""


def jittered(pause_s: float) -> float:
    """A pause of half to one and a half times as long, a different one in each process and each time."""
    return pause_s * _JITTER.uniform(0.5, 1.5)
