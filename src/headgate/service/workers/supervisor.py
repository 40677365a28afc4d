"""Keeps a number of worker processes running: it forks them, replaces those that die or hang, and passes on signals.

The supervisor has no threads and no event loop, so that it may fork at any time. It sleeps until a
signal comes, a worker says something, or one is due to be started. It never answers requests, but
holds the workers' listening sockets: connections that wait for a worker that died are its successor's.

Two pipes tie workers to it. On one they say that they answer; the other never carries anything, and
closes when the supervisor is gone, however it went. In memory that all share, each counts the seconds in which
its event loop turned: a worker whose count stands still hangs.
"""

from __future__ import annotations

import gc
import logging
import mmap
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.errors import HeadgateError
from headgate.observe.prometheus import WorkerCounts

log = logging.getLogger("headgate")

_STEADY_US = 10 * US_PER_SECOND
"""A worker that lived this long did not die of what its predecessor died of."""

_FIRST_DELAY_US = 200_000
_LONGEST_DELAY_US = 5 * US_PER_SECOND
_HEARD = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_ENDED_WELL = (0, -signal.SIGTERM, -signal.SIGINT)
_COUNTS = struct.Struct("II")
_BEAT = struct.Struct("I")
_LOOKS = 5
"""A worker hangs that has not moved between so many looks in a row.

Looks, not seconds: where the supervisor did not run either, because the machine was busy or asleep, none is missed.
"""

_TIMES_LONGER_TO_START = 6
_KILL_AFTER_US = US_PER_SECOND
"""How long a worker that hangs may take to end by itself."""


class Seat(NamedTuple):
    """What a worker process has of its supervisor."""

    number: int
    """From 1, at most 255: it is told in a byte."""

    listener: socket.socket
    lifeline: int
    """The reading end of a pipe that closes when the supervisor is gone."""

    say: int
    shared: mmap.mmap

    def answers(self) -> None:
        """Tell the supervisor that this worker answers."""
        with suppress(BrokenPipeError):  # the lifeline tells
            os.write(self.say, bytes([self.number]))

    def beat(self) -> None:
        """Show that the event loop turns."""
        place = _place_of(self.number)
        [beats] = _BEAT.unpack_from(self.shared, place)
        _BEAT.pack_into(self.shared, place, (beats + 1) & 0xFFFFFFFF)


@dataclass(slots=True)
class _Worker:
    number: int
    listener: socket.socket
    pid: int = 0
    answers: bool = False
    started_us: int = 0
    due_us: int | None = 0
    """When it is to be started; None while it runs."""

    deaths: int = 0
    """How often in a row it died young."""

    beats: int = 0
    missed: int = 0
    """How often in a row it had not moved."""

    kill_at_us: int | None = None
    """When it is killed, as it hangs."""


