"""The calls to a Redis for an operation."""

from __future__ import annotations

import pytest

from headgate.decision import name_limits
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.redis.commands import Commands
from headgate.testing import ManualClock
from subjects import REDIS, make_store


def test_each_limit_has_the_key_and_cost_of_its_group() -> None:
    limits = [
        named
        for group, text in enumerate(("5/minute", "9/hour", "7/second; 8/day"))
        for named in name_limits(parse_limits(text), scope=f"s{group}", name="n", group=group)
    ]
    several, last = Commands(limits, "hg", None), Commands(limits[1:2], "hg", None)
    keys, costs = ("a", "b", "c"), (1, 2, 3)
    assert several.costs(costs) == [1, 2, 3, 3]
    assert several.names(keys) == [b"hg:{a}:s0/", b"hg:{b}:s1/", b"hg:{c}:s2/", b"hg:{c}:s2/"]
    assert last.costs(costs[:2]) == [2]
    assert last.names(keys[:2]) == [b"hg:{b}:s1/"]


@pytest.mark.parametrize("kind", REDIS)
def test_a_shadow_limit_that_refuses_has_nothing_to_take_back_where_another_server_refuses(kind: str) -> None:
    shadow = name_limits(parse_limits("1/minute"), scope="s0", name="dry", shadow=True, group=0)
    enforced = name_limits(parse_limits("1/minute"), scope="s1", name="live", group=1)
    bound = make_store(kind).bind([*shadow, *enforced], clock=ManualClock())
    keys = [f"{number}" for number in range(8)]  # in a Cluster on all of its servers
    for key in keys:
        assert bound.decide(Operation((key, f"other {key}"), (1, 1)))
        refused = bound.decide(Operation((key, f"other {key}"), (1, 1)))
        assert [reading.allowed for reading in refused.limits] == [False, False]
        assert not refused
