"""Servers of a Cluster that do not answer, each counted apart: an outage of one does not affect calls to the others."""

from __future__ import annotations

import logging
from typing import NamedTuple, NoReturn

from redis import exceptions

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND, Clock
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.guard.breaker import FAILURES, FIRST_PROBE_S, LAST_PROBE_S, jittered
from headgate.stores.redis.errors import store_error
from headgate.stores.redis.url import Address

log = logging.getLogger("headgate")

_NOT_EXECUTED = exceptions.NoScriptError | exceptions.ReadOnlyError
"""Errors of a server that did not run a script; another attempt may run it."""


class NotSent(exceptions.TimeoutError):
    """The deadline of a call had passed before it could be sent."""


class _Pause(NamedTuple):
    until_us: int
    pause_s: float


class SilentServers:
    """The servers that failed several times in a row: calls to one fail at once, except for an occasional attempt.

    The pauses between attempts grow and are jittered, as between the probes of a breaker.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.failures: dict[Address, int] = {}
        """Failed calls of each server in a row, up to now."""

        self._pauses: dict[Address, _Pause] = {}

    def has(self, address: Address) -> bool:
        """Whether a server has failed several times in a row, and has not answered since."""
        return address in self._pauses

    def check(self, address: Address, shown: str) -> None:
        """Raise StoreUnavailable where a server is not to be called now."""
        pause = self._pauses.get(address)
        if pause is None:
            return
        if self._clock.now_us() >= pause.until_us:
            self._pause_calls(address, pause.pause_s)  # this call is the attempt; others fail until the next one
            return
        error = StoreUnavailable(f"{shown}: {address.host}:{address.port} does not answer; nothing was charged")
        error.server, error.was_sent = f"{address.host}:{address.port}", False
        raise error

    def answered(self, address: Address) -> None:
        """Record that a server has answered a call."""
        self.failures.pop(address, None)
        if self._pauses.pop(address, None) is not None:
            log.warning("a server of the Cluster answers again: %s:%d", address.host, address.port)

    def redirected(self, error: Exception, address: Address) -> None:
        """Record that a server has redirected or delayed a call; one that has lost the others also does this."""
        if self.failures and not isinstance(error, exceptions.ClusterDownError):
            self.answered(address)

    def raise_for(self, error: Exception, address: Address, shown: str) -> NoReturn:
        """Raise the error of a call; where the server may have caused it, the error names the server and is counted."""
        if isinstance(error, NotSent):
            raise error
        store_failure = error if isinstance(error, _NOT_EXECUTED) else store_error(error, shown)
        if not isinstance(store_failure, StoreError) or not store_failure.transient:
            if isinstance(error, exceptions.ResponseError):
                self.answered(address)
            raise error
        store_failure.server = f"{address.host}:{address.port}"
        self._count(address, store_failure)
        if store_failure is error:
            raise error
        raise store_failure from error

    def _count(self, address: Address, error: StoreError) -> None:
        failures = self.failures[address] = self.failures.get(address, 0) + 1
        if failures < FAILURES or address in self._pauses:
            return
        self._pause_calls(address, FIRST_PROBE_S)
        log.warning(
            "a server of the Cluster does not answer, requests for its keys are decided without it: %s:%d: %s",
            address.host,
            address.port,
            error,
        )

    def _pause_calls(self, address: Address, pause_s: float) -> None:
        until_us = self._clock.now_us() + round(jittered(pause_s) * US_PER_SECOND)
        self._pauses[address] = _Pause(until_us, min(2 * pause_s, LAST_PROBE_S))
