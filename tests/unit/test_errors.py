"""Errors come from other processes as they were raised there: a pool of processes pickles them."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from headgate import Gate, Limiter, RateLimited
from headgate.errors import ConfigError, ConflictingId, HeadgateError, MissingExtraError, StoreTimeout


def raised(act: Callable[[], object]) -> HeadgateError:
    with pytest.raises(HeadgateError) as caught:
        act()
    return caught.value


ERRORS = [
    raised(lambda: Limiter("5/minit")),
    raised(lambda: Limiter("5/day in Europe/Zurig")),
    raised(lambda: Gate({"version": 1, "rules": [{"name": "a", "by": ["ip"], "limits": "5/minit"}, {"name": "b"}]})),
    raised(lambda: Limiter("5/minute").hit("")),
    ConfigError("cannot be", path="rules[0]"),
    MissingExtraError("the Redis store", extra="redis"),
    ConflictingId("another one"),
    StoreTimeout("no answer"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_can_be_pickled(error: HeadgateError) -> None:
    error.add_note("in a worker")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_a_refusal_can_be_pickled_with_its_decision() -> None:
    limiter = Limiter("0/minute")
    error = pickle.loads(pickle.dumps(RateLimited(limiter.hit("key"))))
    assert (error.decision.allowed, error.decision.retry_after) == (False, None)
