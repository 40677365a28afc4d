"""The queue on a real Redis: same order as in memory, and no job is lost or charged twice when workers are killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from redis_servers import Server, single
from tcp_proxy import TcpProxy

from headgate import AsyncLimiter, StoreError
from headgate.errors import ConfigError, ConflictingId, StoreTimeout
from headgate.llm import AsyncLlmGate
from headgate.llm.books import open_books, read_books, reconcile
from headgate.llm.learned import NothingLearned
from headgate.llm.queue import AsyncLlmQueue, Bounds, Fairness, Pace, ProviderError, QueuedCall, QueueFull, UnknownJob
from headgate.llm.queue.backlog import Nothing, Taken
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from llm_gates import LimiterGate, answer_of
from until import until_async

pytestmark = pytest.mark.integration
HALF_A_LEASE_US = 1_800_000_000
"""After this time a queue on Redis looks for workers that died."""

WORKER = str(Path(__file__).with_name("queue_worker.py"))
_names = count()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 90))


def new_name() -> str:
    return f"q{next(_names)}"


def with_timeout(url: str) -> str:
    return f"{url}?timeout=20s"


def body(tokens: int = 10, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}], **fields}


async def wait_for_value(query: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Repeat a query until it returns the expected value, at most half a minute."""
    async with asyncio.timeout(30):
        while await query() != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture(params=["single", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    servers = request.getfixturevalue({"single": "server", "cluster": "nodes"}[request.param])
    return with_timeout(servers.url)


@pytest.mark.parametrize("seed", range(4))
def test_redis_and_memory_decide_alike(server: Server, seed: int) -> None:
    """Random jobs are taken, put back, refused by limits, ended, cancelled and expired: every result is the same."""

    async def main() -> None:
        rng = random.Random(seed)
        clock = ManualClock()
        bounds, fairness = Bounds(jobs=30, user_jobs=12), Fairness(priority_tokens=500, ageing_tokens=7)
        queues = [
            AsyncLlmQueue(store=store, name=new_name(), bounds=bounds, fairness=fairness, clock=clock, lease=3600)
            for store in ("memory://", with_timeout(server.url))
        ]
        held: list[list[Taken]] = [[], []]
        ids: list[str] = []

        async def both(step: Any) -> list[Any]:
            results: list[Any] = []
            for number, queue in enumerate(queues):
                try:
                    results.append(await step(queue, held[number]))
                except (QueueFull, UnknownJob, ConflictingId) as error:
                    results.append((type(error), str(error)))
            assert results[0] == results[1]
            return results

        async def take(queue: AsyncLlmQueue, taken_jobs: list[Taken]) -> Any:
            taken = await queue.backlog.take("w")
            if isinstance(taken, Taken):
                taken_jobs.append(taken)
                return taken._replace(claims=tuple(sorted(taken.claims)))
            return taken.after_us if taken.after_us != HALF_A_LEASE_US else None

        for number in range(350):
            clock.advance(rng.choice([0, 1_000, 200_000, 3_000_000]))
            choice = rng.random()
            index = rng.randrange(1 << 30)
            if choice < 0.35:
                options: dict[str, Any] = {
                    "user": f"u{rng.randrange(4)}",
                    "priority": rng.choice([0, 0, 0, 2]),
                    "tokens": rng.choice([1, 30, 400]),
                    "deadline": rng.choice([None, None, 9.5]),
                    "id": f"j{rng.randrange(number + 1)}",
                }
                ids.append(options["id"])
                await both(lambda queue, taken_jobs, options=options: queue.submit(body(), **options))
            elif choice < 0.65:
                await both(take)
            elif choice < 0.8 and held[0]:
                scope, after_us = rng.choice(["", "team", "team", "user"]), rng.choice([0, 2_000_000, 9_000_000])
                refused, settled = bool(scope), rng.random() < 0.3

                async def park(
                    queue: AsyncLlmQueue,
                    taken_jobs: list[Taken],
                    arguments: Any = (index, after_us, scope, refused, settled),
                ) -> Any:
                    index, after_us, scope, refused, settled = arguments
                    taken = taken_jobs.pop(index % len(taken_jobs))
                    return await queue.backlog.park(
                        "w", taken, after_us, scope, refused=refused, settled=settled, failed=not refused
                    )

                await both(park)
            elif choice < 0.92 and held[0]:
                tokens = rng.choice([None, 0, 5, 1000])

                async def finish(
                    queue: AsyncLlmQueue, taken_jobs: list[Taken], arguments: Any = (index, tokens)
                ) -> Any:
                    taken = taken_jobs.pop(arguments[0] % len(taken_jobs))
                    state = await queue.backlog.finish(
                        "w", taken, "done", answer=b'{"a":1}', scopes=("team",), tokens=arguments[1], settled=False
                    )
                    await queue.backlog.release("w", taken)
                    await queue.backlog.wake(("user", "team"))
                    return state

                await both(finish)
            elif choice < 0.96 and ids:
                cancelled = rng.choice(ids)
                await both(lambda queue, taken_jobs, id=cancelled: queue.cancel(id))
            for id in rng.sample(ids, min(2, len(ids))):
                await both(lambda queue, taken_jobs, id=id: queue.get(id))
                await both(lambda queue, taken_jobs, id=id: queue.position(id))
        for queue in queues:
            await queue.close()

    run(main())


def test_jobs_and_their_results_cross_processes(url: str) -> None:
    async def main() -> None:
        queue_name = new_name()
        gate = LimiterGate(AsyncLimiter("1000000 tokens/day", name=queue_name))

        async def provider(job: QueuedCall, call: Any) -> Any:
            return answer_of(7, of=job.body["n"])

        server_queue = AsyncLlmQueue(gate, url, name=queue_name)
        async with AsyncLlmQueue(store=url, name=queue_name) as client, server_queue, server_queue.worker(provider):
            jobs = [await client.submit(body(n=number), user="ann") for number in range(20)]
            done = [await client.result(job.id, 60) for job in jobs]
        assert [job.answer["of"] for job in done] == list(range(20))
        assert {job.tokens for job in done} == {7}
        assert (await gate.limiter.peek("all", {"tokens": 0})).remaining == 1_000_000 - 20 * 7

    run(main())


def test_a_job_that_runs_in_another_process_can_be_cancelled(url: str) -> None:
    async def main() -> None:
        queue_name = new_name()
        gate = LimiterGate(AsyncLimiter("1000000 tokens/day", name=queue_name))
        started, stopped = asyncio.Event(), asyncio.Event()

        async def endless(job: QueuedCall, call: Any) -> Any:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with (
            AsyncLlmQueue(store=url, name=queue_name) as client,
            AsyncLlmQueue(gate, url, name=queue_name) as server_queue,
        ):
            job = await client.submit(body(), id="report-1")
            async with server_queue.worker(endless):
                await started.wait()
                assert (await client.submit(body(), id="report-1")).repeated
                assert (await client.cancel(job.id)).state == "cancelled"
                await stopped.wait()
            assert isinstance(await server_queue.backlog.take("w"), Nothing)

    run(main())


def test_a_result_stored_before_its_worker_died_is_settled_by_another(server: Server) -> None:
    async def main() -> None:
        queue_name = new_name()
        gate = LimiterGate(AsyncLimiter("1000 tokens/day", name=queue_name))
        async with AsyncLlmQueue(gate, with_timeout(server.url), name=queue_name, lease=0.2) as queue:
            job = await queue.submit(body(100))
            taken = await queue.backlog.take("dead")
            assert isinstance(taken, Taken)
            await gate.reserve(body=body(100), id=f"{taken.id}.{taken.hold}")
            answer = json.dumps(answer_of(30)).encode()
            await queue.backlog.finish("dead", taken, "done", answer=answer, tokens=30, settled=False)
            assert (await queue.result(job.id, 20)).answer == answer_of(30)

            async def never(job: QueuedCall, call: Any) -> Any:
                raise AssertionError("the job was already done")

            async def remaining() -> int | None:
                return (await gate.limiter.peek("all", {"tokens": 0})).remaining

            assert await remaining() == 900
            async with queue.worker(never):
                await wait_for_value(remaining, 970)
            assert (await queue.get(job.id)).state == "done"

    run(main())


class Estimating:
    """A gate on Redis whose calls hold so many output tokens, with a query of what remains of its limit."""

    def __init__(self, url: str, namespace: str, output: int, units: str = "tokens", books: Any = None) -> None:
        rule = {"name": "all", "by": ["model"], "limits": f"100000 {units}/day in UTC; 60 requests/day in UTC"}
        llm = {"unknown_price": "free", "expected_output": output}
        policy = {"version": 1, "namespace": namespace, "llm": llm, "rules": [rule]}
        self.gate = AsyncLlmGate(policy, store=RedisStore(url), learned=NothingLearned(), books=books)

    async def remaining(self) -> tuple[int, int]:
        """Return the remaining (tokens, requests)."""
        probe = await self.gate.reserve("m", input_tokens=0, max_tokens=0)
        (tokens, requests) = (reading.remaining for reading in probe.decision.limits)
        await probe.cancel()
        return tokens, requests + 1


@pytest.mark.parametrize("dies_after", ["holding", "answering"])
def test_a_job_whose_estimate_changed_between_the_death_of_a_worker_and_the_takeover_is_charged_once(
    server: Server, tmp_path: Path, dies_after: str
) -> None:
    async def main() -> None:
        queue_name, url = new_name(), with_timeout(server.url)
        books = open_books(tmp_path / "b.jsonl")
        before, after = Estimating(url, queue_name, 5000, books=books), Estimating(url, queue_name, 700, books=books)
        held: list[tuple[int, int]] = []

        async def provider(job: QueuedCall, call: Any) -> Any:
            held.append(await after.remaining())
            return answer_of(40)

        async with AsyncLlmQueue(after.gate, url, name=queue_name, lease=0.2) as queue:
            job = await queue.submit(body(9000))
            taken = await queue.backlog.take("dead")
            assert isinstance(taken, Taken)
            request = {"body": json.loads(taken.body), "id": f"{taken.id}.{taken.hold}"}
            call = await before.gate.reserve(**taken.caller._asdict(), **request)
            input_tokens = call.held.input
            assert await after.remaining() == (100_000 - input_tokens - 5000, 59)
            if dies_after == "answering":
                answer = json.dumps(answer_of(40)).encode()
                await queue.backlog.finish("dead", taken, "done", answer=answer, tokens=40, settled=False)
            async with queue.worker(provider):
                assert (await queue.result(job.id, 20)).state == "done"
                await wait_for_value(after.remaining, (100_000 - 40, 59))
            assert held == ([(100_000 - input_tokens - 700, 59)] if dies_after == "holding" else []), (
                "never both at the same time"
            )
            assert (await queue.backlog.take("w"), await after.remaining()) == (Nothing(None), (100_000 - 40, 59))
        books.close()
        with closing(read_books(tmp_path / "b.jsonl")) as read:
            reconciled = reconcile([read], now_us=1 << 60)
        assert [entry.held_output for entry in reconciled.unreconciled] == []
        await before.gate.close()
        await after.gate.close()

    run(main())


@pytest.mark.parametrize("dies_after", ["numbering", "holding", "holding twice"])
def test_a_worker_that_dies_while_it_takes_a_job_over_leaves_nothing_held(server: Server, dies_after: str) -> None:
    """One worker held the job and died; another gave the job the number of its next hold, and dies as well."""

    async def main() -> None:
        queue_name, url = new_name(), with_timeout(server.url)
        estimates = [Estimating(url, queue_name, output) for output in (5000, 3000, 2000)]
        after = Estimating(url, queue_name, 700)
        held: list[tuple[int, int]] = []

        async def provider(job: QueuedCall, call: Any) -> Any:
            held.append(await after.remaining())
            return answer_of(40)

        async with AsyncLlmQueue(after.gate, url, name=queue_name, lease=0.2) as queue:
            job = await queue.submit(body(9000))
            taken = await queue.backlog.take("dead")
            assert isinstance(taken, Taken)
            input_tokens, first = 0, taken.hold
            for number, gate in enumerate(estimates[: 3 if dies_after == "holding twice" else 2]):
                if number:
                    await asyncio.sleep(0.3)
                    again = await queue.backlog.take(f"dead {number}")
                    assert isinstance(again, Taken)
                    assert (again.deliveries, again.hold) == (number + 1, first + number - 1)
                    if again.former:
                        before = gate.gate.held_before(
                            "m", body=json.loads(taken.body), id=f"{taken.id}.{again.former}"
                        )
                        await before.cancel()
                    renewed = await queue.backlog.renew(f"dead {number}", again)
                    assert renewed is not None
                    assert (renewed.hold, renewed.former) == (first + number, first + number - 1)
                    taken = renewed
                if not number or dies_after != "numbering":
                    request = {"body": json.loads(taken.body), "id": f"{taken.id}.{taken.hold}"}
                    input_tokens = (await gate.gate.reserve(**taken.caller._asdict(), **request)).held.input
            async with queue.worker(provider):
                assert (await queue.result(job.id, 20)).state == "done"
                await wait_for_value(after.remaining, (100_000 - 40, 59))
            assert held == [(100_000 - input_tokens - 700, 59)], "one hold at a time"
        for gate in (*estimates, after):
            await gate.gate.close()

    run(main())


def test_a_job_that_another_model_may_answer_is_charged_once_if_its_worker_died(server: Server) -> None:
    """What the dead worker held is given back under the rules of every model that the job names."""

    async def provider(job: QueuedCall, call: Any) -> Any:
        return answer_of(40, model="m")

    def gate_of(namespace: str, output: int) -> AsyncLlmGate:
        rule = {"name": "other", "match": {"model": "other"}, "by": ["user"], "limits": "100000 tokens/day in UTC"}
        policy = {"version": 1, "namespace": namespace, "llm": {"expected_output": output}, "rules": [rule]}
        return AsyncLlmGate(policy, store=RedisStore(with_timeout(server.url)), learned=NothingLearned())

    async def main() -> None:
        queue_name = new_name()
        before, after = gate_of(queue_name, 5000), gate_of(queue_name, 700)
        async with AsyncLlmQueue(after, with_timeout(server.url), name=queue_name, lease=0.2) as queue:
            job = await queue.submit(body(9000, models=["m", "other"]), user="ann")
            taken = await queue.backlog.take("dead")
            assert isinstance(taken, Taken)
            request = {"body": json.loads(taken.body), "id": f"{taken.id}.{taken.hold}"}
            assert await before.reserve(**taken.caller._asdict(), **request)
            await asyncio.sleep(0.3)
            async with queue.worker(provider):
                assert (await queue.result(job.id, 20)).state == "done"
        probe = await after.reserve("other", user="ann", input_tokens=0, max_tokens=0)
        assert probe.decision.remaining == 100_000 - 40
        await before.close()
        await after.close()

    run(main())


def test_a_job_that_was_held_under_other_limits_is_still_done(server: Server) -> None:
    async def main() -> None:
        queue_name, url = new_name(), with_timeout(server.url)
        before, after = Estimating(url, queue_name, 5000), Estimating(url, queue_name, 700, units="output_tokens")

        async def provider(job: QueuedCall, call: Any) -> Any:
            return answer_of(40)

        async with AsyncLlmQueue(after.gate, url, name=queue_name, lease=0.2) as queue:
            job = await queue.submit(body(9000))
            taken = await queue.backlog.take("dead")
            assert isinstance(taken, Taken)
            request = {"body": json.loads(taken.body), "id": f"{taken.id}.{taken.hold}"}
            await before.gate.reserve(**taken.caller._asdict(), **request)
            async with queue.worker(provider):
                assert (await queue.result(job.id, 20)).state == "done"
                await wait_for_value(after.remaining, (100_000 - 39, 59))
        await before.gate.close()
        await after.gate.close()

    run(main())


def test_a_call_of_a_queue_times_out_after_a_second_unless_the_url_says_otherwise(server: Server) -> None:
    async def main() -> None:
        async with AsyncLlmQueue(None, f"{server.url}?connect_timeout=2s", name=new_name()) as queue:
            job = await queue.submit(body())
            server.cli("CLIENT", "PAUSE", 300)
            assert (await queue.get(job.id)).state == "waiting"

    run(main())


def test_a_job_that_has_the_id_of_a_forgotten_one_or_of_one_in_another_queue_is_charged_as_well(server: Server) -> None:
    async def provider(job: QueuedCall, call: Any) -> Any:
        return answer_of(10)

    async def main() -> None:
        limiter = AsyncLimiter("1000 tokens/day", name=new_name())
        remaining = 1000
        for queue_name in (new_name(), new_name()):
            options: dict[str, Any] = {"name": queue_name, "bounds": Bounds(results_s=0.05)}
            async with AsyncLlmQueue(LimiterGate(limiter), with_timeout(server.url), **options) as queue:
                for _ in range(2):
                    async with queue.worker(provider):
                        assert not (await queue.submit(body(100), id="report")).repeated
                        assert (await queue.result("report", 20)).state == "done"
                    remaining -= 10
                    assert (await limiter.peek("all", {"tokens": 0})).remaining == remaining
                    await asyncio.sleep(0.1)

    run(main())


def test_a_job_whose_worker_died_fails_if_so_configured(server: Server) -> None:
    async def main() -> None:
        queue_name = new_name()
        gate = LimiterGate(AsyncLimiter("1000 tokens/day", name=queue_name))
        async with AsyncLlmQueue(gate, with_timeout(server.url), name=queue_name, lease=0.2) as queue:
            job = await queue.submit(body(100))
            await queue.backlog.take("dead")

            async def provider(job: QueuedCall, call: Any) -> Any:
                return answer_of(1)

            async with queue.worker(provider, when_lost="fail"):
                ended = await queue.result(job.id, 20)
        assert (ended.state, ended.attempts) == ("failed", 0)
        assert "its worker died" in ended.error

    run(main())


@pytest.mark.parametrize(
    ("retries", "deaths", "state"), [(2, 2, "done"), (2, 3, "failed"), (0, 1, "done"), (0, 2, "failed")]
)
def test_a_job_whose_workers_die_repeatedly_is_tried_only_as_often_as_allowed(
    server: Server, retries: int, deaths: int, state: str
) -> None:
    async def main() -> None:
        queue_name, requested = new_name(), list[str]()
        gate = LimiterGate(AsyncLimiter("1000 tokens/day", name=queue_name))

        async def provider(job: QueuedCall, call: Any) -> Any:
            requested.append(job.id)
            return answer_of(1)

        async with AsyncLlmQueue(gate, with_timeout(server.url), name=queue_name, lease=0.2) as queue:
            job = await queue.submit(body(100))
            for number in range(deaths):
                await asyncio.sleep(0.3 if number else 0)
                taken = await queue.backlog.take(f"dead {number}")
                assert isinstance(taken, Taken)
            async with queue.worker(provider, retries=retries):
                ended = await queue.result(job.id, 20)
        assert (ended.state, bool(requested)) == (state, state == "done")
        assert (f"{deaths} workers that had it have died" in ended.error) == (state == "failed")

    run(main())


def test_a_worker_that_was_silent_too_long_cannot_change_a_job_that_another_took_over(server: Server) -> None:
    async def main() -> None:
        async with AsyncLlmQueue(store=with_timeout(server.url), name=new_name(), lease=0.1) as queue:
            job = await queue.submit(body())
            late = await queue.backlog.take("late")
            assert isinstance(late, Taken)
            await asyncio.sleep(0.2)
            taken = await queue.backlog.take("other")
            assert isinstance(taken, Taken)
            assert (taken.id, taken.hold, taken.deliveries) == (job.id, late.hold, 2)
            assert await queue.backlog.finish("late", late, "done", answer=b"1") == "lost"
            assert not await queue.backlog.park("late", late, 0, refused=False, settled=True, failed=False)
            assert await queue.backlog.keep("late", (job.id,)) == {job.id: "lost"}
            await queue.backlog.release("late", late)
            assert await queue.backlog.keep("other", (job.id,)) == {}
            assert await queue.backlog.finish("other", taken, "done", answer=b"2") == "ended"
            assert (await queue.get(job.id)).answer == 2

    run(main())


def test_no_job_is_lost_and_none_is_charged_twice_when_workers_are_killed() -> None:
    """Workers in processes of their own are killed repeatedly with SIGKILL at random moments."""
    with single("appendonly yes", "appendfsync no") as server:
        run(_killed(server))


async def _killed(server: Server) -> None:
    queue_name, url, jobs = new_name(), with_timeout(server.url), 60
    rng = random.Random(7)
    limiter = AsyncLimiter("1000000 tokens/day", store=RedisStore(url), name=queue_name)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, WORKER, url, queue_name])

    workers = [start() for _ in range(2)]
    try:
        async with AsyncLlmQueue(store=url, name=queue_name) as queue:
            submitted = [await queue.submit(body(100, n=number), user=f"u{number % 5}") for number in range(jobs)]
            waiting = [asyncio.ensure_future(queue.result(job.id)) for job in submitted]
            killed = 0
            client: Any = redis.Redis.from_url(server.url)
            while not all(task.done() for task in waiting):
                await asyncio.sleep(0.05)
                if int(client.llen(f"asked:{queue_name}")) > 10 * (killed + 1) and killed < 4:
                    victim = rng.randrange(len(workers))
                    os.kill(workers[victim].pid, signal.SIGKILL)
                    workers[victim].wait()
                    workers[victim] = start()
                    killed += 1
            done = [task.result() for task in waiting]
            attempts = Counter(client.lrange(f"asked:{queue_name}", 0, -1))
            assert killed == 4
            assert [job.state for job in done] == ["done"] * jobs
            assert [job.answer["of"] for job in done] == list(range(jobs))
            assert (
                max(attempts.values()) <= 1 + killed
            )  # once more for each worker that was killed while it had the job
            assert sum(attempts.values()) - jobs <= 4 * 8  # only the jobs of a killed worker are repeated

            async def stream_length() -> int:
                return int(client.xlen(f"hg:{{{queue_name}}}:queue:jobs"))

            await wait_for_value(stream_length, 0)
            assert (await limiter.peek("all", {"tokens": 0})).remaining == 1_000_000 - jobs * 40
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        await limiter.store.aclose()


