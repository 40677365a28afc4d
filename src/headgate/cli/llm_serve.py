"""`headgate llm serve`: the proxy of language models."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate import starting
from headgate.cli import options
from headgate.supervisor.reloading import defer_reloads

if TYPE_CHECKING:
    from headgate.llm_proxy.own_key import KeyFinder


@click.command()
@click.argument("policy", type=options.POLICY_FILE, required=False)
@click.option("--providers", type=options.FILE_TO_READ, help="The file that names the providers.")
@click.option("--keys", metavar="PLACE", help="The proxy's own keys: the same PLACE as for `headgate llm key create`.")
@click.option("--no-keys", is_flag=True, help="Let every client call that reaches the port.")
@click.option("--example", is_flag=True, help="Serve a built-in provider that echoes, under a budget soon spent.")
@click.option("--store", metavar="URL", help="A store in place of the policy's own, such as redis://HOST.")
@click.option(
    "--books", metavar="URL", help="Keep books of all calls: a path such as books.jsonl or books.db, or its URL."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@options.number("--port", default=8081, least=0, most=65535, help="0 takes a free one.")
@options.number(
    "--workers", default=1, least=1, most=128,
    help="Processes that answer on the port; several need a store that they share, and get one if none is named.",
)  # fmt: skip
@options.worker_timeout(30.0)
@options.number(
    "--drain", "drain_s", default=30.0, least=0, most=3600,
    help="How long SIGTERM lets calls go on before they are cut off.",
)  # fmt: skip
@options.number(
    "--body-size", "most_body_mib", default=32, least=1, most=1024, metavar="MIB",
    help="The longest body that is taken.",
)  # fmt: skip
@options.number(
    "--requests-size", "arriving_mib", default=512, least=1, most=1 << 20, metavar="MIB",
    help="What all requests may occupy that no provider has answered; beyond it, those that began first are refused.",
)  # fmt: skip
@options.number(
    "--connections", default=8192, least=1, most=1_000_000,
    help="The most connections; beyond them, the one that has waited longest for its client is closed.",
)  # fmt: skip
@options.number(
    "--head-time", "head_s", default=10.0, least=0.1, most=3600,
    help="How long the head of a request may take.",
)  # fmt: skip
@options.number(
    "--body-time", "body_s", default=60.0, least=0.1, most=3600,
    help="How long its body may take.",
)  # fmt: skip
@options.number(
    "--keep-alive", "idle_s", default=180.0, least=0.1, most=86400,
    help="How long an idle connection stays open.",
)  # fmt: skip
@options.number(
    "--read-on", default=100, least=0, most=100_000,
    help="How many answers are read to their end after their client has left, for the usage that they report.",
)  # fmt: skip
@options.number(
    "--read-on-time", "read_on_s", default=60.0, least=0, most=3600,
    help="For how long that goes on.",
)  # fmt: skip
def serve(
    policy: Path | None,
    providers: Path | None,
    keys: str | None,
    no_keys: bool,
    example: bool,
    store: str | None,
    books: str | None,
    host: str,
    port: int,
    workers: int,
    hang_s: float,
    drain_s: float,
    most_body_mib: int,
    arriving_mib: int,
    connections: int,
    head_s: float,
    body_s: float,
    idle_s: float,
    read_on: int,
    read_on_s: float,
) -> None:
    """Stand before providers of language models, and hold each call by the budgets and limits of POLICY.

    Speaks OpenAI's and Anthropic's dialects. SIGHUP reads the policy and the providers again, keys are read when they
    change. SIGTERM ends the proxy as soon as calls under way are answered.
    """
    defer_reloads()
    from headgate.llm.books import open_books
    from headgate.llm_proxy.example import EXAMPLE_KEY, EXAMPLE_POLICY, ExampleKeys
    from headgate.llm_proxy.key_places import keys_at
    from headgate.llm_proxy.process import serve as run_proxy
    from headgate.llm_proxy.proxy_parts import ProxyOptions
    from headgate.llm_proxy.server import ProxySource
    from headgate.llm_proxy.several import serve_workers

    starting.end_tidily()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="headgate: %(message)s")
    finder: KeyFinder | None = None
    make_keys: Callable[[], KeyFinder] | None = None
    if example and workers > 1:
        raise click.UsageError("--example is one process: its provider and its budget are in its memory")
    if example:
        if providers is not None or keys is not None or no_keys:
            raise click.UsageError("--example has a provider and a key of its own")
        policy = policy or EXAMPLE_POLICY
        finder = ExampleKeys()
    elif policy is None or providers is None:
        raise click.UsageError("give a POLICY and --providers FILE, or --example")
    elif keys is not None and not no_keys:
        proxy_keys = keys_at(keys)
        proxy_keys.check()
        finder = proxy_keys
        make_keys = partial(keys_at, keys)
    elif keys is not None or not no_keys:
        raise click.UsageError("give one of --keys FILE and --no-keys")
    if arriving_mib < most_body_mib:
        raise click.UsageError(
            f"--requests-size {arriving_mib} is less than --body-size {most_body_mib}: the longest body has no room"
        )
    settings = ProxyOptions(
        most_body_bytes=most_body_mib << 20, arriving_bytes=arriving_mib << 20, body_s=body_s, head_s=head_s,
        idle_s=idle_s, connections=connections, read_on=read_on, read_on_s=read_on_s, drain_s=drain_s,
    )  # fmt: skip

    def announce(address: str, more: str = "") -> None:
        with suppress(OSError):  # as in `headgate serve`: a full disk ends no proxy
            click.echo(f"headgate: {policy} on {address}/v1{more}; ctrl-c ends it", err=True)
            if example:
                click.echo(
                    "headgate: call it until the budget is spent:\n"
                    f"  curl -s {address}/v1/chat/completions -H 'Authorization: Bearer {EXAMPLE_KEY}' "
                    """-d '{"model": "echo", "max_tokens": 50, """
                    """"messages": [{"role": "user", "content": "hi there"}]}'""",
                    err=True,
                )

    def announce_workers(address: str, zone: str) -> None:
        announce(address, f", {workers} workers{f', state in {zone}' if zone else ''}")

    with open_books(books) if books is not None else nullcontext() as opened_books:
        source = ProxySource(policy, providers, finder, store, opened_books)
        if workers == 1:
            run_proxy(source, host=host, port=port, options=settings, announce=announce)
            return
        ended_well = serve_workers(
            source, workers=workers, store_url=store, make_keys=make_keys, books=opened_books, host=host, port=port,
            hang_s=hang_s, options=settings, announce=announce_workers,
        )  # fmt: skip
    sys.exit(0 if ended_well else 1)


COMMANDS = (serve,)
