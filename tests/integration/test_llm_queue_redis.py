"""The queue on a real Redis: the same order as in memory, and no job lost or charged twice when workers are killed."""

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

from headgate import AsyncLimiter, StoreError
from headgate.errors import ConfigError, ConflictingId
from headgate.llm import AsyncLlmGate
from headgate.llm.books import open_books, read_books, reconcile
from headgate.llm.learned import NothingLearned
from headgate.llm.queue import AsyncLlmQueue, Bounds, Fairness, Pace, QueuedCall, QueueFull, UnknownJob
from headgate.llm.queue.backlog import Nothing, Taken
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from llm_gates import LimiterGate, answer_of
from until import until_async

pytestmark = pytest.mark.integration
HALF_A_LEASE_US = 1_800_000_000
"""After that long a queue on Redis looks for workers that died."""

WORKER = str(Path(__file__).with_name("queue_worker.py"))
_names = count()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 90))


def name() -> str:
    return f"q{next(_names)}"


def patient(url: str) -> str:
    return f"{url}?timeout=20s"


def body(tokens: int = 10, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}], **more}


async def until_it_is(told: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    """Wait for what only a question tells, at most half a minute."""
    async with asyncio.timeout(30):
        while await told() != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture(params=["single", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    servers = request.getfixturevalue({"single": "server", "cluster": "nodes"}[request.param])
    return patient(servers.url)


@pytest.mark.parametrize("seed", range(4))
def test_redis_and_memory_decide_alike(server: Server, seed: int) -> None:
    """Random jobs, taken, put back, refused by limits, ended, cancelled and expired: each answer is the same."""

    async def main() -> None:
        chance = random.Random(seed)
        clock = ManualClock()
        bounds, fairness = Bounds(jobs=30, user_jobs=12), Fairness(priority_tokens=500, ageing_tokens=7)
        queues = [
            AsyncLlmQueue(store=store, name=name(), bounds=bounds, fairness=fairness, clock=clock, lease=3600)
            for store in ("memory://", patient(server.url))
        ]
        held: list[list[Taken]] = [[], []]
        ids: list[str] = []

        async def both(step: Any) -> list[Any]:
            told: list[Any] = []
            for number, queue in enumerate(queues):
                try:
                    told.append(await step(queue, held[number]))
                except (QueueFull, UnknownJob, ConflictingId) as error:
                    told.append((type(error), str(error)))
            assert told[0] == told[1]
            return told

        async def take(queue: AsyncLlmQueue, own: list[Taken]) -> Any:
            taken = await queue.backlog.take("w")
            if isinstance(taken, Taken):
                own.append(taken)
                return taken._replace(claims=tuple(sorted(taken.claims)))
            return taken.after_us if taken.after_us != HALF_A_LEASE_US else None

        for number in range(350):
            clock.advance(chance.choice([0, 1_000, 200_000, 3_000_000]))
            what = chance.random()
            place = chance.randrange(1 << 30)
            if what < 0.35:
                asked: dict[str, Any] = {
                    "user": f"u{chance.randrange(4)}",
                    "priority": chance.choice([0, 0, 0, 2]),
                    "tokens": chance.choice([1, 30, 400]),
                    "deadline": chance.choice([None, None, 9.5]),
                    "id": f"j{chance.randrange(number + 1)}",
                }
                ids.append(asked["id"])
                await both(lambda queue, own, asked=asked: queue.submit(body(), **asked))
            elif what < 0.65:
                await both(take)
            elif what < 0.8 and held[0]:
                scope, after_us = chance.choice(["", "team", "team", "user"]), chance.choice([0, 2_000_000, 9_000_000])
                refused, settled = bool(scope), chance.random() < 0.3

                async def park(
                    queue: AsyncLlmQueue, own: list[Taken], how: Any = (place, after_us, scope, refused, settled)
                ) -> Any:
                    place, after_us, scope, refused, settled = how
                    taken = own.pop(place % len(own))
                    return await queue.backlog.park(
                        "w", taken, after_us, scope, refused=refused, settled=settled, failed=not refused
                    )

                await both(park)
            elif what < 0.92 and held[0]:
                tokens = chance.choice([None, 0, 5, 1000])

                async def finish(queue: AsyncLlmQueue, own: list[Taken], how: Any = (place, tokens)) -> Any:
                    taken = own.pop(how[0] % len(own))
                    done = await queue.backlog.finish(
                        "w", taken, "done", answer=b'{"a":1}', scopes=("team",), tokens=how[1], settled=False
                    )
                    await queue.backlog.release("w", taken)
                    await queue.backlog.wake(("user", "team"))
                    return done

                await both(finish)
            elif what < 0.96 and ids:
                cancelled = chance.choice(ids)
                await both(lambda queue, own, id=cancelled: queue.cancel(id))
            for id in chance.sample(ids, min(2, len(ids))):
                await both(lambda queue, own, id=id: queue.get(id))
                await both(lambda queue, own, id=id: queue.position(id))
        for queue in queues:
            await queue.close()

    run(main())


def test_jobs_are_done_and_told_across_processes(url: str) -> None:
    async def main() -> None:
        own = name()
        gate = LimiterGate(AsyncLimiter("1000000 tokens/day", name=own))

        async def provider(job: QueuedCall, call: Any) -> Any:
            return answer_of(7, of=job.body["n"])

        serving = AsyncLlmQueue(gate, url, name=own)
        async with AsyncLlmQueue(store=url, name=own) as asking, serving, serving.worker(provider):
            jobs = [await asking.submit(body(n=number), user="ann") for number in range(20)]
            done = [await asking.result(job.id, 60) for job in jobs]
        assert [job.answer["of"] for job in done] == list(range(20))
        assert {job.tokens for job in done} == {7}
        assert (await gate.limiter.peek("all", {"tokens": 0})).remaining == 1_000_000 - 20 * 7

    run(main())


def test_a_job_is_cancelled_where_it_runs_in_another_process(url: str) -> None:
    async def main() -> None:
        own = name()
        gate = LimiterGate(AsyncLimiter("1000000 tokens/day", name=own))
        started, stopped = asyncio.Event(), asyncio.Event()

        async def endless(job: QueuedCall, call: Any) -> Any:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with AsyncLlmQueue(store=url, name=own) as asking, AsyncLlmQueue(gate, url, name=own) as serving:
            job = await asking.submit(body(), id="report-1")
            async with serving.worker(endless):
                await started.wait()
                assert (await asking.submit(body(), id="report-1")).repeated
                assert (await asking.cancel(job.id)).state == "cancelled"
                await stopped.wait()
            assert isinstance(await serving.backlog.take("w"), Nothing)

    run(main())


def test_an_end_that_was_kept_before_its_worker_died_is_settled_by_another(server: Server) -> None:
    async def main() -> None:
        own = name()
        gate = LimiterGate(AsyncLimiter("1000 tokens/day", name=own))
        async with AsyncLlmQueue(gate, patient(server.url), name=own, lease=0.2) as queue:
            job = await queue.submit(body(100))
            taken = await queue.backlog.take("dead")
            assert isinstance(taken, Taken)
            await gate.reserve(body=body(100), id=f"{taken.id}.{taken.hold}")
            written = json.dumps(answer_of(30)).encode()
            await queue.backlog.finish("dead", taken, "done", answer=written, tokens=30, settled=False)
            assert (await queue.result(job.id, 20)).answer == answer_of(30)

            async def never(job: QueuedCall, call: Any) -> Any:
                raise AssertionError("it was done before")

            async def remaining() -> int | None:
                return (await gate.limiter.peek("all", {"tokens": 0})).remaining

            assert await remaining() == 900
            async with queue.worker(never):
                await until_it_is(remaining, 970)
            assert (await queue.get(job.id)).state == "done"

    run(main())


class Estimating:
    """A gate on Redis whose calls hold so many tokens of output, and what its limit has left."""

    def __init__(self, url: str, namespace: str, output: int, units: str = "tokens", books: Any = None) -> None:
        rule = {"name": "all", "by": ["model"], "limits": f"100000 {units}/day in UTC; 60 requests/day in UTC"}
        llm = {"unknown_price": "free", "expected_output": output}
        policy = {"version": 1, "namespace": namespace, "llm": llm, "rules": [rule]}
        self.gate = AsyncLlmGate(policy, store=RedisStore(url), learned=NothingLearned(), books=books)

    async def left(self) -> tuple[int, int]:
        """(tokens, requests)"""
        looking = await self.gate.reserve("m", input_tokens=0, max_tokens=0)
        (tokens, requests) = (reading.remaining for reading in looking.decision.limits)
        await looking.cancel()
        return tokens, requests + 1


@pytest.mark.parametrize("dies_after", ["holding", "answering"])
def test_a_job_whose_estimate_changed_between_the_death_of_a_worker_and_the_takeover_is_charged_once(
    server: Server, tmp_path: Path, dies_after: str
) -> None:
    async def main() -> None:
        own, url = name(), patient(server.url)
        books = open_books(tmp_path / "b.jsonl")
        before, after = Estimating(url, own, 5000, books=books), Estimating(url, own, 700, books=books)
        held: list[tuple[int, int]] = []

        async def provider(job: QueuedCall, call: Any) -> Any:
            held.append(await after.left())
            return answer_of(40)

        async with AsyncLlmQueue(after.gate, url, name=own, lease=0.2) as queue:
            job = await queue.submit(body(9000))
            taken = await queue.backlog.take("dead")
            assert isinstance(taken, Taken)
            asked = {"body": json.loads(taken.body), "id": f"{taken.id}.{taken.hold}"}
            call = await before.gate.reserve(**taken.caller._asdict(), **asked)
            sent = call.held.input
            assert await after.left() == (100_000 - sent - 5000, 59)
            if dies_after == "answering":
                written = json.dumps(answer_of(40)).encode()
                await queue.backlog.finish("dead", taken, "done", answer=written, tokens=40, settled=False)
            async with queue.worker(provider):
                assert (await queue.result(job.id, 20)).state == "done"
                await until_it_is(after.left, (100_000 - 40, 59))
            assert held == ([(100_000 - sent - 700, 59)] if dies_after == "holding" else []), "never both at one time"
            assert (await queue.backlog.take("w"), await after.left()) == (Nothing(None), (100_000 - 40, 59))
        books.close()
        with closing(read_books(tmp_path / "b.jsonl")) as read:
            found = reconcile([read], now_us=1 << 60)
        assert [entry.held_output for entry in found.unreconciled] == []
        await before.gate.close()
        await after.gate.close()

    run(main())


@pytest.mark.parametrize("dies_after", ["numbering", "holding", "holding twice"])
def test_a_worker_that_dies_while_it_takes_a_job_over_leaves_nothing_held(server: Server, dies_after: str) -> None:
    """The job was held by one worker, which died; another has given it the number of its next hold, and dies, too."""

    async def main() -> None:
        own, url = name(), patient(server.url)
        estimates = [Estimating(url, own, output) for output in (5000, 3000, 2000)]
        after = Estimating(url, own, 700)
        held: list[tuple[int, int]] = []

        async def provider(job: QueuedCall, call: Any) -> Any:
            held.append(await after.left())
            return answer_of(40)

        async with AsyncLlmQueue(after.gate, url, name=own, lease=0.2) as queue:
            job = await queue.submit(body(9000))
            taken = await queue.backlog.take("dead")
            assert isinstance(taken, Taken)
            sent = 0
            for number, gate in enumerate(estimates[: 3 if dies_after == "holding twice" else 2]):
                if number:
                    await asyncio.sleep(0.3)
                    again = await queue.backlog.take(f"dead {number}")
                    assert isinstance(again, Taken) and (again.deliveries, again.hold) == (number + 1, number)
                    if again.former:
                        before = gate.gate.held_before(
                            "m", body=json.loads(taken.body), id=f"{taken.id}.{again.former}"
                        )
                        await before.cancel()
                    renewed = await queue.backlog.renew(f"dead {number}", again)
                    assert renewed is not None and (renewed.hold, renewed.former) == (number + 1, number)
                    taken = renewed
                if not number or dies_after != "numbering":
                    asked = {"body": json.loads(taken.body), "id": f"{taken.id}.{taken.hold}"}
                    sent = (await gate.gate.reserve(**taken.caller._asdict(), **asked)).held.input
            async with queue.worker(provider):
                assert (await queue.result(job.id, 20)).state == "done"
                await until_it_is(after.left, (100_000 - 40, 59))
            assert held == [(100_000 - sent - 700, 59)], "one hold at one time"
        for gate in (*estimates, after):
            await gate.gate.close()

    run(main())


def test_a_job_that_was_held_under_other_limits_is_done_all_the_same(server: Server) -> None:
    async def main() -> None:
        own, url = name(), patient(server.url)
        before, after = Estimating(url, own, 5000), Estimating(url, own, 700, units="output_tokens")

        async def provider(job: QueuedCall, call: Any) -> Any:
            return answer_of(40)

        async with AsyncLlmQueue(after.gate, url, name=own, lease=0.2) as queue:
            job = await queue.submit(body(9000))
            taken = await queue.backlog.take("dead")
            assert isinstance(taken, Taken)
            asked = {"body": json.loads(taken.body), "id": f"{taken.id}.{taken.hold}"}
            await before.gate.reserve(**taken.caller._asdict(), **asked)
            async with queue.worker(provider):
                assert (await queue.result(job.id, 20)).state == "done"
                await until_it_is(after.left, (100_000 - 39, 59))
        await before.gate.close()
        await after.gate.close()

    run(main())


def test_a_call_of_a_queue_has_a_second_unless_the_url_gives_it_another_time(server: Server) -> None:
    async def main() -> None:
        async with AsyncLlmQueue(None, f"{server.url}?connect_timeout=2s", name=name()) as queue:
            job = await queue.submit(body())
            server.cli("CLIENT", "PAUSE", 300)
            assert (await queue.get(job.id)).state == "waiting"

    run(main())


def test_a_job_whose_worker_died_fails_where_that_was_chosen(server: Server) -> None:
    async def main() -> None:
        own = name()
        gate = LimiterGate(AsyncLimiter("1000 tokens/day", name=own))
        async with AsyncLlmQueue(gate, patient(server.url), name=own, lease=0.2) as queue:
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
def test_a_job_whose_workers_die_again_and_again_is_not_asked_for_more_often_than_it_may_be(
    server: Server, retries: int, deaths: int, state: str
) -> None:
    async def main() -> None:
        own, asked = name(), list[str]()
        gate = LimiterGate(AsyncLimiter("1000 tokens/day", name=own))

        async def provider(job: QueuedCall, call: Any) -> Any:
            asked.append(job.id)
            return answer_of(1)

        async with AsyncLlmQueue(gate, patient(server.url), name=own, lease=0.2) as queue:
            job = await queue.submit(body(100))
            for number in range(deaths):
                await asyncio.sleep(0.3 if number else 0)
                taken = await queue.backlog.take(f"dead {number}")
                assert isinstance(taken, Taken)
            async with queue.worker(provider, retries=retries):
                ended = await queue.result(job.id, 20)
        assert (ended.state, bool(asked)) == (state, state == "done")
        assert (f"{deaths} workers that had it have died" in ended.error) == (state == "failed")

    run(main())


def test_a_worker_that_was_silent_for_too_long_changes_nothing_of_a_job_that_another_has(server: Server) -> None:
    async def main() -> None:
        async with AsyncLlmQueue(store=patient(server.url), name=name(), lease=0.1) as queue:
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
    """Workers in processes of their own, killed with SIGKILL at random moments, over and over."""
    with single("appendonly yes", "appendfsync no") as server:
        run(_killed(server))


async def _killed(server: Server) -> None:
    own, url, jobs = name(), patient(server.url), 60
    chance = random.Random(7)
    limiter = AsyncLimiter("1000000 tokens/day", store=RedisStore(url), name=own)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, WORKER, url, own])

    workers = [start() for _ in range(2)]
    try:
        async with AsyncLlmQueue(store=url, name=own) as queue:
            submitted = [await queue.submit(body(100, n=number), user=f"u{number % 5}") for number in range(jobs)]
            waiting = [asyncio.ensure_future(queue.result(job.id)) for job in submitted]
            killed = 0
            client: Any = redis.Redis.from_url(server.url)
            while not all(task.done() for task in waiting):
                await asyncio.sleep(0.05)
                if int(client.llen(f"asked:{own}")) > 10 * (killed + 1) and killed < 4:
                    victim = chance.randrange(len(workers))
                    os.kill(workers[victim].pid, signal.SIGKILL)
                    workers[victim].wait()
                    workers[victim] = start()
                    killed += 1
            done = [task.result() for task in waiting]
            asked = Counter(client.lrange(f"asked:{own}", 0, -1))
            assert killed == 4
            assert [job.state for job in done] == ["done"] * jobs
            assert [job.answer["of"] for job in done] == list(range(jobs))
            assert max(asked.values()) <= 1 + killed  # once more for each worker that was killed with it
            assert sum(asked.values()) - jobs <= 4 * 8  # only what a killed worker had is asked again

            async def left_in_the_stream() -> int:
                return int(client.xlen(f"hg:{{{own}}}:queue:jobs"))

            await until_it_is(left_in_the_stream, 0)
            assert (await limiter.peek("all", {"tokens": 0})).remaining == 1_000_000 - jobs * 40
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        await limiter.store.aclose()


def test_a_redis_that_goes_away_for_a_while_costs_no_job() -> None:
    async def main() -> None:
        with single("appendonly yes", "appendfsync always") as server:
            own = name()
            gate = LimiterGate(AsyncLimiter("1000000 tokens/day", name=own))
            goes_on = asyncio.Event()

            async def provider(job: QueuedCall, call: Any) -> Any:
                await goes_on.wait()
                return answer_of(1)

            async with AsyncLlmQueue(gate, f"{server.url}?timeout=500ms", name=own, lease=60) as queue:
                jobs = [await queue.submit(body()) for _ in range(4)]
                async with queue.worker(provider, pace=Pace(2, 2)) as worker:
                    await until_async(lambda: worker.running == 2)
                    server.kill()
                    goes_on.set()
                    await asyncio.sleep(0.3)
                    server.restart()
                    for job in jobs:
                        await until_it_is(partial(state_of, queue, job.id), "done")

    run(main())


async def state_of(queue: AsyncLlmQueue, id: str) -> str:
    try:
        return (await queue.get(id)).state
    except StoreError as error:
        return str(error)


def test_a_url_or_a_name_that_cannot_be_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="the name of a queue"):
        AsyncLlmQueue(store="redis://127.0.0.1", name="a b")
    with pytest.raises(ConfigError, match="lease is a number of seconds"):
        AsyncLlmQueue(store="redis://127.0.0.1", lease=0)
    with pytest.raises(ConfigError) as shown:
        AsyncLlmQueue(store="redis://:geheim@127.0.0.1:x/0")
    assert "geheim" not in str(shown.value)
