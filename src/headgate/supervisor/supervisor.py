"""Keeps a number of worker processes running: it forks them, replaces those that die or hang, and passes on signals.

The supervisor has no threads and no event loop, so that it may fork at any time. It sleeps until a signal
arrives, a worker reports that it is ready, or one is due to be started. It never answers requests, but
holds the workers' listening sockets: connections that wait for a dead worker go to its successor.
A worker whose heartbeat stops hangs.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
from collections.abc import Callable, Sequence
from typing import NoReturn

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.errors import HeadgateError
from headgate.observe.worker_files import WorkerCounts
from headgate.supervisor.link import SharedCounts, SupervisorLink
from headgate.supervisor.reloading import defer_reloads
from headgate.supervisor.worker import FIRST_DELAY_US, Worker, how_ended

log = logging.getLogger("headgate")

_SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_ENDED_WELL = (0, -signal.SIGTERM, -signal.SIGINT)
_MISSED_BEATS = 5
"""A worker hangs if so many checks in a row found no new heartbeat.

Checks are counted, not seconds: while the supervisor did not run either, on a busy or sleeping machine, none is missed.
"""

_TIMES_LONGER_TO_START = 6
_KILL_AFTER_US = US_PER_SECOND
"""How long a hanging worker may take to end by itself."""


class Supervisor:
    """Runs `work` in as many processes as there are listeners, numbered from 1, until a signal stops them.

    `all_answer` is called once, when all workers answer. Workers that do not stop within `stop_within_s` seconds are
    killed. Those that hang for `hang_s` seconds are killed, too, and then replaced (0: never).
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        work: Callable[[SupervisorLink], None],
        *,
        drain_s: float,
        stop_within_s: float,
        hang_s: float,
        all_answer: Callable[[], None],
    ) -> None:
        self._workers = [Worker(number, listener) for number, listener in enumerate(listeners, 1)]
        self._work = work
        self._drain_s = drain_s
        self._stop_within_s = stop_within_s
        self._check_every_us = int(hang_s * US_PER_SECOND) // _MISSED_BEATS
        self._next_check_us = SYSTEM_CLOCK.now_us() + self._check_every_us
        self._all_answer = all_answer
        self._announced = False
        self._stopped_by: signal.Signals | None = None
        """The signal that was sent to the workers to stop them."""

        self._kill_at_us: int | None = None
        """When workers that do not stop are killed; None before they are stopped."""

        self._all_well = True
        self._restarts = 0
        self._counts = SharedCounts(len(listeners))
        self._lifeline, self._life = os.pipe()
        self._ready_reader, self._ready_writer = os.pipe()
        self._signals, self._signalled = socket.socketpair()

    def counts(self) -> WorkerCounts:
        """How many workers answer and how often one was restarted; the same in every process."""
        return self._counts.read()

    def run(self) -> bool:
        """Run the workers until a signal stops them and all have ended; return whether all ended well."""
        for end in (self._signals, self._signalled):
            end.setblocking(False)
        os.set_blocking(self._ready_reader, False)
        signal.set_wakeup_fd(self._signalled.fileno())
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)  # the wakeup descriptor reports which one
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # one may have arrived while this process started
        gc.collect()
        gc.freeze()  # keeps present objects shared: a worker's collector does not write to them
        while True:
            self._reap()
            if self._kill_at_us is None:
                self._start_due()
                self._check_workers()
            elif not any(worker.pid for worker in self._workers):
                return self._all_well
            self._write_counts()
            self._sleep()

    def _sleep(self) -> None:
        """Sleep until something happens, and react to it."""
        signals = self._signals.fileno()
        readable, _, _ = select.select([signals, self._ready_reader], [], [], self._sleep_s())
        if signals in readable:
            for number in self._signals.recv(4096):
                self._on_signal(number)
        if self._ready_reader in readable:
            self._on_ready(os.read(self._ready_reader, 4096))
        if self._kill_at_us is not None and SYSTEM_CLOCK.now_us() >= self._kill_at_us:
            log.error("not all workers have ended in their time: they are killed")
            self._kill()

    def _sleep_s(self) -> float | None:
        """The seconds until something is due; None where nothing is."""
        due_times = [worker.due_us for worker in self._workers if worker.due_us is not None]
        due_times += [worker.kill_at_us for worker in self._workers if worker.kill_at_us is not None]
        if self._check_every_us:
            due_times.append(self._next_check_us)
        if self._kill_at_us is not None:
            due_times = [self._kill_at_us]
        if not due_times:
            return None
        return max(0, min(due_times) - SYSTEM_CLOCK.now_us()) / US_PER_SECOND

    def _check_workers(self) -> None:
        """Count missed heartbeats, and end workers that hang."""
        now_us = SYSTEM_CLOCK.now_us()
        for worker in self._workers:
            if worker.pid and worker.kill_at_us is not None and worker.kill_at_us <= now_us:
                worker.kill_at_us = None
                os.kill(worker.pid, signal.SIGKILL)
        if not self._check_every_us or now_us < self._next_check_us:
            return
        self._next_check_us = now_us + self._check_every_us
        for worker in self._workers:
            beats = self._counts.beats(worker.number)
            worker.missed_beats = worker.missed_beats + 1 if beats == worker.beats else 0
            worker.beats = beats
            allowed = _MISSED_BEATS if worker.answers else _MISSED_BEATS * _TIMES_LONGER_TO_START
            if worker.pid and worker.missed_beats == allowed:
                self._replace(worker, allowed * self._check_every_us)

    def _replace(self, worker: Worker, silent_us: int) -> None:
        log.error(
            "worker %d (pid %d) has not moved for %g s: it is replaced",
            worker.number, worker.pid, silent_us / US_PER_SECOND,
        )  # fmt: skip
        worker.answers = False
        worker.kill_at_us = SYSTEM_CLOCK.now_us() + _KILL_AFTER_US
        os.kill(worker.pid, signal.SIGTERM)

    def _on_ready(self, numbers: bytes) -> None:
        for worker in self._workers:
            if worker.number in numbers and worker.pid:
                worker.answers = True
                worker.is_to_reload = False
        if not self._announced and self._kill_at_us is None and all(worker.answers for worker in self._workers):
            self._announced = True
            self._all_answer()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            for worker in self._workers:
                worker.is_to_reload = not worker.answers  # its next process would miss it
            self._send(number)
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._stop(number)

    def _stop(self, number: int) -> None:
        """Stop the workers: by SIGTERM with a drain, then by SIGINT without one, then by SIGKILL.

        A worker may get the first two several times: a terminal or an init system signals all processes.
        """
        if number == signal.SIGINT and self._stopped_by == signal.SIGINT:
            self._kill()
            return
        for worker in self._workers:  # from now on the port is open as long as the workers hold it
            worker.listener.close()
        self._stopped_by = signal.SIGTERM if number == signal.SIGTERM and self._stopped_by is None else signal.SIGINT
        drain_s = self._drain_s if self._stopped_by == signal.SIGTERM else 0.0
        self._kill_at_us = SYSTEM_CLOCK.now_us() + int((drain_s + self._stop_within_s) * US_PER_SECOND)
        self._send(self._stopped_by)

    def _send(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)

    def _kill(self) -> None:
        self._send(signal.SIGKILL)
        self._kill_at_us = SYSTEM_CLOCK.now_us() + int(self._stop_within_s * US_PER_SECOND)

    def _reap(self) -> None:
        """Handle all workers that have ended."""
        for worker in self._workers:
            if not worker.pid:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                self._on_end(worker, os.waitstatus_to_exitcode(status))

    def _on_end(self, worker: Worker, code: int) -> None:
        name = f"worker {worker.number} (pid {worker.pid}) {how_ended(code)}"
        worker.pid = 0
        worker.answers = False
        worker.kill_at_us = None
        if self._kill_at_us is not None:
            if code not in _ENDED_WELL:
                self._all_well = False
                log.error("%s", name)
            return
        delay_us = worker.count_death()
        worker.due_us = SYSTEM_CLOCK.now_us() + delay_us
        if delay_us:
            log.error("%s; it is started again in %g s", name, delay_us / US_PER_SECOND)
        elif self._start(worker):
            log.error("%s; started again as pid %d", name, worker.pid)
        else:
            log.error("%s", name)

    def _start_due(self) -> None:
        for worker in self._workers:
            again = worker.deaths > 0
            if worker.due_us is not None and worker.due_us <= SYSTEM_CLOCK.now_us() and self._start(worker) and again:
                log.info("worker %d started again as pid %d", worker.number, worker.pid)

    def _start(self, worker: Worker) -> bool:
        """Fork a worker; return whether the system allowed it."""
        worker.started_us = SYSTEM_CLOCK.now_us()
        try:
            worker.pid = self._fork(worker)
        except OSError as error:
            delay_us = max(worker.count_death(), FIRST_DELAY_US)
            worker.due_us = worker.started_us + delay_us
            log.error("worker %d cannot be started: %s; again in %g s", worker.number, error, delay_us / US_PER_SECOND)
            return False
        worker.due_us = None
        worker.missed_beats = 0
        if worker.is_to_reload:
            os.kill(worker.pid, signal.SIGHUP)
        self._restarts += worker.deaths > 0
        return True

    def _fork(self, worker: Worker) -> int:
        # A signal for the child must not meet the parent's handlers there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._run_worker(worker)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def _run_worker(self, worker: Worker) -> NoReturn:
        """Run a worker in the child process, and exit; never return to the parent's code."""
        code = 1
        try:
            self._release_parent(worker)
            self._work(SupervisorLink(worker.number, worker.listener, self._lifeline, self._ready_writer, self._counts))
            code = 0
        except (HeadgateError, OSError) as error:
            log.error("%s", error)
        except BaseException:
            log.exception("unexpected")
        finally:
            os._exit(code)

    def _release_parent(self, worker: Worker) -> None:
        """Release what only the parent uses: its signal handlers, its ends of the pipes, the other workers' sockets."""
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        defer_reloads()  # until there is a policy to reload
        os.close(self._life)
        os.close(self._ready_reader)
        self._signals.close()
        self._signalled.close()
        for other in self._workers:
            if other is not worker:
                other.listener.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(_SIGNALS) - {signal.SIGHUP})
        log.addFilter(lambda record: _prefix_message(record, f"worker {worker.number}"))

    def _write_counts(self) -> None:
        answering = sum(worker.answers for worker in self._workers)
        self._counts.write(WorkerCounts(answering, self._restarts))


def _prefix_message(record: logging.LogRecord, name: str) -> bool:
    record.msg = f"{name}: {record.msg}"
    return True
