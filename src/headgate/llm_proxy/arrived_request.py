"""A request whose head has arrived, and its answer, which begins before aiohttp's server calls the handler."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from aiohttp import web

from headgate.llm_proxy.client_side import ClientSide


class OngoingAnswer(NamedTuple):
    """An answer that has begun: its writer, and the task that writes it."""

    client: ClientSide
    task: asyncio.Task[None]


class ArrivedRequest(web.BaseRequest):
    """A client's request. aiohttp calls the handler in a task of its own, one turn of the event loop later."""

    ATTRS = web.BaseRequest.ATTRS | {"ongoing"}

    ongoing: OngoingAnswer | None = None
    """Its answer, where that has begun before aiohttp called the handler."""

    def connection_lost(self) -> None:
        """Note that its connection is lost: aiohttp does not cancel an answer for which it called no handler yet."""
        if self.ongoing is not None:
            self.ongoing.client.leave()
