"""The body of a request, as it was sent."""

from __future__ import annotations

import asyncio

from aiohttp import web

from headgate.llm.dialects import Family, Problem
from headgate.llm_proxy.proxy_parts import ProxyOptions
from headgate.llm_proxy.refused import Refused, refused


async def sent_body(request: web.BaseRequest, family: Family, options: ProxyOptions) -> bytes:
    """The body as it was sent; one that is too long is refused before it is read, where its length is told."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise refused(family, Problem.BAD_BODY, "The body is compressed: send it without content-encoding.")
    if (request.content_length or 0) > options.most_body_bytes:
        raise _too_large(family, options.most_body_bytes)
    if request.content.is_eof():  # it came with the head, as short ones do
        whole = request.content.read_nowait()
        if len(whole) > options.most_body_bytes:
            raise _too_large(family, options.most_body_bytes)
        return whole
    raw = bytearray()
    try:
        async with asyncio.timeout(options.body_s):
            if request.headers.get("expect", "").lower() == "100-continue":
                await _let_send(request)
            while chunk := await request.content.readany():
                raw += chunk
                if len(raw) > options.most_body_bytes:
                    raise _too_large(family, options.most_body_bytes)
    except (ConnectionError, web.RequestPayloadError):  # the client has gone, or sends what is no body
        raise refused(family, Problem.BAD_BODY, "The body broke off.") from None
    except TimeoutError:
        raise refused(family, Problem.BAD_BODY, f"The body did not come within {options.body_s:g} s.") from None
    return bytes(raw)


def _too_large(family: Family, most: int) -> Refused:
    return refused(family, Problem.TOO_LARGE, f"The body has more than {most:,} bytes.")


async def _let_send(request: web.BaseRequest) -> None:
    """Tell a client that asks before it sends a long body that it may."""
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # nothing of the answer was written yet
