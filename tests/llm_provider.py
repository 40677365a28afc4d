"""A provider of language models on the loopback, whose answers depend on the model's name: correct or faulty."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, ClassVar

INPUT_TOKENS, OUTPUT_TOKENS = 12, 230
"""The usage that each answer reports."""

CHAT_USAGE = {
    "prompt_tokens": INPUT_TOKENS,
    "completion_tokens": OUTPUT_TOKENS,
    "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
}
USAGE = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
WORDS = ["The", " sky", " is", " blue", "."]


class Provider:
    """The bodies that a provider has received."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.received: list[dict[str, Any]] = []
        self.disconnected = Event()
        """Set when a client has closed an endless stream."""


@contextmanager
def provider() -> Iterator[Provider]:
    """Run a provider that listens on a free port."""
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
    """The events of a streamed chat completion."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}]}
        for word in WORDS
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage:
        chunks.append({**head, "choices": [], "usage": CHAT_USAGE})
    return [
        b": hello\r\n\r\n",
        *(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks),
        b"data: [DONE]\n\n",
    ]


def message_events(model: str) -> list[bytes]:
    """The events of a streamed message."""
    message = {**_message(model), "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in WORDS),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": OUTPUT_TOKENS}},
        {"type": "message_stop"},
    ]
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]


def _message(model: str) -> dict[str, Any]:
    return {
        "id": "m1", "type": "message", "role": "assistant", "model": model, "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": "".join(WORDS)}], "usage": USAGE,
    }  # fmt: skip


def _answer(path: str, model: str) -> dict[str, Any]:
    """An answer that is not streamed."""
    if path.endswith("/messages"):
        return _message(model)
    if path.endswith("/count_tokens"):
        return {"input_tokens": INPUT_TOKENS}
    if path.endswith("/embeddings"):
        vectors = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        return {
            "object": "list",
            "model": model,
            "data": vectors,
            "usage": {"prompt_tokens": INPUT_TOKENS, "total_tokens": INPUT_TOKENS},
        }
    if path.endswith("/responses"):
        text = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
        item = {"type": "message", "id": "o1", "role": "assistant", "status": "completed", "content": [text]}
        return {"id": "r1", "object": "response", "created_at": 1, "status": "completed", "model": model,
                "output": [item], "usage": {**USAGE, "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS}}  # fmt: skip
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
        self._respond(200, {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        provider = self.of[self.server.server_address[1]]  # type: ignore[index]
        provider.received.append(body)
        model = body.get("model", "")
        if model in ("m-429", "m-500"):
            error = {"message": "no", "type": "x", "code": None}
            self._respond(int(model[2:]), {"error": error}, ("x-should-retry", "false"))
        elif model == "m-moved":
            self._respond(307, {}, ("location", self.path.replace("/old", "")))
        elif body.get("stream"):
            self._stream(provider, model, body)
        else:
            answer = _answer(self.path, model)
            if model == "m-silent":
                del answer["usage"]
            self._respond(200, answer, cut=model == "m-cut", zipped=model == "m-zipped")

    def _respond(
        self, status: int, content_value: Any, *headers: tuple[str, str], cut: bool = False, zipped: bool = False
    ) -> None:
        content = json.dumps(content_value).encode()
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
            data = json.dumps(_answer(self.path, model)).encode() if model == "m-whole" else b"".join(events)
            for start in range(0, len(data), 100):  # events are cut anywhere
                self._chunk(data[start : start + 100])
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            provider.disconnected.set()
            self.close_connection = True

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def log_message(self, format: str, *args: Any) -> None: ...
