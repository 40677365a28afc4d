"""Refusals of servers become the same errors, however their version words them."""

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
def test_a_value_that_is_not_a_state_is_an_error_of_its_key(text: str) -> None:
    assert isinstance(store_error(ResponseError(text), "redis://h"), StoreKeyError)


@pytest.mark.parametrize(
    "text", ["max number of clients reached", "max number of clients + cluster connections reached"]
)
@pytest.mark.parametrize("kind", [ResponseError, RedisConnectionError])
def test_a_server_with_too_many_clients_is_unavailable_for_now(text: str, kind: type[Exception]) -> None:
    error = store_error(kind(text), "redis+cluster://h")
    assert isinstance(error, StoreUnavailable) and "it has too many clients (MAXCLIENTS)" in str(error)
    assert error.transient and not error.was_sent


@pytest.mark.parametrize(
    "cause",
    [
        "AuthenticationError('Authentication required.')",
        "AuthenticationError('invalid username-password pair or user is disabled.')",
        "auth:AuthenticationError",
    ],
)
def test_sentinels_that_require_another_password_are_reported_in_all_wordings_of_redis_py(cause: str) -> None:
    text = f"No master found for 'mymaster' : <redis.client.Redis(<...(password=None)>)> - {cause}"
    error = store_error(MasterNotFoundError(text), "redis+sentinel://h/mymaster")
    assert isinstance(error, StoreUnavailable) and "a Sentinel requires another user or password" in str(error)


@pytest.mark.parametrize("right", ["sentinel|masters", "sentinel"])
def test_a_missing_right_at_sentinels_is_not_one_that_servers_grant(right: str) -> None:
    error = store_error(ResponseError(f"NOPERM this user has no permissions to run the '{right}' command"), "redis://h")
    assert type(error) is StoreError and "+sentinel|masters" in str(error) and "+evalsha" not in str(error)
