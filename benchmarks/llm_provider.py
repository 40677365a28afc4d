"""A provider of language models for benchmarks: streams of events, in a process of its own.

`python -m benchmarks.llm_provider EVENTS SECONDS` prints its port. Each answer has so many events, the first one at
once, and half to one and a half times so many seconds between two of them.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(content: object) -> bytes:
    data = content if isinstance(content, str) else json.dumps(content)
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


_CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_WORD = _event({**_CHUNK, "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}]})
_LAST = (
    _event({**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    + _event({**_CHUNK, "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 50, "total_tokens": 62}})
    + _event("[DONE]")
    + b"0\r\n\r\n"
)


async def main(events: int, pause_s: float) -> None:
    """Serve until killed."""
    pauses = random.Random(7)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                writer.write(_HEAD + _WORD)
                for _ in range(events - 1):
                    await asyncio.sleep(pauses.uniform(0.5, 1.5) * pause_s)
                    writer.write(_WORD)
                writer.write(_LAST)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))
