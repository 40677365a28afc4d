"""A replay as one self-contained HTML page: what would have passed and what not, over time, by rule, by key."""

from __future__ import annotations

from html import escape

from headgate.replay.charts import bars_of, key_bars, step_text, time_chart
from headgate.replay.judging import Result, RuleResult
from headgate.replay.replay import Outcome
from headgate.replay.times import iso_time

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --dim: #5b6b7a; --paper: #fbfcfd; --line: #dde4ea;
  --passed: #7fb7b2; --refused: #d1495b; --accent: #0b7a75; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #93a4b3; --paper: #10161c; --line: #2a3642;
  --passed: #3d7d78; --refused: #ef6f7f; --accent: #4fc3bb; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 64rem; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.6rem 0 .3rem; }
p { margin: .2rem 0 .8rem; } .dim { color: var(--dim); } code { font: .88em ui-monospace, monospace; }
.facts { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: 1.4rem 0; }
.facts b { display: block; font-size: 1.7rem; font-variant-numeric: tabular-nums; line-height: 1.2; }
.facts .refused b { color: var(--refused); }
.chart { width: 100%; height: auto; display: block; } .grid { stroke: var(--line); }
.tick { font: 11px system-ui, sans-serif; fill: var(--dim); }
rect.passed { fill: var(--passed); } rect.refused { fill: var(--refused); } g:hover rect { opacity: .75; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .4em 0 1em; }
i.passed { background: var(--passed); } i.refused { background: var(--refused); }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th, td { text-align: left; padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line); }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.two { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 0 2.5rem; }
.keys td { border: 0; padding: .15rem .6rem .15rem 0; } .keys .key { font: .85rem ui-monospace, monospace; width: 45%; }
.keys .bar { width: 40%; } .keys .bar i { display: block; height: .8em; border-radius: 2px; min-width: 2px; }
.tag { font-size: .75rem; font-weight: 400; border: 1px solid var(--line); border-radius: .6rem; padding: 0 .5rem; }
h3 { font-size: .95rem; margin: 1rem 0 .2rem; color: var(--dim); font-weight: 600; }
"""


def report(outcome: Outcome, sources: list[str], top: int) -> str:
    """The page of an outcome."""
    first = outcome.results[0]
    title = f"Replay of {', '.join(sources)}"
    body = [f"<h1>{escape(title)}</h1>", _lead(outcome), _damaged(outcome)]
    if len(outcome.results) > 1:
        body.append(_comparison(outcome))
    for result in outcome.results:
        body.append(_result(result, outcome, top, several=len(outcome.results) > 1))
    body.append(_unread(outcome))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}: {escape(first.name)}</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(part for part in body if part) + "\n</body></html>\n"
    )


def _lead(outcome: Outcome) -> str:
    if outcome.first_us is None or outcome.last_us is None:
        return "<p>No request could be read.</p>"
    return f'<p class="dim">{iso_time(outcome.first_us)} to {iso_time(outcome.last_us)}</p>'


def _facts(result: Result, outcome: Outcome) -> str:
    share = 100 * result.denied / max(1, result.requests)
    return (
        '<div class="facts">'
        f"<div><b>{result.requests:,}</b>requests</div>"
        f"<div><b>{result.allowed:,}</b>passed</div>"
        f'<div class="refused"><b>{result.denied:,}</b>refused ({share:.2f} %)</div>'
        f"<div><b>{outcome.unread.count:,}</b>lines not read</div></div>"
    )


def _result(result: Result, outcome: Outcome, top: int, *, several: bool) -> str:
    parts = [f"<h2>{escape(result.name)}</h2>" if several else f'<p class="dim">under {escape(result.name)}</p>']
    parts.append(_facts(result, outcome))
    if outcome.first_us is None or outcome.last_us is None:
        return "\n".join(parts)
    bars, step_us = bars_of(result.series, outcome.first_us, outcome.last_us)
    legend = '<i class="passed"></i>passed<i class="refused"></i>refused'
    parts.append(f'<p class="legend dim">Requests per {step_text(step_us)}{legend}</p>')
    parts.append(time_chart(bars, step_us, height=260, label="requests over time"))
    parts.append(_rule_table(result))
    parts.extend(_rule(rule, outcome.first_us, outcome.last_us, top) for rule in result.rules if rule.matched)
    return "\n".join(parts)


def _rule_table(result: Result) -> str:
    rows = "".join(
        f"<tr><td><b>{escape(rule.name)}</b>{_tag(rule)}</td><td><code>{escape(rule.limits)}</code></td>"
        f"{_numbers(rule.matched, rule.allowed, rule.refused, rule.keys)}"
        f'<td class="num">{_worst(rule)}</td></tr>'
        for rule in result.rules
    )
    return (
        '<h2>Rules</h2><table><thead><tr><th>Rule</th><th>Limits</th><th class="num">Requests</th>'
        '<th class="num">Passed</th><th class="num">Refused</th><th class="num">Keys</th>'
        f'<th class="num">Worst minute</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _rule(rule: RuleResult, first_us: int, last_us: int, top: int) -> str:
    bars, step_us = bars_of(rule.series, first_us, last_us)
    chart = time_chart(bars, step_us, height=150, label=f"requests of {rule.name} over time")
    refused = rule.most_refused(top)
    columns = [f"<div><h3>Busiest keys</h3>{key_bars(rule.busiest(top), css_class='passed')}</div>"]
    if refused:
        columns.insert(0, f"<div><h3>Most often refused</h3>{key_bars(refused, css_class='refused')}</div>")
    return (
        f"<h2>{escape(rule.name)} {_tag(rule)}</h2>"
        f'<p class="dim"><code>{escape(rule.limits)}</code>: {rule.refused:,} of {rule.matched:,} refused</p>'
        f'{chart}<div class="two">{"".join(columns)}</div>'
    )


def _comparison(outcome: Outcome) -> str:
    one, other = outcome.results
    assert outcome.difference is not None
    return (
        "<h2>Side by side</h2><table><thead><tr><th></th>"
        f'<th class="num">{escape(one.name)}</th><th class="num">{escape(other.name)}</th></tr></thead><tbody>'
        f"<tr><td>passed</td>{_numbers(one.allowed, other.allowed)}</tr>"
        f"<tr><td>refused</td>{_numbers(one.denied, other.denied)}</tr></tbody></table>"
        f"<p>{escape(other.name)} refuses {outcome.difference.newly_denied:,} requests "
        f"that {escape(one.name)} lets pass, "
        f"and lets {outcome.difference.newly_allowed:,} pass that it refuses.</p>"
    )


def _damaged(outcome: Outcome) -> str:
    return "".join(
        f'<p class="warning"><b>{escape(part.source)}:{part.line}:</b> {escape(part.reason)}. '
        "What comes here and after is not judged.</p>"
        for part in outcome.unread.damaged
    )


def _unread(outcome: Outcome) -> str:
    if not outcome.unread.count:
        return ""
    rows = "".join(
        f"<tr><td>{escape(unread.source)}:{unread.line}</td><td>{escape(unread.reason)}</td>"
        f"<td><code>{escape(unread.text[:100])}</code></td></tr>"
        for unread in outcome.unread.shown
    )
    return (
        f"<h2>Lines that could not be read</h2><p>{outcome.unread.count:,} in all; the first:</p><table>{rows}</table>"
    )


def _numbers(*counts: int) -> str:
    return "".join(f'<td class="num">{count:,}</td>' for count in counts)


def _tag(rule: RuleResult) -> str:
    return ' <span class="tag">shadow</span>' if rule.shadow else ""


def _worst(rule: RuleResult) -> str:
    worst = rule.worst_minute()
    return "" if worst is None else f"{worst[1]:,} at {iso_time(worst[0])[:16].replace('T', ' ')}"
