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
from starlette.responses import JSONResponse
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


def who(scope: Any) -> Caller | None:
    """The user whose name is the bearer's token."""
    fields = dict(scope["headers"])
    token = fields.get(b"authorization", b"").decode().removeprefix("Bearer ")
    return Caller(user=token) if token else None


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The address of an application under uvicorn, in this event loop."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="critical"))
    task = asyncio.create_task(server.serve())
    try:
        await until_async(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def asked(queue: AsyncLlmQueue, user: str = "ann", **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with served(QueueApp(queue, who, **settings)) as address:
        headers = {"authorization": f"Bearer {user}"}
        async with httpx.AsyncClient(base_url=address, headers=headers, timeout=30) as client:
            yield client


class Provider:
    """Answers when it is let."""

    def __init__(self, goes_on: bool = True) -> None:
        self.goes_on = asyncio.Event()
        if goes_on:
            self.goes_on.set()

    async def __call__(self, job: QueuedCall, call: Any) -> Any:
        await self.goes_on.wait()
        return answer_of(7)


def test_a_job_is_submitted_asked_for_and_done() -> None:
    async def main() -> None:
        queue, provider = AsyncLlmQueue(AsyncLlmGate(POLICY)), Provider(goes_on=False)
        async with asked(queue) as client, queue.worker(provider, pace=Pace(1, 1)):
            first = await client.post("/jobs", json={"body": BODY, "id": "report-7", "priority": 3, "deadline": 60})
            assert (first.status_code, first.json()["state"]) == (202, "waiting")
            assert first.headers["location"] == f"jobs/{first.json()['id']}"
            await until_async(lambda: queue.backlog._waiting == 0)  # type: ignore[attr-defined]
            second = await client.post("/jobs", json={"body": BODY})
            shown = (await client.get(second.headers["location"])).json()
            assert (shown["state"], shown["ahead"], shown["submitted"][:2]) == ("waiting", 0, "20")
            assert (await client.get(second.headers["location"] + "?wait=0.01")).json()["state"] == "waiting"
            provider.goes_on.set()
            done = (await client.get(second.headers["location"] + "?wait=20")).json()
            assert (done["state"], done["answer"], done["tokens"]) == ("done", answer_of(7), 7)
            again = await client.post("/jobs", json={"body": BODY, "id": "report-7"})
            assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
            assert (await client.head(second.headers["location"])).content == b""

    run(main())


def test_a_job_is_cancelled() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue()
        async with asked(queue) as client:
            job = await client.post("/jobs", json={"body": BODY})
            ended = await client.delete(job.headers["location"])
            assert (ended.status_code, ended.json()["state"]) == (200, "cancelled")

    run(main())


def test_a_caller_sees_its_own_jobs_alone_and_ids_are_its_own() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue()
        async with asked(queue) as client:
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


def test_positions_come_as_events_until_the_job_has_ended() -> None:
    async def main() -> None:
        queue, provider = AsyncLlmQueue(AsyncLlmGate(POLICY)), Provider(goes_on=False)
        async with asked(queue) as client, queue.worker(provider, pace=Pace(1, 1)):
            jobs = [(await client.post("/jobs", json={"body": BODY})).headers["location"] for _ in range(2)]
            told: list[tuple[str, dict[str, Any]]] = []
            async with client.stream("GET", jobs[1] + "/events") as response:
                assert response.headers["content-type"] == "text/event-stream"
                reader = EventReader()
                async for chunk in response.aiter_bytes():
                    for event in reader.feed(chunk):
                        told.append((event.name, json.loads(event.data)))
                        provider.goes_on.set()
            assert (told[0][0], told[0][1]["state"]) == ("position", "waiting")
            assert told[-1][0] == "end"
            assert told[-1][1]["answer"] == answer_of(7)

    run(main())


def test_a_client_that_goes_while_it_watches_is_noticed_and_streams_are_bounded() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue()
        app = QueueApp(queue, who, most_streams=1)
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
    ("sent", "status", "code"),
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
def test_what_is_wrong_is_told_in_json_and_nothing_is_queued(sent: dict[str, Any], status: int, code: str) -> None:
    async def main() -> None:
        queue = AsyncLlmQueue(bounds=Bounds(body_bytes=1_000))
        async with asked(queue, most_priority=5) as client:
            answer = await client.post("/jobs", **sent)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert queue.backlog._waiting == 0  # type: ignore[attr-defined]

    run(main())


def test_a_body_that_comes_in_chunks_is_bounded_too_and_a_full_queue_says_so() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue(bounds=Bounds(body_bytes=1_000, user_jobs=1, jobs=2))

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 100

        async with asked(queue) as client:
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


def test_it_is_mounted_in_another_application() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue()
        headers = {"authorization": "Bearer ann"}
        mounted = Starlette(routes=[Mount("/queue", QueueApp(queue, who))])
        async with served(mounted) as address, httpx.AsyncClient(base_url=address, headers=headers) as client:
            job = await client.post("/queue/jobs", json={"body": BODY})
            assert (await client.get(f"/queue/{job.headers['location']}")).json()["state"] == "waiting"

    run(main())


def provider_app(seen: list[Request]) -> Starlette:
    """A provider that is too busy for its first call, and refuses bodies that name no model that it knows."""

    async def chat(request: Request) -> JSONResponse:
        seen.append(request)
        body = await request.json()
        if len(seen) == 1:
            return JSONResponse({"error": {"message": "slow down"}}, 429, {"retry-after-ms": "50"})
        if body["model"] == "of-another-key":
            return JSONResponse({"error": {"message": f"Incorrect API key: {request.headers['authorization']}"}}, 401)
        if "refused" in body:
            status, should_retry = body["refused"]
            fields = {"x-should-retry": should_retry, "retry-after-ms": "10"}
            return JSONResponse({"error": {"message": "spent"}}, status, fields)
        if body["model"] != "own":
            return JSONResponse({"error": {"message": "no such model"}}, 404)
        return JSONResponse(answer_of(7))

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


def test_jobs_are_sent_to_a_provider_by_url() -> None:
    async def main() -> None:
        seen: list[Request] = []
        policy = {**POLICY, "llm": {"unknown_price": "free"}}
        queue = AsyncLlmQueue(AsyncLlmGate(policy))
        async with (
            served(provider_app(seen)) as address,
            HttpProvider(f"{address}/v1", "secret") as ask,
            queue.worker(ask),
        ):
            done = await queue.result((await queue.submit(BODY, user="ann")).id)
            failed = await queue.result((await queue.submit({**BODY, "model": "other"}, user="ann")).id)
            lost = await queue.result((await queue.submit(BODY, user="ann", path="/v1/responses")).id)
        assert (done.state, done.attempts, done.answer) == ("done", 1, answer_of(7))
        assert (failed.state, "404" in failed.error, "no such model" in failed.error) == ("failed", True, True)
        assert lost.state == "failed"
        assert seen[1].headers["authorization"] == "Bearer secret"
        assert seen[0].headers["idempotency-key"] == seen[1].headers["idempotency-key"] == done.id

    run(main())


def test_a_provider_by_url_says_whether_it_is_to_be_asked_again() -> None:
    async def main() -> None:
        seen: list[Request] = [Request({"type": "http"})]
        queue = AsyncLlmQueue(AsyncLlmGate({**POLICY, "llm": {"unknown_price": "free"}}))
        async with (
            served(provider_app(seen)) as address,
            HttpProvider(f"{address}/v1") as ask,
            queue.worker(ask, retries=3),
        ):
            bodies = [{**BODY, "refused": [429, "false"]}, {**BODY, "refused": [400, "true"]}]
            ended = [await queue.result((await queue.submit(body, user="ann")).id) for body in bodies]
        assert [(job.state, job.attempts) for job in ended] == [("failed", 0), ("failed", 3)]
        assert len(seen) == 1 + 1 + 4

    run(main())


def test_a_provider_that_is_no_url_is_refused_and_its_secret_not_shown() -> None:
    urls = ["api.openai.com", "https://user:geheim@host/v1", "ftp://host", "https://host/v1?key=geheim"]
    for url in (*urls, "http://[::1", "http://host:99999/v1", "http://host:0/v1", "http://host\x00/v1"):
        with pytest.raises(ConfigError) as shown:
            HttpProvider(url)
        assert "geheim" not in str(shown.value)


def test_what_a_provider_says_of_a_key_that_it_does_not_take_is_not_shown() -> None:
    async def main() -> None:
        seen: list[Request] = [Request({"type": "http"})]
        queue = AsyncLlmQueue(AsyncLlmGate({**POLICY, "llm": {"unknown_price": "free"}}))
        async with (
            served(provider_app(seen)) as address,
            HttpProvider(f"{address}/v1", "geheim") as ask,
            queue.worker(ask),
        ):
            job = await queue.result((await queue.submit({**BODY, "model": "of-another-key"}, user="ann")).id)
        assert (job.state, job.error) == (
            "failed",
            "ProviderError: the provider answered 401: it does not accept the key",
        )

    run(main())


def test_a_key_that_no_header_can_have_is_refused_and_not_shown() -> None:
    for key in ("geheim\nX-Other: 1", "\u201cgeheim\u201d", "geheim\x7f"):
        with pytest.raises(ConfigError, match="a key is printable ASCII on one line") as shown:
            HttpProvider("https://host/v1", key)
        assert "geheim" not in str(shown.value)


def test_a_key_with_a_line_end_behind_it_is_sent_without_it() -> None:
    async def main() -> None:
        seen: list[Request] = [Request({"type": "http"})]
        queue = AsyncLlmQueue(AsyncLlmGate({**POLICY, "llm": {"unknown_price": "free"}}))
        async with (
            served(provider_app(seen)) as address,
            HttpProvider(f"{address}/v1", "geheim\n") as ask,
            queue.worker(ask, retries=0),
        ):
            job = await queue.result((await queue.submit(BODY, user="ann")).id)
        assert (job.state, job.error) == ("done", "")
        assert seen[1].headers["authorization"] == "Bearer geheim"

    run(main())


HANDLER = """
import functools
import sys


async def ask(job, call):
    if job.body["seed"] == 3:
        sys.exit(1)
    return {"usage": {"prompt_tokens": 1, "completion_tokens": 2}, "of": job.body["seed"]}


@functools.wraps(ask)
def decorated(job, call):
    return ask(job, call)
"""


def test_the_command_serves_a_queue_until_it_is_asked_to_end(server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "policy.yaml").write_text(json.dumps({**POLICY, "store": f"{server.url}?timeout=10s"}))
        (tmp_path / "own_jobs.py").write_text(HANDLER)
        seen: list[Request] = []
        url = f"{server.url}?timeout=10s"
        async with served(provider_app(seen)) as address:
            for name, by in (
                ("handled", ["--handler", "own_jobs:ask"]),
                ("decorated", ["--handler", "own_jobs:decorated"]),
                ("sent", ["--provider", address, "--key-from", "OWN_KEY"]),
            ):
                command = [sys.executable, "-m", "headgate", "llm", "work", "policy.yaml", "--queue", url]
                worker = subprocess.Popen(  # noqa: ASYNC220
                    [*command, "--name", name, *by],
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
                    _, said = await asyncio.to_thread(worker.communicate, timeout=30)
                finally:
                    worker.kill()
                assert [(job.state, job.error) for job in done] == [("done", "")] * 3
                assert (worker.returncode, "Traceback" in said, "geheim" in said) == (0, False, False), said
        assert seen[-1].headers["authorization"] == "Bearer geheim"

    run(main())


@pytest.mark.parametrize(
    ("words", "status", "said"),
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
def test_misuse_of_the_command_is_told_in_words(
    words: list[str], status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from headgate.cli.commands import headgate

    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps(POLICY))
    with pytest.raises(SystemExit) as ended:
        headgate(["llm", "work", str(policy), *words])
    assert (ended.value.code, said in capsys.readouterr().err) == (status, True)
