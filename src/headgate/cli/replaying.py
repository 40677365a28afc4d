"""The command `replay`: its progress, its tables, its files."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headgate.cli.terminal import results
from headgate.errors import ConfigError
from headgate.policy.gate import read_policy
from headgate.replay.entries import Tally
from headgate.replay.fielded_log import KNOWN_NAMES
from headgate.replay.judging import Result, RuleResult
from headgate.replay.replay import Outcome, replay
from headgate.replay.report import report
from headgate.replay.sources import Format, Reading, open_logs
from headgate.replay.summary import summary
from headgate.replay.times import TimeReader, iso_time


def run_replay(
    logs: Sequence[str],
    *,
    policy: Path,
    compare: Path | None,
    format: Format,
    fields: Sequence[str],
    headers: Sequence[str],
    timezone: str,
    as_json: bool,
    report_file: Path | None,
    top: int,
) -> None:
    """Replay logs and tell what came of it."""
    files = [policy] if compare is None else [policy, compare]
    policies = [(str(file), read_policy(file)) for file in files]
    reading = Reading(
        format=format,
        fields=_pairs("field", fields, tuple(KNOWN_NAMES)),
        headers={name.lower(): field for name, field in _pairs("header", headers, None).items()},
        read_time=TimeReader(_zone(timezone)),
        needs_client=any(policy.counts_by_address for _, policy in policies),
    )
    with tempfile.TemporaryDirectory(prefix="headgate-replay-") as folder:
        opened = open_logs(logs, reading, lambda: Path(folder) / "standard-input")
        errors = Console(stderr=True)
        with _progress(errors) as bar:
            task = bar.add_task("replay", total=sum(log.size for log in opened))
            gc.disable()  # millions of short-lived tuples, and no cycles among them
            outcome = replay(opened, policies, lambda step: bar.advance(task, step))
    _tell_unread(errors, outcome.unread)
    if report_file is not None:
        report_file.write_text(report(outcome, [Path(log.name).name for log in opened], top), encoding="utf-8")
        errors.print(f"report in {report_file}", highlight=False)
    if as_json:
        click.echo(json.dumps(summary(outcome, top)))
    elif report_file is None:
        _tell(outcome, top)
    if outcome.first_us is None and outcome.unread.count:
        raise ConfigError("no line could be read; say how with --format")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _tell(outcome: Outcome, top: int) -> None:
    console = results()
    for result in outcome.results:
        console.print(_headline(result, outcome), soft_wrap=True, markup=False)
        console.print(_rule_table(result))
        for rule in result.rules:
            refused = ", ".join(f"{key} ({count:,})" for key, count in rule.most_refused(top))
            if refused:
                console.print(f"{rule.name} refused most often: {refused}", soft_wrap=True, markup=False)
    if len(outcome.results) > 1:
        one, other = outcome.results
        console.print(
            f"{other.name} refuses {outcome.newly_denied:,} requests that {one.name} lets pass, "
            f"and lets {outcome.newly_allowed:,} pass that it refuses",
            soft_wrap=True,
            markup=False,
        )


def _headline(result: Result, outcome: Outcome) -> str:
    if outcome.first_us is None or outcome.last_us is None:
        return f"{result.name}: no request could be read"
    share = 100 * result.denied / max(1, result.requests)
    return (
        f"{result.name}: {result.requests:,} requests, {result.allowed:,} passed, {result.denied:,} refused "
        f"({share:.2f} %), {iso_time(outcome.first_us)} to {iso_time(outcome.last_us)}"
    )


def _rule_table(result: Result) -> Table:
    table = Table("rule", "limits", box=box.SIMPLE_HEAD)
    for name in ("requests", "passed", "refused", "keys"):
        table.add_column(name, justify="right")
    table.add_column("busiest key")
    table.add_column("worst minute")
    for rule in result.rules:
        name = f"{rule.name} (shadow)" if rule.shadow else rule.name
        table.add_row(
            name,
            Text(rule.limits),
            *(f"{count:,}" for count in (rule.matched, rule.allowed, rule.refused, rule.keys)),
            Text(_busiest(rule)),
            _worst(rule),
        )
    return table


def _busiest(rule: RuleResult) -> str:
    return "".join(f"{key} ({count:,})" for key, count in rule.busiest(1))


def _worst(rule: RuleResult) -> str:
    worst = rule.worst_minute()
    return "" if worst is None else f"{iso_time(worst[0])[:16].replace('T', ' ')}: {worst[1]:,} refused"


def _tell_unread(console: Console, tally: Tally) -> None:
    if not tally.count:
        return
    lines = "1 line" if tally.count == 1 else f"{tally.count:,} lines"
    console.print(f"{lines} could not be read; the first:", highlight=False)
    for unread in tally.shown:
        shown = "".join(c if c.isprintable() else "?" for c in unread.text[:120])
        console.print(
            f"  {unread.source}:{unread.line}: {unread.reason}: {shown}", highlight=False, markup=False, soft_wrap=True
        )


def _pairs(option: str, texts: Sequence[str], known: tuple[str, ...] | None) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or not value or (known and name not in known):
            wanted = f"NAME is one of {', '.join(known)}" if known else "NAME is a header, VALUE a field of the log"
            raise click.BadParameter(f"it is written NAME=VALUE, not {text[:60]!r}; {wanted}", param_hint=f"--{option}")
        pairs[name] = value
    return pairs


def _zone(name: str) -> ZoneInfo | None:
    if name == "UTC":
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise click.BadParameter(
            f"no time zone is named {name[:60]!r}; names are such as Europe/Zurich", param_hint="--timezone"
        ) from error
