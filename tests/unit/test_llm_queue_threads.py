"""The queue for threads: the same names as that for asyncio, each of which waits."""

from __future__ import annotations

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate import AsyncLimiter
from headgate.errors import ArgumentError, ConfigError
from headgate.llm import LlmGate
from headgate.llm.queue import AsyncLlmQueue, Bounds, LlmQueue, Pace, QueuedCall, QueueFull, ThreadWorker, UnknownJob
from llm_gates import LimiterGate, answer_of
from until import until

BODY: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": []}


def gate(limits: str = "1000000 tokens/day") -> Any:
    return LimiterGate(AsyncLimiter(limits))


def plainly(job: QueuedCall, call: Any) -> Any:
    assert threading.current_thread().name.startswith("headgate-job")
    return answer_of(7, of=job.body.get("n"))


async def on_the_loop(job: QueuedCall, call: Any) -> Any:
    assert threading.current_thread().name == "headgate-queue"
    return answer_of(7, of=job.body.get("n"))


@functools.wraps(on_the_loop)
def decorated(job: QueuedCall, call: Any) -> Any:
    return on_the_loop(job, call)


@pytest.mark.parametrize("handler", [plainly, on_the_loop, decorated])
def test_jobs_of_many_threads_are_done(handler: Any) -> None:
    with LlmQueue(gate()) as queue, queue.worker(handler) as worker, ThreadPoolExecutor(8) as threads:

        def submit_and_wait(number: int) -> Any:
            job = queue.submit({**BODY, "n": number}, user=f"u{number % 3}")
            return queue.result(job.id, timeout=30)

        done = list(threads.map(submit_and_wait, range(30)))
        assert [job.answer["of"] for job in done] == list(range(30)) and {job.tokens for job in done} == {7}
        until(lambda: worker.running == 0)


