"""The queue for language models in memory: order, states, bounds, and what workers do with them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from headgate import AsyncLimiter, ConfigError
from headgate.errors import ArgumentError, ConflictingId
from headgate.llm.queue import AsyncLlmQueue, Bounds, Fairness, Pace, ProviderError, QueuedCall, QueueFull, UnknownJob
from headgate.llm.queue.failures import failure_of
from headgate.llm.queue.memory import MemoryBacklog
from headgate.testing import ManualClock
from llm_gates import LimiterGate, answer_of
from until import until_async

SECOND_US = 1_000_000


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 30))


def body(tokens: int = 10, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}], **more}


class Provider:
    """Answers each job with the tokens that its body allows, and records their order."""

    def __init__(self, truth: Callable[[QueuedCall], int] = lambda job: job.body["max_tokens"]) -> None:
        self.order: list[str] = []
        self.users: list[str] = []
        self._truth = truth

    async def __call__(self, job: QueuedCall, call: Any) -> dict[str, Any]:
        self.order.append(job.id)
        self.users.append(job.caller.user)
        return answer_of(self._truth(job))


def of(limits: str = "1000000000 tokens/day", **settings: Any) -> tuple[AsyncLlmQueue, LimiterGate, ManualClock]:
    clock = ManualClock()
    gate = LimiterGate(AsyncLimiter(limits, name="q", clock=clock), settings.pop("key_of", lambda call: "all"))
    return AsyncLlmQueue(gate, clock=clock, **settings), gate, clock


async def remaining_of(gate: LimiterGate) -> int | None:
    """The remaining amount of a gate's limit."""
    return (await gate.limiter.peek("all", {"tokens": 0})).remaining


async def serve(queue: AsyncLlmQueue, provider: Any, ids: list[str], **how: Any) -> list[Any]:
    """Serve the jobs one at a time, and return them when they have ended."""
    how.setdefault("pace", Pace(1, 1))
    async with queue.worker(provider, **how):
        return [await queue.result(id, 20) for id in ids]


def test_a_job_waits_is_done_and_its_answer_is_kept_for_a_while() -> None:
    async def main() -> None:
        queue, gate, clock = of(bounds=Bounds(results_s=60))
        job = await queue.submit(body(40), user="ann")
        assert (job.state, job.caller.user, job.model, job.ended) == ("waiting", "ann", "m", False)
        [done] = await serve(queue, Provider(lambda job: 25), [job.id])
        assert (done.state, done.answer, done.tokens) == ("done", answer_of(25), 25)
        assert await remaining_of(gate) == 10**9 - 25
        clock.advance(60 * SECOND_US)
        with pytest.raises(UnknownJob, match="no job has the id"):
            await queue.get(job.id)

    run(main())


def test_a_job_that_does_not_fit_now_starts_at_the_promised_time_with_one_more_reservation() -> None:
    async def main() -> None:
        queue, gate, clock = of("600 tokens/minute bucket")
        start = clock.now_us()
        first, second = [(await queue.submit(body(600), user="ann")).id for _ in range(2)]
        _, done = await serve(queue, Provider(), [first, second])
        assert done.started_us - start == 60 * SECOND_US
        assert gate.reserve_count == 3

    run(main())


def test_jobs_of_others_are_served_while_one_waits_for_its_limit() -> None:
    async def main() -> None:
        queue, _, _ = of("600 tokens/minute bucket", key_of=lambda call: str(call["user"]))
        provider = Provider()
        ann = [(await queue.submit(body(600), user="ann")).id for _ in range(2)]
        bob = [(await queue.submit(body(60), user="bob")).id for _ in range(9)]
        await serve(queue, provider, ann + bob)
        assert provider.order[-1] == ann[1]

    run(main())


def test_a_job_that_can_never_fit_is_refused_with_the_limits_name() -> None:
    async def main() -> None:
        queue, gate, _ = of("600 tokens/minute bucket")
        job = await queue.submit(body(601), user="ann")
        [ended] = await serve(queue, Provider(), [job.id])
        assert (ended.state, ended.limit, ended.tokens) == ("refused", "q.tokens", 0)
        assert "can never be admitted" in ended.error
        assert await remaining_of(gate) == 600

    run(main())


