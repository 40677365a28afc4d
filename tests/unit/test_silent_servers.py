"""Failing servers of a Cluster, on a manual clock: which calls are sent, and which errors name which server."""

from __future__ import annotations

import logging

import pytest
from redis import exceptions

from headgate.clock import US_PER_SECOND
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.guard.breaker import FAILURES, LAST_PROBE_S
from headgate.stores.redis.silent_servers import NotSent, SilentServers
from headgate.stores.redis.url import Address
from headgate.testing import ManualClock

ONE, TWO = Address("h", 1), Address("h", 2)
LOST = exceptions.ConnectionError("Connection closed by server.")


def raised_error(silent: SilentServers, error: Exception, address: Address = ONE) -> Exception:
    with pytest.raises(type(error) if isinstance(error, StoreError) else Exception) as raised:
        silent.raise_for(error, address, "a Cluster")
    return raised.value


def is_sent(silent: SilentServers, address: Address = ONE) -> bool:
    try:
        silent.check(address, "a Cluster")
    except StoreUnavailable as error:
        return error.was_sent or error.server != "h:1"
    return True


def test_a_server_that_fails_several_times_in_a_row_is_not_called_any_more_and_the_others_are() -> None:
    silent = SilentServers(ManualClock())
    for _ in range(FAILURES):
        assert is_sent(silent)
        error = raised_error(silent, LOST)
        assert isinstance(error, StoreUnavailable) and error.server == "h:1" and error.was_sent
    assert not is_sent(silent) and is_sent(silent, TWO)


def test_an_occasional_call_is_sent_until_the_server_answers(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    silent = SilentServers(clock)
    attempts = 0
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(FAILURES):
            raised_error(silent, LOST)
        for _ in range(10):
            clock.advance(int(LAST_PROBE_S * 1.5 * US_PER_SECOND))
            sent = [is_sent(silent) for _ in range(5)]
            attempts += sent == [True, False, False, False, False]
            raised_error(silent, LOST)
        silent.answered(ONE)
    assert attempts == 10 and is_sent(silent) and is_sent(silent)
    assert len(caplog.records) == 2, "one message when it fails, one when it answers"


def test_an_answer_resets_the_failures_of_a_server() -> None:
    silent = SilentServers(ManualClock())
    for _ in range(3):
        for _ in range(FAILURES - 1):
            raised_error(silent, LOST)
        silent.answered(ONE)
    assert is_sent(silent) and not silent.failures


@pytest.mark.parametrize("refusal", ["OOM command not allowed", "LOADING Redis is loading", "MISCONF errors"])
def test_a_temporary_refusal_names_its_server(refusal: str) -> None:
    error = raised_error(SilentServers(ManualClock()), exceptions.ResponseError(refusal))
    assert isinstance(error, StoreUnavailable) and error.server == "h:1"


@pytest.mark.parametrize(
    "error",
    [
        NotSent(),
        exceptions.NoScriptError("NOSCRIPT No matching script."),
        exceptions.ReadOnlyError("READONLY You can't write against a read only replica."),
        exceptions.ResponseError("WRONGTYPE Operation against a key"),
        exceptions.NoPermissionError("NOPERM this user has no permissions"),
        exceptions.AuthenticationError("WRONGPASS invalid username-password pair"),
    ],
)
def test_an_error_that_no_server_has_caused_is_raised_unchanged(error: Exception) -> None:
    silent = SilentServers(ManualClock())
    for _ in range(FAILURES + 1):
        assert raised_error(silent, error) is error
    assert is_sent(silent) and not silent.failures


def test_any_answer_to_a_trial_call_ends_the_pause() -> None:
    clock = ManualClock()
    for error in (exceptions.NoScriptError("NOSCRIPT"), exceptions.ResponseError("WRONGTYPE")):
        silent = SilentServers(clock)
        for _ in range(FAILURES):
            raised_error(silent, LOST)
        clock.advance(US_PER_SECOND)
        assert is_sent(silent)
        raised_error(silent, error)
        assert is_sent(silent), "a script is sent again as a text"


def test_a_redirecting_server_counts_as_answering_and_one_without_the_others_does_not() -> None:
    silent = SilentServers(ManualClock())
    for _ in range(FAILURES):
        raised_error(silent, LOST)
    silent.redirected(exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"), ONE)
    assert not is_sent(silent)
    silent.redirected(exceptions.TryAgainError("TRYAGAIN"), ONE)
    assert is_sent(silent)


def test_pauses_stay_as_short_as_those_of_a_breaker() -> None:
    clock = ManualClock()
    silent = SilentServers(clock)
    for _ in range(100):
        raised_error(silent, LOST)
        clock.advance(60 * US_PER_SECOND)
        assert is_sent(silent)
    clock.advance(int(LAST_PROBE_S * 1.5 * US_PER_SECOND))
    assert is_sent(silent)
