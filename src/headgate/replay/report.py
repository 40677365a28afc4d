"""A replay as one self-contained HTML page: which requests would have passed, over time, by rule, by key."""

from __future__ import annotations

from html import escape

from headgate.amounts import grouped_text
from headgate.errors import printable
from headgate.replay.axis import Axis, axis_of
from headgate.replay.charts import difference_chart, key_bars, time_chart
from headgate.replay.page import facts, legend, whole_page
from headgate.replay.replay import Difference, Outcome
from headgate.replay.results import BusyKey, Result, RuleResult
from headgate.replay.times import clock_text, span_text


def report(outcome: Outcome, sources: list[str], top: int) -> str:
    """Render the page of an outcome."""
    first = outcome.results[0]
    title = f"Replay of {', '.join(sources)}"
    body = [f"<h1>{escape(title)}</h1>", _lead(outcome), *_warnings(outcome)]
    if outcome.difference is not None and first.requests:
        body.extend(_comparison(outcome, outcome.difference, top))
    else:
        body.append(f'<p class="dim">under {escape(first.name)}</p>')
        body.extend(_result(first, outcome, top))
    body.append(_unread(outcome))
    return whole_page(f"{title}: {first.name}", body)


def _lead(outcome: Outcome) -> str:
    outside = f"; {outcome.outside:,} requests outside are left out" if outcome.outside else ""
    if outcome.first_us is None or outcome.last_us is None:
        return f"<p>No request {outcome.why_none}.</p>"
    return f'<p class="dim">{span_text(outcome.first_us, outcome.last_us)}{outside}</p>'


def _warnings(outcome: Outcome) -> list[str]:
    warnings = [
        f"<b>{escape(part.source)}:{part.line}:</b> {escape(part.reason)}. The rest of this file is not counted."
        for part in outcome.unread.damaged
    ]
    warnings += [
        f"The times of <b>{escape(source)}</b> lack their month or their date: the first is taken for one of "
        f"{first.isoformat()}, by the date of the file."
        for source, first in outcome.unread.guessed.items()
    ]
    warnings += [
        f"No line of <b>{escape(source)}</b> has the field {escape(repr(field))} that was named for the {escape(role)}."
        for source, absent in outcome.unread.absent.items()
        for role, field in absent.items()
    ]
    return [f'<p class="warning">{text}</p>' for text in (*map(escape, outcome.left_out), *warnings)]


def _result(result: Result, outcome: Outcome, top: int) -> list[str]:
    parts = [
        facts(
            (f"{result.requests:,}", "requests", ""),
            (f"{result.allowed:,}", "passed", ""),
            (f"{result.denied:,}", f"refused ({_share(result.denied, result.requests)})", "refused"),
            (f"{outcome.unread.count:,}", "lines not read", ""),
        )
    ]
    for unit in outcome.costs:
        passed, refused = result.cost_allowed[unit], result.cost_denied[unit]
        cost, name = passed + refused, escape(unit or "cost")
        parts.append(
            facts(
                (grouped_text(cost, unit), f"{name} of all", ""),
                (grouped_text(passed, unit), f"{name} passed", ""),
                (grouped_text(refused, unit), f"{name} refused ({_share(refused, cost)})", "refused"),
            )
        )
    if not result.requests:
        return parts
    axis = axis_of(result.series)
    parts.append(legend("Requests", axis, ("passed", "passed"), ("refused", "refused")))
    parts.append(time_chart(result.series, axis, height=240, label="requests over time"))
    parts.extend((_rule_table(result), _busiest(result, top)))
    parts.extend(_rule(rule, axis, top) for rule in result.rules if rule.matched)
    return parts


