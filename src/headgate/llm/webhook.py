"""Reports reached soft limits to a URL: each once while its limit stays used, and never in the thread of a call.

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
from typing import NamedTuple
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


class _Reported(NamedTuple):
    """When a soft limit may be reported again, and until when this process has claimed that."""

    until_us: int
    claimed_us: int


class Webhook:
    """Sends soft limits to a URL as JSON, one POST each, from a thread of its own.

    A failure is logged, without the URL, which may contain a secret, and is not retried. At most a thousand soft limits
    wait; further ones are dropped, which is logged once until half of them are sent. `claims` show what other processes
    have sent.
    """

    def __init__(self, url: str, clock: Clock, claims: NotificationClaims) -> None:
        self.url = url
        self._clock = clock
        self._claims = claims
        self._reported: OrderedDict[tuple[str, ...], _Reported] = OrderedDict()
        """The soft limits that this process has reported, or that are waiting."""

        self._waiting: Queue[tuple[SoftLimit, bool]] = Queue(_MOST_WAITING)
        """Soft limits, and whether each is to be reported; otherwise it is only claimed for longer."""

        self._is_dropping = False
        """Whether soft limits were dropped, and more than half of those that were waiting still are."""

        self._lock = ProcessLock()
        self._process = 0
        """The id of the process that has the thread; 0 if there is no thread."""

    def __call__(self, limits: tuple[SoftLimit, ...]) -> None:
        """Report those of these soft limits that were not reported yet; never waits."""
        now_us = self._clock.now_us()
        for limit in limits:
            with self._lock.current:
                is_new, claims = self._note(limit, now_us)
                if not (is_new or claims):
                    continue
                try:
                    self._waiting.put_nowait((limit, is_new))
                except Full:
                    if not self._is_dropping:
                        log.warning(
                            "the webhook of soft limits is too slow: %d wait, others are dropped", _MOST_WAITING
                        )
                    self._is_dropping = True
                    continue
                self._is_dropping = self._is_dropping and self._waiting.qsize() > _MOST_WAITING // 2
                starts = self._process != os.getpid()
                self._process = os.getpid()
            if starts:
                self._start()

    def _note(self, limit: SoftLimit, now_us: int) -> tuple[bool, bool]:
        """Note that a limit is used; return whether to report it, and whether to claim it for longer.

        A bucket or a sliding window in constant use never resets: each time that it is seen, the time until it may be
        reported again starts afresh. Claims follow by steps, since the store has to be asked.
        """
        name, until_us = _name(limit), now_us + limit.reset_after_us
        reported = self._reported.pop(name, None)
        is_new = reported is None or reported.until_us <= now_us
        claimed_us = until_us if reported is None or is_new else reported.claimed_us
        claims = self._claims.is_shared and until_us - claimed_us > limit.reset_after_us // 4
        self._reported[name] = _Reported(until_us, until_us if claims else claimed_us)
        if len(self._reported) > _MOST_REMEMBERED:
            self._reported.popitem(last=False)
        return is_new, claims

    def _start(self) -> None:
        # Without the lock: starting a greenlet lets others run, and these would wait for the lock for ever.
        try:
            Thread(target=self._send_all, name="headgate-webhook", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter ends: the next one tries again
            self._process = 0

    def _send_all(self) -> None:
        while True:
            try:
                limit, is_new = self._waiting.get(timeout=_IDLE_S)
            except Empty:
                with self._lock.current:
                    if self._waiting.empty():
                        self._process = 0
                        return
                continue
            if not (self._claims.claim(_name(limit), limit.reset_after_us) and is_new):
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
