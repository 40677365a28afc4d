"""Sleeping on event loops: never too short, in order, on asyncio's loop and uvloop, and nothing is left open."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headgate.waiting import loop_timer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have the loop's own timers only")

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LOOPS: dict[str, Run] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


def timers() -> int:
    """How many timers of the system this process has open."""
    names = []
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing
            names.append(str(file.readlink()))
    return names.count("anon_inode:[timerfd]")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return LOOPS[request.param]


def test_nobody_wakes_before_its_time_and_one_timer_serves_all(run: Run) -> None:
    woken: list[int] = []

    async def sleeper(ms: int) -> None:
        start = time.monotonic()
        await loop_timer.sleep(ms / 1000)
        assert time.monotonic() - start >= ms / 1000
        woken.append(ms)

    async def main() -> None:
        tasks = [asyncio.create_task(sleeper(ms)) for ms in (90, 30, 60, 1, 30, 120)]
        await asyncio.sleep(0.01)
        assert timers() == 1
        await asyncio.gather(*tasks)
        assert timers() == 0

    run(main())
    assert woken == sorted(woken) and len(woken) == 6


def test_who_is_cancelled_holds_up_no_other(run: Run) -> None:
    async def main() -> None:
        first, *others = (asyncio.create_task(loop_timer.sleep(s)) for s in (0.01, 0.05, 0.9, 0.9))
        await asyncio.sleep(0)
        first.cancel()
        others[-1].cancel()
        await others[0]
        assert not others[1].done() and timers() == 1
        others[1].cancel()
        await asyncio.gather(first, *others, return_exceptions=True)
        assert timers() == 0

    run(main())


@pytest.mark.parametrize("seconds", [0, 1e-12, 1, 1.5])
def test_nothing_is_opened_for_what_needs_no_exact_timer(run: Run, seconds: float) -> None:
    async def main() -> None:
        sleeping = asyncio.create_task(loop_timer.sleep(seconds))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert timers() == 0
        sleeping.cancel()

    run(main())


def test_where_no_timer_can_be_had_the_loop_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """A system that has no files left."""

        def timerfd_create(self, *_: int) -> int:
            return -1

    def refuse(*_: Any) -> None:
        raise NotImplementedError

    async def main() -> None:
        start = time.monotonic()
        for system in (None, Full(), loop_timer._SYSTEM):
            monkeypatch.setattr(loop_timer, "_SYSTEM", system)
            await loop_timer.sleep(0.01)
            monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
        assert time.monotonic() - start >= 0.03
        assert timers() == 0

    asyncio.run(main())


def test_a_loop_that_is_closed_with_sleepers_leaves_nothing_open() -> None:
    loop = asyncio.new_event_loop()
    sleeping = loop.create_task(loop_timer.sleep(0.9))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    assert timers() == 1
    sleeping._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del loop, sleeping
    gc.collect()
    assert timers() == 0