def test_big_and_small_jobs_get_the_same_tokens() -> None:
    async def main() -> None:
        queue, _, _ = of(fairness=Fairness(ageing_tokens=1), bounds=Bounds(user_jobs=2_000))
        provider = Provider()
        for _ in range(200):
            await queue.submit(body(1000), user="big", tokens=1000)
        for _ in range(2000 - 200):
            await queue.submit(body(100), user="small", tokens=100, key=f"k{_ % 2}")
        had: Counter[str] = Counter()
        apart = 0
        async with queue.worker(provider, pace=Pace(1, 1)):
            await until_async(lambda: len(provider.users) >= 1500)
        for user, size in ((user, 1000 if user == "big" else 100) for user in provider.users):
            had[user] += size
            apart = max(apart, abs(had["big"] - had["small"])) if had["small"] < 180_000 else apart
        assert apart <= 2_000

    run(main())


def test_the_order_is_by_the_truth_once_it_is_known() -> None:
    async def main() -> None:
        queue, _, _ = of(fairness=Fairness(ageing_tokens=1))
        provider = Provider(lambda job: 100 if job.caller.user == "cautious" else 1000)
        for user in ("cautious", "honest"):
            for _ in range(100):
                await queue.submit(body(1000), user=user, tokens=1000)
        async with queue.worker(provider, pace=Pace(1, 1)):
            await until_async(lambda: len(provider.users) >= 100)
        had = Counter(provider.users[:99])
        assert 9 * had["honest"] < had["cautious"] < 11 * had["honest"] + 11

    run(main())


def test_idling_earns_no_credit() -> None:
    async def main() -> None:
        queue, _, _ = of(fairness=Fairness(ageing_tokens=1))
        provider = Provider()
        ids = [(await queue.submit(body(10), user="busy", tokens=10)).id for _ in range(100)]
        await serve(queue, provider, ids[:50])
        served = len(provider.users)
        for _ in range(100):
            ids.append((await queue.submit(body(10), user="back", tokens=10)).id)
        await serve(queue, provider, ids)
        assert abs(Counter(provider.users[served : served + 20])["back"] - 10) <= 1 or served == 100

    run(main())


def test_a_user_that_had_much_is_served_again_when_it_has_waited_long() -> None:
    """Endless new users, who have used nothing, do not starve the user who has."""

    async def main() -> None:
        queue, _, clock = of(fairness=Fairness(ageing_tokens=10))
        assert isinstance(queue.backlog, MemoryBacklog)
        await queue.submit(body(), user="ann", tokens=6_000)
        await queue.submit(body(), user="new", tokens=1)
        await queue.backlog.take("w")
        old = await queue.submit(body(), user="ann", tokens=10)
        for number in range(2_000):
            await queue.submit(body(), user=f"new{number}", tokens=1)
            taken = await queue.backlog.take("w")
            if getattr(taken, "id", "") == old.id:
                break
            clock.advance(SECOND_US)
        assert 500 <= number <= 700

    run(main())


def test_priority_puts_ahead_and_waiting_makes_up_for_it() -> None:
    async def main() -> None:
        queue, _, clock = of(fairness=Fairness(priority_tokens=1_000, ageing_tokens=10))
        low = await queue.submit(body(), user="ann", tokens=1)
        high = await queue.submit(body(), user="ann", tokens=1, priority=1)
        clock.advance(101 * SECOND_US)
        late = await queue.submit(body(), user="ann", tokens=1, priority=1)
        taken = [await queue.backlog.take("w") for _ in range(3)]
        assert [each.id for each in taken] == [high.id, low.id, late.id]  # type: ignore[union-attr]

    run(main())


def test_a_job_that_is_not_started_by_its_deadline_expires() -> None:
    async def main() -> None:
        queue, _, clock = of()
        job = await queue.submit(body(), deadline=5)
        clock.advance(4_999_999)
        assert (await queue.get(job.id)).state == "waiting"
        clock.advance(1)
        ended = await queue.get(job.id)
        assert (ended.state, ended.tokens) == ("expired", 0)
        assert "deadline" in ended.error

    run(main())