@pytest.mark.parametrize(("status", "state", "used"), [(400, "failed", 0), (500, "done", 10)])
def test_a_job_that_failed_is_settled_although_the_reply_to_its_end_was_lost(
    server: Server, status: int, state: str, used: int
) -> None:
    async def main() -> None:
        rule = {"name": "user", "by": ["user"], "limits": "2 concurrent; 1000 tokens/day"}
        gate = AsyncLlmGate({"version": 1, "llm": {"hold": "max"}, "rules": [rule]})
        queue_name, loop = new_name(), asyncio.get_running_loop()

        async def provider(job: QueuedCall, call: Any) -> Any:
            if job.attempt > 1:
                return answer_of(10)
            proxy.swallow_replies()
            loop.call_later(0.5, proxy.mend)
            raise ProviderError("refused", status=status)

        with TcpProxy(server.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}?timeout=200ms"
            async with (
                AsyncLlmQueue(name=queue_name, store=with_timeout(server.url)) as watching,
                AsyncLlmQueue(gate, url, name=queue_name) as queue,
                queue.worker(provider),
            ):
                job = await watching.submit(body(100), user="ann")
                assert (await watching.result(job.id, 20)).state == state
        probe = await gate.reserve("m", user="ann", input_tokens=0, max_tokens=0)
        assert [reading.remaining for reading in probe.decision.limits] == [1, 1000 - used]

    run(main())


