"""A call enters few Python frames of Headgate, in few files: these are what a reader of the call has to follow."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from fastapi import Depends, FastAPI

import headgate
from headgate import AsyncGate, Gate, Limiter, Request, core
from headgate.integrations.fastapi import rate_limit
from headgate.llm import LlmGate, Usage
from headgate.service.app import Service
from headgate.service.http.messages import ServiceRequest, ServiceResponse
from subjects import REDIS, redis_url
from versions import is_older

pytestmark = pytest.mark.skipif(core.CORE != "native", reason="the numbers are those of the native core")

HOUSE = str(Path(headgate.__file__).parent)
POLICY = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "100000/minute"}]}


class Frames(NamedTuple):
    calls: int
    files: int


def frames_of(work: Callable[[], object]) -> Frames:
    """The frames that a call enters after earlier calls of the same kind."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOUSE):
            calls.append(frame.f_code.co_filename)

    for _ in range(3):
        work()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return Frames(len(calls), len(set(calls)))


def test_a_hit_of_a_limiter_enters_no_frame() -> None:
    limiter = Limiter("100000/minute")
    assert frames_of(lambda: limiter.hit("key")) == (0, 0)


def test_a_gate_enters_few_frames() -> None:
    gate, request = Gate(POLICY), Request("GET", "/a", client_ip="203.0.113.9")
    assert frames_of(lambda: gate.hit(request)).calls <= 3


def test_a_call_of_a_language_model_enters_few_frames() -> None:
    rule = {"name": "user", "by": ["user"], "limits": "600/minute; 90000 tokens/minute bucket; 5 concurrent"}
    gate = LlmGate({"version": 1, "llm": {"hold": "max"}, "rules": [rule]})
    entered = frames_of(lambda: gate.reserve("m", user="ann", input_tokens=9, max_tokens=9).settle_usage(Usage(9, 9)))
    assert entered.calls <= 30 and entered.files <= 12


def test_a_check_of_the_service_enters_few_frames() -> None:
    service = Service(AsyncGate(POLICY))
    body = b'{"request": {"path": "/a", "client_ip": "203.0.113.9"}}'
    request = ServiceRequest("POST", "/v1/check", [], "127.0.0.1", body)
    answer = service.answer(request)
    assert isinstance(answer, ServiceResponse) and answer.status == 200
    calls, files = frames_of(lambda: service.answer(request))
    assert calls <= 28 and files <= 16


def test_a_dependency_of_fastapi_enters_few_frames() -> None:
    app = FastAPI()

    @app.get("/x", dependencies=[Depends(rate_limit("100000/minute"))])
    async def read() -> str:
        return "read"

    statuses: list[int] = []

    async def send_request() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        scope = {
            "type": "http", "method": "GET", "path": "/x", "raw_path": b"/x", "query_string": b"", "headers": [],
            "client": ("203.0.113.9", 5), "server": ("h", 80), "scheme": "http", "http_version": "1.1",
            "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        await app(scope, receive, send)

    with asyncio.Runner() as runner:
        calls, _ = frames_of(lambda: runner.run(send_request()))
    assert set(statuses) == {200, 0}
    assert calls <= 10


@pytest.mark.parametrize("kind", REDIS[:1])
def test_a_decision_on_redis_enters_few_frames(kind: str) -> None:
    limiter = Limiter("100000/minute burst 100", store=f"{redis_url(kind)}?timeout=5s&prefix=frames")
    try:
        calls, files = frames_of(lambda: limiter.hit("key"))
    finally:
        limiter.close()
    assert calls <= (35 if is_older("redis", "8") else 33) and files <= 12
