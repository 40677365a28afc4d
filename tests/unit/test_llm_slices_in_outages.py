"""Streams that hold slices while the store of their limits fails and recovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import GuardedStore
from headgate.llm import LlmGate
from headgate.testing import ManualClock
from remote_store import RemoteStore

SLICED = {"name": "out", "by": ["user"], "limits": "1000 output_tokens/hour bucket", "hold": "slices"}
WORDS = 300


class Remote(RemoteStore):
    """A store that fails as a whole."""

    failure = "as a whole"


@pytest.fixture
def guarded() -> Iterator[GuardedStore]:
    remote = Remote()
    guarded = GuardedStore(remote)
    yield guarded
    remote.up = False
    guarded.breaker.close()


def gate_on(store: GuardedStore, choice: str, **how: str) -> LlmGate:
    store.on_error = choice  # type: ignore[assignment]
    policy = {"version": 1, "llm": {"slice": 20}, "rules": [{**SLICED, **how}]}
    return LlmGate(policy, store=store, clock=ManualClock())


def chunks(before: Callable[[int], None] = lambda number: None) -> Iterator[dict[str, Any]]:
    for number in range(WORDS):
        before(number)
        yield {"choices": [{"index": 0, "delta": {"content": " word"}}]}


@pytest.mark.parametrize(
    ("of_store", "own", "goes_on"),
    [
        ("open", {}, True), ("local", {}, True), ("closed", {}, False), ("closed", {"on_store_error": "open"}, True),
        ("open", {"on_store_error": "closed"}, False),
    ],
)  # fmt: skip
def test_a_stream_whose_store_fails_is_cut_only_where_a_rule_fails_closed(
    guarded: GuardedStore, of_store: str, own: dict[str, str], goes_on: bool
) -> None:
    remote: Any = guarded.inner

    def goes_away(number: int) -> None:
        remote.up = number < 50

    gate = gate_on(guarded, of_store, **own)
    with gate.call("m", user="u", input_tokens=5, max_tokens=900) as call:
        passed = len(list(call.stream(chunks(goes_away))))
    assert (call.was_cut, passed == WORDS) == (not goes_on, goes_on)
    remote.up = True
    guarded.pending_settlements.send_in_thread()


def test_a_stream_that_began_degraded_is_not_cut_for_a_slice_that_cannot_be_held(guarded: GuardedStore) -> None:
    remote: Any = guarded.inner
    remote.up = False
    with gate_on(guarded, "open").call("m", user="u", input_tokens=5, max_tokens=900) as call:
        assert call.decision.degraded == "open" and len(list(call.stream(chunks()))) == WORDS
    assert not call.was_cut