def test_a_result_is_returned_although_redis_is_slow_when_it_is_first_asked_for(server: Server) -> None:
    async def main() -> None:
        loop, queue_name = asyncio.get_running_loop(), new_name()
        with TcpProxy(server.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}?timeout=200ms"
            async with AsyncLlmQueue(store=url, name=queue_name) as queue:
                job = await queue.submit(body())
                await queue.cancel(job.id)
                proxy.swallow_replies()
                with pytest.raises(StoreTimeout):  # not a TimeoutError: nothing is known of the job
                    await queue.result(job.id, 0.5)
                with pytest.raises(StoreTimeout):
                    await queue.result(job.id)
                loop.call_later(0.5, proxy.mend)
                assert (await queue.result(job.id, 20)).state == "cancelled"

    run(main())


def test_a_job_that_redis_has_lost_is_unknown_to_those_who_wait_for_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.llm.queue.queue._CHECK_S", 0.2)

    async def main() -> None:
        name = new_name()
        async with AsyncLlmQueue(store=with_timeout(server.url), name=name) as queue:
            job = await queue.submit(body())

            async def watched() -> list[int]:
                return [position.ahead async for position in queue.positions(job.id, every=0.1)]

            waiting = [asyncio.create_task(queue.result(job.id)), asyncio.create_task(watched())]
            await asyncio.sleep(0.5)
            with closing(redis.Redis.from_url(server.url)) as client:
                for key in client.scan_iter(f"*{name}*"):  # as FLUSHALL does, or a restart without persistence
                    client.delete(key)
            for result in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(result, UnknownJob)

    run(main())