@pytest.mark.parametrize("ending", ["plain", "async", "decorated"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_a_handler_that_exits_ends_its_job_and_no_other(error: BaseException, ending: str) -> None:
    def exits(job: QueuedCall, call: Any) -> Any:
        if job.body["n"] == 0:
            raise error
        return answer_of(7)

    async def exits_on_the_loop(job: QueuedCall, call: Any) -> Any:
        return exits(job, call)

    def decorated(job: QueuedCall, call: Any) -> Any:
        return exits_on_the_loop(job, call)

    handler = {"plain": exits, "async": exits_on_the_loop, "decorated": decorated}[ending]
    with LlmQueue(gate()) as queue, queue.worker(handler):
        jobs = [queue.submit({**BODY, "n": number}) for number in range(2)]
        ended = [queue.result(job.id, timeout=30) for job in jobs]
        assert [job.state for job in ended] == ["failed", "done"]
        assert type(error).__name__ in ended[0].error


@pytest.mark.parametrize("timeout", [float("nan"), "5", True])
def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    with LlmQueue(gate()) as queue, pytest.raises(ArgumentError, match="a timeout is a number of seconds or None"):
        queue.result(queue.submit(BODY).id, timeout=timeout)


def test_a_queue_for_threads_has_the_names_of_that_for_asyncio() -> None:
    def names(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert names(AsyncLlmQueue) <= names(LlmQueue) | {"backlog", "clock"}
    assert {"run", "stop", "running"} <= names(ThreadWorker)


def test_a_job_is_shown_counted_cancelled_and_refused_as_it_is_with_asyncio() -> None:
    with LlmQueue(bounds=Bounds(jobs=2)) as queue:
        first, second = queue.submit(BODY, id="a"), queue.submit(BODY, user="ann")
        assert queue.submit(BODY, id="a").repeated
        assert (queue.get("a").state, queue.position(second.id).waiting) == ("waiting", 2)
        with pytest.raises(QueueFull):
            queue.submit(BODY)
        with pytest.raises(ArgumentError, match=r"body\.model is the name of a model"):
            queue.submit({})
        with pytest.raises(UnknownJob):
            queue.get("none")
        with pytest.raises(TimeoutError):
            queue.result("a", timeout=0.01)
        positions = queue.positions("a", every=0.01)
        assert next(positions).state == "waiting"
        assert queue.cancel(first.id).state == "cancelled"
        assert [position.state for position in positions] == ["cancelled"]
        left_early = queue.positions(second.id)
        assert next(left_early).waiting == 1
        left_early.close()


def test_a_worker_runs_until_it_is_stopped_and_ends_its_jobs() -> None:
    began, goes_on = threading.Event(), threading.Event()

    def slowly(job: QueuedCall, call: Any) -> Any:
        began.set()
        assert goes_on.wait(30)
        return answer_of(1)

    with LlmQueue(gate()) as queue:
        worker = queue.worker(slowly)
        running = threading.Thread(target=worker.run)
        running.start()
        job = queue.submit(BODY)
        assert began.wait(30)
        worker.stop()
        goes_on.set()
        running.join(30)
        assert not running.is_alive() and queue.get(job.id).state == "done"
        assert queue.submit(BODY).state == "waiting"


def test_a_worker_that_is_left_by_an_error_gives_its_jobs_back() -> None:
    began, goes_on = threading.Event(), threading.Event()

    def slowly(job: QueuedCall, call: Any) -> Any:
        began.set()
        return answer_of(1) if goes_on.wait(30) else None

    with LlmQueue(gate()) as queue:
        job = queue.submit(BODY)
        worker = queue.worker(slowly).__enter__()
        assert began.wait(30)
        worker.__exit__(KeyError, KeyError("something else failed"), None)
        assert queue.get(job.id).state == "waiting"
        goes_on.set()


def test_as_many_plain_handlers_run_as_the_pace_allows() -> None:
    together = threading.Barrier(12, timeout=30)

    def meet(job: QueuedCall, call: Any) -> Any:
        together.wait()
        return answer_of(1)

    with LlmQueue(gate()) as queue, queue.worker(meet, pace=Pace(12, 12)):
        jobs = [queue.submit(BODY) for _ in range(12)]
        assert {queue.result(job.id, timeout=60).state for job in jobs} == {"done"}


def test_a_handler_on_a_thread_may_use_the_queue_and_one_on_the_loop_gets_an_error() -> None:
    with LlmQueue(gate()) as queue:

        def more(job: QueuedCall, call: Any) -> Any:
            return answer_of(1, next=queue.submit({**BODY, "n": 1}, id="next").id)

        async def stuck(job: QueuedCall, call: Any) -> Any:
            return answer_of(1, next=queue.get("next").state)

        with queue.worker(more):
            assert queue.result(queue.submit(BODY).id, timeout=30).answer["next"] == "next"
        with queue.worker(stuck):
            failed = queue.result(queue.submit(BODY).id, timeout=30)
        assert failed.state == "failed" and "use AsyncLlmQueue" in failed.error


def test_invalid_arguments_are_errors_that_say_why() -> None:
    with pytest.raises(ConfigError, match="the store of a queue is memory:// or the URL of a Redis"):
        LlmQueue(store="file:///jobs")
    with pytest.raises(ConfigError, match="a worker needs a gate"):
        LlmQueue().worker(plainly)
    policy = {"version": 1, "llm": {}, "rules": [{"name": "user", "by": ["user"], "limits": "1/minute"}]}
    with LlmGate(policy) as blocking, pytest.raises(ConfigError, match="a worker needs an AsyncLlmGate"):
        LlmQueue(blocking).worker(plainly)
    queue = LlmQueue()
    queue.close()
    queue.close()
    with pytest.raises(ConfigError, match="the queue is closed"):
        queue.submit(BODY)


def test_a_forked_process_has_a_queue_of_its_own() -> None:
    with LlmQueue() as queue:
        queue.submit(BODY, id="a")
        child = os.fork()
        if not child:
            try:
                os._exit(0 if queue.submit(BODY, id="b").state == "waiting" and queue.position("b").waiting == 1 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert queue.position("a").waiting == 1