def _rule_table(result: Result) -> str:
    rows = "".join(
        f'<tr><td class="wide"><b>{escape(rule.name)}</b>{_tag(rule)}</td>'
        f'<td class="wide"><code>{escape(rule.limits)}</code></td>'
        + _numbers(requests=rule.matched, passed=rule.allowed, refused=rule.refused)
        + f'<td class="num" data-name="share">{_share(rule.refused, rule.matched)}</td>'
        + _numbers(keys=rule.keys)
        + f'<td class="num" data-name="worst minute">{_worst(rule)}</td></tr>'
        for rule in result.rules
    )
    return (
        '<h2>Rules</h2><table class="cards"><thead><tr><th>Rule</th><th>Limits</th><th class="num">Requests</th>'
        '<th class="num">Passed</th><th class="num">Refused</th><th class="num">Share</th><th class="num">Keys</th>'
        f'<th class="num">Worst minute (UTC)</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _busiest(result: Result, top: int) -> str:
    """The busiest keys, each once, with how many of their requests each rule refused."""
    rows = "".join(
        f'<tr><td class="key wide">{escape(one.key)}</td><td data-name="by">{_by(one)}</td>'
        + _numbers(requests=one.requests)
        + f"<td>{'; '.join(f'{escape(name)} refused {count:,}' for name, count in one.refusals)}</td></tr>"
        for one in result.busiest(top)
    )
    return (
        '<h2>Busiest keys</h2><table class="cards"><thead><tr><th>Key</th><th>Counted by</th>'
        f'<th class="num">Requests</th><th>Refusals</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _by(key: BusyKey) -> str:
    return escape(" and ".join(key.by) or "nothing")


def _rule(rule: RuleResult, axis: Axis, top: int) -> str:
    refused = rule.most_refused(top)
    keys = f"<h3>Most often refused</h3>{key_bars(refused, css_class='refused')}" if refused else ""
    return (
        f"<h2>{escape(rule.name)} {_tag(rule)}</h2>"
        f'<p class="dim"><code>{escape(rule.limits)}</code>: {rule.refused:,} of {rule.matched:,} refused</p>'
        f"{time_chart(rule.series, axis, height=140, label=f'requests of {rule.name} over time')}{keys}"
    )


def _comparison(outcome: Outcome, difference: Difference, top: int) -> list[str]:
    one, other = outcome.results
    # The axis is made of all requests, so that the charts of the difference and of both policies show the same time.
    axis = axis_of(one.series)
    both = difference.newly_denied or difference.newly_allowed
    parts = [
        f'<p class="dim">{escape(one.name)}, and {escape(other.name)} in its place</p>',
        facts(
            (f"{one.requests:,}", "requests", ""),
            (f"{difference.newly_denied:,}", "newly refused", "refused"),
            (f"{difference.newly_allowed:,}", "newly passed", ""),
            (f"{outcome.unread.count:,}", "lines not read", ""),
        ),
        '<h2>What changes</h2><table class="cards"><thead><tr><th>Policy</th><th class="num">Passed</th>'
        '<th class="num">Refused</th><th class="num">Share</th></tr></thead><tbody>'
        + "".join(
            f'<tr><td class="wide"><b>{escape(result.name)}</b></td>'
            + _numbers(passed=result.allowed, refused=result.denied)
            + f'<td class="num" data-name="share">{_share(result.denied, result.requests)}</td></tr>'
            for result in outcome.results
        )
        + "</tbody></table>",
        f"<p>{escape(other.name)} refuses {difference.newly_denied:,} requests that {escape(one.name)} lets pass, "
        f"and lets {difference.newly_allowed:,} pass that it refuses.</p>",
    ]
    if both:
        parts.append(
            legend("Requests", axis, ("refused", "newly refused, upwards"), ("passed", "newly passed, downwards"))
        )
        parts.append(difference_chart(difference.series, axis, height=240, label="the difference over time"))
        parts.append(_difference_keys(difference, top))
    parts.append(_rules_of_both(one, other, difference))
    for result in outcome.results:
        content = "\n".join(_result(result, outcome, top))
        parts.append(f"<details><summary>{escape(result.name)} by itself</summary>{content}</details>")
    return parts


def _difference_keys(difference: Difference, top: int) -> str:
    columns = [
        f"<div><h3>{text}, by key</h3>{key_bars(most, css_class=css_class)}</div>"
        for denied, text, css_class in ((True, "Newly refused", "refused"), (False, "Newly passed", "passed"))
        if (most := difference.most(top, denied=denied))
    ]
    return f'<div class="two">{"".join(columns)}</div>'


def _rules_of_both(one: Result, other: Result, difference: Difference) -> str:
    """The rules of both policies, each once."""
    pairs: dict[str, list[RuleResult | None]] = {rule.name: [rule, None] for rule in one.rules}
    for rule in other.rules:
        pairs.setdefault(rule.name, [None, None])[1] = rule
    rows = []
    for name, (before, after) in pairs.items():
        denied, allowed = difference.rules.get(name, [0, 0])
        refused = [("" if rule is None else f"{rule.refused:,}") for rule in (before, after)]
        rows.append(
            f'<tr><td class="wide"><b>{escape(name)}</b>{_tag(after or before)}</td>'
            f'<td class="wide">{_limits_of_both(before, after)}</td>'
            f'<td class="num" data-name="refused by the first">{refused[0]}</td>'
            f'<td class="num" data-name="refused by the second">{refused[1]}</td>'
            f'<td class="num" data-name="newly refused">{denied:,}</td>'
            f'<td class="num" data-name="newly passed">{allowed:,}</td></tr>'
        )
    return (
        '<h2>By rule</h2><table class="cards"><thead><tr><th>Rule</th><th>Limits</th>'
        f'<th class="num">Refused: {escape(one.name)}</th><th class="num">{escape(other.name)}</th>'
        '<th class="num">Newly refused</th><th class="num">Newly passed</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _limits_of_both(before: RuleResult | None, after: RuleResult | None) -> str:
    if before is not None and after is not None and before.limits == after.limits:
        return f"<code>{escape(before.limits)}</code>"
    texts = ["not there" if rule is None else f"<code>{escape(rule.limits)}</code>" for rule in (before, after)]
    return f"{texts[0]}, now {texts[1]}"


def _unread(outcome: Outcome) -> str:
    if not outcome.unread.count:
        return ""
    rows = "".join(
        f'<tr><td class="wide">{escape(unread.source)}:{unread.line}</td><td class="wide">{escape(unread.reason)}</td>'
        f'<td class="wide"><code>{escape(printable(unread.text[:100]))}</code></td></tr>'
        for unread in outcome.unread.shown
    )
    return (
        f"<h2>Lines that could not be read</h2><p>{outcome.unread.count:,} in all; the first:</p>"
        f'<table class="cards">{rows}</table>'
    )


def _numbers(**counts: int) -> str:
    return "".join(f'<td class="num" data-name="{name}">{count:,}</td>' for name, count in counts.items())


def _share(part: int, total: int) -> str:
    return f"{100 * part / max(1, total):.2f} %"


def _tag(rule: RuleResult | None) -> str:
    return ' <span class="tag">shadow</span>' if rule is not None and rule.shadow else ""


def _worst(rule: RuleResult) -> str:
    worst = rule.worst_minute()
    return "" if worst is None else f"{worst[1]:,} at {clock_text(worst[0])}"