class Supervisor:
    """Runs `work` in as many processes as there are listeners, numbered from 1, until told to stop.

    `all_answer` is called once, when all do. Workers that are told to stop and have not within `stop_within_s`
    seconds are killed; so are those that have not moved for `hang_s` seconds, which are then replaced (0: never).
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        work: Callable[[Seat], None],
        *,
        drain_s: float,
        stop_within_s: float,
        hang_s: float,
        all_answer: Callable[[], None],
    ) -> None:
        self._workers = [_Worker(number, listener) for number, listener in enumerate(listeners, 1)]
        self._work = work
        self._drain_s = drain_s
        self._stop_within_s = stop_within_s
        self._hang_s = hang_s
        self._look_every_us = int(hang_s * US_PER_SECOND) // _LOOKS
        self._look_at_us = SYSTEM_CLOCK.now_us() + self._look_every_us
        self._all_answer = all_answer
        self._announced = False
        self._told: signal.Signals | None = None
        """How the workers were told to stop."""

        self._kill_at_us: int | None = None
        """When patience with workers that were told to stop ends; None while nobody was."""

        self._all_well = True
        self._restarts = 0
        self._shared = mmap.mmap(-1, _place_of(len(listeners) + 1))
        self._lifeline, self._life = os.pipe()
        self._hear, self._say = os.pipe()
        self._signals, self._signalled = socket.socketpair()

    def counts(self) -> WorkerCounts:
        """How many workers answer and how often one was started again; in every process the same."""
        return WorkerCounts(*_COUNTS.unpack_from(self._shared))

    def run(self) -> bool:
        """Run the workers until told to stop and all have ended; whether all ended well."""
        for end in (self._signals, self._signalled):
            end.setblocking(False)
        os.set_blocking(self._hear, False)
        for number in _HEARD:
            signal.signal(number, lambda *_: None)  # the wakeup descriptor tells which
        signal.set_wakeup_fd(self._signalled.fileno())
        gc.collect()
        gc.freeze()  # what is there now stays shared: the collector of a worker does not write into it
        while True:
            self._bury()
            if self._kill_at_us is None:
                self._start_due()
                self._look_at_workers()
            elif not any(worker.pid for worker in self._workers):
                return self._all_well
            self._count()
            self._wait()

    def _wait(self) -> None:
        """Sleep until something happens, and see to it."""
        signals = self._signals.fileno()
        readable, _, _ = select.select([signals, self._hear], [], [], self._sleep_s())
        if signals in readable:
            for number in self._signals.recv(4096):
                self._on_signal(number)
        if self._hear in readable:
            self._on_words(os.read(self._hear, 4096))
        if self._kill_at_us is not None and SYSTEM_CLOCK.now_us() >= self._kill_at_us:
            log.error("not all workers have ended in their time: they are killed")
            self._kill()

    def _sleep_s(self) -> float | None:
        """How long nothing is due, None for as long as nothing happens."""
        moments = [worker.due_us for worker in self._workers if worker.due_us is not None]
        moments += [worker.kill_at_us for worker in self._workers if worker.kill_at_us is not None]
        if self._look_every_us:
            moments.append(self._look_at_us)
        if self._kill_at_us is not None:
            moments = [self._kill_at_us]
        if not moments:
            return None
        return max(0, min(moments) - SYSTEM_CLOCK.now_us()) / US_PER_SECOND

    def _look_at_workers(self) -> None:
        """Take note of workers that do not move, and end those that have not for too long."""
        now_us = SYSTEM_CLOCK.now_us()
        for worker in self._workers:
            if worker.pid and worker.kill_at_us is not None and worker.kill_at_us <= now_us:
                worker.kill_at_us = None
                os.kill(worker.pid, signal.SIGKILL)
        if not self._look_every_us or now_us < self._look_at_us:
            return
        self._look_at_us = now_us + self._look_every_us
        for worker in self._workers:
            [beats] = _BEAT.unpack_from(self._shared, _place_of(worker.number))
            worker.missed = worker.missed + 1 if beats == worker.beats else 0
            worker.beats = beats
            patience = _LOOKS if worker.answers else _LOOKS * _TIMES_LONGER_TO_START
            if worker.pid and worker.missed == patience:
                self._replace(worker, patience * self._look_every_us)

    def _replace(self, worker: _Worker, stood_us: int) -> None:
        log.error(
            "worker %d (pid %d) has not moved for %g s: it is replaced",
            worker.number, worker.pid, stood_us / US_PER_SECOND,
        )  # fmt: skip
        worker.answers = False
        worker.kill_at_us = SYSTEM_CLOCK.now_us() + _KILL_AFTER_US
        os.kill(worker.pid, signal.SIGTERM)

    def _on_words(self, words: bytes) -> None:
        for worker in self._workers:
            if worker.number in words and worker.pid:
                worker.answers = True
        if not self._announced and self._kill_at_us is None and all(worker.answers for worker in self._workers):
            self._announced = True
            self._all_answer()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._send(number)
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._stop(number)

    def _stop(self, number: int) -> None:
        """Tell the workers to end: by SIGTERM in their time, then by SIGINT without a drain, then by SIGKILL.

        A worker may hear the first two any number of times: a terminal or an init system tells all processes.
        """
        if number == signal.SIGINT and self._told == signal.SIGINT:
            self._kill()
            return
        for worker in self._workers:  # from now on the port is open for as long as the workers hold it
            worker.listener.close()
        self._told = signal.SIGTERM if number == signal.SIGTERM and self._told is None else signal.SIGINT
        drain_s = self._drain_s if self._told == signal.SIGTERM else 0.0
        self._kill_at_us = SYSTEM_CLOCK.now_us() + int((drain_s + self._stop_within_s) * US_PER_SECOND)
        self._send(self._told)

    def _send(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)

    def _kill(self) -> None:
        self._send(signal.SIGKILL)
        self._kill_at_us = SYSTEM_CLOCK.now_us() + int(self._stop_within_s * US_PER_SECOND)

    def _bury(self) -> None:
        """Take note of all workers that have ended."""
        for worker in self._workers:
            if not worker.pid:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                self._ended(worker, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: _Worker, code: int) -> None:
        name = f"worker {worker.number} (pid {worker.pid}) {_how(code)}"
        worker.pid = 0
        worker.answers = False
        worker.kill_at_us = None
        if self._kill_at_us is not None:
            if code not in _ENDED_WELL:
                self._all_well = False
                log.error("%s", name)
            return
        delay_us = self._count_death(worker)
        worker.due_us = SYSTEM_CLOCK.now_us() + delay_us
        if delay_us:
            log.error("%s; it is started again in %g s", name, delay_us / US_PER_SECOND)
        elif self._start(worker):
            log.error("%s; started again as pid %d", name, worker.pid)
        else:
            log.error("%s", name)

    def _count_death(self, worker: _Worker) -> int:
        """How long, in microseconds, not to start it again: not at all, then ever longer while it dies young."""
        lived_us = SYSTEM_CLOCK.now_us() - worker.started_us
        worker.deaths = 1 if lived_us >= _STEADY_US else worker.deaths + 1
        if worker.deaths == 1:
            return 0
        return min(_FIRST_DELAY_US << min(worker.deaths - 2, 10), _LONGEST_DELAY_US)

    def _start_due(self) -> None:
        for worker in self._workers:
            again = worker.deaths > 0
            if worker.due_us is not None and worker.due_us <= SYSTEM_CLOCK.now_us() and self._start(worker) and again:
                log.info("worker %d started again as pid %d", worker.number, worker.pid)

    def _start(self, worker: _Worker) -> bool:
        """Fork a worker; whether the system let it."""
        worker.started_us = SYSTEM_CLOCK.now_us()
        try:
            worker.pid = self._fork(worker)
        except OSError as error:
            delay_us = max(self._count_death(worker), _FIRST_DELAY_US)
            worker.due_us = worker.started_us + delay_us
            log.error("worker %d cannot be started: %s; again in %g s", worker.number, error, delay_us / US_PER_SECOND)
            return False
        worker.due_us = None
        worker.missed = 0
        self._restarts += worker.deaths > 0
        return True

    def _fork(self, worker: _Worker) -> int:
        # A signal for the child must not meet the parent's handlers there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(worker)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def _become(self, worker: _Worker) -> NoReturn:
        """Be a worker, and never return into what the parent was doing."""
        code = 1
        try:
            self._leave_parent(worker)
            self._work(Seat(worker.number, worker.listener, self._lifeline, self._say, self._shared))
            code = 0
        except (HeadgateError, OSError) as error:
            log.error("%s", error)
        except BaseException:
            log.exception("unexpected")
        finally:
            os._exit(code)

    def _leave_parent(self, worker: _Worker) -> None:
        """Let go of what is the parent's alone: its signals, its ends of the pipes, the others' sockets."""
        signal.set_wakeup_fd(-1)
        for number in _HEARD:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a policy to take up
        os.close(self._life)
        os.close(self._hear)
        self._signals.close()
        self._signalled.close()
        for other in self._workers:
            if other is not worker:
                other.listener.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        log.addFilter(lambda record: _named(record, f"worker {worker.number}"))

    def _count(self) -> None:
        answering = sum(worker.answers for worker in self._workers)
        _COUNTS.pack_into(self._shared, 0, answering, self._restarts)


def _place_of(number: int) -> int:
    """Where a worker counts, in the memory that all share."""
    return _COUNTS.size + (number - 1) * _BEAT.size


def _how(code: int) -> str:
    """How a process ended, from its exit code; a negative one is a signal's."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _named(record: logging.LogRecord, name: str) -> bool:
    record.msg = f"{name}: {record.msg}"
    return True