def test_a_deadline_is_that_of_one_job_and_of_no_later_one_with_the_same_id() -> None:
    async def main() -> None:
        queue, _, clock = of(bounds=Bounds(results_s=10))
        await queue.submit(body(), deadline=100)
        await queue.submit(body(), id="report", deadline=200)
        await queue.cancel("report")
        clock.advance(11_000_000)
        again = await queue.submit(body(), id="report")
        assert (again.repeated, again.deadline_us) == (False, 0)
        clock.advance(1_000_000_000)
        assert (await queue.get("report")).state == "waiting"

    run(main())


def test_a_result_is_returned_without_a_worker_when_a_job_expires() -> None:
    async def main() -> None:
        queue = AsyncLlmQueue()
        job = await queue.submit(body(), deadline=0.05)
        assert (await queue.result(job.id, 20)).state == "expired"
        with pytest.raises(TimeoutError):
            await queue.result((await queue.submit(body())).id, 0.01)

    run(main())


def test_a_job_is_cancelled_in_every_state() -> None:
    async def main() -> None:
        queue, gate, _ = of()
        waiting = await queue.submit(body())
        assert (await queue.cancel(waiting.id)).state == "cancelled"
        assert (await queue.cancel(waiting.id)).state == "cancelled"
        started = asyncio.Event()
        stopped: list[str] = []

        async def endless(job: QueuedCall, call: Any) -> Any:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(job.id)

        running = await queue.submit(body(70))
        async with queue.worker(endless):
            await started.wait()
            assert (await queue.cancel(running.id)).state == "cancelled"
            await until_async(lambda: stopped)
        assert (await queue.get(running.id)).answer is None
        assert await remaining_of(gate) == 10**9 - 70  # it was sent, so the hold counts
        done = await queue.submit(body(1))
        await serve(queue, Provider(), [done.id])
        assert (await queue.cancel(done.id)).state == "done"
        with pytest.raises(UnknownJob):
            await queue.cancel("no-job")

    run(main())


def test_submitting_again_with_the_same_id_gives_the_same_job() -> None:
    async def main() -> None:
        queue, _, _ = of()
        first = await queue.submit(body(), user="ann", id="report-7")
        again = await queue.submit(body(), user="ann", id="report-7")
        assert again == first
        assert (first.repeated, again.repeated) == (False, True)
        with pytest.raises(ConflictingId, match="report-7"):
            await queue.submit(body(11), user="ann", id="report-7")
        with pytest.raises(ConflictingId):
            await queue.submit(body(), user="bob", id="report-7")
        [done] = await serve(queue, Provider(), [first.id])
        assert (await queue.submit(body(), user="ann", id="report-7")).answer == done.answer

    run(main())


@pytest.mark.parametrize(
    ("bounds", "bound", "users"),
    [
        (Bounds(jobs=3), "jobs", ["a", "b", "c"]),
        (Bounds(user_jobs=3), "user_jobs", ["a", "a", "a"]),
        (Bounds(bytes=3 * 78), "bytes", ["a", "b", "c"]),
        (Bounds(user_bytes=3 * 78), "user_bytes", ["a", "a", "a"]),
    ],
)
def test_a_queue_is_bounded_and_has_room_again_when_a_job_has_ended(
    bounds: Bounds, bound: str, users: list[str]
) -> None:
    async def main() -> None:
        queue, _, _ = of(bounds=bounds)
        jobs = [await queue.submit(body(), user=user) for user in users]
        with pytest.raises(QueueFull, match="the queue is full") as full:
            await queue.submit(body(), user="a")
        assert full.value.bound == bound
        await queue.cancel(jobs[0].id)
        await queue.submit(body(), user="a")

    run(main())


def test_kept_answers_are_bounded() -> None:
    async def main() -> None:
        queue, _, _ = of(bounds=Bounds(answers_bytes=1_000))
        ids = [(await queue.submit(body())).id for _ in range(50)]
        async with queue.worker(Provider()):
            await until_async(lambda: not queue.backlog._waiting)  # type: ignore[attr-defined]
        stored = 0
        for id in ids:
            try:
                await queue.get(id)
                stored += 1
            except UnknownJob:
                pass
        assert 0 < stored <= 1_000 // 60

    run(main())


