"""The first connection of a process, which has a deadline of its own: calls meanwhile wait for that one attempt.

A process that has just started has no connection and no script loaded, and its requests arrive all at once. Decided
without the store, they would be counted separately in each process; so they wait, once and longer than for a decision.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

from redis import exceptions

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.stores.redis.errors import NO_CONNECTION, mark_unsent, without_frames
from headgate.stores.redis.eviction import EVICTION_QUERY
from headgate.stores.redis.scripts import Script
from headgate.stores.redis.url import RedisTarget


def first_commands(scripts: dict[str, Script]) -> list[tuple[str, ...]]:
    """The commands to send over a first connection: they load the scripts of the limits that are known by then.

    A server that requires a password says so in reply to the PING; without one it takes no long script. An
    `EvictionNotice` checks the replies.
    """
    return [("PING",), *(("SCRIPT", "LOAD", script.text) for script in list(scripts.values())), EVICTION_QUERY]


class _Attempt:
    """One attempt to connect, for which several calls may wait."""

    def __init__(self, timeout_s: float) -> None:
        self.deadline_us = SYSTEM_CLOCK.now_us() + round(timeout_s * US_PER_SECOND)
        self.done = threading.Event()
        self.error: BaseException | None = None

    def remaining_s(self) -> float:
        return max(0.0, (self.deadline_us - SYSTEM_CLOCK.now_us()) / US_PER_SECOND)


class FirstConnection:
    """The first connection of a process, new or forked, for which its threads wait."""

    def __init__(self, target: RedisTarget) -> None:
        self._target = target
        self._attempts: dict[int, _Attempt] = {}
        """By process id: a forked process does not use its parent's attempt."""

        self.finished_pid = 0
        """The id of the process whose attempt is over, successful or not; a faster form of `is_finished`."""

        self._thread = threading.local()
        """Has `deadline_us` in a thread that waited for the first connection, until its call has ended."""

    @property
    def is_finished(self) -> bool:
        """Whether the attempt of this process is over, successful or not."""
        return self.finished_pid == os.getpid()

    @property
    def has_succeeded(self) -> bool:
        """Whether this process was connected."""
        attempt = self._attempts.get(os.getpid())
        return attempt is not None and attempt.done.is_set() and attempt.error is None

    @contextmanager
    def established(self, connect: Callable[[], object]) -> Iterator[None]:
        """`establish`, for a call that may use the rest of that time, too; nothing where the attempt is over."""
        if self.is_finished:
            yield
            return
        self._thread.deadline_us = self.establish(connect).deadline_us
        try:
            yield
        finally:
            self._thread.deadline_us = 0

    def establish(self, connect: Callable[[], object]) -> _Attempt:
        """Connect in a thread, or wait for the thread that is connecting; raises the error of that thread."""
        new = _Attempt(self._target.first_timeout_s)
        attempt = self._attempts.setdefault(os.getpid(), new)
        if attempt is new:
            try:
                threading.Thread(target=self._run, args=(new, connect), name="headgate-connect", daemon=True).start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._run(new, connect)
        in_time = attempt.done.wait(attempt.remaining_s())
        self.finished_pid = os.getpid()
        if not in_time:
            attempt.error = attempt.error or exceptions.TimeoutError(NO_CONNECTION)
        if attempt.error is not None:
            raise mark_unsent(_copy_of(attempt.error))
        return attempt

    def call_timeout_s(self) -> float:
        """How long a call of this thread may take from now: one that waited has the rest of that time."""
        deadline_us = getattr(self._thread, "deadline_us", 0)
        return max(self._target.timeout_s, (deadline_us - SYSTEM_CLOCK.now_us()) / US_PER_SECOND)

    def _run(self, attempt: _Attempt, connect: Callable[[], object]) -> None:
        self._thread.deadline_us = attempt.deadline_us
        try:
            connect()
        except BaseException as error:
            attempt.error = without_frames(error)
        finally:
            self._thread.deadline_us = 0
            attempt.done.set()

    def forget(self) -> None:
        """Let the next call connect again: the store was closed, or a new attempt is wanted."""
        self._attempts.pop(os.getpid(), None)
        self.finished_pid = 0


def _copy_of(error: BaseException) -> BaseException:
    """A copy of an error for each thread that waited: raising adds frames to an error, see `without_frames`."""
    try:
        copied = copy(error)
    except Exception:  # its class has another constructor
        return error
    copied.__cause__ = error.__cause__ or error.__context__
    return copied
