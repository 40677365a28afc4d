"""Holds under new ids and settlements of few limits on Redis, which take a shorter path, in both colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from redis_askers import COLOURS, Loop
from redis_servers import Server

from headgate import AsyncLimiter, Limiter
from headgate.errors import ArgumentError, StoreError
from headgate.stores.redis.store import RedisStore

pytestmark = pytest.mark.integration
LIMITS = "100/week bucket; 9 concurrent; 100/week log"
_prefixes = count()

Ask = Callable[..., Any]


@pytest.fixture(params=COLOURS)
def limiter_of(request: pytest.FixtureRequest, server: Server) -> Iterator[Callable[..., Ask]]:
    """Makes limiters of one store in each colour, which are called by a method's name and its arguments."""
    loop = Loop() if request.param == "async" else None
    prefix, stores = f"short{next(_prefixes)}", []

    def make(limits: str, url: str = server.url) -> Ask:
        store = RedisStore(f"{url}?timeout=10s&connect_timeout=10s", prefix=prefix)
        stores.append(store)
        limiter: Any = (Limiter if loop is None else AsyncLimiter)(limits, store=store, name="short")

        def call(method: str, *arguments: Any, **options: Any) -> Any:
            outcome = getattr(limiter, method)(*arguments, **options)
            return outcome if loop is None else loop.run(outcome)

        return call

    yield make
    for store in stores:
        if loop is None:
            store.close()
        else:
            loop.run(store.aclose())
    if loop is not None:
        loop.close()


def left(decisions: Any) -> list[int]:
    return [reading.remaining for reading in decisions]


@pytest.mark.parametrize("actual", [None, 0, 1, 2, 5])
def test_a_hold_under_a_new_id_is_made_and_settled_like_a_named_one(
    limiter_of: Callable[..., Ask], actual: int | None
) -> None:
    call = limiter_of(LIMITS)
    new, named = call("reserve", "new", 2), call("reserve", "named", 2, id="name")
    assert left(new.decision.limits) == left(named.decision.limits) == [98, 7, 98]
    settled = [call("commit", hold.id, actual) for hold in (new, named)]
    spent = 2 if actual is None else actual
    for settlement in settled:
        assert (settlement.outcome, settlement.actual, left(settlement.after)) == (
            "settled",
            spent,
            [100 - spent, 9, 100 - spent],
        )
    repeated = [call("commit", hold.id, 9) for hold in (new, named)]
    assert [(hold.outcome, hold.actual) for hold in repeated] == [("already settled", spent)] * 2
    assert left(call("peek", "new", 0).limits) == left(call("peek", "named", 0).limits) == [100 - spent, 9, 100 - spent]


def test_a_refusal_holds_nothing_under_a_new_id(limiter_of: Callable[..., Ask]) -> None:
    call = limiter_of(LIMITS)
    refused = call("reserve", "key", 10)
    assert not refused.decision and refused.decision.retry_after is None
    assert call("commit", refused.id, 0).outcome == "unknown"
    assert left(call("peek", "key", 0).limits) == [100, 9, 100]


def test_a_hold_is_settled_when_its_numbers_have_changed(limiter_of: Callable[..., Ask]) -> None:
    reserved = limiter_of(LIMITS)("reserve", "key", 3)
    call = limiter_of("200/week bucket; 8 concurrent; 100/week log")
    call("reserve", "key", 1)  # the states have the new numbers now
    assert call("commit", reserved.id, 1).outcome == "settled"
    assert left(call("peek", "key", 0).limits)[1:] == [7, 98]


def test_the_short_path_raises_the_same_errors_as_the_long_one(limiter_of: Callable[..., Ask]) -> None:
    call = limiter_of(LIMITS)
    for wrong in (("reserve", "", 1), ("reserve", "key", -1), ("commit", "no id", 1)):
        with pytest.raises(ArgumentError):
            call(*wrong)
    reserved = call("reserve", "key", 1)
    with pytest.raises(ArgumentError, match="debt"):
        call("commit", reserved.id, 2**52)
    assert call("commit", reserved.id, 1).outcome == "settled"


def test_a_hold_whose_reply_is_lost_has_an_id_to_settle_it_by(limiter_of: Callable[..., Ask]) -> None:
    call = limiter_of(LIMITS, "redis://127.0.0.1:1")
    with pytest.raises(StoreError) as raised:
        call("reserve", "key", 1)
    assert limiter_of(LIMITS)("commit", raised.value.hold_id, 0).outcome == "unknown"
