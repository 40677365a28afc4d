"""The commands. Results go to stdout, messages for people to stderr.

docs/command-line.md has the exit statuses.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

import headgate as package
from headgate import core, starting
from headgate.cli import options, terminal
from headgate.cli.group import Group
from headgate.cli.llm import llm
from headgate.cli.llm_work import work
from headgate.cli.output_files import page_file
from headgate.cli.zones import zone
from headgate.errors import HeadgateError, MissingExtraError
from headgate.stores.url import store_schemes
from headgate.supervisor.reloading import defer_reloads

BROKEN_PIPE_STATUS = 141
"""The exit status that a shell reports for a program that SIGPIPE ended."""


class _Group(Group):
    """Commands whose errors are messages, not tracebacks."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with messages(), _flushed():  # --help and --version print here
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with messages(), _flushed():
            return super().invoke(ctx)


@contextmanager
def _flushed() -> Iterator[None]:
    """Flush the output: a closed pipe or a full disk is reported now, not when Python ends."""
    try:
        yield
    finally:
        sys.stdout.flush()


@contextmanager
def messages() -> Iterator[None]:
    """Turn expected errors into a message and an exit status."""
    try:
        yield
    except HeadgateError as error:
        click.echo(terminal.printable(f"headgate: {error}"), err=True)
        sys.exit(2 if isinstance(error, MissingExtraError) else 1)
    except KeyboardInterrupt:
        click.echo("headgate: interrupted", err=True)
        sys.exit(starting.INTERRUPTED)
    except BrokenPipeError:
        # The reader of the results has gone. The rest is discarded, also when Python flushes it at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                os.dup2(nowhere, stream.fileno())
        sys.exit(BROKEN_PIPE_STATUS)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        click.echo(terminal.printable(f"headgate: {place}{error.strerror or error}"), err=True)
        sys.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package.__version__, prog_name="headgate")
def headgate() -> None:
    """Exact rate limits for Python programs and for the gateways in front of them."""


headgate.add_command(zone)
headgate.add_command(llm)
llm.add_command(work)


@headgate.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(as_json: bool) -> None:
    """Show the version, the core that decides, and the stores."""
    facts = {
        "version": package.__version__,
        "core": core.CORE,
        "why_not_native": core.why_not_native,
        "stores": [f"{scheme}://" for scheme in store_schemes()],
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(f"headgate {facts['version']}")
    click.echo(f"core     {core.CORE}{f' ({core.why_not_native})' if core.why_not_native else ''}")
    click.echo(f"stores   {', '.join(store_schemes())}")
    click.echo(f"python   {facts['python']} on {facts['platform']}")


@headgate.command()
@click.argument("files", nargs=-1, required=True, type=options.PolicyFile(readable=False), metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list with an object for each file.")
def validate(files: tuple[str, ...], as_json: bool) -> None:
    """Check policy FILEs (- is standard input); all that is wrong is shown, each with its place.

    Warnings report likely mistakes, such as a limit that never refuses; a policy with warnings is valid.
    """
    from headgate.cli.validating import run_validate

    sys.exit(0 if run_validate(files, as_json=as_json) else 1)


@headgate.command()
def schema() -> None:
    """Print the JSON Schema of policy files, for editors."""
    from headgate.policy.schema import policy_schema

    click.echo(json.dumps(policy_schema(), indent=2))


def _request_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--host", default="", type=options.TEXT, callback=options.host, help="The host that the request is sent to."
        ),
        click.option(
            "--header",
            "headers",
            multiple=True,
            type=options.TEXT,
            metavar="NAME:VALUE",
            callback=options.headers,
            help="A header; may be repeated.",
        ),
        click.option(
            "--ip",
            default="",
            type=options.TEXT,
            metavar="ADDRESS",
            callback=options.address,
            help="The address of the peer.",
        ),
        click.option(
            "--path",
            default="/",
            type=options.TEXT,
            show_default=True,
            callback=options.path,
            help="The path, with its query.",
        ),
        click.option(
            "--method", default="GET", type=options.TEXT, show_default=True, callback=options.method, help="The method."
        ),
    ):
        command = option(command)
    return command


