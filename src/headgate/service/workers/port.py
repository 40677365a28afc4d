"""What a process of the service asks of its port, whoever answers on it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from headgate.service.http.connections import Connections

FINISH_WITHIN_S = 10
"""How long what has begun may take after SIGTERM."""

LOOK_EVERY_S = 0.05
"""How often it is looked whether all has ended."""

REFUSE_BEFORE_S = 2
"""So long before the end of that time requests that wait in line are refused, so that they are answered."""


class Port(Protocol):
    """An address that clients reach."""

    connections: Connections
    """Those that Python answers."""

    async def open(self) -> None:
        """Answer requests from now on; raises OSError."""
        ...

    def announce_end(self) -> None:
        """Have every response be the last one of its connection from now on."""
        ...

    def reload(self) -> None:
        """Read again what the port proves itself with, if it does."""
        ...

    async def end(self, at_once: asyncio.Event) -> None:
        """Close the port, finish what has begun in its time, and cut off the rest; `at_once` ends that time."""
        ...
