"""A provider of language models on loopback, in OpenAI's and Anthropic's dialects, which can be wrong in many ways.

It makes the words that it is told to make, as `Behaviour` says for the model that is asked. It keeps the requests that
came and the bytes that it sent, so that a test can compare them with what arrived.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

Tells = Literal["usual", "never", "every chunk", "null choices", "zero first", "negative", "absurd"]


@dataclass(frozen=True)
class Behaviour:
    """How a model answers. The defaults are those of a good provider."""

    words: tuple[str, ...] = ("Hel", "lo", " world")
    """What it makes, an event each."""

    prompt_tokens: int = 12
    tells: Tells = "usual"
    """How usage is told: as the dialect has it, never, in every chunk, in a chunk whose choices are null, with an input
    of 0 at first (messages), or in numbers that cannot be true."""

    cut_bytes: int | None = None
    """Send so many bytes at a time, so that events are split anywhere."""

    crlf: bool = False
    stream_type: str = "text/event-stream"
    """What streams say that they are; "" where their head does not tell."""

    comments: bool = False
    first_delay_s: float = 0.0
    """Before the headers."""

    delay_s: float = 0.0
    """Before each event."""

    breaks_after: int | None = None
    """Break the connection after so many events."""

    incomplete: bool = False
    """End responses as incomplete, as one does that has made its most tokens."""

    unended: bool = False
    """End the stream without its last event."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    refuses: int | None = None
    """With a status of refusal: how many requests are refused before the first is answered; None is all."""

    @property
    def output_tokens(self) -> int:
        """The tokens that it says it made: one a word."""
        return len(self.words)


class ProviderRequest(NamedTuple):
    """A request that came; names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Provider:
    """What a test sees of the provider that runs."""

    url: str = ""
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    """By model; "" for all others."""

    requests: list[ProviderRequest] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    """The bodies that were sent, as far as they were."""

    left: int = 0
    """How often the other side closed the connection in the middle of an answer."""

    refused: int = 0

    def behave(self, model: str = "", **how: Any) -> None:
        """Have a model behave otherwise than a good provider's."""
        self.behaviours[model] = replace(Behaviour(), **how)


