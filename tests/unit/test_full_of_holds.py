"""The wait that a store full of holds states until there is room again."""

from __future__ import annotations

import pytest

from headgate import Limiter
from headgate.testing import ManualClock
from subjects import CORES, ZONES, make_store

HOUR_US = 3_600_000_000
"""How long a hold is remembered after its lease."""


@pytest.mark.parametrize("kind", [*CORES, *ZONES])
def test_a_refusal_states_when_the_first_hold_is_forgotten_also_after_its_extension_or_settlement(
    kind: str,
) -> None:
    clock = ManualClock()
    limiter = Limiter("100 concurrent", store=make_store(kind, max_holds=3, on_full="refuse"), clock=clock)
    holds = [limiter.reserve(("user", number), lease=60) for number in range(3)]

    def waited_us() -> int:
        refused = limiter.reserve("other", lease=60)
        assert not refused
        assert refused.decision.retry_after_us is not None
        return refused.decision.retry_after_us

    assert waited_us() == 60_000_000 + HOUR_US
    clock.advance(30_000_001)
    assert limiter.extend(holds[0].id, lease=90).outcome == "extended"
    assert waited_us() == 29_999_999 + HOUR_US
    for held in holds[1:]:
        assert limiter.extend(held.id, lease=70).outcome == "extended"
    assert waited_us() == 70_000_000 + HOUR_US
    clock.advance(80_000_000)  # the lease of two is over
    for held in holds[1:]:
        assert limiter.commit(held.id).outcome == "settled"
    assert waited_us() == HOUR_US
    clock.advance(HOUR_US)
    assert limiter.reserve("other", lease=60)
