"""The queue over HTTP under a real uvicorn: jobs, errors, positions as server-sent events; and `headgate llm work`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from redis_servers import Server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from headgate.errors import ConfigError
from headgate.llm import AsyncLlmGate, EventReader
from headgate.llm.entry import Caller
from headgate.llm.queue import AsyncLlmQueue, Bounds, Pace, QueueApp, QueuedCall
from headgate.llm.queue.provider import HttpProvider
from llm_gates import answer_of
from until import until_async

pytestmark = pytest.mark.integration

BODY = {"model": "own", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
POLICY = {
    "version": 1,
    "llm": {"prices": {"own": {"input": "1", "output": "10"}}},
    "rules": [{"name": "user", "by": ["user"], "limits": "1000/day; 100000 tokens/day"}],
}


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


def caller_of(scope: Any) -> Caller | None:
    """The user whose name is the bearer token."""
    fields = dict(scope["headers"])
    token = fields.get(b"authorization", b"").decode().removeprefix("Bearer ")
    return Caller(user=token) if token else None


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an application under uvicorn, in this event loop, and yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="critical"))
    task = asyncio.create_task(server.serve())
    try:
        await until_async(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def client_of(queue: AsyncLlmQueue, user: str = "ann", **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with served(QueueApp(queue, caller_of, **settings)) as address:
        headers = {"authorization": f"Bearer {user}"}
        async with httpx.AsyncClient(base_url=address, headers=headers, timeout=30) as client:
            yield client


class Provider:
    """Answers as soon as a test allows it."""

    def __init__(self, is_open: bool = True) -> None:
        self.may_answer = asyncio.Event()
        if is_open:
            self.may_answer.set()

    async def __call__(self, job: QueuedCall, call: Any) -> Any:
        await self.may_answer.wait()
        return answer_of(7)


def test_a_job_is_submitted_queried_and_done() -> None:
    async def main() -> None:
        queue, provider = AsyncLlmQueue(AsyncLlmGate(POLICY)), Provider(is_open=False)
        async with client_of(queue) as client, queue.worker(provider, pace=Pace(1, 1)):
            first = await client.post("/jobs", json={"body": BODY, "id": "report-7", "priority": 3, "deadline": 60})
            assert (first.status_code, first.json()["state"]) == (202, "waiting")
            assert first.headers["location"] == f"jobs/{first.json()['id']}"
            await until_async(lambda: queue.backlog._waiting == 0)  # type: ignore[attr-defined]
            second = await client.post("/jobs", json={"body": BODY})
            shown = (await client.get(second.headers["location"])).json()
            assert (shown["state"], shown["ahead"], shown["submitted"][:2]) == ("waiting", 0, "20")
            assert (await client.get(second.headers["location"] + "?wait=0.01")).json()["state"] == "waiting"
            provider.may_answer.set()
            done = (await client.get(second.headers["location"] + "?wait=20")).json()
            assert (done["state"], done["answer"], done["tokens"]) == ("done", answer_of(7), 7)
            repeated = await client.post("/jobs", json={"body": BODY, "id": "report-7"})
            assert (repeated.status_code, repeated.json()["id"]) == (200, first.json()["id"])
            assert (await client.head(second.headers["location"])).content == b""

    run(main())


def test_a_job_is_cancelled() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue()
        async with client_of(queue) as client:
            job = await client.post("/jobs", json={"body": BODY})
            ended = await client.delete(job.headers["location"])
            assert (ended.status_code, ended.json()["state"]) == (200, "cancelled")

    run(main())


def test_a_caller_sees_only_its_own_jobs_and_ids() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue()
        async with client_of(queue) as client:
            bob = {"authorization": "Bearer bob"}
            own = await client.post("/jobs", json={"body": BODY, "id": "report"})
            for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
                hidden = await client.request(method, f"/{own.headers['location']}{path}", headers=bob)
                assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "unknown-job")
            others = await client.post("/jobs", json={"body": {**BODY, "max_tokens": 9}, "id": "report"}, headers=bob)
            assert others.status_code == 202
            assert others.json()["id"] != own.json()["id"]
            conflict = await client.post("/jobs", json={"body": {**BODY, "max_tokens": 9}, "id": "report"})
            assert conflict.status_code == 409

    run(main())


def test_positions_are_sent_as_events_until_the_job_ends() -> None:
    async def main() -> None:
        queue, provider = AsyncLlmQueue(AsyncLlmGate(POLICY)), Provider(is_open=False)
        async with client_of(queue) as client, queue.worker(provider, pace=Pace(1, 1)):
            jobs = [(await client.post("/jobs", json={"body": BODY})).headers["location"] for _ in range(2)]
            events: list[tuple[str, dict[str, Any]]] = []
            async with client.stream("GET", jobs[1] + "/events") as response:
                assert response.headers["content-type"] == "text/event-stream"
                reader = EventReader()
                async for chunk in response.aiter_bytes():
                    for event in reader.feed(chunk):
                        events.append((event.name, json.loads(event.data)))
                        provider.may_answer.set()
            assert (events[0][0], events[0][1]["state"]) == ("position", "waiting")
            assert events[-1][0] == "end"
            assert events[-1][1]["answer"] == answer_of(7)

    run(main())


def test_a_watching_client_that_disconnects_is_noticed_and_streams_are_bounded() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue()
        app = QueueApp(queue, caller_of, most_streams=1)
        async with served(app) as address, httpx.AsyncClient(base_url=address, timeout=30) as client:
            ann = {"authorization": "Bearer ann"}
            job = (await client.post("/jobs", json={"body": BODY}, headers=ann)).headers["location"]
            async with client.stream("GET", job + "/events", headers=ann) as response:
                await anext(response.aiter_bytes())
                refused = await client.get(job + "/events", headers=ann)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "streams")
            await until_async(lambda: app._streams == 0)
            await until_async(lambda: not queue.backlog.news._watchers)

    run(main())


@pytest.mark.parametrize(
    ("request_parts", "status", "code"),
    [
        ({"content": b"{"}, 400, "json"),
        ({"content": b"\xff\xfe"}, 400, "json"),
        ({"content": b"[" * 5_000}, 400, "json"),
        ({"json": [BODY]}, 400, "json"),
        ({"json": {"bodies": BODY}}, 400, "json"),
        ({"json": {"body": BODY, "user": "bob"}}, 400, "json"),
        ({"json": {"body": "x"}}, 400, "argument"),
        ({"json": {"body": {**BODY, "stream": True}}}, 400, "argument"),
        ({"json": {"body": BODY, "priority": 6}}, 400, "argument"),
        ({"json": {"body": BODY, "priority": "high"}}, 400, "argument"),
        ({"json": {"body": BODY, "deadline": -1}}, 400, "argument"),
        ({"json": {"body": BODY, "id": "a/b"}}, 400, "argument"),
        ({"json": {"body": BODY, "path": "//elsewhere"}}, 400, "argument"),
        ({"json": {"body": {**BODY, "text": "x" * 6_000}}}, 413, "too-large"),
        ({"json": {"body": {**BODY, "text": "x" * 1_500}}}, 400, "argument"),
        ({"json": {"body": BODY}, "headers": {"authorization": ""}}, 401, "unauthorized"),
    ],
)
def test_an_invalid_job_is_a_json_error_and_is_not_queued(
    request_parts: dict[str, Any], status: int, code: str
) -> None:
    async def main() -> None:
        queue = AsyncLlmQueue(bounds=Bounds(body_bytes=1_000))
        async with client_of(queue, most_priority=5) as client:
            response = await client.post("/jobs", **request_parts)
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
            assert queue.backlog._waiting == 0  # type: ignore[attr-defined]

    run(main())


def test_a_chunked_body_is_bounded_and_a_full_queue_refuses_jobs() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue(bounds=Bounds(body_bytes=1_000, user_jobs=1, jobs=2))

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 100

        async with client_of(queue) as client:
            assert (await client.post("/jobs", content=endless())).status_code == 413
            assert (await client.post("/jobs", json={"body": BODY})).status_code == 202
            full = await client.post("/jobs", json={"body": BODY})
            assert (full.status_code, full.json()["error"]["code"]) == (429, "queue-full")
            for user, status in (("bob", 202), ("cid", 503)):
                headers = {"authorization": f"Bearer {user}"}
                assert (await client.post("/jobs", json={"body": BODY}, headers=headers)).status_code == status
            assert (await client.get("/jobs")).headers["allow"] == "POST"
            assert (await client.get("/elsewhere")).json()["error"]["code"] == "not-found"
            assert (await client.get("/jobs/none?wait=1e9")).status_code == 404

    run(main())


def test_it_can_be_mounted_in_another_application() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue()
        headers = {"authorization": "Bearer ann"}
        mounted = Starlette(routes=[Mount("/queue", QueueApp(queue, caller_of))])
        async with served(mounted) as address, httpx.AsyncClient(base_url=address, headers=headers) as client:
            job = await client.post("/queue/jobs", json={"body": BODY})
            assert (await client.get(f"/queue/{job.headers['location']}")).json()["state"] == "waiting"

    run(main())


def provider_app(received: list[Request]) -> Starlette:
    """A provider that is too busy for its first call, refuses unknown models, and never ends with the model `slow`."""

    async def blank_lines() -> AsyncIterator[bytes]:
        while True:
            yield b"\n"
            await asyncio.sleep(0.05)

    async def chat(request: Request) -> Response:
        received.append(request)
        body = await request.json()
        if len(received) == 1:
            return JSONResponse({"error": {"message": "slow down"}}, 429, {"retry-after-ms": "50"})
        if body["model"] == "of-another-key":
            return JSONResponse({"error": {"message": f"Incorrect API key: {request.headers['authorization']}"}}, 401)
        if "refused" in body:
            status, should_retry = body["refused"]
            fields = {"x-should-retry": should_retry, "retry-after-ms": "10"}
            return JSONResponse({"error": {"message": "spent"}}, status, fields)
        if body["model"] == "slow":
            return StreamingResponse(blank_lines(), media_type="application/json")
        if body["model"] != "own":
            return JSONResponse({"error": {"message": "no such model"}}, 404)
        return JSONResponse(answer_of(7))

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


def test_jobs_are_sent_to_a_provider_by_url() -> None:
    async def main() -> None:
        received: list[Request] = []
        policy = {**POLICY, "llm": {"unknown_price": "free"}}
        queue = AsyncLlmQueue(AsyncLlmGate(policy))
        async with (
            served(provider_app(received)) as address,
            HttpProvider(f"{address}/v1", "secret") as send,
            queue.worker(send),
        ):
            done = await queue.result((await queue.submit(BODY, user="ann")).id)
            failed = await queue.result((await queue.submit({**BODY, "model": "other"}, user="ann")).id)
            lost = await queue.result((await queue.submit(BODY, user="ann", path="/v1/responses")).id)
        assert (done.state, done.attempts, done.answer) == ("done", 1, answer_of(7))
        assert (failed.state, "404" in failed.error, "no such model" in failed.error) == ("failed", True, True)
        assert lost.state == "failed"
        assert received[1].headers["authorization"] == "Bearer secret"
        assert received[0].headers["idempotency-key"] == received[1].headers["idempotency-key"] == done.id

    run(main())


def test_a_call_to_a_provider_by_url_takes_no_longer_than_its_timeout() -> None:
    """Some providers send blank lines while they are busy, so the next byte is never late."""

    async def main() -> None:
        queue = AsyncLlmQueue(AsyncLlmGate({**POLICY, "llm": {"unknown_price": "free"}}))
        async with (
            served(provider_app([Request({"type": "http"})])) as address,
            HttpProvider(f"{address}/v1", timeout=0.5) as send,
            queue.worker(send, retries=0),
        ):
            ended = await queue.result((await queue.submit({**BODY, "model": "slow"}, user="ann")).id, 20)
        assert (ended.state, "did not answer within 0.5 s" in ended.error) == ("failed", True)

    run(main())


def test_a_provider_by_url_decides_whether_a_job_is_retried() -> None:
    async def main() -> None:
        received: list[Request] = [Request({"type": "http"})]
        queue = AsyncLlmQueue(AsyncLlmGate({**POLICY, "llm": {"unknown_price": "free"}}))
        async with (
            served(provider_app(received)) as address,
            HttpProvider(f"{address}/v1") as send,
            queue.worker(send, retries=3),
        ):
            bodies = [{**BODY, "refused": [429, "false"]}, {**BODY, "refused": [400, "true"]}]
            ended = [await queue.result((await queue.submit(body, user="ann")).id) for body in bodies]
        assert [(job.state, job.attempts) for job in ended] == [("failed", 0), ("failed", 3)]
        assert len(received) == 1 + 1 + 4

    run(main())


def test_an_invalid_provider_url_is_refused_and_its_secret_not_shown() -> None:
    urls = ["api.openai.com", "https://user:geheim@host/v1", "ftp://host", "https://host/v1?key=geheim"]
    for url in (*urls, "http://[::1", "http://host:99999/v1", "http://host:0/v1", "http://host\x00/v1"):
        with pytest.raises(ConfigError) as caught:
            HttpProvider(url)
        assert "geheim" not in str(caught.value)


def test_a_providers_message_about_a_rejected_key_is_not_shown() -> None:
    async def main() -> None:
        received: list[Request] = [Request({"type": "http"})]
        queue = AsyncLlmQueue(AsyncLlmGate({**POLICY, "llm": {"unknown_price": "free"}}))
        async with (
            served(provider_app(received)) as address,
            HttpProvider(f"{address}/v1", "geheim") as send,
            queue.worker(send),
        ):
            job = await queue.result((await queue.submit({**BODY, "model": "of-another-key"}, user="ann")).id)
        assert (job.state, job.error) == (
            "failed",
            "ProviderError: the provider answered 401: it does not accept the key",
        )

    run(main())


def test_a_key_that_no_header_can_contain_is_refused_and_not_shown() -> None:
    for key in ("geheim\nX-Other: 1", "\u201cgeheim\u201d", "geheim\x7f"):
        with pytest.raises(ConfigError, match="a key is printable ASCII on one line") as caught:
            HttpProvider("https://host/v1", key)
        assert "geheim" not in str(caught.value)


def test_a_key_with_a_trailing_line_end_is_sent_without_it() -> None:
    async def main() -> None:
        received: list[Request] = [Request({"type": "http"})]
        queue = AsyncLlmQueue(AsyncLlmGate({**POLICY, "llm": {"unknown_price": "free"}}))
        async with (
            served(provider_app(received)) as address,
            HttpProvider(f"{address}/v1", "geheim\n") as send,
            queue.worker(send, retries=0),
        ):
            job = await queue.result((await queue.submit(BODY, user="ann")).id)
        assert (job.state, job.error) == ("done", "")
        assert received[1].headers["authorization"] == "Bearer geheim"

    run(main())


HANDLER = """
import functools
import sys


