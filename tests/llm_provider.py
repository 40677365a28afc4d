"""A provider of language models on the loopback, which answers as the model's name says: well, or wrong in each way."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, ClassVar

SENT, MADE = 12, 230
"""Tokens that each answer tells as its usage."""

CHAT_USAGE = {"prompt_tokens": SENT, "completion_tokens": MADE, "total_tokens": SENT + MADE}
USAGE = {"input_tokens": SENT, "output_tokens": MADE}
WORDS = ["The", " sky", " is", " blue", "."]


class Provider:
    """What a provider was asked."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked: list[dict[str, Any]] = []
        self.gone = Event()
        """Set when a client has left a stream that has no end."""


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider that listens on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    answering = _Handler.of[server.server_port] = Provider(server.server_port)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield answering
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chat_events(model: str, *, usage: bool) -> list[bytes]:
    """The events of a chat completion that is streamed."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model}
    told: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}]}
        for word in WORDS
    ]
    told.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage:
        told.append({**head, "choices": [], "usage": CHAT_USAGE})
    return [
        b": hello\r\n\r\n",
        *(b"data: " + json.dumps(each).encode() + b"\n\n" for each in told),
        b"data: [DONE]\n\n",
    ]


def message_events(model: str) -> list[bytes]:
    """The events of a message that is streamed."""
    message = {**_message(model), "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in WORDS),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": MADE}},
        {"type": "message_stop"},
    ]
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in told]


def _message(model: str) -> dict[str, Any]:
    return {
        "id": "m1", "type": "message", "role": "assistant", "model": model, "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": "".join(WORDS)}], "usage": USAGE,
    }  # fmt: skip


def _whole(path: str, model: str) -> dict[str, Any]:
    """A whole answer."""
    if path.endswith("/messages"):
        return _message(model)
    if path.endswith("/count_tokens"):
        return {"input_tokens": SENT}
    if path.endswith("/embeddings"):
        vectors = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        return {
            "object": "list",
            "model": model,
            "data": vectors,
            "usage": {"prompt_tokens": SENT, "total_tokens": SENT},
        }
    if path.endswith("/responses"):
        text = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
        made = {"type": "message", "id": "o1", "role": "assistant", "status": "completed", "content": [text]}
        return {"id": "r1", "object": "response", "created_at": 1, "status": "completed", "model": model,
                "output": [made], "usage": {**USAGE, "total_tokens": SENT + MADE}}  # fmt: skip
    choice = {"index": 0, "message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice],
        "usage": CHAT_USAGE,
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: ClassVar[dict[int, Provider]] = {}

    def do_GET(self) -> None:
        self._say(200, {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        provider = self.of[self.server.server_address[1]]  # type: ignore[index]
        provider.asked.append(body)
        model = body.get("model", "")
        if model in ("m-429", "m-500"):
            error = {"message": "no", "type": "x", "code": None}
            self._say(int(model[2:]), {"error": error}, ("x-should-retry", "false"))
        elif model == "m-moved":
            self._say(307, {}, ("location", self.path.replace("/old", "")))
        elif body.get("stream"):
            self._stream(provider, model, body)
        else:
            told = _whole(self.path, model)
            if model == "m-silent":
                del told["usage"]
            self._say(200, told, cut=model == "m-cut", zipped=model == "m-zipped")

    def _say(self, status: int, told: Any, *headers: tuple[str, str], cut: bool = False, zipped: bool = False) -> None:
        content = json.dumps(told).encode()
        content = gzip.compress(content) if zipped else content
        self.send_response(status)
        encoding = [("content-encoding", "gzip")] if zipped else []
        for name, value in [("content-type", "application/json"), *encoding, *headers]:
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = cut

    def _stream(self, provider: Provider, model: str, body: dict[str, Any]) -> None:
        self.send_response(200)
        if model != "m-untyped":
            self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if self.path.endswith("/messages"):
            events = message_events(model)
        else:
            events = chat_events(model, usage=bool((body.get("stream_options") or {}).get("include_usage")))
        try:
            if model == "m-cut":
                self._chunk(b"".join(events[:4]))
                self.close_connection = True
                return
            if model == "m-endless":
                self._chunk(b"".join(events[:2]))
                while True:
                    self._chunk(events[3])
            whole = b"".join(events)
            for start in range(0, len(whole), 100):  # events are cut anywhere
                self._chunk(whole[start : start + 100])
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            provider.gone.set()
            self.close_connection = True

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def log_message(self, format: str, *args: Any) -> None: ...