def test_no_job_is_lost_while_redis_is_down() -> None:
    async def main() -> None:
        with single("appendonly yes", "appendfsync always") as server:
            queue_name = new_name()
            gate = LimiterGate(AsyncLimiter("1000000 tokens/day", name=queue_name))
            may_continue = asyncio.Event()

            async def provider(job: QueuedCall, call: Any) -> Any:
                await may_continue.wait()
                return answer_of(1)

            async with AsyncLlmQueue(gate, f"{server.url}?timeout=500ms", name=queue_name, lease=60) as queue:
                jobs = [await queue.submit(body()) for _ in range(4)]
                async with queue.worker(provider, pace=Pace(2, 2)) as worker:
                    await until_async(lambda: worker.running == 2)
                    server.kill()
                    may_continue.set()
                    await asyncio.sleep(0.3)
                    server.restart()
                    for job in jobs:
                        await wait_for_value(partial(state_of, queue, job.id), "done")

    run(main())


async def state_of(queue: AsyncLlmQueue, id: str) -> str:
    try:
        return (await queue.get(id)).state
    except StoreError as error:
        return str(error)


def test_an_invalid_url_or_name_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="the name of a queue"):
        AsyncLlmQueue(store="redis://127.0.0.1", name="a b")
    with pytest.raises(ConfigError, match="lease is a number of seconds"):
        AsyncLlmQueue(store="redis://127.0.0.1", lease=0)
    with pytest.raises(ConfigError) as caught:
        AsyncLlmQueue(store="redis://:geheim@127.0.0.1:x/0")
    assert "geheim" not in str(caught.value)