@headgate.command()
@click.argument("file", type=options.POLICY_FILE)
@_request_options
@click.option(
    "--entry", "entries", multiple=True, type=options.TEXT, metavar="KEY=VALUE", callback=options.entries,
    help="An entry of a descriptor, in place of a request; may be repeated.",
)  # fmt: skip
@click.pass_context
def explain(context: click.Context, /, file: Path, entries: list[tuple[str, str]], **request: Any) -> None:
    """Tell which rules of the policy FILE a request meets, by which keys, under which limits, and why.

    With --entry it is a descriptor, as Envoy asks with, that meets them.
    """
    from headgate.cli.explaining import explanation_text
    from headgate.cli.policies import policy_of
    from headgate.policy.explain import explain as explain_request

    subject = options.subject(context, entries, **request)
    click.echo(terminal.printable(explanation_text(subject, explain_request(policy_of(file), subject))))


_KEY_HELP = (
    "KEY is NAME=VALUE, with an identity of the policy and the value that a request carried, such as user=u42, "
    "ip=203.0.113.9 or an api key (found by its digest, never shown); several make one key. Or it is the parts of a "
    "key as `headgate explain` prints them. The KEY everyone is for rules that count all requests together."
)
_RESET_HELP = "A process that refused the KEY just before may go on to refuse it for another second."
_STORE_HELP = "The live store, such as redis://HOST or shared:///PATH; else the policy's own."


