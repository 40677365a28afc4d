"""The command `replay`: its progress, its tables, its files."""

from __future__ import annotations

import gc
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from headgate.amounts import unit_named
from headgate.cli import terminal
from headgate.cli.output_files import check_outputs, write_report
from headgate.cli.policies import display_name, policy_of
from headgate.cli.replay_text import outcome_lines, unread_lines
from headgate.errors import ConfigError
from headgate.policy.headers import header_name
from headgate.replay.fielded_log import KNOWN_NAMES
from headgate.replay.opening import open_logs
from headgate.replay.replay import ALWAYS, Span, replay
from headgate.replay.sources import FORMATS, Format, Reading
from headgate.replay.summary import summary
from headgate.replay.times import Calendar, TimeReader, UnknownTime, read_date

_ENDING = tuple(number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None)
"""Signals that end the command: SIGHUP comes where a terminal or an SSH connection is closed."""

_SHORT_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}:[0-9]{2}))?((?: ?(?:Z|UTC|[+-][0-9:]{2,5}))?)")


def run_replay(
    logs: Sequence[str],
    *,
    policy: Path,
    compare: Path | None,
    format: Format,
    fields: Sequence[str],
    headers: Sequence[str],
    timezone: str,
    date: str | None,
    from_time: str | None,
    to_time: str | None,
    as_json: bool,
    report_file: Path | None,
    top: int,
) -> None:
    """Replay logs and print the outcome."""
    check_outputs(report_file, as_json=as_json)
    read_time = TimeReader(_zone(timezone))
    files = [policy] if compare is None else [policy, compare]
    if [*logs, *map(str, files)].count("-") > 1:
        raise click.UsageError("standard input can be read once: - stands for one log or one policy")
    policies = [(display_name(file), policy_of(file)) for file in files]
    role_fields, units = _fields(fields, tuple(dict.fromkeys(unit for _, read in policies for unit in read.units)))
    reading = Reading(
        format=format,
        fields=role_fields,
        units=units,
        headers={header_name(name): field for name, field in _pairs("header", headers, None).items()},
        read_time=read_time,
        calendar=None if date is None else _calendar(date),
    )
    span = _span(read_time, from_time, to_time)
    reading = replace(reading, needs_client=any(policy.counts_by_address for _, policy in policies))
    with _ended_by_signals(), ExitStack() as copies:
        opened = open_logs(logs, reading, copies)
        with _progress(sum(log.size for log in opened)) as advance:
            gc.disable()  # millions of short-lived tuples, and no cycles among them
            outcome = replay(opened, policies, advance, span=span)
    for line in unread_lines(outcome.unread):
        click.echo(terminal.printable(line), err=True)
    if as_json:
        click.echo(json.dumps(summary(outcome, top)))
    elif report_file is None:
        click.echo(terminal.printable("\n".join(outcome_lines(outcome, top, terminal.width()))))
    if report_file is not None:
        from headgate.replay.report import report

        names = [name if name == "-" else Path(name).name for name in logs]
        text = report(outcome, ["standard input" if name == "-" else name for name in names], top)
        write_report(report_file, text)
    if outcome.unread.damaged:
        raise ConfigError("the result is of a part of the logs: not all could be unpacked")
    if nothing_read := list(outcome.unread.nothing_read.values()):
        more = f"; nor of {', '.join(one.source for one in nothing_read[1:])}" if len(nothing_read) > 1 else ""
        first = nothing_read[0]
        raise ConfigError(
            f"{first.source}: {_unreadable(format)}; the first is line {first.line}: {first.reason}{more}"
        )


def _unreadable(format: Format) -> str:
    """The advice where no line of a log could be read."""
    if format == "auto":
        return "no line could be read: the format was taken for the one that fits best, and --format says another"
    others = ", ".join(name for name in FORMATS if name not in ("auto", format))
    named = "" if format == "common" else ", and --field which field is the time, the client or the path"
    return f"no line could be read as {format}: --format auto looks for what fits, of {others} too{named}"


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the command with a clean-up: copies of logs are deleted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    ending = [number for number in _ENDING if before[number] != signal.SIG_IGN]  # nohup has SIGHUP ignored

    def end(number: int, _: FrameType | None) -> None:
        for other in ending:  # a shell and its terminal may each send one, and the second must not stop the clean-up
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)  # as shells report a program that a signal ended

    for number in ending:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, before[number])


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A function to call with the bytes of each step; progress is shown where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("replay", total=total)
        yield partial(bar.advance, task)


def _fields(texts: Sequence[str], units: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """(the fields of roles, the fields of the units that a policy counts)."""
    role_fields: dict[str, str] = {}
    costs: dict[str, str] = {}
    for name, field in _pairs("field", texts, (*KNOWN_NAMES, *units), fold=unit_named).items():
        (role_fields if name in KNOWN_NAMES else costs)[name] = field
    if costs and "cost" in role_fields:
        raise click.BadParameter("give the cost, or what it is by its units, not both", param_hint="--field")
    return role_fields, costs


def _pairs(
    option: str, texts: Sequence[str], known: tuple[str, ...] | None, fold: Callable[[str], str] = str
) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if known and name not in known:
            name = fold(name)
        if not separator or not name or not value or (known and name not in known):
            expected = f"NAME is one of {', '.join(known)}" if known else "NAME is a header, VALUE a field of the log"
            raise click.BadParameter(
                f"it is written NAME=VALUE, not {text[:60]!r}; {expected}", param_hint=f"--{option}"
            )
        pairs[name] = value
    return pairs


def _calendar(text: str) -> Callable[[], Calendar]:
    try:
        first, month = read_date(text)
    except UnknownTime as error:
        raise click.BadParameter(str(error), param_hint="--date") from error
    return lambda: Calendar(first, month=month)


def _span(read_time: TimeReader, from_time: str | None, to_time: str | None) -> Span:
    """The requested span of time; a date alone is its first moment."""
    moments = list(ALWAYS)
    for place, (option, text) in enumerate((("--from", from_time), ("--to", to_time))):
        if text is None:
            continue
        short = _SHORT_TIME.fullmatch(text.strip())
        try:
            moments[place] = read_time(f"{short[1]}T{short[2] or '00:00'}:00{short[3]}" if short else text)
        except UnknownTime as error:
            raise click.BadParameter(
                f"{error}: write 2015-09-02T10:00:00, with a zone such as Z or +02:00 or in that of --timezone, "
                "or 2015-09-02 for its first moment",
                param_hint=option,
            ) from error
    span = Span(*moments)
    if span.from_us >= span.to_us:
        raise click.BadParameter("nothing lies between: --from comes before --to", param_hint="--from")
    return span


def _zone(name: str) -> ZoneInfo | None:
    if name == "UTC":
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: Europe is a folder of zones
        raise click.BadParameter(
            f"no time zone is named {name[:60]!r}; names are such as Europe/Zurich", param_hint="--timezone"
        ) from error
