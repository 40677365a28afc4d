"""`headgate llm replay`: the decisions of a policy on the calls of a trace."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import click

from headgate.cli import options
from headgate.cli.output_files import check_outputs, page_file, write_report
from headgate.cli.terminal import printable
from headgate.errors import ConfigError

_COLUMNS = {
    "time": "the time at which a call began", "input": "its tokens of input", "output": "its tokens of output",
    "model": "its model", "user": "its user", "team": "its team", "key": "its key", "organisation": "its organisation",
    "most": "the most output that it asked for (max_tokens)", "duration": "the seconds until its answer ended",
}  # fmt: skip


def _columns(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    columns = {}
    for text in values:
        role, mark, name = text.partition("=")
        if not mark or not name or role not in _COLUMNS:
            raise click.BadParameter(f"it is written WHAT=COLUMN, with one of {', '.join(_COLUMNS)}, not {text[:60]!r}")
        columns[role] = name
    return columns


@click.command()
@click.argument("policy", type=options.POLICY_FILE)
@click.argument("trace", type=options.FILE_TO_READ)
@click.option("--model", default="", metavar="NAME", help="The model of calls whose row names none.")
@click.option(
    "--column", "columns", multiple=True, metavar="WHAT=COLUMN", callback=_columns,
    help=f"The column of the trace with a value; may be repeated. WHAT is one of {', '.join(_COLUMNS)}.",
)  # fmt: skip
@click.option("--user-column", metavar="COLUMN", help="The same as --column user=COLUMN.")
@click.option(
    "--output-speed", type=options.Whole(1, 10**9), metavar="N",
    help="Tokens of output a second, for the duration of calls whose row has none.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--report", "report_file", type=click.Path(path_type=Path), callback=page_file, metavar="FILE.html",
    help="Write a page with charts.",
)  # fmt: skip
@click.option("--books", metavar="BOOKS", help="Write what each call held and used into these books, too.")
def replay(
    policy: Path,
    trace: Path,
    model: str,
    columns: dict[str, str],
    user_column: str | None,
    output_speed: int | None,
    as_json: bool,
    report_file: Path | None,
    books: str | None,
) -> None:
    """Tell what the limits of a POLICY would have cut of the calls of a TRACE.

    A TRACE is a table (CSV or TSV, compressed or not) with a row a call: when it began, its tokens of input and of
    output. It is judged on its own clock, and what calls hold is learned from those before; nothing waits and nothing
    is sent.
    """
    from headgate.cli.llm_replay_text import outcome_json, outcome_lines, outcome_page
    from headgate.cli.policies import policy_of
    from headgate.cli.replay_text import unread_lines
    from headgate.llm.books import open_books
    from headgate.llm.learned import LocalLearned
    from headgate.replay.call_judging import judge_calls
    from headgate.replay.call_trace import read_trace
    from headgate.replay.entries import Tally
    from headgate.replay.times import TimeReader

    check_outputs(report_file, as_json=as_json)
    if user_column:
        columns = {**columns, "user": user_column}
    if not model and "model" not in columns:
        raise click.UsageError("say which --model the calls are of, or --column model=COLUMN")
    read, tally = policy_of(policy), Tally()
    calls = read_trace(trace, model=model, columns=columns, read_time=TimeReader(), tally=tally)
    with ExitStack() as stack:
        written = stack.enter_context(open_books(books)) if books else None
        outcome = judge_calls(read, calls, output_speed=output_speed, learned=LocalLearned(), books=written)
    for line in unread_lines(tally):
        click.echo(printable(line), err=True)
    if as_json:
        click.echo(json.dumps({**outcome_json(outcome), "unparsed": tally.count}))
    elif report_file is None:
        click.echo("\n".join(outcome_lines(outcome, trace.name)))
    if report_file is not None:
        write_report(report_file, outcome_page(outcome, trace.name))
    if tally.damaged:
        raise ConfigError("the result is of a part of the trace: not all could be unpacked")
    if not calls:
        raise ConfigError(f"{trace}: no call could be read")


COMMANDS = (replay,)
