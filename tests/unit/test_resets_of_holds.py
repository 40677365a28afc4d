"""Resets of keys that have holds: what they report, and the effect on places under other keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.decision import NamedLimit, name_limits
from headgate.holding import Hold
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.protocol import Store
from headgate.testing import ManualClock
from subjects import ZONES, make_store

KEYS = 6
"""Pairs of keys that are tried: wherever a store keeps them, some pairs are together and most are apart."""


def limits_of(first: str, second: str) -> list[NamedLimit]:
    """The limits of a user and those of a team, which count by another key and another amount."""
    user = name_limits(parse_limits(first), scope="user", name="user")
    return [*user, *name_limits(parse_limits(second), scope="team", name="team", group=1)]


def only(store: Store, limits: list[NamedLimit], group: int, clock: ManualClock) -> Any:
    """The limits of one key alone."""
    return store.bind([replace(limit, group=0) for limit in limits if limit.group == group], clock=clock)


def left(bound: Any, *keys: str) -> list[int]:
    operation = Operation(keys, (0,) * len(keys), commit=False)
    return [reading.remaining for reading in bound.decide(operation).limits]


@pytest.mark.parametrize("costs", [(0, 5), (5, 0), (0, 300), (300, 300)])
def test_a_reset_reports_places_in_use_under_any_of_the_limits(holding_kind: str, costs: tuple[int, int]) -> None:
    bound = make_store(holding_kind).bind(limits_of("999 concurrent", "999 concurrent"), clock=ManualClock())
    bound.reserve(Operation(("key", "key"), costs), Hold("name", 60_000_000))
    assert [bound.reset(("key", "key")), bound.reset(("key", "key"))] == [True, False]


def test_a_reset_of_a_key_without_places_in_use_reports_none(holding_kind: str) -> None:
    clock = ManualClock()
    store, limits = make_store(holding_kind), limits_of("9 concurrent", "9 concurrent")
    bound = store.bind(limits, clock=clock)
    held = bound.reserve(Operation(("key", "key"), (0, 5)), Hold("name", 60_000_000))
    assert not only(store, limits, 0, clock).reset(("key",))
    assert bound.commit(held.id, (0, 5)).outcome == "unknown" and left(bound, "key", "key") == [9, 9]


@pytest.mark.parametrize("first", ["9/hour fixed", "999 concurrent", "9/hour bucket; 9/hour log; 999 concurrent"])
@pytest.mark.parametrize(("places", "named"), [(5, True), (5, False), (300, True)])  # so many have sorted sets on Redis
def test_a_reset_of_one_key_frees_what_its_holds_have_in_flight_under_another(
    holding_kind: str, first: str, places: int, named: bool
) -> None:
    clock = ManualClock()
    store, limits = make_store(holding_kind), limits_of(first, "9999/hour fixed; 999 concurrent")
    bound = store.bind(limits, clock=clock)
    full = left(bound, "user", "team")[:-2]
    for number in range(KEYS):
        user, team = f"user {number}", f"team {number}"
        held, other = (
            bound.reserve(Operation((own, team), (2, places)), Hold(f"{own} {number}" if named else None, 60_000_000))
            for own in (user, "another")
        )
        assert only(store, limits, 0, clock).reset((user,))
        assert left(bound, user, team) == [*full, 9999 - 2 * places, 999 - places]
        assert bound.extend(held.id, 60_000_000, (0, 0)).outcome == "unknown"
        assert bound.commit(held.id, (0, 0)).outcome == "unknown"
        assert bound.commit(other.id, (0, 0)).outcome == "settled"
        assert left(bound, user, team) == [*full, 9999 - places, 999]


def test_a_reset_of_the_second_key_frees_what_its_holds_have_in_flight_under_the_first(holding_kind: str) -> None:
    clock = ManualClock()
    store, limits = make_store(holding_kind), limits_of("99/hour fixed; 9 concurrent", "99/hour fixed")
    bound = store.bind(limits, clock=clock)
    for number in range(KEYS):
        user, team = f"user {number}", f"team {number}"
        held = bound.reserve(Operation((user, team), (4, 7)), Hold(None, 60_000_000))
        settled = bound.reserve(Operation((user, "another"), (1, 1)), Hold(None, 60_000_000))
        assert bound.commit(settled.id, (1, 1)).outcome == "settled"
        assert only(store, limits, 1, clock).reset((team,))
        assert left(bound, user, team) == [94, 9, 99]
        assert bound.commit(held.id, (0, 0)).outcome == "unknown"
        assert bound.commit(settled.id, (0, 0)).outcome == "already settled"


def test_a_reset_frees_what_an_extended_hold_has_in_flight_under_another_key(holding_kind: str) -> None:
    clock = ManualClock()
    store, limits = make_store(holding_kind), limits_of("99/day fixed", "99 concurrent")
    bound = store.bind(limits, clock=clock)
    for number in range(KEYS):
        user, team = f"user {number}", f"team {number}"
        held = bound.reserve(Operation((user, team), (1, 5)), Hold(None, 60_000_000))
        clock.advance(30_000_000)
        assert bound.extend(held.id, 900_000_000, (0, 3)).outcome == "extended"
        clock.advance(600_000_000)
        bound.reserve(Operation((user, "another"), (1, 1)), Hold(None, 60_000_000))  # leases that are over are dropped
        assert left(bound, user, team) == [97, 91]
        assert only(store, limits, 0, clock).reset((user,))
        assert left(bound, user, team) == [99, 99]
        assert bound.commit(held.id, (0, 0)).outcome == "unknown"


@pytest.mark.parametrize("kind", ZONES)
def test_a_key_that_is_forgotten_in_a_zone_frees_what_its_holds_have_under_other_keys(kind: str) -> None:
    clock = ManualClock()
    store: Any = make_store(kind)
    bound = store.bind(limits_of("9 concurrent", "99 concurrent"), clock=clock)
    for number in range(KEYS):
        user, team = f"user {number}", f"team {number}"
        bound.reserve(Operation((user, team), (0, 5)), Hold(None, 60_000_000))
        assert not store._zone.forget(user, clock.now_us())
        assert left(bound, user, team) == [9, 99]
        bound.reserve(Operation((user, user), (0, 5)), Hold(None, 60_000_000))
        assert store._zone.forget(user, clock.now_us())
    assert store._zone.check() is None and store.stats().holds == 0
