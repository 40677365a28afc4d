"""The course of one call: held, sent to the providers in their order, answered, and settled, however it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from headgate.errors import ArgumentError, StoreError
from headgate.llm.call import AsyncCall
from headgate.llm.call_costs import UnknownPriceError
from headgate.llm.call_size import stated_max_output
from headgate.llm.dialects import (
    Answer,
    Dialect,
    Problem,
    limit_headers,
    problem_answer,
    refusal,
)
from headgate.llm.entry import Caller
from headgate.llm.inputs import InputCount
from headgate.llm.stream_reading import StreamReading
from headgate.llm_proxy.call_body import CallBody
from headgate.llm_proxy.client_side import ClientSide
from headgate.llm_proxy.passed_headers import headers_to_answer
from headgate.llm_proxy.provider_answer import ProviderAnswer
from headgate.llm_proxy.provider_pool import REFUSALS, ChargedTokens, ProviderState
from headgate.llm_proxy.provider_refusals import REDIRECTS, refusal_of
from headgate.llm_proxy.proxy_parts import ProxyParts
from headgate.llm_proxy.stream_relay import StreamRelay
from headgate.llm_proxy.upstream import Lost, NotReached
from headgate.policy.subject import Subject

_MOST_ANSWER_BYTES = 64 * 1024 * 1024
_THREAD_BYTES = 256 * 1024
"""A longer answer is parsed in a thread, so that it does not block other calls."""


class Exchange:
    """One call of a client. `run` returns when the answer was written and the call is settled."""

    def __init__(
        self,
        parts: ProxyParts,
        client: ClientSide,
        dialect: Dialect,
        caller: Caller,
        body: CallBody,
        *,
        headers: list[tuple[str, str]],
        query: str,
        input_count: InputCount | None,
        request: Subject | None,
        body_dropped: Callable[[], None],
    ) -> None:
        """`request` is None where no rule reads it.

        `body_dropped` is called when a provider answers: the body is no longer stored.
        """
        self._parts = parts
        self._client = client
        self._dialect = dialect
        self._caller = caller
        self._body = body
        self._headers = headers
        self._query = query
        self._input_count = input_count
        self._request = request
        self._body_dropped = body_dropped
        self._started = asyncio.get_running_loop().time()
        self._is_read_on = False
        self._scope: asyncio.Timeout | None = None
        self._relay: StreamRelay | None = None
        self._reading: StreamReading | None = None
        self._is_sent = self._is_refused = False
        self._limit_headers: list[tuple[str, str]] | None = None

    async def run(self) -> None:
        """Hold, send, answer and settle the call."""
        call = await self._hold()
        if call is None:
            return
        for warning in call.warnings:
            self._parts.metrics.warned(warning.limit)
        self._client.on_leave = self._on_client_left
        try:
            async with call:
                try:
                    async with asyncio.timeout(None) as self._scope:
                        outcome = await self._forward(call)
                except TimeoutError:
                    outcome = "left"
                    await self._settle_abandoned(call)
                except asyncio.CancelledError:  # the proxy ends before the call did
                    await self._settle_abandoned(call)
                    raise
        finally:
            self._end_reading_on()
        self._ended("left" if self._client.has_left and outcome == "answered" else outcome)

    async def _hold(self) -> AsyncCall | None:
        """Hold the call; None where it cannot be held: the client has its answer already."""
        (key, user, team, organisation, tier), body = self._caller, self._body
        try:
            call = await self._parts.gate.reserve(
                body.model, key=key, user=user, team=team, organisation=organisation, tier=tier,
                body=body.fields, dialect=self._dialect.name, input_tokens=self._input_count, request=self._request,
            )  # fmt: skip
        except UnknownPriceError as error:
            await self._invalid(Problem.UNKNOWN_PRICE, str(error))
        except ArgumentError as error:
            await self._invalid(Problem.BAD_BODY, str(error))
        except StoreError:
            message = "The limits cannot be checked at the moment."
            await self._client.answer(problem_answer(self._dialect.family, Problem.STORE, message))
            self._ended("refused")
        else:
            if call:
                return call
            await self._client.answer(self._refusal(call))
            self._ended("refused")
        return None

    async def _forward(self, call: AsyncCall) -> str:
        """Send the call and answer the client; return the outcome, as metrics name it."""
        pool, model = self._parts.pool, self._body.model
        if self._client.has_left:  # while the call was held
            await call.cancel()
            return "left"
        serving = pool.serving(self._dialect, model)
        if not serving:
            await call.cancel()
            return await self._problem(
                Problem.UNKNOWN_MODEL, f"No provider here serves the model {model!r:.80}.", "invalid"
            )
        ready, wait_us = pool.ready(serving, model, call)
        if not ready:
            await call.cancel()
            message = "The provider has refused calls of this model, and is paused for as long as it asked."
            return await self._problem(Problem.PROVIDER_BUSY, message, "busy", wait_us=wait_us)
        refused: Answer | None = None
        for state in ready:
            try:
                response = await self._send(state, call)
            except NotReached:
                pool.note_unreachable(state)
                self._parts.metrics.provider_failed(state.settings.name, "unreachable")
                continue
            except Lost as error:
                await call.settle_unknown()
                return await self._lost(state, error)
            with response:
                if response.status < REDIRECTS:
                    self._drop_body()
                    loop = asyncio.get_running_loop()
                    # Runs as soon as the bytes received so far are passed on:
                    loop.call_soon(self._note, state, response, loop.time() - self._started)
                    return await self._answer(call, state, response)
                self._is_sent, self._is_refused = False, True
                pool.note(state, model, response.status, response.headers, self._charged_tokens(call))
                self._parts.metrics.provider_failed(state.settings.name, str(response.status))
                refused = await refusal_of(state.settings.name, response, self._dialect.family)
            if refused.status not in REFUSALS or self._client.has_left:
                break
        if refused is not None:
            await call.settle_failed()
            await self._client.answer(refused)
            return "failed"
        await call.cancel()
        return await self._problem(Problem.PROVIDER_UNREACHABLE, "The provider cannot be reached.", "unreachable")

    async def _send(self, state: ProviderState, call: AsyncCall) -> ProviderAnswer:
        settings, upstream = state.settings, self._parts.upstream
        body = self._body.to_send(self._dialect, request_usage=settings.asks_usage)
        response = await upstream.begin(settings, self._dialect, self._query, self._headers, body)
        self._is_sent = True  # and not before: a call that is given up while its connection is made costs nothing
        try:
            if self._limit_headers is None:  # made here, while the provider is working
                self._limit_headers = self._make_limit_headers(call)
                self._reading = call.reading() if self._body.is_stream else None
        except BaseException:
            response.close()
            raise
        await upstream.head(response)
        return response

    def _make_limit_headers(self, call: AsyncCall) -> list[tuple[str, str]]:
        """The headers that report the policy's limits and warnings to the client."""
        headers = limit_headers(self._dialect.family, call.decision)
        if call.warnings:
            headers.append(("headgate-warning", ", ".join(warning.header for warning in call.warnings)))
        return headers

    def _charged_tokens(self, call: AsyncCall) -> ChargedTokens:
        """The tokens that a provider counts for a call: the stated maximum of output, not the expected output."""
        return ChargedTokens(call.held.input, stated_max_output(self._body.fields))

    def _drop_body(self) -> None:
        """Drop the body: it will be sent to no other provider."""
        self._body = self._body.dropped()
        self._body_dropped()

    def _note(self, state: ProviderState, response: ProviderAnswer, first_byte_s: float) -> None:
        """Record what an answer reports of its provider's limits, and after how many seconds it began."""
        self._parts.pool.note(state, self._body.model, response.status, response.headers)
        self._parts.metrics.first_byte_sent(self._dialect.name, first_byte_s)

    async def _answer(self, call: AsyncCall, state: ProviderState, response: ProviderAnswer) -> str:
        """Pass on a provider's answer, and settle the call; return the outcome."""
        headers = headers_to_answer(response.headers, self._limit_headers or [])
        is_stream = response.content_type == "text/event-stream"
        try:  # some providers omit this content type
            is_stream = is_stream or (self._body.is_stream and not await response.looks_like_json())
        except OSError as error:
            return await self._broke_off(call, state, error)
        if is_stream:
            strips_usage = state.settings.asks_usage and not self._body.asks_usage
            reading, self._reading = self._reading or call.reading(), None
            self._relay = StreamRelay(call, reading, self._client, self._dialect, strips_usage=strips_usage)
            outcome = await self._relay.run(response, headers)
            if outcome == "broken":
                self._parts.metrics.provider_failed(state.settings.name, "broken")
            return outcome
        try:
            raw = await response.read_body(_MOST_ANSWER_BYTES)
        except OSError as error:
            return await self._broke_off(call, state, error)
        await call.settle(await _parsed(raw))
        await self._client.write_complete(response.status, headers, raw)
        return "answered"

    async def _broke_off(self, call: AsyncCall, state: ProviderState, error: OSError) -> str:
        """Settle and answer a call whose answer broke off before the client received any of it."""
        await call.settle_unknown()
        return await self._lost(state, Lost("the answer broke off", is_timeout=isinstance(error, TimeoutError)))

    async def _lost(self, state: ProviderState, error: Lost) -> str:
        self._parts.metrics.provider_failed(state.settings.name, "lost")
        problem = Problem.PROVIDER_TIMEOUT if error.is_timeout else Problem.PROVIDER_UNREACHABLE
        return await self._problem(problem, f"The provider did not answer: {error}.", "lost")

    async def _invalid(self, problem: Problem, message: str) -> None:
        self._ended(await self._problem(problem, message, "invalid"))

    async def _problem(self, problem: Problem, message: str, outcome: str, *, wait_us: int | None = None) -> str:
        await self._client.answer(problem_answer(self._dialect.family, problem, message, wait_us=wait_us))
        return outcome

    def _refusal(self, call: AsyncCall) -> Answer:
        return refusal(
            self._dialect.family,
            call.decision,
            model=self._body.model,
            caller=self._caller.key or self._caller.user,
            requested=call.requested,
        )

    def _ended(self, outcome: str) -> None:
        self._parts.metrics.ended(self._dialect.name, self._body.model, outcome)

    def _on_client_left(self) -> None:
        """Note that the client has gone: if its call is sent, read on for a while, for the usage, or end at once."""
        if self._scope is None or self._is_read_on:
            return
        reading_on, now = self._parts.reading_on, asyncio.get_running_loop().time()
        self._is_read_on = self._is_sent and reading_on.begin()
        self._parts.metrics.reading_on(reading_on.streams)
        self._scope.reschedule(now + reading_on.seconds if self._is_read_on else now)

    def _end_reading_on(self) -> None:
        self._client.on_leave = _nothing
        if self._is_read_on:
            self._parts.reading_on.end()
            self._parts.metrics.reading_on(self._parts.reading_on.streams)

    async def _settle_abandoned(self, call: AsyncCall) -> None:
        """Settle a call that is given up, with at least the usage that was received."""
        if self._relay is not None:
            await self._relay.settle()
        elif self._is_sent:
            await call.settle_unknown()
        elif self._is_refused:
            await call.settle_failed()
        else:
            await call.cancel()


async def _parsed(raw: bytes) -> Any:
    """Parse an answer; {} where it is no JSON object: it reports no usage."""
    try:
        document = await asyncio.to_thread(json.loads, raw) if len(raw) > _THREAD_BYTES else json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, Mapping) else {}


def _nothing() -> None:
    """Do nothing: the client's `on_leave` of a call that has ended."""
