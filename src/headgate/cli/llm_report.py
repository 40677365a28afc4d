"""`headgate llm report`, `reconcile` and `correct`: they read books and append to them while others write them."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from headgate import clock
from headgate.cli import options
from headgate.cli.output_files import report_file, write_report
from headgate.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    from headgate.llm.books.reading import ReadBooks

_BOOKS_HELP = (
    "BOOKS are a path that ends in .jsonl or .db, or the URL of books; the older files of JSON lines are read, too."
)
_FORMATS = ("table", "csv", "json", "html")


def _dimensions(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    from headgate.llm.books.report import DIMENSIONS

    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    for name in names:
        if name not in DIMENSIONS:
            raise click.BadParameter(f"{name[:40]!r} is none of {', '.join(DIMENSIONS)}")
    return names


def _zone(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from headgate.calendars import check_zone

    try:
        return None if value is None else check_zone(value)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


_author_option = click.option(
    "--author", type=options.TEXT, metavar="NAME", help="The author of the entry; by default the login's name."
)
_zone_option = click.option(
    "--zone", metavar="ZONE", callback=_zone,
    help="Whose days and months, such as Europe/Zurich; by default that in which months were closed, or UTC.",
)  # fmt: skip


@click.command(help=f"Sum up what calls used and cost.\n\n{_BOOKS_HELP}")
@click.argument("books", nargs=-1, required=True, metavar="BOOKS...")
@click.option(
    "--by", default="month,model", show_default=True, callback=_dimensions, metavar="NAMES",
    help="By what, with commas between: day, month, model, limit (which refused), user, team, key, organisation, tier.",
)  # fmt: skip
@click.option("--since", metavar="DAY", help="From this day or month on, such as 2026-11-01 or 2026-11, or this time.")
@click.option("--until", metavar="DAY", help="Before this day, month or time.")
@_zone_option
@click.option(
    "--format", "form", default="table", show_default=True, type=click.Choice(_FORMATS), help="How it is written."
)
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), callback=report_file, help="Write to this file."
)
@click.option(
    "--close", "month", metavar="MONTH",
    help="Close a month that is over, such as 2026-10: its sums are recorded, and later entries are reported apart.",
)  # fmt: skip
@_author_option
def report(
    books: tuple[str, ...],
    by: tuple[str, ...],
    since: str | None,
    until: str | None,
    zone: str | None,
    form: str,
    output: Path | None,
    month: str | None,
    author: str | None,
) -> None:
    from headgate.cli.llm_report_text import csv_notes, csv_text, json_text, table_text
    from headgate.llm.books.report import report_of, zone_of

    if month is not None:
        if len(books) != 1:
            raise click.BadParameter("a month is closed in one of several books at a time", param_hint="--close")
        _close(books[0], month, zone, author)
    with _open_books(books) as read:
        faults = _faults(read)
        zone = zone or zone_of(read)
        time_bounds = [_time_us("--since", since, zone), _time_us("--until", until, zone)]
        if form == "html":
            from headgate.cli.llm_report_page import page_of

            text = page_of(read, by=by, zone=zone, since_us=time_bounds[0], until_us=time_bounds[1])
        else:
            result = report_of(read, by=by, zone=zone, since_us=time_bounds[0], until_us=time_bounds[1])
            text = {"table": table_text, "csv": csv_text, "json": json_text}[form](result)
            for line in csv_notes(result) if form == "csv" else ():
                click.echo(line, err=True)
    if output is None:
        click.echo(text, nl=False, color=True)  # names of callers stay unchanged, in CSV too
    else:
        write_report(output, text)
    _end_with(faults)


def _close(books: str, month: str, zone: str | None, author: str | None) -> None:
    from headgate.amounts import number_text
    from headgate.cli.llm_report_text import count_text
    from headgate.llm.books.closing import close_month

    closed = close_month(books, month, zone=zone, author=_author(author), now_us=clock.now_us())
    unsettled = f", {closed.recorded.unsettled:,} of them not settled" if closed.recorded.unsettled else ""
    click.echo(
        f"closed {month} in {closed.closing.zone}: {count_text(closed.recorded.calls, 'call')}{unsettled}, "
        f"{number_text(closed.recorded.cost, 'usd')} usd",
        err=True,
    )


@click.command(help=f"List what does not fit together: holds never settled, settlings without one.\n\n{_BOOKS_HELP}")
@click.argument("books", nargs=-1, required=True, metavar="BOOKS...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, all of it.")
@click.option(
    "--top", default=10, show_default=True, type=options.Whole(1, 1_000_000), help="How many of each to list."
)
def reconcile(books: tuple[str, ...], as_json: bool, top: int) -> None:
    from headgate.cli.llm_reconcile_text import reconciliation_json, reconciliation_lines
    from headgate.llm.books.reconciling import reconcile as reconcile_books

    with _open_books(books) as read:
        faults = _faults(read)
        found = reconcile_books(read, now_us=clock.now_us())
    if as_json:
        click.echo(json.dumps(reconciliation_json(found)))
    else:
        click.echo("\n".join(reconciliation_lines(found, top)))
    _end_with(faults)


def _cost(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    from headgate.amounts import read_amount

    try:
        return None if value is None else read_amount(value, "usd")
    except ArgumentError as error:
        raise click.BadParameter(str(error)) from None


_tokens = options.Whole(0, 1 << 40)


@click.command()
@click.argument("books", metavar="BOOKS")
@click.option("--id", required=True, type=options.TEXT, help="The id of the call.")
@click.option("--cost", metavar="USD", callback=_cost, help="What it really cost, such as 0.0123.")
@click.option("--input", type=_tokens, metavar="TOKENS", help="What it really sent.")
@click.option("--output", type=_tokens, metavar="TOKENS", help="What was really made.")
@click.option("--reason", required=True, type=options.TEXT, help="Why.")
@_author_option
def correct(
    books: str, id: str, cost: int | None, input: int | None, output: int | None, reason: str, author: str | None
) -> None:
    """Append a correction of a call to BOOKS; what is written already stays.

    Of a call in a month that is closed, the difference counts in the month of today, and in the restated sums.
    """
    from headgate.cli.llm_report_text import correction_text
    from headgate.llm.books.closing import correct as append_correction

    with _open_books([books]) as read:
        corrected = append_correction(
            books, read[0], id, cost=cost, input=input, output=output, reason=reason, author=_author(author),
            now_us=clock.now_us(),
        )  # fmt: skip
    click.echo(correction_text(corrected), err=True)


COMMANDS = (report, reconcile, correct)


@contextmanager
def _open_books(books: Sequence[str]) -> Iterator[list[ReadBooks]]:
    """Open the books of these names, each once, until the end of the block."""
    from headgate.llm.books.opening import books_path
    from headgate.llm.books.reading import read_books

    paths = {books_path(name)[1].resolve(): name for name in reversed(books)}
    with ExitStack() as stack:
        opened = []
        for name in reversed(paths.values()):
            read = read_books(name)
            stack.callback(read.close)
            opened.append(read)
        yield opened


def _faults(read: Sequence[ReadBooks]) -> list[str]:
    """The faults of books of which no entry can be read. A message reports books without entries at once."""
    from headgate.llm.books.reading import first_fault

    faults = []
    for books in read:
        has_any, fault = first_fault(books)
        if fault is not None:
            faults.append(f"{fault.source}: no entry could be read; the first is line {fault.line}: {fault.reason}")
        elif not has_any:
            click.echo(f"{books.name}: these books have no entries yet", err=True)
    return faults


def _end_with(faults: Sequence[str]) -> None:
    if faults:
        raise ConfigError("; ".join(faults))


def _time_us(option: str, text: str | None, zone: str) -> int | None:
    from headgate.llm.books.closing import bounds_us

    if text is None:
        return None
    try:
        if len(text) <= 10:
            return bounds_us(text, zone)[0]
        time = datetime.fromisoformat(text)
        local = time if time.tzinfo else time.replace(tzinfo=ZoneInfo(zone))
        return round(local.timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"write 2026-11-01, 2026-11, or 2026-11-01T10:00:00+01:00, not {text[:40]!r}", param_hint=option
        ) from None


def _author(name: str | None) -> str:
    if name is not None:
        return name[:200]
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
