"""`headgate llm work`: a worker that serves a queue of jobs for language models."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click

from headgate.cli import options
from headgate.cli.standard_output import discard_if_closed
from headgate.errors import ConfigError


@click.command()
@click.argument("policy", type=options.POLICY_FILE)
@click.option("--queue", "queue_url", required=True, metavar="URL", help="The Redis or Valkey that has the jobs.")
@click.option("--name", default="jobs", show_default=True, help="The queue's name there.")
@click.option("--provider", metavar="URL", help="Send jobs to this API, such as https://api.openai.com/v1.")
@click.option(
    "--key-from",
    metavar="VARIABLE",
    default="",
    help="The environment variable that has the provider's key, such as OPENAI_API_KEY.",
)
@click.option(
    "--handler",
    metavar="MODULE:NAME",
    help="Have jobs done by a function of your own: async def name(job, call) gives the answer.",
)
@click.option("--store", metavar="URL", help="The store of the policy's limits, in place of the policy's own.")
@click.option("--start", type=options.Whole(1, 10_000), default=2, show_default=True, help="Jobs at one time at first.")
@click.option("--most", type=options.Whole(1, 10_000), default=64, show_default=True, help="Jobs at one time at most.")
@click.option(
    "--retries", type=options.Whole(0, 1000), default=5, show_default=True, help="How often a job is tried again."
)
@click.option(
    "--when-lost",
    type=click.Choice(["again", "fail"]),
    default="again",
    show_default=True,
    help="What becomes of a job whose worker died: the provider may have received its call already.",
)
@click.option(
    "--lease",
    type=options.Finite(0.1, 3600),
    default=30.0,
    show_default=True,
    help="Seconds of silence after which a worker is dead; the same for all workers of a queue.",
)
@click.option(
    "--timeout",
    type=options.Finite(0.1, 86_400),
    default=600.0,
    show_default=True,
    help="Seconds that a call may take.",
)
def work(policy: Path, **how: Any) -> None:
    """Serve a queue of jobs for language models under POLICY, until it is stopped.

    The first SIGTERM or ctrl-c lets running jobs end and takes no more; the second gives them back to the queue.
    """
    if (how["provider"] is None) == (how["handler"] is None):
        raise click.UsageError("give --provider URL or --handler MODULE:NAME")
    if how["start"] > how["most"]:
        raise click.UsageError(f"--start is at most --most, not {how['start']} of {how['most']}")
    discard_if_closed()  # a handler may print
    asyncio.run(_work(policy, how))


async def _work(policy: Path, how: dict[str, Any]) -> None:
    from headgate.llm.gate import AsyncLlmGate
    from headgate.llm.queue import AsyncLlmQueue, Pace

    if how["queue_url"].partition("?")[0] == "memory://":
        raise ConfigError("a queue in memory is that of its own process: --queue names a Redis, such as redis://host")
    async with contextlib.AsyncExitStack() as ending:
        gate = await ending.enter_async_context(AsyncLlmGate(policy, store=how["store"]))
        queue = AsyncLlmQueue(gate, how["queue_url"], name=how["name"], lease=how["lease"])
        await ending.enter_async_context(queue)
        handler = await ending.enter_async_context(_handler(how))
        worker = queue.worker(
            handler, pace=Pace(how["start"], how["most"]), retries=how["retries"], when_lost=how["when_lost"]
        )
        running = asyncio.ensure_future(worker.run())
        signals = 0

        def on_signal() -> None:
            nonlocal signals
            signals += 1
            if signals == 1:
                jobs = f"{worker.running} running job{'' if worker.running == 1 else 's'}"
                again = "; ask again to give them back" if worker.running else ""
                click.echo(f"headgate: ending after {jobs}{again}", err=True)
                worker.stop()
            else:
                running.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        click.echo(f"headgate: {worker.name} serves the queue {how['name']}", err=True)
        with contextlib.suppress(asyncio.CancelledError):
            await running


@contextlib.asynccontextmanager
async def _handler(how: dict[str, Any]) -> AsyncIterator[Any]:
    if how["provider"] is None:
        from headgate.llm.queue.handlers import without_exit

        yield without_exit(_function(how["handler"]))
        return
    from headgate.llm.key_variables import may_be_shown
    from headgate.llm.queue.provider import HttpProvider

    key = os.environ.get(how["key_from"], "").strip()
    if how["key_from"] and not key:
        name = how["key_from"] if may_be_shown(how["key_from"]) else "variable of the name that --key-from gives"
        raise ConfigError(f"the environment has no {name}, which was to hold the provider's key")
    async with HttpProvider(how["provider"], key, timeout=how["timeout"]) as provider:
        yield provider


def _function(text: str) -> Any:
    """A function by its module and name; raises ConfigError."""
    module, _, name = text.partition(":")
    if not module or not name or module.startswith("."):
        raise ConfigError(f"a handler is MODULE:NAME, such as jobs:ask, not {text[:60]!r}")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the handler {text[:60]!r} is not there: {error}") from error
    if not callable(function):
        raise ConfigError(f"the handler {text[:60]!r} is a {type(function).__name__}, not a function")
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise ConfigError(f"the handler {text[:60]!r} begins with def: it would hold up all jobs; write async def")
    return function
