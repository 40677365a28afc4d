"""Reports reached soft limits to a URL: each once until its limit has reset, and never in the thread of a call.

Of the processes that share a store, one reports each soft limit.
"""

from __future__ import annotations

import json
import logging
import os
import urllib.request
from collections import OrderedDict
from http.client import HTTPException
from queue import Empty, Full, Queue
from threading import Thread
from urllib.error import HTTPError

from headgate.amounts import number_text
from headgate.clock import Clock
from headgate.forks import ProcessLock
from headgate.llm.notification_claims import NotificationClaims
from headgate.llm.soft_limits import SoftLimit

log = logging.getLogger("headgate")

_MOST_WAITING = 1_000
_MOST_REMEMBERED = 10_000
_TIMEOUT_S = 10
_IDLE_S = 30
"""The thread ends when it has had nothing to send for this time."""


class Webhook:
    """Sends soft limits to a URL as JSON, one POST each, from a thread of its own.

    A failure is logged, without the URL, which may contain a secret, and is not retried. At most a thousand soft limits
    wait; further ones are dropped. `claims` show what other processes have sent.
    """

    def __init__(self, url: str, clock: Clock, claims: NotificationClaims) -> None:
        self.url = url
        self._clock = clock
        self._claims = claims
        self._reported: OrderedDict[tuple[str, ...], int] = OrderedDict()
        """The soft limits that this process has reported, or that are waiting, and when each may be reported again."""

        self._waiting: Queue[SoftLimit] = Queue(_MOST_WAITING)
        self._lock = ProcessLock()
        self._process = 0
        """The id of the process that has the thread; 0 if there is no thread."""

    def __call__(self, limits: tuple[SoftLimit, ...]) -> None:
        """Report those of these soft limits that were not reported yet; never waits."""
        now_us = self._clock.now_us()
        for limit in limits:
            name = _name(limit)
            with self._lock.current:
                if self._reported.get(name, 0) > now_us:
                    continue
                self._reported[name] = now_us + limit.reset_after_us
                self._reported.move_to_end(name)
                if len(self._reported) > _MOST_REMEMBERED:
                    self._reported.popitem(last=False)
                try:
                    self._waiting.put_nowait(limit)
                except Full:
                    continue
                starts = self._process != os.getpid()
                self._process = os.getpid()
            if starts:
                self._start()

    def _start(self) -> None:
        # Without the lock: starting a greenlet lets others run, and these would wait for the lock for ever.
        try:
            Thread(target=self._send_all, name="headgate-webhook", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter ends: the next one tries again
            self._process = 0

    def _send_all(self) -> None:
        while True:
            try:
                limit = self._waiting.get(timeout=_IDLE_S)
            except Empty:
                with self._lock.current:
                    if self._waiting.empty():
                        self._process = 0
                        return
                continue
            if not self._claims.claim(_name(limit), limit.reset_after_us):
                continue
            try:
                self._send(limit)
            except HTTPError as error:
                log.warning("the webhook of soft limits answered with status %d", error.code)
            except (OSError, ValueError, HTTPException) as error:
                log.warning("the webhook of soft limits cannot be reached: %s", type(error).__name__)

    def _send(self, limit: SoftLimit) -> None:
        body = json.dumps(as_json(limit)).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            answer.read(1024)


def _name(limit: SoftLimit) -> tuple[str, ...]:
    """The identity of a report: the limit, the caller and the model."""
    return (limit.limit, *limit.caller, limit.model)


def as_json(limit: SoftLimit) -> dict[str, object]:
    """A soft limit as JSON; money is text in whole units of the currency."""
    caller = {name: value for name, value in limit.caller._asdict().items() if value and name != "tier"}
    return {
        "limit": limit.limit,
        "rule": limit.rule,
        "percent": limit.percent,
        "used": number_text(limit.used, limit.unit),
        "quota": number_text(limit.quota, limit.unit),
        "unit": limit.unit,
        "model": limit.model,
        "reset_after": limit.reset_after_us / 1_000_000,
        **caller,
    }
