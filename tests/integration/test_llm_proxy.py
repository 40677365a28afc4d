"""The proxy between the real packages of OpenAI and Anthropic and a provider that is wrong in many ways."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from threading import Thread
from typing import Any

import anthropic
import httpx
import openai
import pytest
from provider import Provider, running_provider
from running_proxy import RunningProxy, at, running_proxy, wait_until

from headgate.llm.usage import Usage

pytestmark = pytest.mark.integration

MESSAGES: Any = [{"role": "user", "content": "hi"}]
WIDE = [
    {"name": "all", "by": ["model"], "limits": "100000/minute; 100000000 tokens/minute bucket; 1000 usd/day in UTC"}
]
USED = Usage(12, 3)
HTTP = httpx.Client(timeout=30)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def proxy(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """Wide limits, no keys, one provider."""
    with running_proxy(tmp_path_factory.mktemp("proxy"), WIDE, [at(provider)]) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _good_again(provider: Provider) -> None:
    provider.behaviours.clear()
    provider.refused = provider.disconnects = 0


@contextmanager
def answering_once(response: bytes) -> Iterator[int]:
    """A port on which one request, of whatever kind, is answered with these bytes in one piece."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                request = b""
                while b"}" not in request:
                    request += connection.recv(65536)
                connection.sendall(response)
                connection.recv(65536)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(30)


