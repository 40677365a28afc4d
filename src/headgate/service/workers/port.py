"""The interface of a service's port, whether Python or the front door answers on it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headgate.service.http.connections import Connections

FINISH_WITHIN_S = 10
"""How long requests that have begun may take after SIGTERM."""

POLL_EVERY_S = 0.05
"""The time between two checks whether all connections have ended."""

REFUSE_BEFORE_S = 2
"""How long before the end of that time requests that wait in line are refused, so that they get a response."""


class Port(Protocol):
    """A listening address of the service."""

    connections: Connections
    """The connections that Python answers."""

    async def open(self) -> None:
        """Answer requests from now on; raises OSError."""
        ...

    def announce_end(self) -> None:
        """Make every response the last one of its connection from now on."""
        ...

    def reload(self) -> None:
        """Read the port's certificate again, if it has one."""
        ...

    async def end(self, at_once: asyncio.Event) -> None:
        """Close the port, finish open requests, and cut off the rest at a deadline, or once `at_once` is set."""
        ...
