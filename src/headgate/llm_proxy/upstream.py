"""Sends calls to providers, and tells apart what never reached one from what may have."""

from __future__ import annotations

from collections.abc import Iterable

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from headgate.llm.dialects.paths import Dialect
from headgate.llm_proxy.passed_headers import headers_to_send
from headgate.llm_proxy.providers import ProviderSettings

_BUFFER_BYTES = 64 * 1024
"""So much of an answer is read ahead; more waits at the provider until the client has taken it."""

_KEEP_ALIVE_S = 20.0
"""Shorter than what servers usually have, so that a call rarely meets a connection that was just closed."""


_AS_IT_IS = ("accept-encoding", "identity")
"""Answers are read as they pass, so they come without compression."""


class NotReached(Exception):
    """Nothing of a call was sent."""


class Lost(Exception):
    """A call was sent, and its answer did not come: whether the provider answers it is not known."""

    def __init__(self, message: str, *, is_timeout: bool) -> None:
        super().__init__(message)
        self.is_timeout = is_timeout


class Upstream:
    """The connections to all providers. To be made and closed on the event loop."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent", "accept", "content-type"),
            read_bufsize=_BUFFER_BYTES,
            max_line_size=32768,
            max_field_size=32768,
        )

    async def send(
        self,
        provider: ProviderSettings,
        dialect: Dialect,
        query: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
    ) -> aiohttp.ClientResponse:
        """Send a call; the answer when its headers are there. Raises NotReached, Lost."""
        url = provider.url(dialect) + (f"?{query}" if query else "")
        sent = CIMultiDict(headers_to_send(headers))
        for name, value in (*provider.headers, *provider.auth_headers(dialect).items(), _AS_IT_IS):
            sent[name] = value
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=provider.connect_timeout_s, sock_read=provider.timeout_s
        )
        try:
            return await self._session.request(
                dialect.method, URL(url, encoded=True), data=body, headers=sent, timeout=timeout, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotReached(_reason(error)) from error
        except TimeoutError as error:
            raise Lost(f"nothing came for {provider.timeout_s:g} s", is_timeout=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(_reason(error), is_timeout=False) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def _reason(error: BaseException) -> str:
    """What went wrong, without addresses that are no business of a client."""
    return type(error).__name__
