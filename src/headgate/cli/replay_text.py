"""The outcome of a replay as text for a terminal: nothing important is lost at 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from headgate.amounts import grouped_text
from headgate.errors import printable
from headgate.replay.entries import Tally
from headgate.replay.rates_only import LEFT_OUT
from headgate.replay.replay import Outcome
from headgate.replay.results import Result, RuleResult
from headgate.replay.times import clock_text, span_text

_NARROWEST = 40
_HEADS = ("requests", "passed", "refused", "%", "keys")


def outcome_lines(outcome: Outcome, top: int, width: int) -> Iterator[str]:
    """The result of each policy, rule by rule, and the differences of two of them."""
    width = max(width, _NARROWEST)
    for index, result in enumerate(outcome.results):
        if index:
            yield ""
        yield from _headline(result, outcome, width)
        if result.requests:
            yield ""
            yield from _rules(result, width)
            yield ""
            yield from _refusals(result, top, width)
            yield from _busiest(result, top, width)
    if outcome.difference is not None:
        yield ""
        yield from _difference(outcome, top, width)


def unread_lines(tally: Tally) -> Iterator[str]:
    """Messages about lines that could not be read, fields that were absent, and dates that were guessed."""
    for source, absent in tally.absent.items():
        for role, field in absent.items():
            yield f"{source}: no line has the field {field!r} that was named for the {role}"
    for source, first in tally.guessed.items():
        yield (
            f"{source}: its times lack their month or their date: the first is taken for one of {first.isoformat()}, "
            "by the date of the file; --date says another"
        )
    for source in tally.empty:
        yield f"{source}: there is no request in it: no lines, or none but blank ones and names of columns"
    for part in tally.damaged:
        yield f"{part.source}:{part.line}: {part.reason}: the rest of this file is not counted"
    if not tally.count:
        return
    lines = "1 line" if tally.count == 1 else f"{tally.count:,} lines"
    yield f"{lines} could not be read; the first:"
    for unread in tally.shown:
        shown = printable(unread.text[:120])
        yield f"  {unread.source}:{unread.line}: {unread.reason}{f': {shown}' if shown else ''}"


def _headline(result: Result, outcome: Outcome, width: int) -> Iterator[str]:
    if outcome.first_us is None or outcome.last_us is None:
        yield f"{result.name}: no request {outcome.why_none}"
        return
    parts = [
        "1 request" if result.requests == 1 else f"{result.requests:,} requests", f"{result.allowed:,} passed",
        f"{result.denied:,} refused ({_share(result.denied, result.requests)} %)",
    ]  # fmt: skip
    yield from _wrapped(f"{result.name}: {', '.join(parts)}", width, "  ")
    if result.left_out:
        yield from _wrapped(f"{LEFT_OUT}: {', '.join(result.left_out)}", width, "  ")
    for unit in outcome.costs:
        passed, refused = result.cost_allowed[unit], result.cost_denied[unit]
        share = _share(refused, passed + refused)
        shown = [grouped_text(number, unit) for number in (passed + refused, passed, refused)]
        text = "their cost{} is {}: {} passed, {} refused ({} %)".format(f" in {unit}" if unit else "", *shown, share)
        yield from _wrapped(text, width, "  ")
    outside = f"; {outcome.outside:,} requests outside" if outcome.outside else ""
    yield from _wrapped(f"{span_text(outcome.first_us, outcome.last_us)}{outside}", width, "  ")


def _rules(result: Result, width: int) -> Iterator[str]:
    """A row for each rule. Limits are in a line of their own where the row has no space for them."""
    rows = [
        (f"{rule.matched:,}", f"{rule.allowed:,}", f"{rule.refused:,}", _share(rule.refused, rule.matched),
         f"{rule.keys:,}")
        for rule in result.rules
    ]  # fmt: skip
    widths = [max(len(head), *(len(row[index]) for row in rows)) for index, head in enumerate(_HEADS)]
    numbers_width = sum(widths) + 2 * len(widths)
    names = [_name(rule) for rule in result.rules]
    # A name that is too long is above its numbers.
    first = min(max(4, *(len(name) for name in names)), max(4, width - numbers_width - 2))
    head = f"  {'rule':{first}}{_numbers(_HEADS, widths)}"
    yield f"{head}  limits" if len(head) + 8 <= width else head
    for rule, name, row in zip(result.rules, names, rows, strict=True):
        if len(name) > first:
            yield f"  {name}"
        line = f"  {'' if len(name) > first else name:{first}}{_numbers(row, widths)}"
        if len(line) + 2 + len(rule.limits) <= width:
            yield f"{line}  {rule.limits}"
        else:
            yield line
            yield from _wrapped(f"    {rule.limits}", width, "    ")


def _refusals(result: Result, top: int, width: int) -> Iterator[str]:
    """For each rule that refused: the keys that it refused most often, and the worst minute."""
    for rule in result.rules:
        worst = rule.worst_minute()
        if worst is not None:
            yield from _counts(f"{rule.name} refused most often", rule.most_refused(top), width)
            yield f"  worst minute {clock_text(worst[0])} UTC: {worst[1]:,} refused"


def _busiest(result: Result, top: int, width: int) -> Iterator[str]:
    """The busiest keys, each once, grouped by their identities where these differ."""
    busiest = result.busiest(top)
    for by in dict.fromkeys(one.by for one in busiest):
        name = (
            f"busiest keys by {' and '.join(by) or 'nothing'}"
            if len({one.by for one in busiest}) > 1
            else "busiest keys"
        )
        yield from _counts(name, [(one.key, one.requests) for one in busiest if one.by == by], width)


def _difference(outcome: Outcome, top: int, width: int) -> Iterator[str]:
    assert outcome.difference is not None
    difference, (one, other) = outcome.difference, outcome.results
    yield from _wrapped(
        f"{other.name} refuses {difference.newly_denied:,} requests that {one.name} lets pass, "
        f"and lets {difference.newly_allowed:,} pass that it refuses",
        width,
        "  ",
    )
    for denied, text in ((True, "newly refused"), (False, "newly passed")):
        rules = [(name, counts[not denied]) for name, counts in sorted(difference.rules.items()) if counts[not denied]]
        yield from _counts(f"  {text}, by rule", rules, width)
        yield from _counts(f"  {text}, by key", difference.most(top, denied=denied), width)


def _counts(name: str, counts: Sequence[tuple[str, int]], width: int) -> Iterator[str]:
    """`name: key (count), key (count)`, wrapped only between keys."""
    if not counts:
        return
    indent = " " * (len(name) - len(name.lstrip()) + 2)
    line = f"{name}:"
    for index, (key, count) in enumerate(counts):
        item = f"{key} ({count:,})" + ("," if index < len(counts) - 1 else "")
        if len(line) + 1 + len(item) > width and line.strip():
            yield line
            line = f"{indent}{item}"
        else:
            line = f"{line} {item}"
    yield line


def _numbers(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"  {text:>{width}}" for text, width in zip(texts, widths, strict=True))


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def _name(rule: RuleResult) -> str:
    return f"{rule.name} (shadow)" if rule.shadow else rule.name


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.2f}"
