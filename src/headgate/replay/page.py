"""A page in one self-contained HTML file: its style, large numbers, legends. It has no script, and fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from headgate.replay.axis import Axis, step_text

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --dim: #566573; --paper: #fbfcfd; --line: #dde4ea;
  --passed: #6fada7; --refused: #cf3f53; --warning: #fdf1d8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9fb0bf; --paper: #10161c; --line: #2a3642;
  --passed: #46908a; --refused: #ef6f7f; --warning: #3a2f14; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 64rem; padding: 2rem 1.25rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .3rem; }
h3 { font-size: 1rem; margin: 1rem 0 .2rem; color: var(--dim); font-weight: 600; }
p { margin: .2rem 0 .8rem; } .dim { color: var(--dim); } code { font: .88em ui-monospace, monospace; }
.warning { background: var(--warning); padding: .5rem .8rem; border-radius: 6px; }
.facts { display: flex; flex-wrap: wrap; gap: .8rem 2.5rem; margin: 1.2rem 0; }
.facts b { display: block; font-size: 1.7rem; font-variant-numeric: tabular-nums; line-height: 1.2; }
.facts .refused b { color: var(--refused); }
.chart { display: grid; grid-template-columns: 3rem 1fr; margin: .6rem 0 1rem; }
.scale, .plot, .ticks { position: relative; font-size: 12px; line-height: 1.2; color: var(--dim); }
.scale { height: var(--height); } .ticks { grid-column: 2; height: 2.6rem; } .plot svg { display: block; }
.scale span { position: absolute; right: .5rem; transform: translateY(-50%); font-variant-numeric: tabular-nums; }
.plot svg { width: 100%; height: var(--height); }
.grid line { stroke: var(--line); vector-effect: non-scaling-stroke; }
.ticks span { position: absolute; top: .3rem; transform: translateX(-50%); white-space: nowrap; text-align: center; }
.ticks .first { transform: none; text-align: left; } .ticks .last { transform: translateX(-100%); text-align: right; }
.ticks small { display: block; font-size: 12px; }
.break { position: absolute; top: 0; height: var(--height); display: grid; place-items: center; overflow: visible;
  background: repeating-linear-gradient(135deg, transparent 0 3px, var(--line) 3px 5px); }
.break b { writing-mode: vertical-rl; font-weight: 400; background: var(--paper); padding: 4px 0; white-space: nowrap; }
rect.passed { fill: var(--passed); } rect.refused { fill: var(--refused); } g:hover > rect { opacity: .75; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .4em 0 1em; }
i.passed { background: var(--passed); } i.refused { background: var(--refused); }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th, td { text-align: left; padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 0 2.5rem; }
.keys td { border: 0; padding: .15rem .6rem .15rem 0; } .key { font: .85rem ui-monospace, monospace; }
.keys .key { width: 50%; word-break: break-all; } .keys .bar { width: 35%; vertical-align: middle; }
.keys .bar i { display: block; height: .8em; border-radius: 2px; min-width: 2px; }
.tag { font-size: .8rem; font-weight: 400; border: 1px solid var(--line); border-radius: .6rem; padding: 0 .5rem; }
details { margin: 1.6rem 0; } summary { font-size: 1.2rem; font-weight: 700; cursor: pointer; }
@media (max-width: 700px) {
  body { padding: 1.2rem 1rem 3rem; } .chart { grid-template-columns: 2.4rem 1fr; }
  .ticks span:not(.major) { display: none; }
  .cards thead { display: none; } .cards tr { display: flex; flex-wrap: wrap; gap: 0 1rem; padding: .5rem 0;
    border-bottom: 1px solid var(--line); } .cards td { border: 0; padding: 0; }
  .cards td.wide { flex-basis: 100%; word-break: break-word; } .cards td:empty { display: none; }
  .cards td[data-name]::before { content: attr(data-name) " "; color: var(--dim); }
}
"""


def whole_page(title: str, parts: Iterable[str]) -> str:
    """The page with these parts, which are HTML; the title is plain text."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(part for part in parts if part) + "\n</body></html>\n"
    )


def facts(*numbers: tuple[str, str, str]) -> str:
    """Large numbers, each as (number, what it counts, CSS class)."""
    boxes = "".join(f'<div class="{css_class}"><b>{number}</b>{text}</div>' for number, text, css_class in numbers)
    return f'<div class="facts">{boxes}</div>'


def legend(what: str, axis: Axis, *marks: tuple[str, str]) -> str:
    shown = "".join(f'<i class="{css_class}"></i>{text}' for css_class, text in marks)
    breaks = "; hatched: nothing happened" if len(axis.stretches) > 1 else ""
    return f'<p class="legend dim">{what} per {step_text(axis.step_us)}, in UTC{breaks}{shown}</p>'
