"""A child process holds no lock of its parent's threads."""

from __future__ import annotations

import os
import threading

import pytest

from headgate.forks import ProcessLock

CHILD_WITHIN_S = 10


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_lock_that_a_thread_of_the_parent_has_is_free_in_a_child() -> None:
    lock, held, done = ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.current:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        taking = threading.Thread(target=lock.current.acquire, daemon=True)
        taking.start()
        taking.join(CHILD_WITHIN_S)
        os._exit(taking.is_alive())
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with lock.current:
        assert not lock.current.acquire(blocking=False)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_was_forked_under_a_lock_releases_it() -> None:
    lock = ProcessLock()
    child = 0
    with lock.current:
        child = os.fork()
    if not child:
        os._exit(not lock.current.acquire(blocking=False))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
