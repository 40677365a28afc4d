"""Which server of a Cluster is called, and which servers are queried for the slots."""

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


def test_a_map_is_read_from_the_reply_of_a_server(slots: SlotMap) -> None:
    assert [slots.server_of(slot) for slot in (0, 9, 10, 19, 20)] == [ONE, ONE, TWO, TWO, None]
    assert 19 in slots and 20 not in slots


def test_a_moved_slot_is_found_there_and_its_neighbours_are_queried_again(slots: SlotMap) -> None:
    assert slots.redirected(exceptions.MovedError("5 h:3"), 5, ONE) is None
    assert [slots.server_of(slot) for slot in (5, 6, 10)] == [THREE, None, TWO]


def test_a_reply_without_a_host_means_the_host_of_its_server(slots: SlotMap) -> None:
    assert slots.redirected(exceptions.MovedError("5 :3"), 5, ONE) is None
    assert slots.server_of(5) == THREE
    assert slots.redirected(exceptions.AskError("6 :3"), 6, ONE) == THREE


def test_a_single_redirection_keeps_the_map(slots: SlotMap) -> None:
    assert slots.redirected(exceptions.AskError("5 h:3"), 5, ONE) == THREE
    assert slots.redirected(exceptions.TryAgainError("x"), 5, ONE) is None
    assert slots.server_of(5) == ONE
    assert slots.redirected(exceptions.ClusterDownError("x"), 5, ONE) is None
    assert slots.server_of(5) is None


def test_servers_that_did_not_answer_are_queried_last_and_the_latest_at_the_end(slots: SlotMap) -> None:
    other = Address("h", 9)
    assert slots.candidates([other]) == [other, ONE, TWO, THREE]
    slots.note_failed(ONE)
    slots.note_failed(other)
    assert slots.candidates([other]) == [TWO, THREE, ONE, other]
    slots.note_failed(ONE)
    assert slots.candidates([other]) == [TWO, THREE, other, ONE]
    slots.learn([], ONE)
    assert slots.candidates([other]) == [ONE, TWO, THREE, other]
    assert slots.candidates([]) == [ONE, TWO, THREE]


def test_the_slots_of_a_doubted_server_are_forgotten(slots: SlotMap) -> None:
    slots.note_failed(None)
    assert slots.server_of(0) is None and slots.server_of(10) is None
