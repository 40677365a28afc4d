"""A report of books as a table, as CSV and as JSON; money is text, exact to the billionth."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from headgate.amounts import grouped_text, number_text
from headgate.errors import printable
from headgate.llm.books.closing import Corrected
from headgate.llm.books.report import ClosedMonth, Report, Row
from headgate.llm.books.sums import Sums

MONEY = ("cost", "unsettled_cost")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def money(billionths: int) -> str:
    """Dollars, exactly, with a comma between thousands."""
    return f"-{grouped_text(-billionths, 'usd')}" if billionths < 0 else grouped_text(billionths, "usd")


def count_text(number: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def share(part: int, whole: int) -> str:
    """A share in percent; an empty text where the whole is 0."""
    return f"{100 * part / whole:.1f}" if whole else ""


def safe_name(name: str) -> str:
    """A name that the caller chose, without control characters."""
    return printable(name) or "(none)"


def cells(row: Row, *, has_closed: bool) -> list[str]:
    """The cells of a row after the names of its group."""
    sums = row.booked
    parts = [
        f"{sums.calls:,}", f"{sums.refused:,}", f"{sums.input:,}", f"{sums.output:,}", f"{sums.cache_read:,}",
        money(sums.cost), money(sums.unsettled_cost), share(sums.used_more, sums.measured),
        share(sums.used_less, sums.measured), share(sums.covered, sums.estimated),
        f"{sums.corrected + row.later.corrected:,}",
    ]  # fmt: skip
    return [*parts, money(row.later.cost), money(row.restated.cost)] if has_closed else parts


def heads(*, has_closed: bool) -> list[str]:
    """The column heads of `cells`."""
    named = [
        "calls", "refused", "input", "output", "cached", "usd", "held usd", "% more", "% less", "% covered",
        "corrected",
    ]  # fmt: skip
    return [*named, "later usd", "restated usd"] if has_closed else named


def table_text(report: Report) -> str:
    """A table for people, with notes below it."""
    has_closed = bool(report.closed)
    named = [*report.by, *heads(has_closed=has_closed)]
    rows = [[*map(safe_name, row.group), *cells(row, has_closed=has_closed)] for row in report.rows]
    total_row = ["total", *[""] * (len(report.by) - 1)] if report.by else []
    rows.append([*total_row, *cells(report.total, has_closed=has_closed)])
    return "\n".join([*_aligned([named, *rows], len(report.by)), *notes(report), ""])


def _aligned(rows: Sequence[Sequence[str]], texts: int) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        parts = [
            text.ljust(width) if place < texts else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(parts).rstrip()


def notes(report: Report) -> list[str]:
    """Notes on the sums: what they leave out, and how closed months changed."""
    sums = report.total.restated
    lines = []
    if sums.unsettled:
        lines.append(
            f"held and not settled: {count_text(sums.unsettled, 'call')}, {sums.unsettled_input:,} tokens of input, "
            f"{sums.unsettled_output:,} of output, {money(sums.unsettled_cost)} usd, beside the sums"
        )
    if sums.unpriced:
        lines.append(f"no price is known of {count_text(sums.unpriced, 'call')}: what they cost is in no sum")
    for month in report.closed:
        closed_sums, now = month.recorded, month.restated
        lines.append(
            f"{month.closing.month} is closed, in {month.closing.zone}: {count_text(closed_sums.calls, 'call')}, "
            f"{money(closed_sums.cost)} usd and {money(closed_sums.unsettled_cost)} held; "
            f"restated {count_text(now.calls, 'call')}, {money(now.cost)} usd and {money(now.unsettled_cost)} held"
        )
        if month.recorded != month.booked:
            lines.append(f"  {_changed(month)}")
    lines += [
        f"  written in {later.written_in}: {money(later.delta.cost)} usd of {later.month}" for later in report.later
    ]
    return lines + _missing_entries(report)


def csv_notes(report: Report) -> list[str]:
    """The notes that no column of CSV has: entries that are missing, or were changed."""
    changed = [
        f"{month.closing.month} is closed, in {month.closing.zone}: {_changed(month)}"
        for month in report.closed
        if month.recorded != month.booked
    ]
    return changed + _missing_entries(report)


def _changed(month: ClosedMonth) -> str:
    """The note that the entries of a closed month no longer add up to the sums that were stored."""
    return (
        f"its entries come to {count_text(month.booked.calls, 'call')} and {money(month.booked.cost)} usd: "
        "some from before it was closed are missing or were changed"
    )


def _missing_entries(report: Report) -> list[str]:
    """Notes on entries that are in no sums of any format."""
    lines = []
    if report.dropped:
        lines.append(f"dropped before they were written: {count_text(report.dropped, 'entry')}; the sums lack them")
    if report.unreadable.count:
        lines.append(f"{count_text(report.unreadable.count, 'line')} could not be read; the first:")
        lines += [f"  {line.source}:{line.line}: {line.reason}" for line in report.unreadable.shown]
    return lines


def csv_text(report: Report) -> str:
    """A row for each group, without a total; text that a spreadsheet would take for a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    names = [f"{name}_usd" if name in MONEY else name for name in Sums._fields]
    writer.writerow([*report.by, *names, "later_cost_usd", "restated_cost_usd"])
    for row in report.rows:
        group = [f"'{name}" if name.startswith(_FORMULA) else name for name in row.group]
        later, restated = number_text(row.later.cost, "usd"), number_text(row.restated.cost, "usd")
        writer.writerow([*group, *_values(row.booked).values(), later, restated])
    return out.getvalue()


def json_text(report: Report) -> str:
    """The complete report as one JSON object in ASCII."""
    values = {
        "by": list(report.by),
        "zone": report.zone,
        "rows": [
            {**dict(zip(report.by, row.group, strict=True)), **_row_values(row, bool(report.closed))}
            for row in report.rows
        ],
        "total": _row_values(report.total, bool(report.closed)),
        "closed": [
            {
                "books": month.books, "month": month.closing.month, "zone": month.closing.zone,
                "closed_us": month.closing.at_us, "author": month.closing.author, "kept": _values(month.recorded),
                "booked": _values(month.booked), "restated": _values(month.restated),
            }
            for month in report.closed
        ],
        "later": [
            {"written_in": later.written_in, "month": later.month, **_values(later.delta)} for later in report.later
        ],
        "dropped": report.dropped,
        "unreadable": report.unreadable.count,
        "unreadable_lines": [line._asdict() for line in report.unreadable.shown],
    }  # fmt: skip
    return json.dumps(values) + "\n"


def _row_values(row: Row, has_closed: bool) -> dict[str, Any]:
    values = _values(row.booked)
    return values | {"later": _values(row.later), "restated": _values(row.restated)} if has_closed else values


def _values(sums: Sums) -> dict[str, Any]:
    """Sums by name, money as text, `cost_usd`."""
    return {
        f"{name}_usd" if name in MONEY else name: number_text(value, "usd") if name in MONEY else value
        for name, value in sums._asdict().items()
    }


def correction_text(corrected: Corrected) -> str:
    """The change that a correction made."""
    before, after = corrected.before, corrected.after
    was = before.cost + before.unsettled_cost
    later = f"; {corrected.closed_month} is closed, so the difference counts today" if corrected.closed_month else ""
    return (
        f"corrected: {before.input + before.unsettled_input:,} to {after.input:,} tokens of input, "
        f"{before.output + before.unsettled_output:,} to {after.output:,} of output, "
        f"{money(was)} to {money(after.cost)} usd{later}"
    )
