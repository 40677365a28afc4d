"""Run the benchmarks and write docs/benchmarks.md: `python -m benchmarks [--quick] [SECTION...]`."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    batches,
    fleet,
    fleet_holding,
    gates,
    hits,
    holding,
    instructions,
    language_models,
    llm_proxy,
    memory,
    replays,
    service,
    shared,
    turns,
    usage,
    web,
)
from benchmarks.measuring import Section
from headgate import core

SECTIONS: dict[str, Callable[[bool], Section]] = {
    "hits": hits.run,
    "holding": holding.run,
    "turns": turns.run,
    "usage": usage.run,
    "batches": batches.run,
    "gates": gates.run,
    "language-models": language_models.run,
    "shared": shared.run,
    "fleet": fleet.run,
    "fleet-holding": fleet_holding.run,
    "web": web.run,
    "service": service.run,
    "llm-proxy": llm_proxy.run,
    "replays": replays.run,
    "memory": memory.run,
    "sizes": memory.run_sizes,  # leaves the machine with little warm memory: last of what is timed
    "instructions": instructions.run,
}
PEERS = (
    *("limits", "throttled-py", "pyrate-limiter", "aiolimiter", "tenacity"),
    *("slowapi", "fastapi-limiter", "Flask-Limiter", "django-ratelimit"),
    *("starlette", "fastapi", "Flask", "Django", "uvicorn", "gunicorn"),
)
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of {', '.join(SECTIONS)}; else all")
    parser.add_argument("--quick", action="store_true", help="few rounds and small sizes; the page is not written")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    console = Console(width=150 if not sys.stdout.isatty() else None, highlight=False)
    sections = []
    for name in options.sections or SECTIONS:
        section = SECTIONS[name](options.quick)
        show(console, section)
        sections.append(section)
    if not options.quick and not options.sections:
        PAGE.write_text(page(sections))
        console.print(f"written: {PAGE}")


def show(console: Console, section: Section) -> None:
    table = Table(*section.columns, title=section.title, title_justify="left")
    for row in section.rows:
        table.add_row(*row)
    console.print(table)
    for target in section.targets:
        console.print(f"{'met   ' if target.met else 'MISSED'}  {target.asked}: {target.measured}", soft_wrap=True)
    console.print()


def page(sections: list[Section]) -> str:
    """The report as Markdown."""
    lines = [
        "# Benchmarks",
        "",
        f"Measured on {date.today():%Y-%m-%d} by `make bench` in one run: {machine()}; Python "
        f"{platform.python_version()}, the {core.CORE} core; {', '.join(f'{peer} {version(peer)}' for peer in PEERS)}.",
        "",
        "All subjects of a table are measured in turns, after a round that warms up; a time is the median of its "
        "rounds, with the least and the most in parentheses. The machine is shared and noisy: read ratios, not times.",
        "",
        "| target | measured | |",
        "| --- | --- | --- |",
    ]
    lines.extend(
        f"| {target.asked} | {target.measured} | {'met' if target.met else '**missed**'} |"
        for section in sections
        for target in section.targets
    )
    for section in sections:
        lines.extend(["", f"## {section.title}", "", section.text, ""])
        lines.append(f"| {' | '.join(section.columns)} |")
        lines.append(f"| {' | '.join('---' for _ in section.columns)} |")
        lines.extend(f"| {' | '.join(row)} |" for row in section.rows)
    notes = PAGE.with_name("benchmarks-notes.md")
    if notes.exists():
        lines.extend(["", notes.read_text().strip()])
    return "\n".join(lines) + "\n"


def machine() -> str:
    """The processor, as the system names it."""
    cpus = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{len(cpus)} cores of {cpus[0]}, {platform.system()} {platform.release().split('-')[0]}"


main()