@headgate.command(help=f"Show what a live store holds of a KEY, under each limit of a POLICY file.\n\n{_KEY_HELP}")
@click.argument("policy", type=options.POLICY_FILE)
@click.argument("key", nargs=-1, required=True, type=options.TEXT)
@click.option("--store", metavar="URL", help=_STORE_HELP)
@click.option("--rule", type=options.TEXT, metavar="NAME", help="Look at this rule alone.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(policy: Path, key: tuple[str, ...], store: str | None, rule: str | None, as_json: bool) -> None:
    from headgate.cli.inspecting import run_inspect

    run_inspect(policy, key, store=store, rule=rule, as_json=as_json)


@headgate.command(
    help=f"Forget what a KEY used, in a live store, under the limits of a POLICY file.\n\n{_KEY_HELP}\n\n{_RESET_HELP}"
)
@click.argument("policy", type=options.POLICY_FILE)
@click.argument("key", nargs=-1, required=True, type=options.TEXT)
@click.option("--store", metavar="URL", help=_STORE_HELP)
@click.option("--rule", type=options.TEXT, metavar="NAME", help="Forget under this rule alone.")
def reset(policy: Path, key: tuple[str, ...], store: str | None, rule: str | None) -> None:
    from headgate.cli.inspecting import run_reset

    run_reset(policy, key, store=store, rule=rule)


@headgate.command()
@click.argument("policy", type=options.POLICY_FILE)
@click.option("--users", required=True, type=options.Whole(1, 10**12), help="How many are counted each for itself.")
@click.option(
    "--rate", required=True, type=options.Finite(0, 10**9, min_open=True), metavar="R",
    help="Requests a second, of all together.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def capacity(policy: Path, users: int, rate: float, as_json: bool) -> None:
    """Tell what a POLICY needs of Redis: memory, operations a second, and how many servers."""
    from headgate.cli.capacity import run_capacity

    run_capacity(policy, users=users, rate=rate, as_json=as_json)


@headgate.command()
@click.argument("policy", type=options.POLICY_FILE, required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@options.number("--port", default=8080, least=0, most=65535, help="0 takes a free one.")
@click.option("--store", metavar="URL", help="A store in place of the policy's own, such as memory://?max_keys=100000.")
@options.number(
    "--drain", "drain_s", default=0.0, least=0, most=3600,
    help="How long SIGTERM keeps answering, as not ready, before the port is closed.",
)  # fmt: skip
@options.number(
    "--workers", default=1, least=1, most=128,
    help="Processes that answer on the port; several need a store that they share, and get one if none is named.",
)  # fmt: skip
@options.worker_timeout(10.0)
@options.number(
    "--threads", default=1, least=0, most=256,
    help="Threads of the native front door of each process; 0 answers with Python alone.",
)  # fmt: skip
@click.option(
    "--pin-threads", "pinned", is_flag=True,
    help="Keep each of these threads, of all workers, on a CPU of its own.",
)  # fmt: skip
@options.number(
    "--connections", default=8192, least=1, most=1_000_000,
    help="The most connections of each process; beyond them, the one that has waited longest for its client is closed.",
)  # fmt: skip
@options.number(
    "--keep-alive", "idle_s", default=180.0, least=0.1, most=86400,
    help="How long an idle connection stays open.",
)  # fmt: skip
@click.option(
    "--tls-certificate", type=options.FILE_TO_READ, metavar="FILE",
    help="Serve HTTPS with this certificate and those that lead to its authority, in PEM.",
)  # fmt: skip
@click.option("--tls-key", type=options.FILE_TO_READ, metavar="FILE", help="The key of that certificate, in PEM.")
@click.option(
    "--tls-client-ca", type=options.FILE_TO_READ, metavar="FILE",
    help="Let in no clients but those with a certificate of one of these authorities, in PEM.",
)  # fmt: skip
def serve(
    policy: Path | None,
    host: str,
    port: int,
    store: str | None,
    drain_s: float,
    workers: int,
    hang_s: float,
    threads: int,
    pinned: bool,
    connections: int,
    idle_s: float,
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
) -> None:
    """Answer checks over HTTP. POLICY is a file; without it, ./headgate.yaml or else a built-in example.

    A changed policy file is applied at once; SIGHUP reads it again, and the certificate. SIGTERM ends the service as
    soon as open requests are answered.
    """
    defer_reloads()
    from headgate.policy.policy_file import read_policy_file
    from headgate.service.http.bounds import Bounds
    from headgate.service.workers.door_plan import DoorOptions
    from headgate.service.workers.several import serve_workers
    from headgate.service.workers.single import serve as run_service

    starting.end_tidily()
    door = DoorOptions(threads, pinned, options.certificate_files(tls_certificate, tls_key, tls_client_ca))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="headgate: %(message)s")
    file = _policy_file(policy)
    text = read_policy_file(file)
    bounds = Bounds(connections=connections, idle_s=idle_s)

    def announce(address: str, more: str) -> None:
        with suppress(OSError):  # a full disk prevents log messages, not responses
            click.echo(f"headgate: {file} on {address}, {core.CORE} core{more}; ctrl-c ends it", err=True)

    def announce_workers(address: str, zone: str, door: str) -> None:
        announce(address, f", {workers} workers{f', state in {zone}' if zone else ''}{door}")

    if workers > 1:
        ended_well = serve_workers(
            text, policy_file=file, workers=workers, store=store, host=host, port=port, drain_s=drain_s, hang_s=hang_s,
            bounds=bounds, door=door, announce=announce_workers,
        )  # fmt: skip
        sys.exit(0 if ended_well else 1)
    run_service(
        text, policy_file=file, store=store, host=host, port=port, drain_s=drain_s, bounds=bounds, door=door,
        announce=announce,
    )  # fmt: skip


@headgate.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--policy", required=True, type=options.POLICY_FILE, help="The policy file (- is standard input).")
@click.option("--compare", type=options.POLICY_FILE, help="Another policy file, to see where the two differ.")
@click.option(
    "--format", default="auto", show_default=True, type=click.Choice(["auto", "common", "json", "csv", "tsv", "w3c"]),
    help="common is also combined and their kin.",
)  # fmt: skip
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME=FIELD",
    help="Which field of the log is time, date, client, method, path, request, host, the cost of a request, or a unit "
    "that the policy counts, such as tokens.",
)
@click.option(
    "--header", "headers", multiple=True, metavar="HEADER=FIELD", help="Take a header's value from a field of the log."
)
@click.option("--timezone", default="UTC", show_default=True, help="The zone of times that name none.")
@click.option("--date", metavar="DATE", help="The first day of a log whose times lack theirs, such as 1995-08-29.")
@click.option("--from", "from_time", metavar="TIME", help="Judge what comes at this time or after.")
@click.option("--to", "to_time", metavar="TIME", help="Judge what comes before this time.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--report", "report_file", type=click.Path(path_type=Path), callback=page_file, metavar="FILE.html",
    help="Write a page with charts.",
)  # fmt: skip
@click.option("--top", default=10, show_default=True, type=options.Whole(1, 1000), help="How many keys to list.")
def replay(logs: tuple[str, ...], **options: Any) -> None:
    """Tell what a policy would have done with the traffic of LOGs (- is standard input).

    Plain, gzip, xz, bzip2 or zstd; lines out of order are put in order; times are the log's own.
    """
    from headgate.cli.replaying import run_replay

    run_replay(logs, **options)


def _policy_file(policy: Path | None) -> Path:
    if policy is not None:
        return policy
    default_file = Path("headgate.yaml")
    is_there = os.path.lexists(default_file)  # a link that leads nowhere is an error, and no reason for the example
    return default_file if is_there else Path(__file__).parents[1] / "service" / "example.yaml"
