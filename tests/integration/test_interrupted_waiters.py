"""A caller in line in which the handler of a signal raises, wherever Python would run it: the line works without it.

The time limit of a Celery task interrupts a caller so, and an alarm. A function for profiling is called where handlers
are: as a function of Python begins, and after each function of C.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import headgate
from headgate import Gate, Limiter, MemoryStore, Request, Reservation, heartbeat
from headgate.made_once import made_once
from headgate.stores.protocol import Store
from headgate.stores.shared.store import SharedStore

PACKAGE_FOLDER = str(Path(headgate.__file__).parent)
TIMEOUT_S = 10.0


class TimeLimit(Exception):
    """An Exception that the handler raises, as that of the soft limit of Celery."""


class Alarm(BaseException):
    """A BaseException that another handler raises."""


def interrupted(number: int, error: type[BaseException], call: Callable[[], object]) -> bool:
    """Interrupt a call at point `number`; return False where it ended before that point."""
    points = 0

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        nonlocal points
        code = frame.f_code
        if (
            event in ("call", "c_return")
            and code.co_filename.startswith(PACKAGE_FOLDER)
            and code.co_name != "<genexpr>"
        ):
            points += 1
            if points == number:
                sys.setprofile(None)
                raise error

    sys.setprofile(interrupt)
    try:
        call()
    except error:
        return True
    finally:
        sys.setprofile(None)
    assert points < number, "what the handler raised was lost"
    return False


def interrupted_in_line(
    number: int, error: type[BaseException], line_up: Callable[[], object], call: Callable[[], object]
) -> bool:
    """Interrupt a call that has to wait after `line_up`; return False where it ended before point `number`.

    It is repeated where it ended before: on a busy machine it may begin so late that it need not wait, and then it has
    fewer points.
    """
    for _ in range(5):
        line_up()
        if interrupted(number, error, call):
            return True
    return False


def passes_for_others(acquire: Callable[[], Any]) -> bool:
    """Return whether another thread passes that waits in the same line."""
    passed: list[bool] = []
    other = threading.Thread(target=lambda: passed.append(bool(acquire())), daemon=True)
    other.start()
    other.join(TIMEOUT_S)
    return passed == [True]


def until_refused(hit: Callable[[Any], Any], key: object) -> None:
    """Use up a limit."""
    while hit(key):
        pass


def line_is_empty(limiter: Limiter) -> bool:
    """Return whether no caller of a limiter is in any line of this process."""
    lines = limiter._lines
    return not (lines._shared.waiting or lines._shared.by_key or lines._in_store.waiting or lines._freed_keys)


@pytest.fixture(params=["native", "python", "zone"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = (
        SharedStore(tmp_path / "zone", size=16 << 20) if request.param == "zone" else MemoryStore(core=request.param)
    )
    yield opened
    opened.close()


@pytest.mark.parametrize("error", [TimeLimit, Alarm])
def test_a_caller_that_is_interrupted_anywhere_leaves_the_line_of_a_rate(
    store: Store, error: type[BaseException]
) -> None:
    limiter = Limiter("1/2 ms bucket", store=store)
    for number in count(1):
        key = f"key {number}"
        acquire = partial(limiter.acquire, key, timeout=TIMEOUT_S)
        was_interrupted = interrupted_in_line(number, error, partial(until_refused, limiter.hit, key), acquire)
        assert line_is_empty(limiter), number
        assert passes_for_others(acquire), number
        if not was_interrupted:
            break
    assert number > 100


@pytest.mark.parametrize("error", [TimeLimit, Alarm])
def test_a_caller_that_is_interrupted_anywhere_leaves_the_line_of_places_and_holds_none(
    request: pytest.FixtureRequest, store: Store, error: type[BaseException]
) -> None:
    limiter = Limiter("1 concurrent", store=store)
    lease = 0.05 if "python" in request.node.name else 600  # there a place may be held until the lease ends
    held: list[Reservation] = []

    def line_up(key: str) -> None:
        while held:
            held.pop().commit()
        threading.Timer(0.002, limiter.acquire(key, timeout=TIMEOUT_S, lease=600).commit).start()

    def hold(acquire: Callable[[], Any]) -> None:
        held.append(acquire())

    for number in count(1):
        key = f"key {number}"
        acquire = partial(limiter.acquire, key, timeout=TIMEOUT_S, lease=lease)
        was_interrupted = interrupted_in_line(number, error, partial(line_up, key), partial(hold, acquire))
        assert line_is_empty(limiter), number
        if not was_interrupted:
            break
        assert passes_for_others(acquire), number
    assert number > 100


@pytest.mark.parametrize("error", [TimeLimit, Alarm])
def test_a_request_that_is_interrupted_anywhere_leaves_the_line_of_its_rule(
    store: Store, error: type[BaseException]
) -> None:
    rule = {"name": "all", "by": ["ip"], "limits": "1/2 ms bucket", "wait": "10s"}
    gate = Gate({"version": 1, "rules": [rule]}, store=store)
    for number in count(1):
        asked = Request(client_ip=f"10.0.{number >> 8}.{number & 255}")
        acquire = partial(gate.acquire, asked)
        was_interrupted = interrupted_in_line(number, error, partial(until_refused, gate.hit, asked), acquire)
        assert (gate._waits.waiting, bool(gate._waits.lines)) == (0, False), number
        assert passes_for_others(acquire), number
        if not was_interrupted:
            break
    assert number > 100


@pytest.mark.parametrize("error", [TimeLimit, Alarm])
@pytest.mark.parametrize("form", ["block", "function", "generator", "wrapped generator"])
def test_the_lease_of_an_interrupted_holder_is_not_extended_any_more(
    store: Store, error: type[BaseException], form: str
) -> None:
    limiter = Limiter("1 concurrent; 1000000/hour bucket", store=store)

    def block(key: str) -> None:
        with limiter.reserve(key, lease=600):
            pass

    @limiter.limit(key=lambda key: key, lease=600)
    def function(key: str) -> None:
        pass

    @limiter.limit(key=lambda key: key, lease=600)
    def generator(key: str) -> Iterator[str]:
        yield key

    @limiter.limit(key=lambda key: key, lease=600)
    @Limiter("1000000/hour", store=store).limit(key="all")
    def wrapped_generator(key: str) -> Iterator[str]:
        yield key

    forms: dict[str, Callable[[str], object]] = {
        "block": block,
        "function": function,
        "generator": lambda key: list(generator(key)),
        "wrapped generator": lambda key: list(wrapped_generator(key)),
    }
    for number in count(1):
        was_interrupted = interrupted(number, error, partial(forms[form], f"key {number}"))
        assert not heartbeat._threads[0]._schedule._running, number
        if not was_interrupted:
            break
    assert number > 10


@pytest.mark.parametrize("error", [TimeLimit, Alarm])
def test_no_lock_of_a_process_is_held_by_a_thread_that_was_interrupted(error: type[BaseException]) -> None:
    for number in count(1):
        create_once: Callable[[], object] = made_once(object)
        was_interrupted = interrupted(number, error, create_once)
        assert passes_for_others(create_once), number
        if not was_interrupted:
            break
    assert number > 2
