"""A value that takes long to make is made by one thread, however many need it at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.algorithms.table import REDIS_FORMS
from headgate.calendars import Calendar
from headgate.made_once import made_once


def test_one_of_many_threads_makes_the_value_and_all_get_it() -> None:
    made: list[str] = []
    begin = threading.Barrier(20)

    @made_once
    def make(name: str) -> list[str]:
        made.append(name)
        return [name] * 1000

    def call(_: int) -> list[str]:
        begin.wait()
        return make("a")

    with ThreadPoolExecutor(20) as pool:
        first, *others = pool.map(call, range(20))
    assert made == ["a"] and all(other is first for other in others)
    assert make("b") == ["b"] * 1000 and made == ["a", "b"]


def test_a_value_is_made_again_after_an_error() -> None:
    tries: list[int] = []

    @made_once
    def make() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not now")
        return 7

    with pytest.raises(OSError, match="not now"):
        make()
    assert make() == make() == 7 and len(tries) == 2


def test_a_value_may_need_another_value_of_the_same_function() -> None:
    @made_once
    def make(number: int) -> int:
        return number if number < 2 else make(number - 1) + make(number - 2)

    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(make(30)), daemon=True)
    thread.start()
    thread.join(60)
    assert found == [832_040]


@pytest.mark.parametrize("algorithm", sorted(REDIS_FORMS))
def test_a_new_process_makes_the_scripts_of_any_limit(algorithm: str) -> None:
    """Whichever limit is its first: the scripts of some algorithms are made of those of others."""
    program = f"from headgate.stores.redis.scripts import one_limit; print(len(one_limit('{algorithm}', 'a').text))"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(process.stdout) > 500


def test_a_process_that_is_forked_while_it_is_made_makes_its_own() -> None:
    inside, go_on = threading.Event(), threading.Event()

    @made_once
    def make(number: int) -> int:
        if number == 0:
            inside.set()
            go_on.wait(60)
        return number

    thread = threading.Thread(target=make, args=(0,))
    thread.start()
    inside.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(make(7))
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_the_calendar_of_a_limit_is_there_before_its_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate import Limiter, calendars

    limiter = Limiter("5/week in Antarctica/Troll")

    def never(*_: object) -> None:
        raise AssertionError("made on the path of a request")

    monkeypatch.setattr(calendars, "_borders", never)
    assert limiter.hit("a") and Calendar("week", "Antarctica/Troll").runs
