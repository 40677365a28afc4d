"""Tells a URL of soft limits that were reached: each once until its limit is as new, never on the path of a call.

Of processes that share a store one tells.
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
from headgate.llm.soft_limits import SoftLimit
from headgate.llm.told_once import ToldOnce

log = logging.getLogger("headgate")

_MOST_WAITING = 1_000
_MOST_REMEMBERED = 10_000
_TIMEOUT_S = 10
_IDLE_S = 30
"""A thread that has nothing to tell for so long ends."""


class Webhook:
    """Sends soft limits to a URL as JSON, one POST each, from a thread of its own.

    What cannot be sent is logged, without the URL, which may have a secret in it, and is not tried again; more than a
    thousand that wait are dropped. `told` knows what other processes have sent.
    """

    def __init__(self, url: str, clock: Clock, told: ToldOnce) -> None:
        self.url = url
        self._clock = clock
        self._told_anywhere = told
        self._told: OrderedDict[tuple[str, ...], int] = OrderedDict()
        """What was told here, or is waiting, and until when that holds."""

        self._waiting: Queue[SoftLimit] = Queue(_MOST_WAITING)
        self._lock = ProcessLock()
        self._process = 0
        """The process that has the thread; 0 for none."""

    def __call__(self, limits: tuple[SoftLimit, ...]) -> None:
        """Tell of these, as far as they were not told of; never waits."""
        now_us = self._clock.now_us()
        for limit in limits:
            name = _name(limit)
            with self._lock.current:
                if self._told.get(name, 0) > now_us:
                    continue
                self._told[name] = now_us + limit.reset_after_us
                self._told.move_to_end(name)
                if len(self._told) > _MOST_REMEMBERED:
                    self._told.popitem(last=False)
                try:
                    self._waiting.put_nowait(limit)
                except Full:
                    continue
                starts = self._process != os.getpid()
                self._process = os.getpid()
            if starts:
                self._start()

    def _start(self) -> None:
        # Without the lock: a greenlet that is started lets others run, which would wait for it in vain.
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
            if not self._told_anywhere.is_first(_name(limit), limit.reset_after_us):
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
    """What is told once: of which limit, of which caller and model."""
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
