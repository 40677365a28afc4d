"""A child process holds no lock of its parent's threads, and gets no limiter of its parent."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
from pathlib import Path

import pytest

from headgate import AsyncLimiter, Gate, Limiter, MemoryStore, SharedStore
from headgate.forks import ProcessLock
from headgate.llm import LlmGate
from headgate.stores.url import open_store

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


RULE = {"name": "all", "by": ["ip"], "limits": "1/hour"}
POLICY = {"version": 1, "llm": {}, "rules": [RULE]}


def test_what_belongs_to_one_process_says_so_where_it_is_pickled_or_deep_copied(tmp_path: Path) -> None:
    zone = SharedStore(tmp_path / "zone")
    limiter = Limiter("1/hour")
    things = [limiter, AsyncLimiter("1/hour", store=zone), Gate(POLICY), LlmGate(POLICY)]
    for thing in (*things, MemoryStore(), MemoryStore(core="python"), zone, open_store("redis://127.0.0.1:1/0")):
        for send in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=rf"^{type(thing).__name__} belongs to one process .* make one in each"):
                send(thing)
    process = multiprocessing.get_context("spawn").Process(target=print, args=(limiter,))
    with pytest.raises(TypeError, match=r"^Limiter belongs to one process and cannot be pickled"):
        process.start()


def test_a_plain_copy_of_a_limiter_counts_in_the_same_store() -> None:
    limiter = Limiter("1/hour")
    assert copy.copy(limiter).hit("user:42")
    assert not limiter.hit("user:42")


class SentAsText(Limiter):
    """A subclass that says itself how it is made in another process."""

    def __reduce__(self) -> tuple[type[SentAsText], tuple[str]]:
        return SentAsText, (str(self.limits[0]),)


def test_a_subclass_may_be_pickled_in_its_own_way() -> None:
    assert pickle.loads(pickle.dumps(SentAsText("1/hour"))).hit("user:42")