def openai_of(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(**{"api_key": "own", "base_url": f"{url}/v1", "max_retries": 0, **options})


def anthropic_of(url: str, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(**{"api_key": "own", "base_url": url, "max_retries": 0, **options})


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": MESSAGES},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {"model": "m", "max_tokens": 99, "messages": MESSAGES},
}


def test_complete_responses_of_every_dialect_pass_and_are_settled_exactly(proxy: RunningProxy) -> None:
    with openai_of(proxy.url) as client:
        chat = client.chat.completions.create(model="m", messages=MESSAGES)
        assert chat.choices[0].message.content == "Hello world"
        assert client.completions.create(model="m", prompt="hi").choices[0].text == "Hello world"
        assert client.responses.create(model="m", input="hi").output_text == "Hello world"
        assert [(entry.mode, entry.usage, entry.cost) for entry in proxy.settled(3)] == [("exact", USED, 18_000)] * 3
        assert client.embeddings.create(model="m", input="hi").data[0].embedding == [0.5]
        embedded = proxy.settled()[0]
        assert (embedded.usage, embedded.held_output) == (Usage(12, 0), 0)
    with anthropic_of(proxy.url) as other:
        assert other.messages.create(model="m", max_tokens=9, messages=MESSAGES).stop_reason == "end_turn"
    assert proxy.settled()[0].usage == USED


def test_calls_that_cost_nothing_are_passed_on_and_never_held(proxy: RunningProxy, provider: Provider) -> None:
    held = proxy.count("held")
    with openai_of(proxy.url) as client, anthropic_of(proxy.url) as other:
        assert [model.id for model in client.models.list()] == ["gpt-5.5"]
        assert other.messages.count_tokens(model="m", messages=MESSAGES).input_tokens == 12
    assert proxy.count("held") == held
    assert [request.path for request in provider.requests[-2:]] == ["/v1/models", "/v1/messages/count_tokens"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "fields",
    [
        {}, {"cut_bytes": 3}, {"crlf": True}, {"comments": True, "cut_bytes": 11}, {"usage": "every chunk"},
        {"usage": "null choices"}, {"usage": "never"}, {"usage": "zero first"}, {"usage": "negative"},
        {"usage": "absurd"}, {"unended": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_stream_passes_to_the_byte(
    proxy: RunningProxy, provider: Provider, path: str, fields: dict[str, Any]
) -> None:
    provider.behave("m", **fields)
    body: dict[str, Any] = {**BODIES[path], "stream": True}
    if path.endswith("completions"):
        body["stream_options"] = {"include_usage": True}
    response = HTTP.post(proxy.url + path, json=body)
    assert response.status_code == 200 and response.headers["content-type"] == "text/event-stream"
    assert response.content == provider.sent[-1]
    [entry] = proxy.settled()
    usage = fields.get("usage", "usual")
    is_reported = usage in ("usual", "every chunk", "null choices", "zero first") and not (
        fields.get("unended") and "responses" in path
    )
    assert entry.mode == ("exact" if is_reported else "at least")
    assert entry.usage is not None and entry.usage.output >= 2
    if is_reported:
        assert entry.usage == USED


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream_type", ["", "text/plain", "application/json"])
def test_a_stream_without_its_content_type_passes_in_parts_and_is_settled_exactly(
    proxy: RunningProxy, provider: Provider, path: str, stream_type: str
) -> None:
    provider.behave("m", stream_type=stream_type, cut_bytes=3, delay_s=0.05, comments=True)
    body: dict[str, Any] = {**BODIES[path], "stream": True}
    if path.endswith("completions"):
        body["stream_options"] = {"include_usage": True}
    with HTTP.stream("POST", proxy.url + path, json=body) as response:
        assert response.headers["content-type"] == (stream_type or "application/octet-stream")
        parts = list(response.iter_raw())
    assert b"".join(parts) == provider.sent[-1] and len(parts) > 3
    assert [(entry.mode, entry.usage) for entry in proxy.settled()] == [("exact", USED)]


@pytest.mark.parametrize("content_type", [b"", b"content-type: text/event-stream\r\n"])
def test_a_complete_response_to_a_streamed_call_is_settled_exactly(tmp_path: Path, content_type: bytes) -> None:
    document = b'\xef\xbb\xbf\r\n{"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}}'
    with answering_once(
        b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (content_type, len(document), document)
    ) as port:
        provider_entry = {"name": "p", "base_url": f"http://127.0.0.1:{port}/v1"}
        with running_proxy(tmp_path, WIDE, [provider_entry]) as proxy:
            body = {**BODIES["/v1/chat/completions"], "stream": True}
            assert HTTP.post(f"{proxy.url}/v1/chat/completions", json=body).content == document
            assert [(entry.mode, entry.usage) for entry in proxy.settled()] == [("exact", Usage(12, 3))]


@pytest.mark.parametrize("path", BODIES)
def test_the_head_of_a_stream_does_not_wait_for_its_first_event(
    proxy: RunningProxy, provider: Provider, path: str
) -> None:
    provider.behave("m", delay_s=0.5)
    with HTTP.stream("POST", proxy.url + path, json={**BODIES[path], "stream": True}) as response:
        assert response.status_code == 200 and provider.sent[-1] == b""
        assert b"".join(response.iter_raw()).count(b"data: ") >= 3


@pytest.mark.parametrize(
    ("events", "passed"),
    [
        ([b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n\n'], b""),
        ([b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n\ndata: [DONE]\n\n'],
         b"data: [DONE]\n\n"),
        ([b"data: [DO", b"NE]\n\n"], b"data: [DONE]\n\n"),
        ([b"data: [DO"], b"data: [DO"),
        ([], b""),
    ],
)  # fmt: skip
def test_a_stream_that_arrives_complete_with_its_head_passes_completely(
    tmp_path: Path, events: list[bytes], passed: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    with answering_once(head + chunks + b"0\r\n\r\n") as port:
        provider_entry = {"name": "p", "base_url": f"http://127.0.0.1:{port}/v1"}
        with running_proxy(tmp_path, WIDE, [provider_entry]) as proxy:
            response = HTTP.post(
                f"{proxy.url}/v1/chat/completions", json={**BODIES["/v1/chat/completions"], "stream": True}
            )
            assert (response.status_code, response.content) == (200, passed)
            assert len(proxy.settled()) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}], ids=str
)
def test_usage_is_requested_and_stripped_where_the_client_did_not_request_it(
    proxy: RunningProxy, provider: Provider, path: str, options: dict[str, Any]
) -> None:
    provider.behave("m", cut_bytes=17)
    response = HTTP.post(proxy.url + path, json={**BODIES[path], "stream": True, **options}, timeout=30)
    assert provider.requests[-1].json["stream_options"] == {"include_usage": True}
    events = provider.sent[-1].split(b"\n\n")
    assert b'"usage"' in events[-3] and b'"usage"' not in response.content
    assert response.content == b"\n\n".join([*events[:-3], *events[-2:]])
    assert proxy.settled()[0].usage == USED


def test_a_body_passes_to_the_byte_except_for_the_request_of_usage(proxy: RunningProxy, provider: Provider) -> None:
    raw = b'\n {"stream":true,  "model":"m","x":1.50e0,"messages":[{"role":"user","content":"\\u00e4 \xc3\xa4"}]} '
    HTTP.post(f"{proxy.url}/v1/chat/completions", content=raw, timeout=30)
    inserted = b'"stream_options":{"include_usage":true},'
    assert provider.requests[-1].body == raw.replace(b'"stream":true', inserted + b'"stream":true')
    HTTP.post(f"{proxy.url}/chat/completions?a=b", content=raw.replace(b"true", b"false"), timeout=30)
    assert provider.requests[-1].body == raw.replace(b"true", b"false")
    assert provider.requests[-1].path == "/v1/chat/completions?a=b"


def test_a_client_neither_chooses_nor_learns_which_account_of_a_provider_is_charged(
    provider: Provider, tmp_path: Path
) -> None:
    accounts = {"openai-organization": "org-1", "openai-project": "proj_1"}
    provider.behave("m", headers=(*accounts.items(), ("anthropic-organization-id", "1"), ("x-from", "there")))
    headers = {"OpenAI-Organization": "org-2", "OpenAI-Project": "proj_2", "X-Goog-User-Project": "p", "x-mine": "1"}
    headers["X-Goog-FieldMask"] = "choices"  # without usage
    for provider_headers in ({}, accounts):
        with running_proxy(tmp_path, WIDE, [at(provider, headers=provider_headers)]) as proxy:
            response = HTTP.post(
                f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"], headers=headers
            )
            received = provider.requests[-1].headers
            assert {name: value for name, value in received.items() if "openai" in name} == provider_headers
            assert received["x-mine"] == "1" and not any("goog" in name for name in received)
            assert response.headers["x-from"] == "there"
            assert not {*accounts, "anthropic-organization-id"} & set(response.headers)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain; charset=utf-7", None])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/count_tokens"])
def test_a_body_is_sent_as_json_whatever_content_type_its_client_names(
    proxy: RunningProxy, provider: Provider, path: str, kind: str | None
) -> None:
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": [], "user": "&model=dear&max_tokens=90000&"})
    headers = {} if kind is None else {"content-type": kind}
    assert HTTP.post(proxy.url + path, content=body, headers=headers).status_code == 200
    assert provider.requests[-1].headers["content-type"] == "application/json"


def test_headers_pass_except_for_keys_and_those_of_a_connection(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDERS_KEY", "the-secret")
    provider.behave("m", headers=(("x-from", "there"), ("set-cookie", "a=b"), ("x-ratelimit-limit-requests", "7")))
    headers = {
        "authorization": "Bearer own", "x-mine": "1", "cookie": "c=d", "connection": "x-drop", "x-drop": "1",
        "anthropic-beta": "one", "x-forwarded-for": "10.0.0.1",
    }  # fmt: skip
    with running_proxy(tmp_path, WIDE, [at(provider, api_key_env="PROVIDERS_KEY")]) as proxy:
        response = HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"], headers=headers)
        received = provider.requests[-1].headers
        assert (
            received["authorization"] == "Bearer the-secret"
            and received["x-mine"] == "1"
            and received["anthropic-beta"] == "one"
        )
        assert not {"cookie", "x-drop", "x-forwarded-for"} & set(received) and received["accept-encoding"] == "identity"
        assert response.headers["x-from"] == "there" and "set-cookie" not in response.headers
        assert response.headers["x-ratelimit-limit-requests"] == "100000"
        assert response.headers["x-ratelimit-limit-usd"] == "1000"
        HTTP.post(f"{proxy.url}/v1/messages", json=BODIES["/v1/messages"], headers=headers | {"x-api-key": "own"})
        received = provider.requests[-1].headers
        assert received["x-api-key"] == "the-secret" and "authorization" not in received
    assert "own" not in json.dumps([request.headers for request in provider.requests[-2:]])


def test_a_broken_stream_breaks_for_the_client_and_counts_at_least(proxy: RunningProxy, provider: Provider) -> None:
    provider.behave("m", breaks_after=2)
    with openai_of(proxy.url) as client:
        stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with stream, pytest.raises(Exception, match=r"(?i)peer closed|connection|incomplete"):
            list(stream)
    [entry] = proxy.settled()
    assert entry.mode == "at least" and entry.usage is not None and entry.usage.output >= 1


@pytest.mark.parametrize("status", [400, 429, 500, 529])
def test_a_refusal_of_the_provider_is_passed_on_and_only_the_request_counts(
    provider: Provider, tmp_path: Path, status: int
) -> None:
    provider.behave("m", status=status, headers=(("retry-after-ms", "1"),))
    with running_proxy(tmp_path, WIDE, [at(provider)]) as proxy:
        response = HTTP.post(f"{proxy.url}/v1/messages", json=BODIES["/v1/messages"])
        assert response.status_code == status and response.content == provider.sent[-1]
        assert response.headers["retry-after-ms"] == "1"
        [entry] = proxy.settled()
        assert (entry.mode, entry.usage, entry.cost) == ("failed", None, 0)


@pytest.mark.parametrize(
    ("waits", "passed"),
    [
        ((("retry-after", "20"),), None),
        ((("retry-after", "1209600"),), "false"),
        ((("retry-after-ms", "90000"), ("x-should-retry", "true")), "false"),
        ((("retry-after-ms", "90000.5"), ("retry-after", "1")), "false"),
        ((("retry-after", "1e6"),), "false"),
        ((("retry-after", "inf"),), "false"),
        ((("retry-after", "nan"),), None),
        ((("retry-after", "31 Dec 2099 23:59:59 +0000"),), "false"),
        ((("retry-after", "31 Dec 1999 23:59:59 +0000"),), None),
    ],
)
def test_no_client_sleeps_for_long_because_a_provider_says_so(
    provider: Provider, tmp_path: Path, waits: tuple[tuple[str, str], ...], passed: str | None
) -> None:
    provider.behave("m", status=429, headers=waits)
    with running_proxy(tmp_path, WIDE, [at(provider)]) as proxy:
        response = HTTP.post(f"{proxy.url}/v1/messages", json=BODIES["/v1/messages"])
        assert response.status_code == 429 and response.headers.get("x-should-retry") == passed
        assert response.headers[waits[0][0]] == waits[0][1]
    with running_proxy(
        tmp_path, WIDE, [at(provider)]
    ) as proxy:  # a count of tokens costs nothing, and its client sleeps
        response = HTTP.post(f"{proxy.url}/v1/messages/count_tokens", json={"model": "m", "messages": MESSAGES})
        assert response.status_code == 429 and response.headers.get("x-should-retry") == passed
    if passed:
        with running_proxy(tmp_path, WIDE, [at(provider)]) as proxy, anthropic_of(proxy.url, max_retries=2) as client:
            started = time.monotonic()
            with pytest.raises(anthropic.RateLimitError):
                client.messages.create(model="m", max_tokens=9, messages=MESSAGES)
            assert time.monotonic() - started < 20


def test_a_provider_that_rejects_the_proxys_key_is_followed_by_the_next_and_no_client_is_blamed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_provider() as locked, running_provider() as other:
        locked.behave("", status=401)
        with running_proxy(tmp_path, WIDE, [at(locked, "locked"), at(other, "other")]) as proxy:
            with openai_of(proxy.url) as client:
                assert client.chat.completions.create(model="m", messages=MESSAGES).choices
            assert "the provider locked refuses the key" in caplog.text
            other.behave("", status=401)
            for path, body in (*BODIES.items(), ("/v1/messages/count_tokens", {"model": "m", "messages": MESSAGES})):
                response = HTTP.post(proxy.url + path, json=body)
                assert response.status_code == 502 and response.headers["x-should-retry"] == "false"
                assert (
                    "The provider does not take the key" in response.text
                    and "the provider refuses" not in response.text
                )
            assert [entry.mode for entry in proxy.settled(4)] == ["failed"] * 4


def test_a_redirecting_provider_is_followed_by_the_next_and_no_client_is_redirected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_provider() as moved, running_provider() as other:
        moved.behave("", status=308, headers=(("location", f"{other.url}/v1/chat/completions"),))
        with running_proxy(tmp_path, WIDE, [at(moved, "moved"), at(other, "other")]) as proxy:
            with openai_of(proxy.url) as client:
                assert client.chat.completions.create(model="m", messages=MESSAGES).choices
            assert "the provider moved redirects, with the status 308" in caplog.text
        other.requests.clear()
        with running_proxy(tmp_path, WIDE, [at(moved)]) as proxy:
            with openai_of(proxy.url) as client, pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(model="m", messages=MESSAGES)
            assert caught.value.status_code == 502 and caught.value.code == "provider_moved"
            assert "location" not in caught.value.response.headers
            assert HTTP.get(f"{proxy.url}/v1/models").status_code == 502
            [entry] = proxy.settled()
            assert (entry.mode, entry.cost) == ("failed", 0)
        assert not other.requests


def test_providers_are_tried_in_order_and_one_that_refused_is_skipped(tmp_path: Path) -> None:
    with running_provider() as busy, running_provider() as other:
        busy.behave("", status=429, headers=(("retry-after", "600"),))
        with running_proxy(tmp_path, WIDE, [at(busy, "busy"), at(other, "other")]) as proxy:
            with openai_of(proxy.url) as client:
                for _ in range(3):
                    client.chat.completions.create(model="m", messages=MESSAGES)
            assert (len(busy.requests), len(other.requests)) == (1, 3)
            assert [entry.mode for entry in proxy.settled(3)] == ["exact"] * 3
            other.behave("", status=429, headers=(("retry-after", "30"),))
            first = HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"])
            then = HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"])
            assert first.content == other.sent[-1] and len(other.requests) == 4
            assert then.status_code == 429 and 1 <= int(then.headers["retry-after"]) <= 30
            assert [entry.mode for entry in proxy.settled(2)] == ["failed", "cancelled"]


@pytest.mark.parametrize(
    ("path", "quota", "too_large"),
    [
        ("/v1/chat/completions", "x-ratelimit-limit-tokens", {"max_tokens": 40_000}),
        ("/v1/messages", "anthropic-ratelimit-output-tokens-limit", {"max_tokens": 40_000}),
        (
            "/v1/messages",
            "anthropic-ratelimit-input-tokens-limit",
            {"messages": [{"role": "user", "content": "a word " * 40_000}]},
        ),
    ],
)
def test_a_call_that_is_too_large_for_a_provider_does_not_block_other_calls(
    tmp_path: Path, path: str, quota: str, too_large: dict[str, Any]
) -> None:
    refusal: dict[str, Any] = {"status": 429, "refuses": 1, "headers": ((quota, "30000"), ("retry-after", "60"))}
    with running_provider() as provider, running_proxy(tmp_path, WIDE, [at(provider)]) as proxy:
        provider.behave("", **refusal)
        large = HTTP.post(proxy.url + path, json={**BODIES[path], **too_large})
        small = HTTP.post(proxy.url + path, json=BODIES[path])
        assert (large.status_code, small.status_code) == (429, 200)
        provider.refused = 0
        refused, next_one = (HTTP.post(proxy.url + path, json=BODIES[path]) for _ in range(2))
        assert (refused.status_code, next_one.status_code) == (429, 429) and len(provider.requests) == 3


def test_a_refused_count_of_tokens_pauses_no_calls(provider: Provider, tmp_path: Path) -> None:
    requests = len(provider.requests)
    with running_proxy(tmp_path, WIDE, [at(provider)]) as proxy:
        provider.behave("m", status=429, headers=(("retry-after", "60"),), refuses=1)
        count = {"model": "m", "messages": MESSAGES}
        for _ in range(2):
            assert HTTP.post(f"{proxy.url}/v1/messages/count_tokens", json=count).status_code == 429
        assert len(provider.requests) == requests + 1  # the second one was not sent
        assert HTTP.post(f"{proxy.url}/v1/messages", json=BODIES["/v1/messages"]).status_code == 200


def test_a_date_in_retry_after_is_respected_as_seconds_are(tmp_path: Path) -> None:
    def until(seconds: int) -> tuple[tuple[str, str], ...]:
        return (("retry-after", format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)),)

    with running_provider() as busy, running_provider() as other:
        busy.behave("", status=429, headers=until(600))
        other.behave("", status=503, headers=until(40))
        with running_proxy(tmp_path, WIDE, [at(busy, "busy"), at(other, "other")]) as proxy:
            url = f"{proxy.url}/v1/chat/completions"
            first, then = (HTTP.post(url, json=BODIES["/v1/chat/completions"]) for _ in range(2))
            assert first.status_code == 503 and (len(busy.requests), len(other.requests)) == (1, 1)
            assert then.status_code == 429 and 10 < int(then.headers["retry-after"]) <= 40
            assert [entry.mode for entry in proxy.settled(2)] == ["failed", "cancelled"]
        busy.behave("", status=429, headers=until(-600))  # a date in the past means no wait
        with running_proxy(tmp_path, WIDE, [at(busy)]) as proxy:
            for _ in range(2):
                assert HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"]).is_error
            assert len(busy.requests) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_is_incomplete_is_settled_with_its_usage(
    proxy: RunningProxy, provider: Provider, stream: bool
) -> None:
    provider.behave("m", incomplete=True)
    with openai_of(proxy.url) as client:
        if stream:
            with client.responses.stream(model="m", input="hi", max_output_tokens=3) as events:
                kinds = [event.type for event in events]
            assert kinds[-1] == "response.incomplete" and "response.completed" not in kinds
        else:
            response = client.responses.create(model="m", input="hi", max_output_tokens=3)
            assert response.status == "incomplete" and response.output_text == "Hello world"
    [entry] = proxy.settled()
    assert (entry.mode, entry.usage, entry.cost) == ("exact", USED, 18_000)


def test_a_provider_that_reports_that_nothing_remains_is_skipped(tmp_path: Path) -> None:
    headers = (("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "9m0s"))
    with running_provider() as spent, running_provider() as other:
        spent.behave("", headers=headers)
        with running_proxy(tmp_path, WIDE, [at(spent, "spent"), at(other, "other")]) as proxy:
            for _ in range(2):
                HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"])
            assert (len(spent.requests), len(other.requests)) == (1, 1)


def test_a_provider_that_cannot_be_reached_costs_nothing(provider: Provider, tmp_path: Path) -> None:
    unreachable = {"name": "gone", "base_url": "http://127.0.0.1:9/v1"}
    with running_proxy(tmp_path, WIDE, [unreachable]) as proxy:
        response = HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"])
        assert response.status_code == 502 and response.json()["error"]["code"] == "provider_unreachable"
        assert proxy.settled()[0].mode == "cancelled"
    with running_proxy(tmp_path, WIDE, [unreachable, at(provider)]) as proxy:
        response = HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"])
        assert response.status_code == 200 and proxy.settled()[0].mode == "exact"


def test_a_call_to_a_silent_provider_times_out_and_counts_as_held(provider: Provider, tmp_path: Path) -> None:
    provider.behave("m", first_delay_s=3)
    with running_proxy(tmp_path, WIDE, [at(provider, timeout=0.2)]) as proxy:
        response = HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"])
        assert response.status_code == 504 and response.json()["error"]["code"] == "provider_timeout"
        assert proxy.settled()[0].mode == "unknown"


def disconnect(url: str, *, after: int, stream: bool = True) -> None:
    """Send a call, and close the connection after so many bytes of the response."""
    body = {**BODIES["/v1/chat/completions"], "stream": stream}
    try:
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=body, timeout=0.5 if not after else 30
        ) as response:
            for chunk in response.iter_raw():
                if after and len(chunk) >= after:
                    return
    except httpx.ReadTimeout:
        return


def test_a_response_whose_client_has_disconnected_is_still_read_for_its_usage(
    proxy: RunningProxy, provider: Provider
) -> None:
    provider.behave("m", words=("a",) * 20, delay_s=0.02)
    disconnect(proxy.url, after=1)
    [entry] = proxy.settled()
    assert (entry.mode, entry.usage) == ("exact", Usage(12, 20)) and provider.disconnects == 0
    provider.behave("m", first_delay_s=1.0)
    disconnect(proxy.url, after=0, stream=False)
    assert proxy.settled()[0].usage == USED


def test_a_response_that_is_not_read_on_is_closed_and_counts_at_least(provider: Provider, tmp_path: Path) -> None:
    provider.behave("m", words=("word ",) * 400, delay_s=0.02)
    disconnects = provider.disconnects
    with running_proxy(tmp_path, WIDE, [at(provider)], read_on=0) as proxy:
        disconnect(proxy.url, after=1)
        [entry] = proxy.settled()
        # Nobody knows how much the provider generated: the whole hold counts, in the limits and in the books.
        assert entry.mode == "at least" and entry.usage is not None and entry.usage.output == entry.held_output == 1000
        wait_until(lambda: provider.disconnects > disconnects)
    with running_proxy(tmp_path, WIDE, [at(provider)], read_on_s=0.3) as proxy:
        disconnect(proxy.url, after=1)
        assert proxy.settled()[0].mode == "at least"
        wait_until(lambda: provider.disconnects > disconnects + 1)


@contextmanager
def unconnectable() -> Iterator[dict[str, Any]]:
    """The entry of a provider whose port neither accepts nor refuses connections."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        yield {"name": "hangs", "base_url": url, "connect_timeout": 20}


@pytest.mark.parametrize("read_on", [0, 64])
def test_no_call_of_a_client_that_has_disconnected_is_sent(provider: Provider, tmp_path: Path, read_on: int) -> None:
    provider.behave("m", status=500)
    with unconnectable() as hanging:
        for providers, mode in (([hanging], "cancelled"), ([at(provider), hanging], "failed")):
            with running_proxy(tmp_path, WIDE, providers, read_on=read_on) as proxy:
                disconnect(proxy.url, after=0)
                started = time.monotonic()
                assert proxy.settled()[0].mode == mode
                assert time.monotonic() - started < 10
    provider.behave("m", status=500, first_delay_s=1.0)
    with running_provider() as other, running_proxy(tmp_path, WIDE, [at(provider), at(other, "other")]) as proxy:
        disconnect(proxy.url, after=0)
        assert (proxy.settled()[0].mode, other.requests) == ("failed", [])


def test_a_budget_refuses_without_a_retry_and_without_a_sleep(provider: Provider, tmp_path: Path) -> None:
    # Each call holds 12 or so tokens and 100 of output: 0.0002 dollars of 0.00025.
    rules = [{"name": "user", "by": ["model"], "limits": "0.00025 usd/day in UTC", "hold": "max"}]
    calls_before = len(provider.requests)
    with running_proxy(tmp_path, rules, [at(provider)]) as proxy:
        with openai_of(proxy.url, max_retries=5) as client:
            create = client.chat.completions.create
            for _ in range(2):
                create(model="m", messages=MESSAGES, max_tokens=100)
            with pytest.raises(openai.RateLimitError) as caught:
                create(model="m", messages=MESSAGES, max_tokens=120)
            assert caught.value.type == "insufficient_quota"
            assert "The limit is user." in caught.value.message
        with anthropic_of(proxy.url, max_retries=5) as other, pytest.raises(anthropic.RateLimitError) as error:
            other.messages.create(model="m", max_tokens=120, messages=MESSAGES)
        assert error.value.response.headers["x-should-retry"] == "false"
        assert proxy.count("refused") == 2 and len(provider.requests) == calls_before + 2
        # A refused call is not charged: a smaller one still fits.
        with openai_of(proxy.url) as client:
            client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=90)


def test_a_stream_is_cut_cleanly_at_the_end_of_its_budget(provider: Provider, tmp_path: Path) -> None:
    provider.behave("m", words=("word ",) * 300, delay_s=0.001)
    rules = [{"name": "tokens", "by": ["model"], "limits": "300 tokens/hour", "hold": "slices"}]
    llm = {"slice": 16, "at_end": "cut"}
    for path, reason in (("/v1/chat/completions", "length"), ("/v1/messages", "max_tokens")):
        with running_proxy(tmp_path, rules, [at(provider)], llm=llm) as proxy:
            body = {**BODIES[path], "stream": True, "max_tokens": 5000}
            if "chat" in path:
                body["stream_options"] = {"include_usage": True}
            response = HTTP.post(proxy.url + path, json=body, timeout=30)
            events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
            if "chat" in path:
                assert events[-2]["choices"][0]["finish_reason"] == reason and response.text.endswith(
                    "data: [DONE]\n\n"
                )
                output_tokens = events[-1]["usage"]["completion_tokens"]
            else:
                assert events[-2]["delta"]["stop_reason"] == reason and events[-1] == {"type": "message_stop"}
                output_tokens = events[-2]["usage"]["output_tokens"]
            assert 200 < output_tokens < 300
            [entry] = proxy.settled()
            assert entry.usage is not None
            assert output_tokens <= entry.usage.output == entry.held_output < 300
        wait_until(lambda: provider.disconnects > 0)


def test_a_stream_that_begins_after_its_lease_is_not_cut(provider: Provider, tmp_path: Path) -> None:
    provider.behave("m", words=("word ",) * 100, first_delay_s=3)
    rules = [{"name": "tokens", "by": ["model"], "limits": "10000 tokens/hour bucket", "hold": "slices"}]
    with running_proxy(tmp_path, rules, [at(provider)], llm={"slice": 10, "lease": "2s"}) as proxy:
        body = {**BODIES["/v1/chat/completions"], "stream": True}
        HTTP.post(f"{proxy.url}/v1/chat/completions", json=body)
        [entry] = proxy.settled()
        assert (entry.mode, entry.usage) == ("exact", Usage(12, 100))


def test_a_stream_that_arrives_at_once_exceeds_its_budget_only_by_what_had_arrived(
    provider: Provider, tmp_path: Path
) -> None:
    provider.behave("m", words=("word ",) * 3000)
    rules = [{"name": "tokens", "by": ["model"], "limits": "300 tokens/hour", "hold": "slices"}]
    body = {**BODIES["/v1/chat/completions"], "stream": True, "max_tokens": 5000}
    with running_proxy(tmp_path, rules, [at(provider)], llm={"slice": 16, "at_end": "cut"}) as proxy:
        response = HTTP.post(f"{proxy.url}/v1/chat/completions", json=body)
        [entry] = proxy.settled()
    assert response.text.count('"word "') < 2000 and '"finish_reason":"length"' in response.text
    assert entry.usage is not None and entry.held_output > 200 and entry.mode == "at least"


@pytest.mark.parametrize("family", ["openai", "anthropic"])
@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe{}", b'{"model": "m"', b'{"model": 7}', b"{}", b'{"model": ""}',
        b'{"model": "m", "model": "n"}', b'{"model": "m", "Model": "n"}', b'{"model": "m", "max_tokens": -1}',
        b'{"model": "m", "Models": ["n"]}',
        b'{"model": "m", "MAX_TOKENS": 5}', b'{"model": "m", "Service_Tier": "flex"}',
        b'{"model": "m", "max_tokens": "many"}', b'{"model": "m", "n": 0}',
        b'{"model": "m", "max_tokens": 1e400}', b'{"model": "m", "max_tokens": NaN}', b'{"model": "m", "stream": 1}',
        b'{"model": "m", "stream_options": 1}', b'{"model": "m", "stream_options": {"include_usage": "x"}}',
        b'{"model": "nobody-knows-its-price"}', b'{"model": "\\u0000"}', b'{"model": "' + b"m" * 5000 + b'"}',
        b'{"model": "m", "messages": ' + b"[" * 100_000 + b"}", b'{"model": "m", "max_tokens": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda raw: raw[:40],
)  # fmt: skip
def test_a_bad_body_is_refused_in_the_clients_dialect_and_costs_nothing(
    proxy: RunningProxy, provider: Provider, family: str, raw: bytes
) -> None:
    held_before, calls_before = proxy.count("held"), len(provider.requests)
    response = HTTP.post(proxy.url + ("/v1/messages" if family == "anthropic" else "/v1/responses"), content=raw)
    assert response.status_code == 400 and response.headers["x-should-retry"] == "false"
    document = response.json()
    assert document["error"]["type"] == "invalid_request_error" and document["error"]["message"]
    assert ("request_id" in document) == (family == "anthropic")
    assert (proxy.count("held"), len(provider.requests)) == (held_before, calls_before)


@pytest.mark.parametrize(
    "line", [b"authorization: Bearer hg-secret\x00", b"content-length: -5", b"host: x\r\n  folded", b"x: \n hg-secret"]
)
def test_a_malformed_head_is_refused_and_logs_no_error(
    proxy: RunningProxy, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    host, port = proxy.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\n" + line + b"\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.0 400 ")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert "hg-secret" not in caplog.text


def test_unknown_paths_and_methods_reach_no_provider(proxy: RunningProxy, provider: Provider) -> None:
    calls_before = len(provider.requests)
    for method, path in (
        ("POST", "/v1/images/generations"), ("POST", "/v1/files"), ("DELETE", "/v1/models/m"), ("POST", "/v1/models"),
        ("GET", "/v1/chat/completions"), ("POST", "/v1/messages/batches"), ("PUT", "/v1/responses"), ("GET", "/"),
    ):  # fmt: skip
        response = HTTP.request(method, proxy.url + path)
        assert response.status_code in (404, 405) and response.json()["error"]["message"], path
    response = HTTP.post(f"{proxy.url}/v1/nothing", headers={"anthropic-version": "2023-06-01"})
    assert response.json()["error"]["type"] == "not_found_error"
    assert len(provider.requests) == calls_before


def test_bodies_are_bounded_and_may_not_be_compressed(provider: Provider, tmp_path: Path) -> None:
    with running_proxy(tmp_path, WIDE, [at(provider)], most_body_bytes=10_000) as proxy:
        url = f"{proxy.url}/v1/chat/completions"
        assert HTTP.post(url, content=b"x" * 10_001).status_code == 413
        assert HTTP.post(url, content=iter([b"x" * 6000, b"x" * 6000])).status_code == 413
        assert HTTP.post(url, content=b"x", headers={"content-encoding": "gzip"}).status_code == 400
        text = {"model": "m", "messages": [{"role": "user", "content": "word " * 1500}]}
        assert HTTP.post(url, json=text).status_code == 200


def test_the_tokens_of_long_inputs_are_counted(proxy: RunningProxy) -> None:
    words = "".join(f"word{number} " for number in range(12_000))
    HTTP.post(f"{proxy.url}/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": words}]})
    assert proxy.settled()[0].held_input > 24_000


def test_concurrent_calls_never_exceed_a_limit_that_holds_their_maximum(provider: Provider, tmp_path: Path) -> None:
    provider.behave("m", delay_s=0.01)
    calls_before = len(provider.requests)
    rules = [{"name": "user", "by": ["model"], "limits": "0.0015 usd/day in UTC", "hold": "max"}]
    with running_proxy(tmp_path, rules, [at(provider)]) as proxy, httpx.Client(timeout=60) as client:
        body = {**BODIES["/v1/chat/completions"], "stream": True, "max_tokens": 100}
        with ThreadPoolExecutor(50) as threads:
            url = f"{proxy.url}/v1/chat/completions"
            statuses = list(threads.map(lambda _: client.post(url, json=body).status_code, range(100)))
        passed = statuses.count(200)
        assert passed + statuses.count(429) == 100 and len(provider.requests) == calls_before + passed
        assert sum(entry.cost or 0 for entry in proxy.settled(passed)) <= 1_500_000
        held = [entry for entry in proxy.entries if entry.kind == "held"]
        assert len(held) == passed >= 7


def test_metrics_count_calls_and_a_health_check_answers(proxy: RunningProxy, provider: Provider) -> None:
    HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODIES["/v1/chat/completions"])
    proxy.settled()
    assert HTTP.get(f"{proxy.url}/healthz").text == "ok\n"
    metrics = HTTP.get(f"{proxy.url}/metrics").text
    assert 'headgate_llm_calls_total{dialect="chat",model="m",outcome="answered"}' in metrics
    assert 'headgate_llm_tokens_total{kind="output",model="m"}' in metrics
    for name in ("headgate_llm_estimated_calls_total", "headgate_llm_last_estimated_calls"):
        assert re.search(name + r'\{model="m",result="covered"\} [1-9]', metrics)
    assert "headgate_llm_calls_under_way 0.0" in metrics and "headgate_llm_held_nano_usd 0.0" in metrics


def test_a_soft_limit_is_reported_in_a_header_of_all_responses_and_in_the_metrics(
    provider: Provider, tmp_path: Path
) -> None:
    rules = [{"name": "soft", "by": ["model"], "limits": "4/day in UTC", "warn": "50%"}]
    body = BODIES["/v1/chat/completions"]
    with running_proxy(tmp_path, rules, [at(provider)]) as proxy:
        url = f"{proxy.url}/v1/chat/completions"
        responses = [HTTP.post(url, json={**body, "stream": stream}) for stream in (False, False, True, False, False)]
        assert [response.status_code for response in responses] == [200, 200, 200, 200, 429]
        warnings = [response.headers.get("headgate-warning") for response in responses]
        assert warnings == [None, "soft; used=50", "soft; used=75", "soft; used=100", None]
        assert 'headgate_llm_warnings_total{limit="soft"} 3.0' in HTTP.get(f"{proxy.url}/metrics").text
