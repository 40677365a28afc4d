"""A handler that sends jobs to a provider over HTTP, by `httpx`."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from headgate.errors import ConfigError, MissingExtraError
from headgate.llm.dialects.paths import url_at
from headgate.llm.queue.attempt import QueuedCall
from headgate.llm.queue.failures import ProviderError, retry_after_us, should_retry

try:
    import httpx
except ModuleNotFoundError as error:
    raise MissingExtraError("a worker that sends jobs to a provider's URL", extra="httpx") from error

_ANTHROPIC_VERSION = "2023-06-01"
_QUOTED = 300
_UNAUTHORIZED = 401


class HttpProvider:
    """Sends a job's body to its path below `url`, and returns the answer: `async with HttpProvider(url) as handler`.

    `key` is sent as OpenAI's API takes it, or as Anthropic's for its path. The job's id is the idempotency key. An
    answer has at most `most_bytes`; a call takes at most `timeout` seconds. Raises ConfigError for a bad URL or key.
    """

    def __init__(self, url: str, key: str = "", *, timeout: float = 600.0, most_bytes: int = 16 << 20) -> None:
        if not _is_api(url):
            raise ConfigError("a provider is the URL of its API, such as https://api.openai.com/v1")
        if "@" in urlsplit(url).netloc:
            raise ConfigError("a provider's URL has no user and no password; its key is passed separately")
        key = key.strip()  # key files end with a newline
        if not key.isascii() or not key.isprintable():  # httpx's own error would show the key to the caller
            raise ConfigError("the provider's key cannot be sent in a header: a key is printable ASCII on one line")
        self._url = url
        self._key = key
        self._most_bytes = most_bytes
        self._timeout = timeout
        # A failure to connect has to show as such, and not as the end of the whole call: then nothing was sent.
        limits, timeouts = httpx.Limits(max_connections=None), httpx.Timeout(timeout, connect=timeout / 2)
        self._client = httpx.AsyncClient(timeout=timeouts, limits=limits)

    async def __call__(self, job: QueuedCall, call: Any) -> Any:
        """Send a job and return the answer; raises ProviderError if the provider's status is not 200."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._answer(job)
        except TimeoutError:
            raise TimeoutError(f"the provider did not answer within {self._timeout:g} s") from None

    async def _answer(self, job: QueuedCall) -> Any:
        headers = {"content-type": "application/json", "idempotency-key": job.id}
        if job.path.endswith("/messages"):
            headers |= {"anthropic-version": _ANTHROPIC_VERSION, **({"x-api-key": self._key} if self._key else {})}
        elif self._key:
            headers["authorization"] = f"Bearer {self._key}"
        content = json.dumps(job.body, ensure_ascii=False).encode()
        async with self._client.stream(
            "POST", url_at(self._url, job.path), content=content, headers=headers
        ) as response:
            received = bytearray()
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > self._most_bytes:
                    raise ValueError(f"the provider's answer has more than {self._most_bytes:,} bytes")
        if response.status_code != 200:
            message = received[:_QUOTED].decode("utf-8", "replace")
            if response.status_code == _UNAUTHORIZED:  # the response may quote the key, which callers must not see
                message = "it does not accept the key"
            wait_us = retry_after_us(response.headers)
            raise ProviderError(
                f"the provider answered {response.status_code}: {message}",
                status=response.status_code,
                retry_after=None if wait_us is None else wait_us / 1e6,
                should_retry=should_retry(response.headers),
            )
        try:
            return json.loads(received)
        except ValueError:
            raise ValueError(
                f"the provider's answer is no JSON: {received[:_QUOTED].decode('utf-8', 'replace')!r}"
            ) from None

    async def __aenter__(self) -> HttpProvider:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()


def _is_api(url: str) -> bool:
    """Whether a URL can be extended by paths and requested."""
    try:
        parts = urlsplit(url)
        is_reachable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unclosed bracket of an IPv6 address, or an invalid port
        return False
    return is_reachable and url.isprintable() and not (parts.query or parts.fragment)
