"""A provider of language models on loopback, in OpenAI's and Anthropic's dialects, which can be wrong in many ways.

It answers every call as the `Behaviour` of the requested model says. It records the requests that it received and the
bytes that it sent, so that a test can compare them with what arrived.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

UsageReport = Literal["usual", "never", "every chunk", "null choices", "zero first", "negative", "absurd"]


@dataclass(frozen=True)
class Behaviour:
    """How a model answers. The defaults are those of a good provider."""

    words: tuple[str, ...] = ("Hel", "lo", " world")
    """The text that it generates, an event for each word."""

    prompt_tokens: int = 12
    usage: UsageReport = "usual"
    """How usage is reported: as the dialect specifies, never, in every chunk, in a chunk whose choices are null, with
    an input of 0 at first (messages), or in numbers that cannot be true."""

    cut_bytes: int | None = None
    """How many bytes are sent at a time, so that events are split anywhere."""

    crlf: bool = False
    stream_type: str = "text/event-stream"
    """The content type of streams; "" for none."""

    comments: bool = False
    first_delay_s: float = 0.0
    """The delay before the headers."""

    delay_s: float = 0.0
    """The delay before each event."""

    breaks_after: int | None = None
    """After how many events the connection breaks."""

    incomplete: bool = False
    """Whether responses end as incomplete, as one does that has reached its maximum of tokens."""

    unended: bool = False
    """Whether streams end without their last event."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    refuses: int | None = None
    """With a status other than 200: how many requests are refused before one succeeds; None refuses all."""

    @property
    def output_tokens(self) -> int:
        """The output tokens that it reports: one for each word."""
        return len(self.words)


