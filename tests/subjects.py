"""The things under test, made the same way everywhere."""

from __future__ import annotations

from typing import Any, Literal, cast

import http_sf

from headgate import Limiter, MemoryStore
from headgate import core as cores
from headgate.decision import Decision
from headgate.limits import Limit
from headgate.testing import ManualClock

CORES = ("native", "python") if cores.native is not None else ("python",)
START_US = 1_800_000_000_000_000


def make_limiter(
    core: str, limits: str | Limit | list[Limit], clock: ManualClock, *, name: str = "", **options: Any
) -> Limiter:
    """A limiter on a memory store of this core and on this clock."""
    store = MemoryStore(core=cast(Literal["native", "python"], core), **options)
    return Limiter(limits, store=store, name=name, clock=clock)


def parse_list(field: str) -> list[tuple[str, dict[str, Any]]]:
    """A List of RFC 9651 whose members are strings with parameters, by an independent parser."""
    members: Any = http_sf.parse(field.encode(), tltype="list")
    return [(str(name), dict(parameters)) for name, parameters in members]


def numbers(decision: Decision) -> dict[str, object]:
    """All that a decision says, as plain values."""
    return {
        "allowed": decision.allowed,
        "degraded": decision.degraded,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "reset_after_us": decision.reset_after_us,
        "retry_after_us": decision.retry_after_us,
        "delay_us": decision.delay_us,
        "binding": decision.binding,
        "limits": decision.limits,
    }