@pytest.mark.parametrize(
    ("submitted", "message"),
    [
        ({"body": []}, "a body is a mapping"),
        ({"body": {"messages": []}}, "body.model"),
        ({"body": body(stream=True)}, "body.stream"),
        ({"body": body(Model="another")}, "write 'model'"),
        ({"body": body(Max_Tokens=90_000)}, "write 'max_tokens'"),
        ({"body": body(extra=float("nan"))}, "JSON"),
        ({"body": body(extra=object())}, "JSON"),
        ({"body": body(), "priority": 10}, "priority is a whole number from 0 to 9, not '10'"),
        ({"body": body(), "priority": True}, "priority"),
        ({"body": body(), "deadline": -1}, "deadline is above 0"),
        ({"body": body(), "deadline": float("nan")}, "deadline is a number of seconds"),
        ({"body": body(), "deadline": 10**400}, "deadline is above 0 and at most 2,678,400 seconds, not a number of"),
        ({"body": body(), "id": "a b"}, "an id is up to 120 letters"),
        ({"body": body(), "user": 7}, "user is a text"),
        ({"body": body(), "tokens": -1}, "tokens is a whole number"),
        ({"body": body(), "path": "http://elsewhere/"}, "a path is one of /v1/chat/completions, "),
        ({"body": body(text="x" * 5_000_000)}, "a body has at most 4,194,304 bytes"),
    ],
)
def test_an_invalid_job_is_an_error_that_says_why(submitted: dict[str, Any], message: str) -> None:
    async def main() -> None:
        queue, _, _ = of()
        with pytest.raises(ArgumentError, match=message):
            await queue.submit(**submitted)

    run(main())


