"""One waiting line for the callers of all processes of a host that wait for a key in a zone."""

from __future__ import annotations

import asyncio
import ctypes
import json
import mmap
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from programs import results_of

from headgate import AsyncLimiter, Limiter, SharedStore
from headgate.decision import OnStoreError, name_limits
from headgate.errors import StoreTimeout
from headgate.stores.guard.store import GuardedStore
from headgate.stores.lines import Ticket
from headgate.waiting.freed import freed_places
from subjects import KINDS
from until import in_thread, until, until_async

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif("shared" not in KINDS, reason="the shared store needs the native core"),
]
HERE = Path(__file__).parent
LONG_S = 60
SIZE = 1 << 20
COLOURS = ["threads", "tasks"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "zone"


def limiters(path: Path, limits: str, count: int = 2) -> list[Limiter]:
    """Return `count` limiters, each with a store of its own as in another process."""
    return [Limiter(limits, store=SharedStore(path, size=SIZE), name="jobs") for _ in range(count)]


def in_line(limiter: Limiter | AsyncLimiter, key: str = "key") -> int:
    """Return how many callers of all processes wait in the line of the key."""
    line: Any = limiter.bound.line
    number: int = line._lines.waiting(line.place((key,)).keys[0])
    return number


@contextmanager
def process(code: str, path: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has a `limiter` on the zone and runs this code; it is killed at the end of the block."""
    head = (
        "import sys, threading, time, os\n"
        "from headgate import Limiter, SharedStore\n"
        "limiter = Limiter(sys.argv[2], store=SharedStore(sys.argv[1]), name='jobs')\n"
    )
    command = [sys.executable, "-c", head + code, str(path), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


WAIT = f"held = limiter.acquire('key', timeout={LONG_S}, lease={LONG_S})\nprint(bool(held), flush=True)\n"


def test_a_place_freed_by_one_process_calls_the_caller_of_another_at_once(path: Path) -> None:
    first, second = limiters(path, "1 concurrent; 9000/hour")
    for _ in range(3):
        held = first.reserve("key", lease=LONG_S)
        with in_thread(lambda: second.acquire("key", timeout=LONG_S, lease=LONG_S)) as acquired:
            until(lambda: in_line(first) == 1)
            first.commit(held.id)
        assert acquired[0] and in_line(first) == 0
        acquired[0].commit()


@pytest.mark.parametrize("how", ["cancelled", "settled by id", "reset", "forgotten", "cleared"])
def test_whatever_frees_a_place_calls_the_first_caller(path: Path, how: str) -> None:
    [limiter] = limiters(path, "1 concurrent", 1)
    held = limiter.reserve("key", lease=LONG_S)
    store: Any = limiter.store
    frees = {
        "cancelled": held.cancel,
        "settled by id": lambda: limiter.commit(held.id, 0),
        "reset": lambda: limiter.reset("key"),
        "forgotten": lambda: store.forget("key"),
        "cleared": store.clear,
    }
    with process(WAIT, path, "1 concurrent") as child:
        until(lambda: in_line(limiter) == 1)
        frees[how]()
        assert child.stdout is not None and child.stdout.readline() == "True\n"
    until(lambda: in_line(limiter) == 0)


def test_a_lease_that_ends_calls_the_first_caller(path: Path) -> None:
    [limiter] = limiters(path, "1 concurrent", 1)
    start = time.monotonic()
    assert limiter.reserve("key", lease=0.5)
    assert limiter.acquire("key", timeout=LONG_S, lease=LONG_S)
    assert 0.4 < time.monotonic() - start < 20


def test_a_caller_does_not_pass_those_of_other_processes_but_hits_do(path: Path) -> None:
    first, second = limiters(path, "2 concurrent; 9000/hour")
    held = first.reserve("key", lease=LONG_S)
    with in_thread(lambda: first.acquire("key", 2, timeout=LONG_S, lease=LONG_S)) as big:
        until(lambda: in_line(first) == 1)
        with in_thread(lambda: second.acquire("key", 1, timeout=LONG_S, lease=LONG_S)) as small:
            until(lambda: in_line(first) == 2)
            assert second.reserve("key", lease=1).cancel().outcome == "settled"  # a place is free: it does not wait
            assert second.peek("key").allowed and not small
            assert second.acquire("another key", 2, timeout=0, lease=LONG_S)
            held.commit()
            until(lambda: big)
            assert not small
            big[0].commit()
        assert small[0]


def test_a_repeated_request_for_a_hold_that_exists_does_not_wait(path: Path) -> None:
    first, second = limiters(path, "1 concurrent")
    held = first.acquire("key", lease=LONG_S, id="mine")
    with in_thread(lambda: first.acquire("key", timeout=LONG_S, lease=LONG_S)) as acquired:
        until(lambda: in_line(first) == 1)
        for limiter in (first, second):
            again = limiter.acquire("key", timeout=LONG_S, lease=LONG_S, id="mine")
            assert again.repeated and again.id == held.id
        held.commit()
    assert acquired[0]


def test_a_caller_whose_turn_comes_too_late_because_of_others_in_line_is_refused_at_once(path: Path) -> None:
    first, second = limiters(path, "30/minute bucket")
    first.hit("key", 30)
    with in_thread(lambda: first.acquire("key", 2, timeout=LONG_S)):
        until(lambda: in_line(first) == 1)
        late = second.acquire("key", 1, timeout=4.5)
        assert not late and late.retry_after is not None and 4.5 < late.retry_after <= 6
        assert in_line(first) == 1


@pytest.mark.parametrize("limits", ["3 concurrent; 1000000/day fixed", "300/second bucket; 1000000/day fixed"])
def test_callers_of_several_processes_pass_in_the_order_of_their_arrival(path: Path, limits: str) -> None:
    url = f"shared://{path}?size=1MiB"
    [limiter] = limiters(path, limits, 1)
    limiter = Limiter(limits, store=limiter.store, name="line")
    held = limiter.reserve("key", min(limit.quota for limit in limiter.limits), lease=4)
    limiter.commit(held.id) if "bucket" in limits else None
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / "line_callers.py", url, limits, colour, "0", "1.0", str(number), "12", "12"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, colour in enumerate(["sync", "async", "sync", "async"])
    ]
    try:
        until(lambda: in_line(limiter) > 5)
        time.sleep(0.3)
        processes[0].kill()  # while its callers are in line, in any state
        rows = [row for process in processes for row in process.communicate(timeout=120)[0].split("\n")]
        # The last row of the killed process may be cut off.
        passing = [json.loads(row) for row in rows if row.endswith("]")]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes[1:]] == [0, 0, 0]
    passed = sorted(passing, key=lambda each: -each[1])  # what remains of a fixed window shows the order of admission
    orders = [order for order, _, _ in passed if order]
    assert len(orders) > 50
    assert orders == sorted(orders), "no caller passed one that arrived before it"
    assert len({cost for _, _, cost in passed}) == 3
    until(lambda: in_line(limiter) == 0)


def test_callers_behind_processes_that_were_killed_get_their_turns(path: Path) -> None:
    [limiter] = limiters(path, "1 concurrent", 1)
    held = limiter.reserve("key", lease=LONG_S)
    many = "for _ in range(4): threading.Thread(target=lambda: limiter.acquire('key', lease=9)).start()\n"
    with process(many, path, "1 concurrent") as first, process(many, path, "1 concurrent") as second:
        until(lambda: in_line(limiter) == 8)
        with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as acquired:
            until(lambda: in_line(limiter) == 9)
            first.kill()
            second.kill()
            first.wait()
            held.commit()
        assert acquired[0] and in_line(limiter) == 0


def test_callers_of_a_process_that_was_stopped_join_again_behind_all_others(path: Path) -> None:
    [limiter] = limiters(path, "1 concurrent", 1)
    held = limiter.reserve("key", lease=LONG_S)
    with process(WAIT, path, "1 concurrent") as stopped:
        until(lambda: in_line(limiter) == 1)
        stopped.send_signal(signal.SIGSTOP)
        with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as acquired:
            until(lambda: in_line(limiter) == 2)
            until(lambda: in_line(limiter) == 1)  # after 10 s without a sign of the stopped process
            stopped.send_signal(signal.SIGCONT)
            until(lambda: in_line(limiter) == 2)
            held.commit()
        assert acquired[0].commit().outcome == "settled"
        assert stopped.stdout is not None and stopped.stdout.readline() == "True\n"


@pytest.mark.parametrize("colour", COLOURS)
def test_a_caller_that_gives_up_leaves_the_line_and_the_next_is_called(path: Path, colour: str) -> None:
    first, second = limiters(path, "2 concurrent")
    held = first.reserve("key", 1, lease=LONG_S)
    if colour == "threads":
        with in_thread(lambda: first.acquire("key", 2, timeout=1.0, lease=LONG_S)) as big:
            until(lambda: in_line(first) == 1)
            with in_thread(lambda: second.acquire("key", 1, timeout=LONG_S, lease=LONG_S)) as small:
                pass
            assert small[0]  # although nothing was freed
        assert not big[0] and in_line(first) == 0
        return

    async def main() -> None:
        async_limiter = AsyncLimiter("2 concurrent", store=SharedStore(path), name="jobs")
        tasks = [asyncio.create_task(acquire(async_limiter, 2)) for _ in range(20)]
        await until_async(lambda: in_line(first) == 20)
        last = asyncio.create_task(acquire(async_limiter, 1))
        await until_async(lambda: in_line(first) == 21)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await last
        assert in_line(first) == 0
        held.commit()

    asyncio.run(main())


async def acquire(limiter: AsyncLimiter, cost: int) -> Any:
    return await limiter.acquire("key", cost, timeout=LONG_S, lease=LONG_S)


def test_an_interrupted_caller_leaves_the_line(path: Path) -> None:
    [limiter] = limiters(path, "1 concurrent", 1)
    held = limiter.reserve("key", lease=LONG_S)
    with process(WAIT, path, "1 concurrent") as interrupted:
        until(lambda: in_line(limiter) == 1)
        with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as acquired:
            until(lambda: in_line(limiter) == 2)
            interrupted.send_signal(signal.SIGINT)
            assert interrupted.wait(30) not in (0, None)
            assert in_line(limiter) == 1
            held.commit()
        assert acquired[0]


def test_a_child_of_a_fork_waits_with_tickets_of_its_own(path: Path) -> None:
    [limiter] = limiters(path, "1 concurrent", 1)
    held = limiter.reserve("key", lease=LONG_S)
    code = """
waiting = threading.Thread(target=lambda: print("parent", bool(limiter.acquire("key", lease=1)), flush=True))
waiting.start()
while not limiter.store.unguarded._turns.entries: time.sleep(0.01)
time.sleep(0.1)
if os.fork() == 0:
    print("child", bool(limiter.acquire("key", lease=1)), flush=True)
    os._exit(0)
waiting.join()
os.wait()
"""
    with process(code, path, "1 concurrent") as forking:
        until(lambda: in_line(limiter) == 2)
        held.commit()
        printed = forking.communicate(timeout=60)[0].split("\n")
    assert printed == ["parent True", "child True", ""]
    assert in_line(limiter) == 0


def test_threads_of_a_child_that_join_at_once_get_a_ticket_each(path: Path) -> None:
    code = """
from headgate.stores.lines import Ticket
sys.setswitchinterval(1e-6)
turns = limiter.store.unguarded._turns
lost = 0
for _ in range(100):
    pid = os.fork()
    if pid == 0:
        tickets = [Ticket((1,)) for _ in range(8)]
        at_once = threading.Barrier(len(tickets))
        threads = [threading.Thread(target=lambda t=t: (at_once.wait(), turns.add(t))) for t in tickets]
        for thread in threads: thread.start()
        for thread in threads: thread.join(30)
        os._exit(len({ticket.number for ticket in tickets}) != 8 or len(turns._tickets) != 8)
    lost += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(lost)
"""
    with process(code, path, "1 concurrent") as forking:
        assert forking.communicate(timeout=60) == ("0\n", "")


def test_a_zone_too_full_for_another_ticket_refuses_and_logs_it(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SharedStore(path, size=128 << 10)
    most = store.info()["max_waiters"]
    limiter = Limiter("1 concurrent", store=store, name="jobs")
    held = limiter.reserve("key", lease=LONG_S)

    async def main() -> None:
        async_limiter = AsyncLimiter("1 concurrent", store=SharedStore(path), name="jobs")
        tasks = [asyncio.create_task(acquire(async_limiter, 1)) for _ in range(most)]
        await until_async(lambda: in_line(limiter) == most)
        for _ in range(2):
            assert not limiter.acquire("key", timeout=LONG_S, lease=LONG_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    [logged] = [record.getMessage() for record in caplog.records if "callers wait already" in record.getMessage()]
    assert f": {most} callers wait already, which is all that a zone of this size has room for" in logged
    held.commit()
    assert limiter.acquire("key", timeout=LONG_S, lease=LONG_S)


def test_more_processes_than_a_zone_has_room_for_are_refused_until_one_leaves(path: Path) -> None:
    stores = [SharedStore(path, size=128 << 10) for _ in range(9)]
    lines = stores[0]._zone.lines
    assert lines.most_processes == 8
    limiter = Limiter("1 concurrent", store=stores[-1], name="jobs")
    held = limiter.reserve("key", lease=LONG_S)

    async def main() -> None:
        others = [AsyncLimiter("1 concurrent", store=store, name="jobs") for store in stores[:-1]]
        tasks = [asyncio.create_task(acquire(async_limiter, 1)) for async_limiter in others]
        await until_async(lambda: in_line(limiter) == 8)
        assert not limiter.acquire("key", timeout=LONG_S, lease=LONG_S)
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        last = AsyncLimiter("1 concurrent", store=stores[-1], name="jobs")
        is_in_line = None
        while not is_in_line:
            waiting_task = asyncio.create_task(acquire(last, 1))
            await asyncio.sleep(0.2)
            is_in_line = not waiting_task.done()
        held.commit()
        for task in (*tasks[1:], waiting_task):
            await (await task).commit()

    asyncio.run(main())


def test_callers_with_more_costs_than_a_ticket_has_room_for_wait_in_their_process(path: Path) -> None:
    store = SharedStore(path, size=SIZE)
    many = name_limits(Limiter("9/hour").limits * 6, scope="s", name="n")
    spread = [replace(limit, group=number) for number, limit in enumerate(many)]
    assert store.bind(spread[:5]).line is not None  # type: ignore[attr-defined]
    assert store.bind(spread).line is None  # type: ignore[attr-defined]


@pytest.fixture
def held_lock(path: Path) -> Iterator[SharedStore]:
    """A store whose lock of the lines is held by a thread, as by a process that was stopped inside it."""
    store = SharedStore(path, size=SIZE)
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), SIZE)
    view = ctypes.c_char.from_buffer(memory)
    lock = ctypes.c_void_p(ctypes.addressof(view) + SIZE - SIZE // 64)
    libc = ctypes.CDLL(None)
    assert libc.pthread_mutex_trylock(lock) == 0
    yield store
    assert libc.pthread_mutex_unlock(lock) == 0


@pytest.mark.parametrize("by", ["a guard", "the limiter", "a middleware"])
def test_a_guarded_caller_waits_in_its_process_where_the_lines_are_unavailable(held_lock: SharedStore, by: str) -> None:
    store = GuardedStore(held_lock, on_error="local") if by == "a guard" else held_lock
    choice: OnStoreError | None = "local" if by == "the limiter" else None
    limiter = Limiter("1 concurrent; 9/hour", store=store, name="jobs", on_store_error=choice)
    if by == "a middleware":
        limiter = limiter.with_on_store_error("local")
    held = limiter.reserve("key", lease=LONG_S)
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as acquired:
        until(lambda: freed_places(limiter.store))
        assert limiter.commit(held.id).outcome == "settled"  # the lines that are unavailable do not delay it
    assert acquired[0] and acquired[0].decision.degraded == ""


def test_a_caller_without_a_guard_gets_an_error_where_the_lines_are_unavailable(held_lock: SharedStore) -> None:
    limiter = Limiter("1 concurrent", store=held_lock, name="jobs")
    limiter.reserve("key", lease=LONG_S)
    with pytest.raises(StoreTimeout, match="a part of the shared zone is held by thread"):
        limiter.acquire("key", timeout=LONG_S, lease=LONG_S)


def test_a_ticket_whose_caller_could_not_leave_is_taken_out(path: Path) -> None:
    first, second = limiters(path, "1 concurrent")
    held = first.reserve("key", lease=LONG_S)
    line: Any = first.bound.line
    lost = Ticket((1,))
    line.turns.add(lost)
    line.join(line.place(("key",)), lost, 0, b"")
    line.turns.remove(lost)  # as where an interrupt arrives before it can leave
    with in_thread(lambda: second.acquire("key", timeout=LONG_S, lease=LONG_S)) as acquired:
        held.commit()
    assert acquired[0] and in_line(first) == 0


def test_a_greenlet_that_waits_holds_up_no_other_of_its_process(path: Path) -> None:
    code = """
import gevent.monkey
gevent.monkey.patch_all()
import gevent, sys
from headgate import Limiter, SharedStore
limiter = Limiter("1 concurrent", store=SharedStore(sys.argv[1]), name="jobs")
held = limiter.reserve("key", lease=60)
waiting = [gevent.spawn(limiter.acquire, "key", timeout=60, lease=60) for _ in range(2)]
while len(limiter.store._turns.entries) < 2: gevent.sleep(0.01)
held.commit()
for each in waiting: each.get().commit()
last = limiter.reserve("key", lease=60)
gevent.spawn(limiter.acquire, "key", timeout=60, lease=60)
while not limiter.store._turns.entries: gevent.sleep(0.01)
print("ends")
"""
    completed = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=False
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "ends\n", "")


def test_a_process_that_ends_while_its_threads_wait_prints_nothing(path: Path) -> None:
    [limiter] = limiters(path, "1 concurrent", 1)
    limiter.reserve("key", lease=LONG_S)
    code = """
threading.Thread(target=lambda: limiter.acquire("key", lease=9), daemon=True).start()
while not limiter.store._turns.entries: time.sleep(0.01)
"""
    with process(code, path, "1 concurrent") as ending:
        assert ending.communicate(timeout=60) == ("", "")
    assert ending.returncode == 0
    until(lambda: not limiter.bound.line.is_waited_for(limiter.bound.line.place(("key",))))


def test_a_process_killed_at_any_change_of_the_lines_leaves_each_caller_wholly_in_line_or_out_of_it() -> None:
    results = results_of("line_killer.py")
    assert len(results) == 8
    for result in results:
        assert result["same"] or (result["before"] and result["after"]), result
    assert sum(result["deaths"] for result in results) > 100


def test_a_caller_whose_event_loop_was_closed_holds_up_no_line(path: Path) -> None:
    first, second = limiters(path, "1 concurrent")
    held = first.reserve("key", lease=LONG_S)
    loop = asyncio.new_event_loop()
    closed = AsyncLimiter("1 concurrent", store=SharedStore(path), name="jobs")
    task = loop.create_task(acquire(closed, 1))
    loop.run_until_complete(until_async(lambda: in_line(first) == 1))
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    with in_thread(lambda: second.acquire("key", timeout=LONG_S, lease=LONG_S)) as acquired:
        until(lambda: in_line(first) == 2)
        held.commit()
    assert acquired[0] and not task.done()


def test_a_caller_that_gave_up_behind_others_delays_no_later_caller(path: Path) -> None:
    first, second = limiters(path, "30/minute bucket")
    first.hit("key", 30)

    async def main() -> None:
        async_limiter = AsyncLimiter("30/minute bucket", store=first.store, name="jobs")
        one = asyncio.create_task(async_limiter.acquire("key", 1, timeout=LONG_S))
        await until_async(lambda: in_line(first) == 1)
        big = asyncio.create_task(async_limiter.acquire("key", 20, timeout=LONG_S))
        await until_async(lambda: in_line(first) == 2)
        big.cancel()
        await asyncio.gather(big, return_exceptions=True)
        behind = asyncio.create_task(async_limiter.acquire("key", 1, timeout=30))
        await until_async(lambda: in_line(first) == 2)
        assert not second.acquire("key", 1, timeout=5)
        for task in (one, behind):
            task.cancel()
        await asyncio.gather(one, behind, return_exceptions=True)

    asyncio.run(main())
    assert in_line(first) == 0
