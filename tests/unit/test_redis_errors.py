"""What servers refuse is told alike, in whatever words their version says it."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.sentinel import MasterNotFoundError

from headgate import StoreError, StoreUnavailable
from headgate.errors import StoreKeyError
from headgate.stores.redis.errors import store_error


@pytest.mark.parametrize(
    "text",
    [
        "Error running script (call to f_1f): Lua redis() command arguments must be strings or integers",
        "Lua redis lib command arguments must be strings or integers script: 1f, on @user_script:102.",
        "Command arguments must be strings or integers script: on @user_script:102.",  # Valkey 9.1
        "user_script:7: data string too short script: 1f, on @user_script:7.",
    ],
)
def test_a_value_that_is_no_state_is_a_fault_of_its_key(text: str) -> None:
    assert isinstance(store_error(ResponseError(text), "redis://h"), StoreKeyError)


@pytest.mark.parametrize(
    "text", ["max number of clients reached", "max number of clients + cluster connections reached"]
)
@pytest.mark.parametrize("kind", [ResponseError, RedisConnectionError])
def test_a_server_that_has_too_many_clients_is_away_for_now(text: str, kind: type[Exception]) -> None:
    told = store_error(kind(text), "redis+cluster://h")
    assert isinstance(told, StoreUnavailable) and "it has too many clients (MAXCLIENTS)" in str(told)
    assert told.transient and not told.was_sent


@pytest.mark.parametrize(
    "said",
    [
        "AuthenticationError('Authentication required.')",
        "AuthenticationError('invalid username-password pair or user is disabled.')",
        "auth:AuthenticationError",
    ],
)
def test_sentinels_that_ask_for_another_password_are_told_of_whatever_redis_py_makes_of_that(said: str) -> None:
    text = f"No master found for 'mymaster' : <redis.client.Redis(<...(password=None)>)> - {said}"
    told = store_error(MasterNotFoundError(text), "redis+sentinel://h/mymaster")
    assert isinstance(told, StoreUnavailable) and "a Sentinel requires another user or password" in str(told)


@pytest.mark.parametrize("right", ["sentinel|masters", "sentinel"])
def test_a_right_that_is_missing_at_sentinels_is_none_that_servers_give(right: str) -> None:
    told = store_error(ResponseError(f"NOPERM this user has no permissions to run the '{right}' command"), "redis://h")
    assert type(told) is StoreError and "+sentinel|masters" in str(told) and "+evalsha" not in str(told)