def test_an_invalid_setting_is_an_error_that_says_why() -> None:
    for make, message in (
        (lambda: AsyncLlmQueue(store="file:///x"), "the store of a queue is memory://"),
        (lambda: AsyncLlmQueue().worker(Provider()), "a worker needs a gate"),
        (lambda: Bounds(jobs=0), "bounds.jobs is a number above 0"),
        (lambda: Fairness(ageing_tokens=0), "ageing_tokens is a whole number from 1"),
        (lambda: Pace(0), "start is a whole number of jobs"),
        (lambda: Pace(5, 4), "start is at most as large as most"),
        (lambda: of()[0].worker(Provider(), when_lost="never"), "when_lost is one of again, fail"),
        (lambda: of()[0].worker(Provider(), retries=-1), "retries is a whole number"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()


def test_a_position_counts_the_jobs_before_and_the_speed_of_the_queue() -> None:
    async def main() -> None:
        queue, _, clock = of()
        ids = [(await queue.submit(body(), user="ann", tokens=100)).id for _ in range(4)]
        assert (await queue.position(ids[0])) == ("waiting", 0, 4, None)
        bob = (await queue.submit(body(), user="bob", tokens=100)).id
        assert (await queue.position(ids[3])).ahead == 4
        assert (await queue.position(bob)).ahead in (0, 1)
        for _ in range(2):
            await queue.backlog.take("w")
            clock.advance(SECOND_US)
        assert (await queue.position(ids[3])) == ("waiting", 2, 3, 2.0)
        assert (await queue.position(ids[0])).state == "running"

    run(main())


def test_positions_are_reported_as_they_change_until_the_job_has_ended() -> None:
    async def main() -> None:
        queue, _, _ = of()
        ids = [(await queue.submit(body(), tokens=1)).id for _ in range(3)]
        goes_on = asyncio.Semaphore(0)

        async def provider(job: QueuedCall, call: Any) -> Any:
            await goes_on.acquire()
            return answer_of(1)

        seen = []
        async with queue.worker(provider, pace=Pace(1, 1)):
            async for position in queue.positions(ids[2], every=0):
                seen.append((position.state, position.ahead))
                goes_on.release()
        assert seen[0] == ("waiting", 2)
        assert seen[-1] == ("done", 0)
        assert sorted(set(seen), key=seen.index) == seen

    run(main())


def failing(*errors: BaseException | None) -> Callable[[QueuedCall, Any], Awaitable[Any]]:
    """A provider that fails with these errors, one for each call, and then answers."""
    remaining_of: Iterator[BaseException | None] = iter(errors)

    async def provider(job: QueuedCall, call: Any) -> Any:
        error = next(remaining_of, None)
        if error is not None:
            raise error
        return answer_of(10)

    return provider


@pytest.mark.parametrize(
    ("error", "remaining"),
    [
        (ProviderError("busy", status=429, retry_after=7), 990),
        (ProviderError("overloaded", status=529), 990),
        (ProviderError("broken", status=500), 990),
        (ProviderError("the provider's proxy has no answer", status=524), 990),
        (ConnectionRefusedError("nobody there"), 990),
        (TimeoutError("no answer"), 890),  # it may have been answered: the hold counts
    ],
)
def test_a_job_whose_provider_cannot_answer_is_retried(error: BaseException, remaining: int) -> None:
    async def main() -> None:
        queue, gate, clock = of("1000 tokens/day bucket")
        start = clock.now_us()
        job = await queue.submit(body(100))
        [done] = await serve(queue, failing(error), [job.id])
        assert (done.state, done.attempts) == ("done", 1)
        assert done.started_us - start == SECOND_US * (7 if getattr(error, "retry_after", None) else 1)
        assert await remaining_of(gate) in (remaining, remaining + 1)  # it refills by 1 in 87 seconds

    run(main())


def test_a_job_that_litellm_lost_stays_charged_though_its_error_has_a_status() -> None:
    async def main() -> None:
        queue, gate, _ = of("1000 tokens/day bucket")
        kind = type("InternalServerError", (ProviderError,), {"__module__": "litellm.exceptions"})
        lost, refused, unsent = (kind("litellm says so", status=500) for _ in range(3))
        lost.__context__ = TimeoutError("no answer")
        refused.__context__ = ProviderError("broken", status=500)
        unsent.__context__ = ConnectionRefusedError("nobody there")
        for error, remaining in ((lost, 890), (refused, 880), (unsent, 870)):
            job = await queue.submit(body(100))
            [done] = await serve(queue, failing(error), [job.id])
            assert (done.state, done.attempts) == ("done", 1)
            assert await remaining_of(gate) in (remaining, remaining + 1)

    run(main())


def test_a_redirect_is_not_retried_and_only_the_request_stays_charged() -> None:
    async def main() -> None:
        queue, gate, _ = of("1000 tokens/day bucket")
        ids = [(await queue.submit(body(100), id=id)).id for id in ("a", "b")]
        moved = ProviderError("the provider answered 308", status=308)
        jobs = await serve(queue, failing(moved, answered(301)), ids)
        assert [(job.state, job.attempts, job.tokens) for job in jobs] == [("failed", 0, 0)] * 2
        assert await remaining_of(gate) == 1000

    run(main())


@pytest.mark.parametrize(
    "date", ["Fri, 27 Nov 2026 18:00:40 GMT", "Friday, 27-Nov-26 18:00:40 GMT", "Fri Nov 27 18:00:40 2026"]
)
def test_a_retry_date_of_a_provider_is_obeyed(date: str) -> None:
    async def main() -> None:
        queue, _, clock = of()
        start = clock.now_us()
        job = await queue.submit(body(100))
        error = answered(429, date="Fri, 27 Nov 2026 18:00:00 GMT", retry_after=date)
        [done] = await serve(queue, failing(error), [job.id])
        assert (done.state, done.started_us - start) == ("done", 40 * SECOND_US)

    run(main())


@pytest.mark.parametrize("wait", ["40", "40.0000000000000001", "2, 40", "40,2", "40.0 , 39.5"])
def test_the_longest_wait_of_a_provider_is_obeyed_however_it_is_written(wait: str) -> None:
    assert failure_of(answered(429, retry_after=wait)).retry_after_us == 40 * SECOND_US
    assert failure_of(answered(429, retry_after="99999999999")).retry_after_us == 24 * 3600 * SECOND_US


@pytest.mark.parametrize("date", ["Fri, 27 Nov", "Fri, 99 Nov 2026 18:00:40 GMT", "soon", "-1", "1e3", "1,", ""])
def test_an_invalid_retry_date_is_ignored(date: str) -> None:
    assert failure_of(answered(429, retry_after=date)).retry_after_us is None


def test_a_retry_date_in_the_past_means_no_wait() -> None:
    assert failure_of(answered(503, retry_after="Fri, 27 Nov 2020 18:00:40 GMT")).retry_after_us is None


def test_a_provider_that_says_to_retry_now_is_retried_after_the_usual_pause() -> None:
    async def main() -> None:
        for error in (ProviderError("busy", status=429, retry_after=0), answered(503, retry_after="0")):
            queue, _, clock = of()
            start = clock.now_us()
            job = await queue.submit(body(100))
            [done] = await serve(queue, failing(error), [job.id])
            assert (done.state, done.started_us - start) == ("done", SECOND_US)

    run(main())


def test_retries_are_bounded_and_calls_that_a_provider_refuses_are_not_retried() -> None:
    async def main() -> None:
        queue, gate, _ = of("1000 tokens/day bucket")
        ids = [(await queue.submit(body(100), id=id)).id for id in ("a", "b", "c")]
        errors = [*([ProviderError("broken", status=500)] * 3), ProviderError("no such model", status=404), KeyError(1)]
        jobs = await serve(queue, failing(*errors), ids, retries=2)
        assert [job.state for job in jobs] == ["failed"] * 3
        assert [job.attempts for job in jobs] == [2, 0, 0]
        assert [job.tokens for job in jobs[:2]] == [0, 0]
        assert jobs[1].error == "ProviderError: no such model"
        assert await remaining_of(gate) in (900, 901)  # what the provider generated is unknown

    run(main())


def answered(status: int, *, library: Any = httpx, **fields: str) -> Any:
    """The error of httpx, or its successor, for a response with these fields."""
    request = library.Request("POST", "http://provider/v1/chat/completions")
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    response = library.Response(status, headers=headers, request=request)
    return library.HTTPStatusError("refused", request=request, response=response)


def of_a_package(package: Any, status: int, should_retry: str) -> Any:
    """The error of a provider's package for such a response."""
    response = answered(status, library=httpx2, x_should_retry=should_retry).response
    return package.APIStatusError("refused", response=response, body=None)


@pytest.mark.parametrize(
    ("error", "attempts", "state"),
    [
        (answered(429, x_should_retry="false", retry_after="1"), 0, "failed"),
        (answered(503, X_Should_Retry="false"), 0, "failed"),
        (answered(400, x_should_retry="true"), 1, "done"),
        (answered(400, x_should_retry="perhaps"), 0, "failed"),
        (answered(500, x_should_retry="perhaps"), 1, "done"),
        (of_a_package(openai, 429, "false"), 0, "failed"),
        (of_a_package(openai, 422, "true"), 1, "done"),
        (of_a_package(anthropic, 529, "false"), 0, "failed"),
        (of_a_package(anthropic, 403, "true"), 1, "done"),
        (ProviderError("spent", status=429, should_retry=False), 0, "failed"),
        (ProviderError("not yet", status=404, should_retry=True), 1, "done"),
    ],
)
def test_a_provider_that_says_whether_to_retry_is_obeyed(error: BaseException, attempts: int, state: str) -> None:
    async def main() -> None:
        queue, gate, _ = of("1000 tokens/day bucket")
        job = await queue.submit(body(100))
        [ended] = await serve(queue, failing(error), [job.id])
        assert (ended.state, ended.attempts) == (state, attempts)
        assert await remaining_of(gate) in ((990, 991) if state == "done" else (1000,))  # refused calls used no tokens

    run(main())


def test_a_provider_that_always_says_to_retry_is_called_as_often_as_the_worker_retries() -> None:
    async def main() -> None:
        queue, _, _ = of()
        job = await queue.submit(body(100))
        [ended] = await serve(queue, failing(*[answered(400, x_should_retry="true")] * 9), [job.id], retries=2)
        assert (ended.state, ended.attempts) == ("failed", 2)

    run(main())


def test_an_answer_that_json_cannot_say_fails_its_job() -> None:
    async def main() -> None:
        queue, _, _ = of(bounds=Bounds(answer_bytes=500))

        async def provider(job: QueuedCall, call: Any) -> Any:
            return object() if job.id == "a" else answer_of(1, text="x" * 500)

        jobs = await serve(queue, provider, [(await queue.submit(body(), id=id)).id for id in ("a", "b")])
        assert [job.state for job in jobs] == ["failed", "failed"]
        assert "a value that fits JSON" in jobs[0].error
        assert "500 are kept" in jobs[1].error

    run(main())


def test_a_handler_that_cancels_itself_fails_its_job_once_and_stays_held() -> None:
    handled: list[str] = []

    async def handler(job: QueuedCall, call: Any) -> dict[str, Any]:
        handled.append(job.id)
        raise asyncio.CancelledError("a task inside was cancelled")

    async def main() -> None:
        queue, gate, _ = of("1000 tokens/day bucket")
        job = await queue.submit(body(100))
        [done] = await serve(queue, handler, [job.id])
        assert (done.state, done.error) == ("failed", "CancelledError: a task inside was cancelled")
        assert handled == [job.id] and await remaining_of(gate) in (900, 901)

    run(main())


def test_a_handler_for_threads_fails_its_job_in_words() -> None:
    async def main() -> None:
        queue, _, _ = of("1000 tokens/day bucket")
        job = await queue.submit(body(100))
        handler: Any = lambda job, call: {}  # noqa: E731
        [done] = await serve(queue, handler, [job.id])
        assert done.state == "failed"
        assert done.error == "TypeError: a handler begins with async def, or is one of an LlmQueue: it returned a dict"

    run(main())


class _Mute(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "says"),
    [(ValueError("\ud83d"), "ValueError: \\ud83d"), (_Mute(), "_Mute: its text cannot be read")],
)
def test_any_error_is_described_by_a_text_that_can_be_stored(error: Exception, says: str) -> None:
    assert failure_of(error).message == says


def test_an_answer_that_was_cut_within_a_character_is_kept() -> None:
    cut = answer_of(5, choices=[{"message": {"content": "\ud83d"}, "finish_reason": "length"}])

    async def handler(job: QueuedCall, call: Any) -> dict[str, Any]:
        return cut

    async def main() -> None:
        queue, gate, _ = of()
        job = await queue.submit(body(40), user="ann")
        [done] = await serve(queue, handler, [job.id])
        assert (done.state, done.answer, done.tokens) == ("done", cut, 5)
        assert await remaining_of(gate) == 10**9 - 5

    run(main())


def test_a_worker_that_is_stopped_gives_its_jobs_back_and_their_holds_stay() -> None:
    async def main() -> None:
        queue, gate, _ = of()
        job = await queue.submit(body(50))
        started = asyncio.Event()

        async def endless(job: QueuedCall, call: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

        worker = queue.worker(endless)
        task = asyncio.create_task(worker.run())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await queue.get(job.id)).state == "waiting"
        [done] = await serve(queue, Provider(), [job.id])
        assert done.state == "done"
        assert await remaining_of(gate) == 10**9 - 50

    run(main())


def test_a_big_job_is_not_passed_over_for_ever_by_small_ones_of_the_same_limit() -> None:
    async def main() -> None:
        queue, _, _ = of("600 tokens/minute bucket", fairness=Fairness(ageing_tokens=1))
        provider = Provider()
        ids = [(await queue.submit(body(600), user="small", tokens=600)).id]
        ids += [(await queue.submit(body(600), user="big", tokens=600)).id]
        ids += [(await queue.submit(body(10), user="small", tokens=10)).id for _ in range(300)]
        await serve(queue, provider, ids, scope_of=lambda limit, caller, model: "shared")
        assert provider.order.index(ids[1]) <= 62

    run(main())


def test_an_overloaded_provider_halves_the_running_jobs_and_answers_raise_them_again() -> None:
    pace = Pace(start=8, most=16)
    assert pace.busy(now_us=100, sent_us=50, retry_after_us=1_000) == 1_100
    assert pace.width == 4
    pace.busy(now_us=200, sent_us=60, retry_after_us=None)  # sent before the provider said so
    assert pace.width == 4
    for _ in range(4 + 5):
        pace.succeeded()
    assert pace.width == 5
    for _ in range(1_000):
        pace.succeeded()
    assert pace.width == 16
    for moment in range(20):
        pace.busy(now_us=10**9 * moment, sent_us=10**12 * (moment + 1), retry_after_us=None)
    assert pace.width == 1
