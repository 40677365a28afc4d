"""A report of books as one self-contained HTML page: calls, tokens and dollars over time, and the highest costs.

It has the same parts as the page of a replay. Bars are at the time when calls were admitted, with their present values.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headgate.amounts import number_text
from headgate.cli.llm_report_text import cells, heads, money, notes, share
from headgate.llm.books.reading import ReadBooks
from headgate.llm.books.report import Report, report_of
from headgate.llm.books.sums import Sums
from headgate.replay.axis import axis_of
from headgate.replay.charts import key_bars, time_chart
from headgate.replay.page import facts, legend, whole_page
from headgate.replay.series import Series
from headgate.replay.times import span_text

_MOST_BARS = 15
_NEUTRAL_COLOUR = '<div style="--refused: #7d8fc0">'
_CHARTS = (
    ("Calls", ("admitted", "refused"), ("calls", "refused"), False),
    ("Tokens", ("input", "output"), ("input", "output"), False),
    ("Dollars", ("settled", "held, not settled"), ("cost", "unsettled_cost"), True),
)
"""(heading, the names of its two series, their fields in the sums, whether they are money)"""


def page_of(
    books: Sequence[ReadBooks], *, by: Sequence[str], zone: str | None, since_us: int | None, until_us: int | None
) -> str:
    """The page of the report of these books."""
    charts = {heading: Series() for heading, _, _, _ in _CHARTS}

    def watch(at_us: int, delta: Sums) -> None:
        for heading, _, fields, _ in _CHARTS:
            first, second = (getattr(delta, name) for name in fields)
            if first or second:
                charts[heading].add(at_us, first, second)

    report = report_of(books, by=by, zone=zone, since_us=since_us, until_us=until_us, watch=watch)
    title = "Calls of language models"
    sums = report.total.restated
    parts = [f"<h1>{title}</h1>", _lead(report, books)]
    parts += [f'<p class="warning">{escape(line)}</p>' for line in notes(report)]
    parts.append(
        facts(
            (f"{sums.calls:,}", "calls", ""),
            (f"{sums.refused:,}", "refused", "refused"),
            (f"{sums.input:,}", f"tokens of input, {sums.cache_read:,} from caches", ""),
            (f"{sums.output:,}", "tokens of output", ""),
            (money(sums.cost), "usd", ""),
            (money(sums.unsettled_cost), "usd held, not settled", ""),
            (f"{share(sums.covered, sums.estimated) or '-'} %", "of calls made no more than was estimated", ""),
        )
    )
    for heading, names, _, is_money in _CHARTS:
        parts.extend(_chart(heading, names, charts[heading], is_money=is_money))
    parts += [_highest_costs(report), _table(report)]
    return whole_page(title, parts)


def _lead(report: Report, books: Sequence[ReadBooks]) -> str:
    names = escape(", ".join(one.name for one in books))
    if report.first_us is None or report.last_us is None:
        return f'<p class="dim">{names}: nothing of this time</p>'
    return f'<p class="dim">{names}, {span_text(report.first_us, report.last_us)}</p>'


def _chart(heading: str, names: tuple[str, str], series: Series, *, is_money: bool) -> list[str]:
    if not series.counts:
        return []
    axis = axis_of(series)
    lines = [f"<h2>{heading}</h2>", legend(heading, axis, ("passed", names[0]), ("refused", names[1]))]
    label = f"{heading.lower()} over time"
    if is_money:
        chart = time_chart(series, axis, height=200, label=label, names=names, number=money, level=_dollars)
    else:
        chart = time_chart(series, axis, height=200, label=label, names=names)
    return [_NEUTRAL_COLOUR, *lines, chart, "</div>"] if heading != "Calls" else [*lines, chart]


def _dollars(level: float) -> str:
    """A level of a scale, with as many digits as have space."""
    return f"{float(number_text(round(level), 'usd')):.3g}"


def _highest_costs(report: Report) -> str:
    """The groups with the highest costs, as bars."""
    counts = [
        (" · ".join(name or "(none)" for name in row.group), row.restated.cost)
        for row in sorted(report.rows, key=lambda row: -row.restated.cost)[:_MOST_BARS]
        if row.restated.cost > 0
    ]
    if not counts or not report.by:
        return ""
    by = escape(" and ".join(report.by))
    return f"<h2>Dollars by {by}</h2>{key_bars(counts, css_class='passed', number=money)}"


def _table(report: Report) -> str:
    has_closed = bool(report.closed)
    named = heads(has_closed=has_closed)
    head = "".join(f"<th>{escape(name)}</th>" for name in report.by)
    head += "".join(f'<th class="num">{escape(name)}</th>' for name in named)
    rows = [(row, row.group) for row in report.rows]
    rows.append((report.total, ("total", *("" for _ in report.by[1:]))))
    body = "".join(
        "<tr>"
        + "".join(f'<td class="wide">{escape(name)}</td>' for name, _ in zip(group, report.by, strict=False))
        + "".join(
            f'<td class="num" data-name="{escape(name)}">{text}</td>'
            for name, text in zip(named, cells(row, has_closed=has_closed), strict=True)
        )
        + "</tr>"
        for row, group in rows
    )
    return f'<h2>All</h2><table class="cards"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
