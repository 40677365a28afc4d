"""The inconsistencies of books, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headgate.amounts import number_text
from headgate.cli.llm_report_text import count_text, money, safe_name
from headgate.clock import utc_moment
from headgate.llm.books.reconciling import Reconciliation
from headgate.llm.entry import Entry


def reconciliation_lines(result: Reconciliation, top: int) -> Iterator[str]:
    """A paragraph for each kind of finding, with the first findings."""
    if result.is_clean:
        yield "all calls fit together"
    yield from _holds("held, never settled, and the lease has ended; the charge stays", result.unreconciled, top)
    yield from _settlings("settled without a hold in the books; they count", result.without_hold, top)
    yield from _settlings("settled again; only the first settling counts", result.settled_again, top)
    yield from _settlings("corrections of calls that are not in the books", result.corrected_unknown, top)
    if result.in_flight:
        yield f"{len(result.in_flight):,} in flight: held, and the lease has not ended"
    if result.dropped:
        yield f"dropped before they were written: {count_text(result.dropped, 'entry')}"
    if result.unreadable.count:
        yield f"{count_text(result.unreadable.count, 'line')} could not be read; the first:"
        for line in result.unreadable.shown[:top]:
            yield f"  {line.source}:{line.line}: {line.reason}"


def _holds(name: str, entries: Sequence[Entry], top: int) -> Iterator[str]:
    if entries:
        held = sum(entry.held_cost or 0 for entry in entries)
        yield f"{len(entries):,} {name}: {money(held)} usd"
        for entry in entries[:top]:
            cost = "price unknown" if entry.held_cost is None else f"{money(entry.held_cost)} usd"
            tokens = f"{entry.held_input:,} + {entry.held_output:,} tokens"
            yield f"  {safe_name(entry.id)}  {_utc(entry.at_us)}  {_caller(entry)}  {tokens}  {cost}"


def _settlings(name: str, entries: Sequence[Entry], top: int) -> Iterator[str]:
    if entries:
        yield f"{len(entries):,} {name}"
        for entry in entries[:top]:
            cost = "cost unknown" if entry.cost is None else f"{money(entry.cost)} usd"
            yield f"  {safe_name(entry.id)}  {_utc(entry.at_us)}  {_caller(entry)}  {entry.mode or entry.kind}  {cost}"


def _caller(entry: Entry) -> str:
    names = (entry.caller.organisation, entry.caller.team, entry.caller.user or entry.caller.key, entry.model)
    return " ".join(safe_name(name) for name in names if name)


def _utc(at_us: int) -> str:
    return f"{utc_moment(at_us):%Y-%m-%d %H:%M:%S} UTC"


def reconciliation_json(result: Reconciliation) -> dict[str, Any]:
    """All findings; times in microseconds since the epoch, money as text."""
    return {
        "clean": result.is_clean,
        "unreconciled": [_values(entry) for entry in result.unreconciled],
        "in_flight": [_values(entry) for entry in result.in_flight],
        "without_hold": [_values(entry) for entry in result.without_hold],
        "settled_again": [_values(entry) for entry in result.settled_again],
        "corrected_unknown": [_values(entry) for entry in result.corrected_unknown],
        "dropped": result.dropped,
        "unreadable": result.unreadable.count,
    }


def _values(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at_us": entry.at_us,
        **entry.caller._asdict(),
        "model": entry.model,
        "held_input": entry.held_input,
        "held_output": entry.held_output,
        "held_usd": None if entry.held_cost is None else number_text(entry.held_cost, "usd"),
        "lease_us": entry.lease_us,
        "mode": entry.mode,
        "cost_usd": None if entry.cost is None else number_text(entry.cost, "usd"),
    }
