"""Which server of a Cluster is asked, and who is asked where the slots are."""

from __future__ import annotations

import pytest
from redis import exceptions

from headgate.stores.redis.slot_map import SlotMap
from headgate.stores.redis.url import Address

ONE, TWO, THREE = (Address("h", port) for port in (1, 2, 3))


@pytest.fixture
def slots() -> SlotMap:
    slots = SlotMap([ONE, TWO, THREE])
    slots.learn([[0, 9, [b"h", 1, b"id"], [b"h", 7, b"replica"]], [10, 19, [b"", 2, b"id"]]], ONE)
    return slots


def test_a_map_is_read_from_what_a_server_tells(slots: SlotMap) -> None:
    assert [slots.server_of(slot) for slot in (0, 9, 10, 19, 20)] == [ONE, ONE, TWO, TWO, None]
    assert 19 in slots and 20 not in slots


def test_who_moved_is_found_there_and_its_neighbours_are_asked_for_again(slots: SlotMap) -> None:
    assert slots.redirected(exceptions.MovedError("5 h:3"), 5, ONE) is None
    assert [slots.server_of(slot) for slot in (5, 6, 10)] == [THREE, None, TWO]


def test_a_server_that_names_no_host_means_its_own(slots: SlotMap) -> None:
    assert slots.redirected(exceptions.MovedError("5 :3"), 5, ONE) is None
    assert slots.server_of(5) == THREE
    assert slots.redirected(exceptions.AskError("6 :3"), 6, ONE) == THREE


def test_who_is_sent_elsewhere_once_keeps_the_map(slots: SlotMap) -> None:
    assert slots.redirected(exceptions.AskError("5 h:3"), 5, ONE) == THREE
    assert slots.redirected(exceptions.TryAgainError("x"), 5, ONE) is None
    assert slots.server_of(5) == ONE
    assert slots.redirected(exceptions.ClusterDownError("x"), 5, ONE) is None
    assert slots.server_of(5) is None


def test_who_did_not_answer_is_asked_last_and_the_latest_of_them_at_the_end(slots: SlotMap) -> None:
    other = Address("h", 9)
    assert slots.candidates([other]) == [other, ONE, TWO, THREE]
    slots.forget_servers(ONE)
    slots.forget_servers(other)
    assert slots.candidates([other]) == [TWO, THREE, ONE, other]
    slots.forget_servers(ONE)
    assert slots.candidates([other]) == [TWO, THREE, other, ONE]
    slots.learn([], ONE)
    assert slots.candidates([other]) == [ONE, TWO, THREE, other]
    assert slots.candidates([]) == [ONE, TWO, THREE]


def test_nobody_keeps_what_a_doubted_server_had(slots: SlotMap) -> None:
    slots.forget_servers(None)
    assert slots.server_of(0) is None and slots.server_of(10) is None