class ProviderRequest(NamedTuple):
    """A received request; names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Provider:
    """The running provider, as a test sees it."""

    url: str = ""
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    """The behaviour of each model; "" is that of all others."""

    requests: list[ProviderRequest] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    """The sent bodies, or as much of them as was sent."""

    disconnects: int = 0
    """How often the client closed the connection in the middle of a response."""

    refused: int = 0

    def behave(self, model: str = "", **fields: Any) -> None:
        """Set the behaviour of a model: that of a good provider, except for these fields."""
        self.behaviours[model] = replace(Behaviour(), **fields)


@contextmanager
def running_provider() -> Iterator[Provider]:
    """Run a provider on a free port of loopback, in a thread of its own."""
    provider, ready = Provider(), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await _Connection(provider, reader, writer).run()
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                connections.discard(task)
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
        provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await stop.wait()
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    try:
        assert ready.wait(30)
        yield provider
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


class _Connection:
    """A connection that is kept alive."""

    def __init__(self, provider: Provider, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._provider = provider
        self._reader = reader
        self._writer = writer

    async def run(self) -> None:
        while (request := await self._request()) is not None:
            self._provider.requests.append(request)
            body = json.loads(request.body) if request.body else {}
            behaviour = self._provider.behaviours.get(
                str(body.get("model")), self._provider.behaviours.get("", Behaviour())
            )
            await asyncio.sleep(behaviour.first_delay_s)
            if behaviour.status != 200 and (behaviour.refuses is None or self._provider.refused < behaviour.refuses):
                self._provider.refused += 1
                await self._send(_refusal(behaviour, request.path), behaviour)
            elif body.get("stream"):
                if not await self._stream(request.path, body, behaviour):
                    return
            else:
                await self._send(_document(request.path, body, behaviour), replace(behaviour, status=200))

    async def _request(self) -> ProviderRequest | None:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self._reader.readline(), 16):
                body += (await self._reader.readexactly(size + 2))[:size]
            await self._reader.readline()
        else:
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return ProviderRequest(method, path, headers, body)

    async def _send(self, document: dict[str, Any], behaviour: Behaviour) -> None:
        body = json.dumps(document).encode()
        self._provider.sent.append(body)  # before it can arrive: the test runs on another thread
        self._write_head(behaviour, "application/json", f"content-length: {len(body)}")
        self._writer.write(body)
        await self._writer.drain()

    async def _stream(self, path: str, body: dict[str, Any], behaviour: Behaviour) -> bool:
        """Send a response as events; return whether the connection can be used again."""
        index = len(self._provider.sent)
        self._provider.sent.append(b"")  # before the head can arrive
        self._write_head(behaviour, behaviour.stream_type, "transfer-encoding: chunked")
        events = [
            event.replace(b"\n", b"\r\n") if behaviour.crlf else event for event in _events(path, body, behaviour)
        ]
        for number, event in enumerate(events[:-1] if behaviour.unended else events):
            if behaviour.breaks_after is not None and number >= behaviour.breaks_after:
                self._writer.transport.abort()
                return False
            await asyncio.sleep(behaviour.delay_s)
            if self._writer.is_closing() or self._reader.at_eof():
                self._provider.disconnects += 1
                return False
            step = behaviour.cut_bytes or len(event)
            for start in range(0, len(event), step):
                part = event[start : start + step]
                self._provider.sent[index] += part
                self._writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                if behaviour.cut_bytes:
                    await asyncio.sleep(0)
            try:
                await self._writer.drain()
            except OSError:
                self._provider.disconnects += 1
                return False
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        return True

    def _write_head(self, behaviour: Behaviour, content_type: str, length: str) -> None:
        other_lines = "".join(f"{name}: {value}\r\n" for name, value in behaviour.headers)
        type_line = f"content-type: {content_type}\r\n" if content_type else ""
        head = f"HTTP/1.1 {behaviour.status} Status\r\n{type_line}{length}\r\n{other_lines}\r\n"
        self._writer.write(head.encode("latin-1"))


def _refusal(behaviour: Behaviour, path: str) -> dict[str, Any]:
    if "messages" in path:
        kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(behaviour.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": "the provider refuses"}, "request_id": "req_1"}
    return {"error": {"message": "the provider refuses", "type": "server_error", "param": None, "code": None}}


def _reported(number: int, behaviour: Behaviour) -> int | None:
    return -number if behaviour.usage == "negative" else 1 << 70 if behaviour.usage == "absurd" else number


def _chat_usage(behaviour: Behaviour, output_tokens: int) -> dict[str, Any]:
    prompt, completion = _reported(behaviour.prompt_tokens, behaviour), _reported(output_tokens, behaviour)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": behaviour.prompt_tokens + output_tokens,
    }


def _response_usage(behaviour: Behaviour) -> dict[str, Any]:
    return {
        "input_tokens": _reported(behaviour.prompt_tokens, behaviour),
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": _reported(behaviour.output_tokens, behaviour),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": behaviour.prompt_tokens + behaviour.output_tokens,
    }


def _document(path: str, body: dict[str, Any], behaviour: Behaviour) -> dict[str, Any]:
    document: dict[str, Any]
    model, text = body.get("model", ""), "".join(behaviour.words)
    usage: dict[str, Any] = {"usage": _chat_usage(behaviour, behaviour.output_tokens)}
    if path.startswith("/v1/models"):
        return {"object": "list", "data": [{"id": "gpt-5.5", "object": "model", "created": 1, "owned_by": "here"}]}
    if path.startswith("/v1/messages/count_tokens"):
        return {"input_tokens": behaviour.prompt_tokens}
    if path.startswith("/v1/messages"):
        message = _message(model, behaviour, behaviour.output_tokens)
        document = {**message, "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    elif path.startswith("/v1/responses"):
        status = "incomplete" if behaviour.incomplete else "completed"
        document, usage = _response(model, behaviour, status), {"usage": _response_usage(behaviour)}
    elif path.startswith("/v1/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        document = {"object": "list", "model": model, "data": data}
        usage = {"usage": {"prompt_tokens": behaviour.prompt_tokens, "total_tokens": behaviour.prompt_tokens}}
    elif path.startswith("/v1/completions"):
        choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
        document = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": model, "choices": [choice]}
    else:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        document = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    if behaviour.usage == "never":
        document.pop("usage", None)
        return document
    return {**usage, **document} if "usage" in document else {**document, **usage}


def _message(model: str, behaviour: Behaviour, output_tokens: int) -> dict[str, Any]:
    input_tokens = 0 if behaviour.usage == "zero first" else behaviour.prompt_tokens
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [],
                               "stop_reason": None, "stop_sequence": None}  # fmt: skip
    return {
        **message,
        "usage": {
            "input_tokens": _reported(input_tokens, behaviour),
            "output_tokens": _reported(output_tokens, behaviour),
        },
    }


def _response(model: str, behaviour: Behaviour, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": "".join(behaviour.words), "annotations": []}
    item = {"id": "item_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    item["status"] = "incomplete" if status == "incomplete" else "completed"
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    output = [] if status == "in_progress" else [item]
    return {"id": "resp_1", "object": "response", "created_at": 1, "model": model, "status": status, "output": output,
            "incomplete_details": details, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip


def _events(path: str, body: dict[str, Any], behaviour: Behaviour) -> Iterator[bytes]:
    events = _message_events if "messages" in path else _response_events if "responses" in path else _chunks
    for event in events(body, behaviour):
        if behaviour.comments:
            yield b": still here\n\n"
        yield event


def _chunks(body: dict[str, Any], behaviour: Behaviour) -> Iterator[bytes]:
    """Generate the events of chat completions and of completions."""
    chat = "messages" in body
    include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1,
        "model": body.get("model"),
    }
    for output_tokens, word in enumerate(behaviour.words, 1):
        choice = {"index": 0, **({"delta": {"content": word}} if chat else {"text": word}), "finish_reason": None}
        usage = {"usage": _chat_usage(behaviour, output_tokens)} if behaviour.usage == "every chunk" else {}
        yield _data({**head, "choices": [choice], **usage})
    empty: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    last_choice = {"index": 0, **empty, "finish_reason": "stop"}
    usage = {"usage": _chat_usage(behaviour, behaviour.output_tokens)} if behaviour.usage == "every chunk" else {}
    yield _data({**head, "choices": [last_choice], **usage})
    if include_usage and behaviour.usage not in ("never", "every chunk"):
        choices: list[Any] | None = None if behaviour.usage == "null choices" else []
        yield _data({**head, "choices": choices, "usage": _chat_usage(behaviour, behaviour.output_tokens)})
    yield b"data: [DONE]\n\n"


def _message_events(body: dict[str, Any], behaviour: Behaviour) -> Iterator[bytes]:
    message = _message(str(body.get("model")), behaviour, 1)
    if behaviour.usage == "never":
        message.pop("usage")
    yield _named("message_start", {"message": message})
    yield _named("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
    for word in behaviour.words:
        yield _named("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": word}})
    yield _named("content_block_stop", {"index": 0})
    usage: dict[str, Any] = {"usage": {"output_tokens": _reported(behaviour.output_tokens, behaviour)}}
    if behaviour.usage == "zero first":
        usage["usage"]["input_tokens"] = behaviour.prompt_tokens
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _named("message_delta", {"delta": delta, **({} if behaviour.usage == "never" else usage)})
    yield _named("message_stop", {})


def _response_events(body: dict[str, Any], behaviour: Behaviour) -> Iterator[bytes]:
    model = str(body.get("model"))
    position = {"item_id": "item_1", "output_index": 0, "content_index": 0}
    item: dict[str, Any] = {"id": "item_1", "type": "message", "role": "assistant", "content": []}
    part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": _response(model, behaviour, "in_progress")}),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.content_part.added", {**position, "part": part}),
        *(("response.output_text.delta", {**position, "delta": word, "logprobs": []}) for word in behaviour.words),
    ]
    status = "incomplete" if behaviour.incomplete else "completed"
    response = _response(model, behaviour, status)
    if behaviour.usage != "never":
        response["usage"] = _response_usage(behaviour)
    events.append((f"response.{status}", {"response": response}))
    for number, (name, event) in enumerate(events):
        yield _named(name, {**event, "sequence_number": number})


def _data(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def _named(name: str, document: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **document})}\n\n".encode()
