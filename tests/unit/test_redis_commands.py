"""What is asked of a Redis for an operation, without a server."""

from __future__ import annotations

from headgate.decision import name_limits
from headgate.limit_text import parse_limits
from headgate.stores.redis.commands import Commands


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
