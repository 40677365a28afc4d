"""A provider for newcomers, in the same process on a loopback port: its model `echo` repeats the last message.

It serves chat completions and messages, whole and as streams, and reports its usage: one token a word.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from headgate.errors import ConfigError, MissingExtraError
from headgate.llm_proxy.own_key import OwnKey, digest_of
from headgate.llm_proxy.providers import ProviderSettings

try:
    from aiohttp import web
except ImportError as error:
    raise MissingExtraError("the proxy of language models", extra="llm-proxy", why=error) from error

EXAMPLE_KEY = "hg-example"
EXAMPLE_POLICY = Path(__file__).with_name("example.yaml")
_WORD_S = 0.02
_MODEL = "echo"


class ExampleKeys:
    """One key, which is public: it is accepted only by a proxy of the example provider."""

    def __init__(self) -> None:
        digest = digest_of(EXAMPLE_KEY)
        self._key = OwnKey("example", digest, EXAMPLE_KEY, 0, user="newcomer", team="examples")

    async def find(self, digest: str) -> OwnKey | None:
        """The key, where the digest is its own."""
        return self._key if digest == self._key.digest else None


class ExampleProvider:
    """The provider, from `start` to `stop`."""

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", _chat)
        app.router.add_post("/v1/messages", _messages)
        app.router.add_post("/v1/messages/count_tokens", _count)
        app.router.add_get("/v1/models", _models)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> ProviderSettings:
        """Listen on a free port; return the settings that reach it."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        if not self._runner.addresses:
            raise ConfigError("the example provider found no free port")
        port = self._runner.addresses[0][1]
        return ProviderSettings(
            "example", f"http://127.0.0.1:{port}/v1", "", "none", ("chat", "messages", "count_tokens", "models"),
            ("*",), 60.0, 10.0, True, (),
        )  # fmt: skip

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()


def _words(body: dict[str, Any]) -> list[str]:
    """The words of the answer: those of the last message, as many as the call allows."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    text = last.get("content") if isinstance(last, dict) else ""
    words = str(text).split() or ["Hm."]
    most = body.get("max_tokens") or body.get("max_completion_tokens")
    return words[: most if isinstance(most, int) and most > 0 else 100]


def _input_tokens(body: dict[str, Any]) -> int:
    return len(json.dumps(body.get("messages", "")).split())


async def _chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    words, input_tokens = _words(body), _input_tokens(body)
    usage = {"prompt_tokens": input_tokens, "completion_tokens": len(words), "total_tokens": input_tokens + len(words)}
    head = {"id": "chatcmpl-echo", "created": 0, "model": _MODEL}
    if not body.get("stream"):
        message = {"role": "assistant", "content": " ".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    response = await _stream(request)
    head["object"] = "chat.completion.chunk"
    for word in words:
        choice = {"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}
        await _event(response, "", {**head, "choices": [choice]})
    await _event(response, "", {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        await _event(response, "", {**head, "choices": [], "usage": usage})
    await response.write(b"data: [DONE]\n\n")
    return response


async def _messages(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    words, input_tokens = _words(body), _input_tokens(body)
    message = {"id": "msg_echo", "type": "message", "role": "assistant", "model": _MODEL, "stop_sequence": None}
    if not body.get("stream"):
        content = [{"type": "text", "text": " ".join(words)}]
        usage = {"input_tokens": input_tokens, "output_tokens": len(words)}
        return web.json_response({**message, "content": content, "stop_reason": "end_turn", "usage": usage})
    response = await _stream(request)
    start_message: dict[str, Any] = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": input_tokens, "output_tokens": 1},
    }
    await _event(response, "message_start", {"message": start_message})
    await _event(response, "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
    for word in words:
        delta = {"type": "text_delta", "text": f"{word} "}
        await _event(response, "content_block_delta", {"index": 0, "delta": delta})
    await _event(response, "content_block_stop", {"index": 0})
    ended = {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": len(words)}}
    await _event(response, "message_delta", ended)
    await _event(response, "message_stop", {})
    return response


async def _count(request: web.Request) -> web.Response:
    return web.json_response({"input_tokens": _input_tokens(await request.json())})


async def _models(request: web.Request) -> web.Response:
    model = {"id": _MODEL, "object": "model", "type": "model", "display_name": "Echo", "created": 0, "owned_by": "you"}
    return web.json_response({"object": "list", "data": [model], "has_more": False})


async def _stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    return response


async def _event(response: web.StreamResponse, name: str, fields: dict[str, Any]) -> None:
    await asyncio.sleep(_WORD_S)
    head = f"event: {name}\n" if name else ""
    data = {"type": name, **fields} if name else fields
    await response.write(f"{head}data: {json.dumps(data)}\n\n".encode())
