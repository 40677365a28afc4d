"""The body of a request, read within bounds."""

from __future__ import annotations

import asyncio

from aiohttp import web

from headgate.llm.dialects import Family, Problem
from headgate.llm_proxy.proxy_parts import ProxyOptions
from headgate.llm_proxy.refused import Refused, refused


async def read_request_body(request: web.BaseRequest, family: Family, options: ProxyOptions) -> bytes:
    """Read the body; raises Refused. Where the length is declared, a body that is too long is refused unread."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise refused(family, Problem.BAD_BODY, "The body is compressed: send it without content-encoding.")
    if (request.content_length or 0) > options.most_body_bytes:
        raise _too_large(family, options.most_body_bytes)
    if request.content.is_eof():  # received together with the head, as short ones are
        body = request.content.read_nowait()
        if len(body) > options.most_body_bytes:
            raise _too_large(family, options.most_body_bytes)
        return body
    raw = bytearray()
    try:
        async with asyncio.timeout(options.body_s):
            if request.headers.get("expect", "").lower() == "100-continue":
                await _send_continue(request)
            while chunk := await request.content.readany():
                raw += chunk
                if len(raw) > options.most_body_bytes:
                    raise _too_large(family, options.most_body_bytes)
    except (ConnectionError, web.RequestPayloadError):  # the client has gone, or its framing is invalid
        raise refused(family, Problem.BAD_BODY, "The body broke off.") from None
    except TimeoutError:
        raise refused(family, Problem.BAD_BODY, f"The body did not arrive within {options.body_s:g} s.") from None
    return bytes(raw)


def _too_large(family: Family, most: int) -> Refused:
    return refused(family, Problem.TOO_LARGE, f"The body has more than {most:,} bytes.")


async def _send_continue(request: web.BaseRequest) -> None:
    """Send 100 Continue to a client that waits for it before it sends a long body."""
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # nothing of the answer was written yet
