"""A request whose head came, and its answer, which begins before aiohttp's server asks for it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from aiohttp import web

from headgate.llm_proxy.client_side import ClientSide


class BegunAnswer(NamedTuple):
    """An answer that is being made: what writes it, and what makes it."""

    client: ClientSide
    task: asyncio.Task[None]


class ArrivedRequest(web.BaseRequest):
    """A request of a client. aiohttp asks for its answer in a task of its own, a turn of the event loop later."""

    ATTRS = web.BaseRequest.ATTRS | {"begun"}

    begun: BegunAnswer | None = None
    """Its answer, where that has begun and aiohttp has not asked for it yet."""

    def lost(self) -> None:
        """Its connection is lost. An answer that aiohttp has not asked for yet, it does not cancel either."""
        if self.begun is not None:
            self.begun.client.leave()