async def ask(job, call):
    print("asked")
    if job.body["seed"] == 3:
        sys.exit(1)
    return {"usage": {"prompt_tokens": 1, "completion_tokens": 2}, "of": job.body["seed"]}


@functools.wraps(ask)
def decorated(job, call):
    return ask(job, call)
"""


def test_the_command_serves_a_queue_until_it_is_terminated(server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "policy.yaml").write_text(json.dumps({**POLICY, "store": f"{server.url}?timeout=10s"}))
        (tmp_path / "own_jobs.py").write_text(HANDLER)
        received: list[Request] = []
        url = f"{server.url}?timeout=10s"
        async with served(provider_app(received)) as address:
            for name, options in (
                ("handled", ["--handler", "own_jobs:ask"]),
                ("decorated", ["--handler", "own_jobs:decorated"]),
                ("sent", ["--provider", address, "--key-from", "OWN_KEY"]),
            ):
                command = [sys.executable, "-m", "headgate", "llm", "work", "policy.yaml", "--queue", url]
                worker = subprocess.Popen(  # noqa: ASYNC220
                    ["sh", "-c", 'exec "$@" >&-', "sh", *command, "--name", name, *options],  # a handler may print
                    cwd=tmp_path,
                    env={**os.environ, "OWN_KEY": "geheim"},
                    stderr=subprocess.PIPE,
                    text=True,
                )
                try:
                    async with AsyncLlmQueue(store=url, name=name) as queue:
                        jobs = [await queue.submit({**BODY, "seed": number}, user="ann") for number in range(3)]
                        if name != "sent":  # a handler that exits fails its job alone
                            exits = await queue.submit({**BODY, "seed": 3}, user="ann")
                            error = (await queue.result(exits.id, 50)).error
                            assert error == "RuntimeError: the handler raised SystemExit"
                        done = [await queue.result(job.id, 50) for job in jobs]
                    worker.send_signal(signal.SIGTERM)
                    _, stderr = await asyncio.to_thread(worker.communicate, timeout=30)
                finally:
                    worker.kill()
                assert [(job.state, job.error) for job in done] == [("done", "")] * 3
                assert (worker.returncode, "Traceback" in stderr, "geheim" in stderr) == (0, False, False), stderr
        assert received[-1].headers["authorization"] == "Bearer geheim"

    run(main())


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--queue", "memory://", "--handler", "x:y"], 1, "a queue in memory is that of its own process"),
        (["--queue", "redis://127.0.0.1"], 2, "give --provider URL or --handler MODULE:NAME"),
        (["--queue", "redis://127.0.0.1", "--handler", "json:nothing"], 1, "the handler 'json:nothing' is not there"),
        (["--queue", "redis://127.0.0.1", "--handler", "json:dumps"], 1, "the handler 'json:dumps' begins with def"),
        (["--queue", "redis://127.0.0.1", "--handler", "json"], 1, "a handler is MODULE:NAME"),
        (["--queue", "redis://127.0.0.1", "--handler", ".json:loads"], 1, "a handler is MODULE:NAME"),
        (
            ["--queue", "redis://127.0.0.1", "--provider", "x", "--key-from", "NO_SUCH"],
            1,
            "the environment has no NO_SUCH",
        ),
        (["--queue", "redis://127.0.0.1", "--provider", "x", "--key-from", "sk-own"], 1, "has no variable of the name"),
        (["--queue", "redis://127.0.0.1", "--provider", "x"], 1, "a provider is the URL of its API"),
        (["--queue", "redis://127.0.0.1", "--provider", "http://[::1"], 1, "a provider is the URL of its API"),
        (["--queue", "nowhere", "--handler", "json:loads"], 1, "the store of a queue is memory:// or"),
        (["--queue", "redis://h", "--handler", "json:loads", "--start", "9", "--most", "8"], 2, "--start is at most"),
    ],
)
def test_misuse_of_the_command_is_an_error_message(
    arguments: list[str], status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from headgate.cli.commands import headgate

    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps(POLICY))
    with pytest.raises(SystemExit) as caught:
        headgate(["llm", "work", str(policy), *arguments])
    assert (caught.value.code, message in capsys.readouterr().err) == (status, True)
