"""How a process of the service ends: the effect of each signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from headgate.service.app import Service

log = logging.getLogger("headgate")


class Shutdown:
    """The effect of signals: to drain, to finish requests that have begun, to end at once.

    A supervised process may get every signal twice, from its group and from its supervisor: there, a
    second SIGTERM does not end the drain, SIGINT does.
    """

    def __init__(
        self, service: Service, announce_end: Callable[[], object], drain_s: float, *, supervised: bool
    ) -> None:
        """`announce_end` makes every response the last one of its connection."""
        self._service = service
        self._announce_end = announce_end
        self._drain_s = drain_s
        self._supervised = supervised
        self._loop = asyncio.get_running_loop()
        self.started = asyncio.Event()
        """Set when the port is to be closed."""

        self.at_once = asyncio.Event()
        """Set when requests that have begun are not to be finished."""

    def handle_signals(self) -> None:
        """React to signals from now on."""
        self._loop.add_signal_handler(signal.SIGTERM, self._on_term)
        self._loop.add_signal_handler(signal.SIGINT, self._on_interrupt)

    def start(self) -> None:
        """Finish requests that have begun, and end."""
        self._drain()
        self.started.set()

    def _drain(self) -> None:
        self._service.draining = True
        self._announce_end()

    def _on_term(self) -> None:
        if not self._drain_s:
            self.start()
        elif not self._service.draining:
            self._drain()
            log.info("draining for %g s", self._drain_s)
            self._loop.call_later(self._drain_s, self.start)
        elif not self._supervised:
            self.start()

    def _on_interrupt(self) -> None:
        if self.started.is_set() and not self._supervised:
            self.at_once.set()
        self.start()
