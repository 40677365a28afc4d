"""How a process of the service ends: what each signal asks for."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from headgate.service.app import Service

log = logging.getLogger("headgate")


class Shutdown:
    """What the signals ask for: to drain, to finish what has begun, to end at once.

    A process that is supervised may get every signal twice, from its group and from its supervisor: there a
    second SIGTERM does not end the drain, SIGINT does.
    """

    def __init__(
        self, service: Service, announce_end: Callable[[], object], drain_s: float, *, supervised: bool
    ) -> None:
        """`announce_end` has every response be the last one of its connection."""
        self._service = service
        self._announce_end = announce_end
        self._drain_s = drain_s
        self._supervised = supervised
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        """Set when the port is to be closed."""

        self.at_once = asyncio.Event()
        """Set when what has begun is not to be finished."""

    def handle_signals(self) -> None:
        """React to signals from now on."""
        self._loop.add_signal_handler(signal.SIGTERM, self._on_term)
        self._loop.add_signal_handler(signal.SIGINT, self._on_interrupt)

    def begin(self) -> None:
        """Finish what has begun, and end."""
        self._drain()
        self.begun.set()

    def _drain(self) -> None:
        self._service.draining = True
        self._announce_end()

    def _on_term(self) -> None:
        if not self._drain_s:
            self.begin()
        elif not self._service.draining:
            self._drain()
            log.info("draining for %g s", self._drain_s)
            self._loop.call_later(self._drain_s, self.begin)
        elif not self._supervised:
            self.begin()

    def _on_interrupt(self) -> None:
        if self.begun.is_set() and not self._supervised:
            self.at_once.set()
        self.begin()
