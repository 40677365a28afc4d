"""The first connection of a process, which has a deadline of its own: calls meanwhile wait for that one attempt.

A process that has just started has no connection and no script loaded, and its requests come all at once. Decided
without the store they would be counted apart in each process; so they wait, longer than for a decision and once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

from redis import exceptions

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.stores.redis.errors import NO_CONNECTION, never_sent, without_frames
from headgate.stores.redis.eviction import ASKED
from headgate.stores.redis.scripts import Script
from headgate.stores.redis.url import Place


def first_commands(scripts: dict[str, Script]) -> list[tuple[str, ...]]:
    """What is sent over a first connection: the scripts of the limits that are known by then.

    A server that asks for a password says so to the PING, and takes no long script. An `EvictionNotice` sees what
    is replied.
    """
    return [("PING",), *(("SCRIPT", "LOAD", script.text) for script in list(scripts.values())), ASKED]


class _Attempt:
    """One attempt to connect, for which several calls may wait."""

    def __init__(self, within_s: float) -> None:
        self.until_us = SYSTEM_CLOCK.now_us() + round(within_s * US_PER_SECOND)
        self.done = threading.Event()
        self.error: BaseException | None = None

    def left_s(self) -> float:
        return max(0.0, (self.until_us - SYSTEM_CLOCK.now_us()) / US_PER_SECOND)


class FirstAttempt:
    """What threads wait for in a process that was not connected yet, be it new or forked."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._attempts: dict[int, _Attempt] = {}
        """By process: that of a parent is the parent's."""

        self.over_in = 0
        """The process that has made its attempt, whatever came of it; `is_over`, for calls that may not take longer."""

        self._patient = threading.local()
        """Has `until_us` in a thread that waited for the first connection, until its call is answered."""

    @property
    def is_over(self) -> bool:
        """Whether this process has made its attempt, whatever came of it."""
        return self.over_in == os.getpid()

    @property
    def has_succeeded(self) -> bool:
        """Whether this process was connected."""
        attempt = self._attempts.get(os.getpid())
        return attempt is not None and attempt.done.is_set() and attempt.error is None

    @contextmanager
    def made(self, connect: Callable[[], object]) -> Iterator[None]:
        """`make`, for a call that has what is left of that time, too; nothing where the attempt was made before."""
        if self.is_over:
            yield
            return
        self._patient.until_us = self.make(connect).until_us
        try:
            yield
        finally:
            self._patient.until_us = 0

    def make(self, connect: Callable[[], object]) -> _Attempt:
        """Connect in a thread, or wait for the thread that does it already; raises what it has raised."""
        new = _Attempt(self._place.first_s)
        attempt = self._attempts.setdefault(os.getpid(), new)
        if attempt is new:
            try:
                threading.Thread(target=self._run, args=(new, connect), name="headgate-connect", daemon=True).start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._run(new, connect)
        in_time = attempt.done.wait(attempt.left_s())
        self.over_in = os.getpid()
        if not in_time:
            attempt.error = attempt.error or exceptions.TimeoutError(NO_CONNECTION)
        if attempt.error is not None:
            raise never_sent(_again(attempt.error))
        return attempt

    def patience_s(self) -> float:
        """How long a call of this thread may take that begins now: one that waited has what is left of that time."""
        until_us = getattr(self._patient, "until_us", 0)
        return max(self._place.timeout_s, (until_us - SYSTEM_CLOCK.now_us()) / US_PER_SECOND)

    def _run(self, attempt: _Attempt, connect: Callable[[], object]) -> None:
        self._patient.until_us = attempt.until_us
        try:
            connect()
        except BaseException as error:
            attempt.error = without_frames(error)
        finally:
            self._patient.until_us = 0
            attempt.done.set()

    def forget(self) -> None:
        """Let the next call connect again: the store was closed, or a new attempt is wanted."""
        self._attempts.pop(os.getpid(), None)
        self.over_in = 0


def _again(error: BaseException) -> BaseException:
    """The same error for each thread that waited: frames of theirs are noted in it, see `without_frames`."""
    try:
        again = copy(error)
    except Exception:  # of a client's own, which is made in another way
        return error
    again.__cause__ = error.__cause__ or error.__context__
    return again
