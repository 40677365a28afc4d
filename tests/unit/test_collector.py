"""Objects that the garbage collector ends in the middle of a decision, in the thread that has the table's lock."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headgate import Limiter, MemoryStore, collector
from headgate.algorithms.transition import decide
from headgate.integrations.httpx import RateLimitTransport
from headgate.llm import LlmGate
from until import until

POLICY = {
    "version": 1,
    "llm": {"prices": {"m": {"input": "1", "output": "10"}}, "hold": "max"},
    "rules": [{"name": "user", "by": ["user"], "limits": "9000 tokens/day in UTC; 5 concurrent"}],
}
CHUNKS = [{"choices": [{"delta": {"content": "Blue."}}]}, {"choices": [], "usage": {"completion_tokens": 5}}]


class Cycle:
    """A cycle, which only the collector frees, with generators that have begun."""

    def __init__(self, *generators: Iterator[Any]) -> None:
        self.own, self.generators = self, generators
        for generator in generators:
            next(generator)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A store that collects garbage in each decision."""

    def collecting(*args: Any, **kwargs: Any) -> Any:
        gc.collect()
        return decide(*args, **kwargs)

    monkeypatch.setattr("headgate.stores.python_table.decide", collecting)
    return MemoryStore(core="python")


def in_flight(gate: LlmGate) -> int:
    with gate.call("m", user="ann", input_tokens=0, max_tokens=0) as call:
        places = call.decision.limits[-1]
        return places.limit - places.remaining - 1


def test_a_stream_is_settled_by_another_thread(store: MemoryStore) -> None:
    with LlmGate(POLICY, store=store) as gate:

        @gate.limited(model="m", user="ann")
        def stream(max_tokens: int = 100) -> Iterator[Any]:
            yield from CHUNKS

        Cycle(stream())
        until(lambda: in_flight(gate) == 0)


def test_the_generator_of_a_call_is_settled_by_another_thread(store: MemoryStore) -> None:
    with LlmGate(POLICY, store=store) as gate:

        def stream() -> Iterator[Any]:
            with gate.call("m", user="ann", input_tokens=0, max_tokens=100) as call:
                yield from call.stream(iter(CHUNKS))

        Cycle(stream())
        until(lambda: in_flight(gate) == 0)


def test_a_block_and_a_limited_generator_are_settled_by_another_thread(store: MemoryStore) -> None:
    limiter = Limiter("2 concurrent", store=store)

    def holding() -> Iterator[int]:
        with limiter.reserve("key"):
            yield 1

    @limiter.limit(key="key")
    def limited() -> Iterator[int]:
        yield 1

    cycle = Cycle(holding(), limited())
    assert not limiter.peek("key").allowed
    del cycle
    until(lambda: limiter.peek("key", cost=2).allowed)


def test_the_response_of_a_client_is_settled_by_another_thread(store: MemoryStore) -> None:
    limiter = Limiter("1 concurrent", store=store)
    inner = httpx.MockTransport(lambda request: httpx.Response(200, stream=httpx.ByteStream(b"told")))
    with httpx.Client(transport=RateLimitTransport(limiter, transport=inner, key=lambda request: "key")) as client:
        response = client.send(client.build_request("GET", "http://a/"), stream=True)

        def reading() -> Iterator[bytes]:
            try:
                yield b""
            finally:
                response.close()

        cycle = Cycle(reading())
        assert not limiter.peek("key").allowed
        del cycle
        until(lambda: limiter.peek("key").allowed)


def test_a_call_is_made_with_the_next_one_where_no_thread_can_be_started() -> None:
    called: list[int] = []
    former = threading.stack_size(1 << 46)  # more than any machine has
    try:
        collector.call_later(lambda: called.append(1))
    finally:
        threading.stack_size(former)
    collector.call_later(lambda: called.append(2))
    assert not collector.in_collector()
    until(lambda: called == [1, 2])


def test_an_error_of_a_signal_handler_during_a_collection_is_not_lost() -> None:
    program = """
        import gc, signal
        from headgate import collector

        class Told(Exception):
            pass

        def tell(number, frame):
            raise Told(collector.in_collector())

        signal.signal(signal.SIGALRM, tell)
        much = [[] for _ in range(1_000_000)]
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            gc.collect()
            signal.pause()  # where the signal came late
        except Told as told:
            print(told)
        """
    ended = run(program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")


def test_another_thread_is_not_in_the_collector() -> None:
    seen: list[bool] = []

    class Ended:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            other = threading.Thread(target=lambda: seen.append(collector.in_collector()))
            other.start()
            other.join()
            seen.append(collector.in_collector())

    def collect() -> None:
        Ended()
        gc.collect()

    thread = threading.Thread(target=collect)
    thread.start()
    thread.join()
    assert seen == [False, True]
    assert not collector.in_collector()


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_collections_during_the_check_are_no_error() -> None:
    before, answers = gc.get_threshold(), set()
    gc.set_threshold(1)
    try:
        for _ in range(50_000):
            circle: list[Any] = []
            circle.append(circle)
            answers.add(collector.in_collector())
    finally:
        gc.set_threshold(*before)
    assert answers == {False}


def test_a_program_that_ends_makes_the_pending_calls() -> None:
    program = """
        import threading
        from headgate import collector

        threading.stack_size(1 << 46)
        collector.call_later(lambda: print("ended", flush=True))
        collector.call_later(lambda: 1 / 0)
        collector.call_later(lambda: print("too", flush=True))
        """
    ended = run(program)
    assert (ended.returncode, ended.stdout) == (0, "ended\ntoo\n")
    assert "what the garbage collector found could not be ended" in ended.stderr
