"""A signal whose handler decides on the same store as the decision that it interrupts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Limiter, MemoryStore, StoreUnavailable
from headgate.algorithms.transition import decide


@pytest.fixture
def interrupting() -> Iterator[list[Any]]:
    """What the handler of SIGUSR1 is to call, one after another; what came of it takes its place."""
    calls: list[Any] = []

    def handle(*_: object) -> None:
        for index, call in enumerate(calls):
            try:
                calls[index] = call()
            except StoreUnavailable as error:
                calls[index] = error

    former = signal.signal(signal.SIGUSR1, handle)
    yield calls
    signal.signal(signal.SIGUSR1, former)


def test_a_handler_that_interrupts_a_decision_in_python_is_refused_and_does_not_hang(
    interrupting: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter("3/minute; 1 concurrent", store=MemoryStore(core="python"))

    def decide_interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr("headgate.stores.python_table.decide", decide)
        signal.raise_signal(signal.SIGUSR1)
        return decide(*args, **kwargs)

    monkeypatch.setattr("headgate.stores.python_table.decide", decide_interrupted)
    interrupting += [lambda: limiter.peek("key"), lambda: limiter.reserve("key", lease=60)]
    with limiter.reserve("key", lease=60):
        assert limiter.peek("key", 0).limits[0].remaining == 2
    assert [str(each) for each in interrupting] == [
        "a decision was interrupted by a signal whose handler asks the same store: decide outside of handlers, "
        "or use the native core"
    ] * 2


def test_a_handler_that_interrupts_something_else_decides(interrupting: list[Any]) -> None:
    limiter = Limiter("3/minute", store=MemoryStore(core="python"))
    interrupting.append(lambda: limiter.hit("key"))
    signal.raise_signal(signal.SIGUSR1)
    assert interrupting[0].allowed and limiter.peek("key", 0).remaining == 2
