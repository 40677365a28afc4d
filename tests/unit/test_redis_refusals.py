"""Refusals in the wordings of several versions of servers."""

from __future__ import annotations

import pytest
from redis import exceptions

from headgate.stores.redis.errors import store_error
from headgate.stores.redis.slot_map import is_moving

WITHOUT_A_RIGHT = {
    "Redis 7.0": "The user executing the script can't run this command or subcommand script: 9c0c, on @user_script:2.",
    "Valkey 9.1": "ACL failure in script: User limiter has no permissions to run the 'time' command script: on"
    " @user_script:2.",
}
WITH_A_KEY_THAT_HAS_MOVED = {
    "Redis 7.0": "Script attempted to access a non local key in a cluster node script: 9c0c, on @user_script:15.",
    "Valkey 9.1": "Attempted to access a non local key in a cluster node script: on @user_script:15.",
}


@pytest.mark.parametrize("server", WITHOUT_A_RIGHT)
def test_a_right_that_a_script_lacks_is_reported_as_a_missing_right(server: str) -> None:
    error = store_error(exceptions.ResponseError(WITHOUT_A_RIGHT[server]), "redis://h")
    assert str(error).startswith("redis://h: the user may not do this: it needs ~PREFIX:* for its keys")


@pytest.mark.parametrize("server", WITH_A_KEY_THAT_HAS_MOVED)
def test_a_script_that_found_a_key_moved_waits_for_its_slot(server: str) -> None:
    error = exceptions.ResponseError(WITH_A_KEY_THAT_HAS_MOVED[server])
    assert is_moving(error, needs_whole_slot=True) and is_moving(error, needs_whole_slot=False)