@contextmanager
def running_provider() -> Iterator[Provider]:
    """A provider on a free port of loopback, in a thread of its own."""
    provider, ready = Provider(), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        answering: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            answering.add(task)
            try:
                await _Connection(provider, reader, writer).run()
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                answering.discard(task)
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
        provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await stop.wait()
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

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
    """One connection, kept alive."""

    def __init__(self, provider: Provider, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._provider = provider
        self._reader = reader
        self._writer = writer

    async def run(self) -> None:
        while (request := await self._request()) is not None:
            self._provider.requests.append(request)
            body = json.loads(request.body) if request.body else {}
            how = self._provider.behaviours.get(str(body.get("model")), self._provider.behaviours.get("", Behaviour()))
            await asyncio.sleep(how.first_delay_s)
            if how.status != 200 and (how.refuses is None or self._provider.refused < how.refuses):
                self._provider.refused += 1
                await self._whole(_refusal(how, request.path), how)
            elif body.get("stream"):
                if not await self._stream(request.path, body, how):
                    return
            else:
                await self._whole(_whole(request.path, body, how), replace(how, status=200))

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

    async def _whole(self, told: dict[str, Any], how: Behaviour) -> None:
        body = json.dumps(told).encode()
        self._provider.sent.append(body)  # before it can have arrived: the test is on another thread
        self._head(how, "application/json", f"content-length: {len(body)}")
        self._writer.write(body)
        await self._writer.drain()

    async def _stream(self, path: str, body: dict[str, Any], how: Behaviour) -> bool:
        """Send the events of an answer; whether the connection can be used again."""
        place = len(self._provider.sent)
        self._provider.sent.append(b"")  # before the head can have arrived
        self._head(how, how.stream_type, "transfer-encoding: chunked")
        events = [event.replace(b"\n", b"\r\n") if how.crlf else event for event in _events(path, body, how)]
        for number, event in enumerate(events[:-1] if how.unended else events):
            if how.breaks_after is not None and number >= how.breaks_after:
                self._writer.transport.abort()
                return False
            await asyncio.sleep(how.delay_s)
            if self._writer.is_closing() or self._reader.at_eof():
                self._provider.left += 1
                return False
            step = how.cut_bytes or len(event)
            for start in range(0, len(event), step):
                part = event[start : start + step]
                self._provider.sent[place] += part
                self._writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                if how.cut_bytes:
                    await asyncio.sleep(0)
            try:
                await self._writer.drain()
            except OSError:
                self._provider.left += 1
                return False
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        return True

    def _head(self, how: Behaviour, content_type: str, length: str) -> None:
        more = "".join(f"{name}: {value}\r\n" for name, value in how.headers)
        typed = f"content-type: {content_type}\r\n" if content_type else ""
        head = f"HTTP/1.1 {how.status} Status\r\n{typed}{length}\r\n{more}\r\n"
        self._writer.write(head.encode("latin-1"))


def _refusal(how: Behaviour, path: str) -> dict[str, Any]:
    if "messages" in path:
        kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(how.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": "the provider refuses"}, "request_id": "req_1"}
    return {"error": {"message": "the provider refuses", "type": "server_error", "param": None, "code": None}}


def _told(number: int, how: Behaviour) -> int | None:
    return -number if how.tells == "negative" else 1 << 70 if how.tells == "absurd" else number


def _chat_usage(how: Behaviour, made: int) -> dict[str, Any]:
    sent, output = _told(how.prompt_tokens, how), _told(made, how)
    return {"prompt_tokens": sent, "completion_tokens": output, "total_tokens": how.prompt_tokens + made}


def _response_usage(how: Behaviour) -> dict[str, Any]:
    return {
        "input_tokens": _told(how.prompt_tokens, how),
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": _told(how.output_tokens, how),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": how.prompt_tokens + how.output_tokens,
    }


def _whole(path: str, body: dict[str, Any], how: Behaviour) -> dict[str, Any]:
    told: dict[str, Any]
    model, text = body.get("model", ""), "".join(how.words)
    usage: dict[str, Any] = {"usage": _chat_usage(how, how.output_tokens)}
    if path.startswith("/v1/models"):
        return {"object": "list", "data": [{"id": "gpt-5.5", "object": "model", "created": 1, "owned_by": "here"}]}
    if path.startswith("/v1/messages/count_tokens"):
        return {"input_tokens": how.prompt_tokens}
    if path.startswith("/v1/messages"):
        message = _message(model, how, how.output_tokens)
        told = {**message, "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    elif path.startswith("/v1/responses"):
        status = "incomplete" if how.incomplete else "completed"
        told, usage = _response(model, how, status), {"usage": _response_usage(how)}
    elif path.startswith("/v1/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        told = {"object": "list", "model": model, "data": data}
        usage = {"usage": {"prompt_tokens": how.prompt_tokens, "total_tokens": how.prompt_tokens}}
    elif path.startswith("/v1/completions"):
        choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
        told = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": model, "choices": [choice]}
    else:
        answer = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": answer, "finish_reason": "stop", "logprobs": None}
        told = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    if how.tells == "never":
        told.pop("usage", None)
        return told
    return {**usage, **told} if "usage" in told else {**told, **usage}


def _message(model: str, how: Behaviour, made: int) -> dict[str, Any]:
    sent = 0 if how.tells == "zero first" else how.prompt_tokens
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [],
                               "stop_reason": None, "stop_sequence": None}  # fmt: skip
    return {**message, "usage": {"input_tokens": _told(sent, how), "output_tokens": _told(made, how)}}


def _response(model: str, how: Behaviour, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": "".join(how.words), "annotations": []}
    item = {"id": "item_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    item["status"] = "incomplete" if status == "incomplete" else "completed"
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    output = [] if status == "in_progress" else [item]
    return {"id": "resp_1", "object": "response", "created_at": 1, "model": model, "status": status, "output": output,
            "incomplete_details": details, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip


def _events(path: str, body: dict[str, Any], how: Behaviour) -> Iterator[bytes]:
    events = _message_events if "messages" in path else _response_events if "responses" in path else _chunks
    for event in events(body, how):
        if how.comments:
            yield b": still here\n\n"
        yield event


def _chunks(body: dict[str, Any], how: Behaviour) -> Iterator[bytes]:
    """Of chat completions, and of completions."""
    chat = "messages" in body
    asked = bool((body.get("stream_options") or {}).get("include_usage"))
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1,
        "model": body.get("model"),
    }
    for made, word in enumerate(how.words, 1):
        choice = {"index": 0, **({"delta": {"content": word}} if chat else {"text": word}), "finish_reason": None}
        usage = {"usage": _chat_usage(how, made)} if how.tells == "every chunk" else {}
        yield _data({**head, "choices": [choice], **usage})
    nothing: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    last = {"index": 0, **nothing, "finish_reason": "stop"}
    usage = {"usage": _chat_usage(how, how.output_tokens)} if how.tells == "every chunk" else {}
    yield _data({**head, "choices": [last], **usage})
    if asked and how.tells not in ("never", "every chunk"):
        choices: list[Any] | None = None if how.tells == "null choices" else []
        yield _data({**head, "choices": choices, "usage": _chat_usage(how, how.output_tokens)})
    yield b"data: [DONE]\n\n"


def _message_events(body: dict[str, Any], how: Behaviour) -> Iterator[bytes]:
    message = _message(str(body.get("model")), how, 1)
    if how.tells == "never":
        message.pop("usage")
    yield _named("message_start", {"message": message})
    yield _named("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
    for word in how.words:
        yield _named("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": word}})
    yield _named("content_block_stop", {"index": 0})
    usage: dict[str, Any] = {"usage": {"output_tokens": _told(how.output_tokens, how)}}
    if how.tells == "zero first":
        usage["usage"]["input_tokens"] = how.prompt_tokens
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _named("message_delta", {"delta": delta, **({} if how.tells == "never" else usage)})
    yield _named("message_stop", {})


def _response_events(body: dict[str, Any], how: Behaviour) -> Iterator[bytes]:
    model = str(body.get("model"))
    place = {"item_id": "item_1", "output_index": 0, "content_index": 0}
    item: dict[str, Any] = {"id": "item_1", "type": "message", "role": "assistant", "content": []}
    part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
    told: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": _response(model, how, "in_progress")}),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.content_part.added", {**place, "part": part}),
        *(("response.output_text.delta", {**place, "delta": word, "logprobs": []}) for word in how.words),
    ]
    status = "incomplete" if how.incomplete else "completed"
    whole = _response(model, how, status)
    if how.tells != "never":
        whole["usage"] = _response_usage(how)
    told.append((f"response.{status}", {"response": whole}))
    for number, (name, event) in enumerate(told):
        yield _named(name, {**event, "sequence_number": number})


def _data(told: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(told)}\n\n".encode()


def _named(name: str, told: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **told})}\n\n".encode()
