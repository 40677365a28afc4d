"""The result of a policy on a trace of calls, for people, for programs, and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from headgate.amounts import number_text
from headgate.cli.llm_report_text import count_text, money, safe_name, share
from headgate.replay.axis import axis_of
from headgate.replay.call_judging import CallOutcome, CallSums, LimitResult
from headgate.replay.charts import key_bars, time_chart
from headgate.replay.page import facts, legend, whole_page
from headgate.replay.rates_only import LEFT_OUT
from headgate.replay.series import Series
from headgate.replay.times import clock_text, iso_time, span_text

_MOST_USERS = 10


def outcome_lines(outcome: CallOutcome, name: str) -> Iterator[str]:
    """The sums of admitted and refused calls, and each limit that refused."""
    both = (outcome.admitted, outcome.refused)
    if outcome.first_us is None or outcome.last_us is None:
        yield f"{name}: no calls"
        return
    calls, total = sum(sums.calls for sums in both), sum(sums.cost for sums in both)
    yield f"{name}: {count_text(calls, 'call')}, {span_text(outcome.first_us, outcome.last_us)}"
    yield f"settled {outcome.settled_by}"
    if outcome.left_out:
        yield f"{LEFT_OUT}: {', '.join(outcome.left_out)}"
    yield ""
    yield _row("", "calls", "%", "input", "output", "usd", "%")
    for label, sums in zip(("admitted", "refused"), both, strict=True):
        yield _row(
            label, f"{sums.calls:,}", share(sums.calls, calls), f"{sums.input:,}", f"{sums.output:,}", money(sums.cost),
            share(sums.cost, total),
        )  # fmt: skip
    yield ""
    measured = outcome.admitted.calls
    yield (
        f"of what was admitted {share(outcome.used_more, measured) or 0} % used more tokens than held, "
        f"{share(outcome.used_less, measured) or 0} % fewer"
    )
    unpriced = outcome.admitted.unpriced + outcome.refused.unpriced
    if unpriced:
        yield f"no price is known of {count_text(unpriced, 'call')}"
    for limit in _by_refusals(outcome):
        yield from _limit_lines(limit)
    for warned, count in sorted(outcome.warned.items()):
        yield f"{warned} warned {count_text(count, 'call')}"
    if not outcome.limits:
        yield "no limit refused a call"


def _row(label: str, *cells: str) -> str:
    widths = (9, 6, 12, 12, 16, 6)
    return f"{label:9}{''.join(f' {cell:>{width}}' for cell, width in zip(cells, widths, strict=True))}"


def _limit_lines(limit: LimitResult) -> Iterator[str]:
    sums = limit.refused
    assert limit.first_us is not None and limit.last_us is not None
    tokens = f"{sums.input:,} + {sums.output:,} tokens"
    yield f"{limit.name} ({limit.limit}) refused {count_text(sums.calls, 'call')}, {tokens}, {money(sums.cost)} usd"
    minute_us, count = limit.worst_minute()
    first, last = clock_text(limit.first_us, seconds=True), clock_text(limit.last_us, seconds=True)
    yield f"  first {first}, last {last}, worst minute {clock_text(minute_us)} UTC: {count:,}"
    users = [(user, count) for user, count in limit.users.most_common(_MOST_USERS) if user]
    if users:
        yield f"  most often: {', '.join(f'{safe_name(user)} ({count:,})' for user, count in users)}"


def _by_refusals(outcome: CallOutcome) -> list[LimitResult]:
    return sorted(outcome.limits.values(), key=lambda limit: (-limit.refused.calls, limit.name))


def outcome_json(outcome: CallOutcome) -> dict[str, Any]:
    """The outcome as JSON values, money as text."""
    return {
        "settled": outcome.settled_by,
        "left_out": list(outcome.left_out),
        "first": None if outcome.first_us is None else iso_time(outcome.first_us),
        "last": None if outcome.last_us is None else iso_time(outcome.last_us),
        "admitted": _sums_json(outcome.admitted),
        "refused": _sums_json(outcome.refused),
        "used_more": outcome.used_more,
        "used_less": outcome.used_less,
        "limits": [_limit_json(limit) for limit in _by_refusals(outcome)],
        "warned": dict(sorted(outcome.warned.items())),
    }


def _limit_json(limit: LimitResult) -> dict[str, Any]:
    assert limit.first_us is not None and limit.last_us is not None
    minute_us, count = limit.worst_minute()
    return {
        "name": limit.name,
        "limit": limit.limit,
        "refused": _sums_json(limit.refused),
        "first": iso_time(limit.first_us),
        "last": iso_time(limit.last_us),
        "worst_minute": {"start": iso_time(minute_us), "refused": count},
        "top": [{"user": user, "refused": count} for user, count in limit.users.most_common(_MOST_USERS) if user],
    }


def _sums_json(sums: CallSums) -> dict[str, Any]:
    return {
        f"{name}_usd" if name == "cost" else name: number_text(value, "usd") if name == "cost" else value
        for name, value in sums._asdict().items()
    }


def outcome_page(outcome: CallOutcome, name: str) -> str:
    """A self-contained page: sums, admitted and refused calls over time, and the limits that refused."""
    title = f"Calls of {name}"
    admitted, refused = outcome.admitted, outcome.refused
    parts = [f"<h1>{escape(title)}</h1>"]
    if outcome.first_us is not None and outcome.last_us is not None:
        span = span_text(outcome.first_us, outcome.last_us)
        parts.append(f'<p class="dim">{span}; settled {escape(outcome.settled_by)}</p>')
    if outcome.left_out:
        left_out_text = f"{LEFT_OUT}: {', '.join(outcome.left_out)}"
        parts.append(f'<p class="warning">{escape(left_out_text)}</p>')
    calls, cost = admitted.calls + refused.calls, admitted.cost + refused.cost
    parts.append(
        facts(
            (f"{calls:,}", "calls", ""),
            (f"{refused.calls:,}", f"refused ({share(refused.calls, calls) or 0} %)", "refused"),
            (f"{admitted.input + admitted.output:,}", "tokens admitted", ""),
            (f"{refused.input + refused.output:,}", "tokens refused", "refused"),
            (money(admitted.cost), "usd admitted", ""),
            (money(refused.cost), f"usd refused ({share(refused.cost, cost) or 0} %)", "refused"),
        )
    )
    parts += _chart("Calls", outcome.calls)
    parts += _chart("Tokens", outcome.tokens)
    parts += _chart("Dollars", outcome.costs, is_money=True)
    limits = _by_refusals(outcome)
    if limits:
        bars = key_bars([(limit.name, limit.refused.calls) for limit in limits], css_class="refused")
        parts.append(f"<h2>Calls refused, by limit</h2>{bars}")
        lines = "".join(f"<li>{escape(line)}</li>" for limit in limits for line in _limit_lines(limit))
        parts.append(f"<ul>{lines}</ul>")
    return whole_page(title, parts)


def _chart(heading: str, series: Series, *, is_money: bool = False) -> list[str]:
    if not series.counts:
        return []
    axis = axis_of(series)
    names = ("admitted", "refused")
    label = f"{heading.lower()} over time"
    chart = time_chart(
        series, axis, height=200, label=label, names=names, number=money if is_money else "{:,}".format,
        level=(lambda level: f"{level / 1e9:.3g}") if is_money else None,
    )  # fmt: skip
    return [f"<h2>{heading}</h2>", legend(heading, axis, ("passed", "admitted"), ("refused", "refused")), chart]
