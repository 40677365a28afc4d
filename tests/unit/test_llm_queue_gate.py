"""Workers of a queue with a policy for calls of language models: what they hold, by which rules, and settle."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from headgate.clock import SYSTEM_CLOCK
from headgate.llm import AsyncLlmGate
from headgate.llm.entry import Caller
from headgate.llm.queue import AsyncLlmQueue, Bounds, Fairness, Pace, ProviderError, QueuedCall, UnknownJob
from headgate.llm.queue.backlog import Claim, Finished, Nothing, Taken
from headgate.llm.queue.gate_access import scopes_by_rules
from headgate.llm.queue.memory import MemoryBacklog
from headgate.llm.queue.worker import INLINE_BYTES
from headgate.testing import ManualClock
from llm_gates import answer_of

PRICES = {"own": {"input": "1", "output": "10"}}


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 30))


def body(tokens: int = 100, model: str = "own") -> dict[str, Any]:
    return {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}]}


def gate_of(*rules: dict[str, Any], clock: Any = None) -> AsyncLlmGate:
    llm = {"hold": "max", "prices": PRICES}
    return AsyncLlmGate({"version": 1, "llm": llm, "rules": list(rules)}, clock=clock)


async def provider(job: QueuedCall, call: Any) -> Any:
    return {"usage": {"prompt_tokens": 8, "completion_tokens": 32, "total_tokens": 40}}


async def remaining_of(gate: AsyncLlmGate, **caller: Any) -> dict[str, int]:
    call = await gate.reserve("own", input_tokens=0, max_tokens=0, **caller)
    return {limit.name: limit.remaining for limit in call.decision.limits}


def test_a_job_is_held_by_the_policy_and_settled_with_the_truth() -> None:
    async def main() -> None:
        gate = gate_of({"name": "user", "by": ["user"], "limits": "100/day; 1000 tokens/day; 1 usd/day in UTC"})
        async with AsyncLlmQueue(gate) as queue, queue.worker(provider):
            done = await queue.result((await queue.submit(body(), user="ann")).id)
        assert (done.state, done.tokens) == ("done", 40)
        assert await remaining_of(gate, user="ann") == {
            "user.day": 98, "user.tokens.day": 960, "user.usd.day": 999_672_000
        }  # fmt: skip

    run(main())


def test_a_job_that_has_the_id_of_a_forgotten_one_is_charged_as_well() -> None:
    async def main() -> None:
        clock = ManualClock()
        gate = gate_of({"name": "user", "by": ["user"], "limits": "100 requests/day in UTC"}, clock=clock)
        async with AsyncLlmQueue(gate, clock=clock, bounds=Bounds(results_s=10)) as queue, queue.worker(provider):
            for done in (1, 2, 3):
                job = await queue.submit(body(), user="ann", id="report")
                assert (job.repeated, (await queue.result("report")).state) == (False, "done")
                assert await remaining_of(gate, user="ann") == {"user": 100 - 2 * done}
                clock.advance(11_000_000)

    run(main())


class Slow:
    """A gate that has `reached` a decision, and tells it when it `goes`."""

    def __init__(self, gate: AsyncLlmGate) -> None:
        self.gate = gate
        self.policy = gate.policy
        self.reached, self.goes = asyncio.Event(), asyncio.Event()

    async def reserve(self, **call: Any) -> Any:
        held = await self.gate.reserve(**call)
        self.reached.set()
        await self.goes.wait()
        return held


@pytest.mark.parametrize("is_held", [True, False])
def test_a_job_that_is_cancelled_while_the_gate_decides_is_not_sent_and_leaves_nothing_behind(is_held: bool) -> None:
    async def main() -> None:
        clock, sent = ManualClock(), list[str]()
        rule = {"name": "user", "by": ["user"], "limits": "1 concurrent; 10 requests/day"}
        gate = Slow(gate_of(rule, clock=clock))

        async def handler(job: QueuedCall, call: Any) -> Any:
            sent.append(job.caller.user)
            return answer_of(1)

        other = None if is_held else await gate.gate.reserve("own", user="ann", input_tokens=0, max_tokens=0)
        queue = AsyncLlmQueue(gate, clock=clock, bounds=Bounds(results_s=10))
        async with queue.worker(handler):
            job = await queue.submit(body(), user="ann")
            await gate.reached.wait()
            assert (await queue.cancel(job.id)).state == "cancelled"
            gate.goes.set()
            await queue.result((await queue.submit(body(), user="ben")).id)
            if other is not None:
                await other.cancel()
            free = await gate.gate.reserve("own", user="ann", input_tokens=0, max_tokens=0)
            assert (sent, free.decision.limits[1].remaining) == (["ben"], 9)
            clock.advance(10_000_000)
            with pytest.raises(UnknownJob):
                await queue.get(job.id)

    run(main())


def test_a_cancelled_job_whose_handler_then_fails_keeps_no_place_in_flight() -> None:
    async def main() -> None:
        gate = gate_of({"name": "user", "by": ["user"], "limits": "1 concurrent"})
        running = asyncio.Event()

        async def fails_to_close(job: QueuedCall, call: Any) -> Any:
            try:
                running.set()
                await asyncio.Event().wait()
            finally:
                raise ConnectionError("the connection could not be closed")

        async with AsyncLlmQueue(gate) as queue:
            async with queue.worker(fails_to_close):
                job = await queue.submit(body(), user="ann")
                await running.wait()
                assert (await queue.cancel(job.id)).state == "cancelled"
            assert await gate.reserve("own", user="ann", input_tokens=0, max_tokens=0)

    run(main())


def test_a_place_in_flight_that_is_freed_starts_the_next_job_at_once_and_not_when_its_lease_ends() -> None:
    async def main() -> None:
        gate = gate_of({"name": "user", "by": ["user"], "limits": "1 concurrent"})
        running = most = 0

        async def slow(job: QueuedCall, call: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            return answer_of(1)

        async with AsyncLlmQueue(gate) as queue, queue.worker(slow, pace=Pace(4, 4)):
            jobs = [await queue.submit(body(), user="ann") for _ in range(6)]
            assert [(await queue.result(job.id)).state for job in jobs] == ["done"] * 6
        assert most == 1

    run(main())


def test_a_place_that_is_freed_as_a_job_waits_to_be_tried_again_starts_the_next_job_at_once() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue(gate_of({"name": "all", "by": [], "limits": "1 concurrent"}))
        running, answers = asyncio.Event(), asyncio.Event()

        async def handler(job: QueuedCall, call: Any) -> Any:
            if job.id == "first":
                running.set()
                await answers.wait()
                raise ProviderError("broken", status=500, retry_after=3600)
            return answer_of(10)

        async with queue.worker(handler):
            first = await queue.submit(body(), user="ann", id="first")
            await running.wait()
            second = await queue.submit(body(), user="ben", id="second")
            await until_it_waits_for_the_place(queue, second.id)
            answers.set()
            assert (await queue.result(second.id, 20)).state == "done"
            assert (await queue.cancel(first.id)).state == "cancelled"

    run(main())


def test_a_place_that_a_job_leaves_to_one_before_it_starts_that_at_once() -> None:
    async def main() -> None:
        gate = gate_of({"name": "all", "by": [], "limits": "1 concurrent"})
        queue = AsyncLlmQueue(gate)

        class Meanwhile(MemoryBacklog):
            """A backlog in which another worker requests the first job while the later one has the only place."""

            async def take(self, worker: str) -> Taken | Nothing:
                taken = await super().take(worker)
                if isinstance(taken, Taken) and taken.id == "late" and "first" not in self._jobs:
                    return taken._replace(claims=(Claim(scope, taken.score - 1, 3_600_000_000),))
                return taken

            async def park(self, worker: str, taken: Taken, *arguments: Any, **options: Any) -> bool:
                parked = await super().park(worker, taken, *arguments, **options)
                if "first" not in self._jobs:
                    await another_asks_in_vain(queue, gate, scope)
                return parked

        probe = await gate.reserve("own", input_tokens=0, max_tokens=0)
        scope = scopes_by_rules(gate)(probe.decision.definitions[0], Caller(), "own")
        await probe.cancel()
        queue.backlog = Meanwhile(queue.backlog.bounds, Fairness(), SYSTEM_CLOCK)
        await queue.submit(body(), user="ben", id="late")
        async with queue.worker(provider):
            await until_submitted(queue, "first")
            assert [(await queue.result(id, 20)).state for id in ("first", "late")] == ["done", "done"]

    run(main())


def test_a_place_that_is_freed_between_a_refusal_and_its_arrival_starts_the_next_job_at_once() -> None:
    async def main() -> None:
        gate = gate_of({"name": "all", "by": [], "limits": "1 concurrent"})
        running, refused, arrives = asyncio.Event(), asyncio.Event(), asyncio.Event()

        class Far:
            """A gate whose refusals are delayed, as those of one on a server are."""

            policy = gate.policy

            async def reserve(self, **running: Any) -> Any:
                call = await gate.reserve(**running)
                if not call:
                    refused.set()
                    await arrives.wait()
                return call

        async def handler(job: QueuedCall, call: Any) -> Any:
            if job.id == "first":
                running.set()
                await refused.wait()
            return answer_of(10)

        class Telling(MemoryBacklog):
            """A backlog after whose wake the refusal arrives."""

            async def wake(self, scopes: tuple[str, ...]) -> None:
                await super().wake(scopes)
                arrives.set()

        queue = AsyncLlmQueue(Far())
        queue.backlog = Telling(queue.backlog.bounds, Fairness(), SYSTEM_CLOCK)
        async with queue.worker(handler):
            await queue.submit(body(), user="ann", id="first")
            await running.wait()
            await queue.submit(body(), user="ben", id="second")
            assert [(await queue.result(id, 20)).state for id in ("first", "second")] == ["done", "done"]

    run(main())


def test_a_place_that_another_worker_requests_before_it_is_settled_starts_the_next_job_at_once() -> None:
    async def main() -> None:
        gate = gate_of({"name": "all", "by": [], "limits": "1 concurrent"})
        queue = AsyncLlmQueue(gate)

        class Meanwhile(MemoryBacklog):
            """A backlog in which another worker requests the next job while the hold of a finished one is open."""

            async def finish(self, worker: str, taken: Taken, *arguments: Any, **options: Any) -> Finished:
                finished = await super().finish(worker, taken, *arguments, **options)
                if taken.id == "done":
                    await another_asks_in_vain(queue, gate, scope)
                return finished

        probe = await gate.reserve("own", input_tokens=0, max_tokens=0)
        scope = scopes_by_rules(gate)(probe.decision.definitions[0], Caller(), "own")
        await probe.cancel()
        queue.backlog = Meanwhile(queue.backlog.bounds, Fairness(), SYSTEM_CLOCK)
        await queue.submit(body(), user="ben", id="done")
        async with queue.worker(provider):
            await until_submitted(queue, "first")
            assert (await queue.result("first", 20)).state == "done"

    run(main())


async def another_asks_in_vain(queue: AsyncLlmQueue, gate: AsyncLlmGate, scope: str) -> None:
    """Submit the job "first", which another worker takes, and puts back until the lease of the only place ends."""
    await queue.submit(body(), user="ann", id="first")
    first = await queue.backlog.take("another")
    assert isinstance(first, Taken) and first.id == "first"
    refused = await gate.reserve(**first.caller._asdict(), model="own", body=body())
    after_us = refused.decision.retry_after_us
    assert after_us is not None and after_us > 30_000_000
    await queue.backlog.park("another", first, after_us, scope, refused=True, settled=False, failed=False)


async def until_submitted(queue: AsyncLlmQueue, id: str) -> None:
    while True:
        with suppress(UnknownJob):
            await queue.get(id)
            return
        await asyncio.sleep(0)


async def until_it_waits_for_the_place(queue: AsyncLlmQueue, id: str) -> None:
    """Wait until a job was refused, and its lane is parked."""
    while not (await queue.position(id)).starts_in:  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_a_job_without_a_price_fails_in_words_and_one_that_never_fits_is_refused() -> None:
    async def main() -> None:
        gate = gate_of({"name": "team", "by": ["team"], "limits": "1 usd/day in UTC"})
        async with AsyncLlmQueue(gate) as queue, queue.worker(provider):
            unknown = await queue.submit(body(model="never-heard-of"), team="red")
            dear = await queue.submit(body(16_000) | {"n": 8}, team="red")
            failed, refused = [await queue.result(job.id) for job in (unknown, dear)]
        assert (failed.state, "never-heard-of" in failed.error) == ("failed", True)
        assert (refused.state, refused.limit) == ("refused", "team.usd")

    run(main())


def test_a_big_job_gets_the_limit_of_its_team_although_small_ones_of_others_keep_coming() -> None:
    async def main() -> None:
        clock = ManualClock()
        gate = gate_of({"name": "team", "by": ["team"], "limits": "6000 output_tokens/minute bucket"}, clock=clock)
        order: list[str] = []

        async def all_of_it(job: QueuedCall, call: Any) -> Any:
            order.append(job.caller.user)
            return {"usage": {"prompt_tokens": 0, "completion_tokens": job.body["max_tokens"]}}

        queue = AsyncLlmQueue(gate, clock=clock)
        jobs = [await queue.submit(body(6_000), user=user, team="red", tokens=6_000) for user in ("small", "big")]
        jobs += [await queue.submit(body(100), user="small", team="red", tokens=100) for _ in range(200)]
        async with queue.worker(all_of_it, pace=Pace(1, 1)):
            for job in jobs:
                await queue.result(job.id)
        assert order.index("big") <= 62  # after the jobs that passed until its first promised time

    run(main())


def test_a_job_whose_worker_died_long_ago_waits_for_a_place_again_and_is_charged_once() -> None:
    async def main() -> None:
        clock = ManualClock(1_800_000_000_000_000)
        rule = {"name": "user", "by": ["user"], "limits": "1 concurrent; 100/day; 1000 tokens/day"}
        policy = {"version": 1, "llm": {"hold": "max", "prices": PRICES, "lease": "10s"}, "rules": [rule]}
        gate = AsyncLlmGate(policy, clock=clock)
        queue = AsyncLlmQueue(gate, clock=clock)
        running = asyncio.Event()

        async def dies(job: QueuedCall, call: Any) -> Any:
            running.set()
            await asyncio.Event().wait()

        job = await queue.submit(body(), user="ann")
        with suppress(ZeroDivisionError):
            async with queue.worker(dies):
                await running.wait()
                raise ZeroDivisionError
        assert (await queue.get(job.id)).state == "waiting"
        clock.advance(20_000_000)
        other = await gate.reserve("own", user="ann", input_tokens=0, max_tokens=0)
        assert other
        until_us = clock.now_us() + 10_000_000
        started_us = 0

        async def answers(job: QueuedCall, call: Any) -> Any:
            nonlocal started_us
            started_us = clock.now_us()
            return await provider(job, call)

        async with queue.worker(answers):
            assert (await queue.result(job.id)).state == "done"
        assert started_us >= until_us
        now = await remaining_of(gate, user="ann")
        assert (now["user.day"], now["user.tokens.day"]) == (97, 960)  # of three calls

    run(main())


def test_limits_that_share_a_scope_are_found_by_their_rules() -> None:
    async def main() -> None:
        rules = [
            {"name": "user", "by": ["user"], "limits": "5/minute"},
            {"name": "model", "by": ["team", "model"], "limits": "50/minute"},
            {"name": "all", "by": [], "limits": "500/minute"},
        ]
        gate = gate_of(*rules)
        scope_of = scopes_by_rules(gate)

        async def scopes(user: str, team: str, model: str) -> list[str]:
            call = await gate.reserve(model, user=user, team=team, input_tokens=0, max_tokens=1)
            return [scope_of(limit, Caller(user=user, team=team), model) for limit in call.decision.definitions]

        first = await scopes("ann", "red", "gpt-5")
        assert first == await scopes("ann", "red", "openai/GPT-5")
        second = await scopes("bob", "red", "gpt-5")
        assert [a == b for a, b in zip(first, second, strict=True)] == [False, True, True]
        third = await scopes("ann", "blue", "gpt-5")
        assert [a == b for a, b in zip(first, third, strict=True)] == [True, False, True]

    run(main())


def test_a_job_is_held_by_the_dialect_of_its_path() -> None:
    tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    job_body = {"model": "own", "max_tokens": 0, "messages": [], "tools": [tool]}
    limits = {"name": "all", "by": [], "limits": "10 usd/day in UTC"}
    llm = {"hold": "max", "prices": {"own": {"input": "0", "output": "0", "web_searches": "1000"}}, "web_searches": 5}

    async def silent(job: QueuedCall, call: Any) -> Any:
        return {"choices": []}

    async def main(path: str) -> int:
        gate = AsyncLlmGate({"version": 1, "llm": llm, "rules": [limits]})
        async with AsyncLlmQueue(gate) as queue, queue.worker(silent):
            assert (await queue.result((await queue.submit(job_body, path=path)).id)).state == "done"
        (remaining,) = (await remaining_of(gate)).values()
        return 10 - remaining // 10**9

    assert run(main("/v1/messages")) == 2, "as often as `max_uses` says"
    assert run(main("/v1/chat/completions")) == 5, "chat completions have no `max_uses`"


@pytest.mark.parametrize("words", [1, INLINE_BYTES])
def test_a_long_job_is_held_for_what_it_hides_as_a_short_one_is(words: int) -> None:
    async def main() -> None:
        held: list[int] = []

        async def look(job: QueuedCall, call: Any) -> Any:
            held.append(call.held.input)
            return answer_of(1)

        parts = [{"type": "text", "text": "word " * words}, {"type": "file", "file": {"file_id": "f"}}]
        gate = gate_of({"name": "user", "by": ["user"], "limits": "100000 tokens/day"})
        async with AsyncLlmQueue(gate) as queue, queue.worker(look):
            job_body = {**body(), "messages": [{"role": "user", "content": parts}]}
            await queue.result((await queue.submit(job_body, user="ann")).id)
        assert held[0] > gate.settings.hidden_input + words

    run(main())
