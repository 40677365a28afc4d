"""`headgate capacity`: the resources of Redis that a policy needs, for people and programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich import box
from rich.table import Table
from rich.text import Text

from headgate.cli.policies import policy_of
from headgate.cli.terminal import results
from headgate.planning.capacity import MEMORY_FACTOR, Capacity, capacity
from headgate.planning.decisions import BUSY_SHARE
from headgate.planning.memory import LimitNeeds


def run_capacity(file: Path, *, users: int, rate: float, as_json: bool) -> None:
    """Print what a policy needs for so many users and requests a second."""
    needs = capacity(policy_of(file), users=users, rate=rate)
    if as_json:
        click.echo(json.dumps(asdict(needs)))
        return
    console = results()
    console.print(_limits_table(needs))
    answers = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in _answers(needs):
        answers.add_row(name, Text(text))
    console.print(answers)


def _limits_table(needs: Capacity) -> Table:
    table = Table("rule", "limit", "counted by", box=box.SIMPLE_HEAD)
    for name in ("states at once", "bytes each", "memory"):
        table.add_column(name, justify="right")
    for need in needs.limits:
        table.add_row(
            Text(f"{need.rule} ({need.tier})" if need.tier else need.rule),
            Text(need.limit),
            " and ".join(need.counted_by) or "everyone",
            f"{need.states:,}",
            f"{_bytes_each(need):,}",
            _size(need.total_bytes),
        )
    return table


def _bytes_each(need: LimitNeeds) -> int:
    return round(need.total_bytes / need.states) if need.states else need.state_bytes


def _answers(needs: Capacity) -> Iterator[tuple[str, str]]:
    request = needs.request
    yield (
        "memory",
        f"{_size(needs.state_bytes)} of states: plan {_size(needs.memory_bytes)}, {MEMORY_FACTOR:g} times as much",
    )
    where = f"{request.method} {request.host}{request.path}"
    meets = ", ".join(request.rules) or "no rule"
    limits = "1 limit" if request.limits == 1 else f"{request.limits} limits"
    yield "operations", f"{needs.rate:,.15g} decisions a second, of {limits} at the most: {where} meets {meets}"
    yield (
        "one server",
        f"decides {needs.saturated:,} of these a second: plan {needs.planned:,}, {BUSY_SHARE * 100:.0f} % of that",
    )
    yield "layout", _layout(needs)
    if needs.obstacle:
        yield "", f"which cannot keep this policy: {needs.obstacle}"
    for key in needs.shared_keys:
        yield "", _shared(", ".join(key.rules), key.ceiling, leased=key.leased, needs=needs)
    for number, text in enumerate(needs.assumptions):
        yield "" if number else "assumed", text


def _layout(needs: Capacity) -> str:
    if needs.layout == "single":
        return "a single Redis, with a replica that takes over (redis+sentinel://); one round trip a decision"
    text = f"a Cluster of {needs.shards} shards, each with a replica (redis+cluster://); "
    if needs.round_trips == 1:
        return f"{text}one round trip a decision"
    return (
        f"{text}{needs.round_trips} round trips a decision, one after another, for as many keys, each in a slot of its "
        "own; a refusal gives back what it took"
    )


def _shared(rules: str, ceiling: int, *, leased: bool, needs: Capacity) -> str:
    text = f"{rules}: one key for all requests, which one server is planned to decide {ceiling:,} times a second"
    if leased:
        return f"{text}, however many there are: let each process have a limit of its own, by a part of this one"
    return f"{text}; more shards do not help it" if needs.layout == "cluster" else text


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError("the last unit has no end")
