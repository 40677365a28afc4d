"""Run the benchmarks: `python -m benchmarks [--quick | --write] [SECTION...]`.

All of them are kept and docs/benchmarks.md is written; of some of them only with `--write`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks import (
    batches,
    fleet,
    fleet_before_holds,
    fleet_holding,
    front_door,
    gates,
    hits,
    holding,
    instructions,
    language_models,
    llm_proxy,
    memory,
    replays,
    report,
    service,
    shared,
    turns,
    usage,
    web,
    web_counted,
    web_inside,
)
from benchmarks.measuring import Section

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
    "fleet-before-holds": fleet_before_holds.run,
    "web": web.run,
    "web-inside": web_inside.run,
    "web-counted": web_counted.run,
    "service": service.run,
    "front-door": front_door.run,
    "llm-proxy": llm_proxy.run,
    "replays": replays.run,
    "memory": memory.run,
    "sizes": memory.run_sizes,  # leaves the machine with little warm memory: last of what is timed
    "instructions": instructions.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of {', '.join(SECTIONS)}; else all")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="few rounds and small sizes; the page is not written")
    mode.add_argument("--write", action="store_true", help="write these sections into docs/benchmarks.md")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    console = Console(width=150 if not sys.stdout.isatty() else None, highlight=False)
    write = options.write or not (options.quick or options.sections)
    for name in options.sections or SECTIONS:
        section = SECTIONS[name](options.quick)
        show(console, section)
        if write:  # what was measured is not lost where a later section fails
            report.store(name, section)
            report.PAGE.write_text(report.page(report.stored(SECTIONS), report.NOTES.read_text()))
    if write:
        console.print(f"written: {report.PAGE}")


def show(console: Console, section: Section) -> None:
    table = Table(*section.columns, title=section.title, title_justify="left")
    for row in section.rows:
        table.add_row(*row)
    console.print(table)
    for target in section.targets:
        console.print(f"{'met   ' if target.met else 'MISSED'}  {target.asked}: {target.measured}", soft_wrap=True)
    console.print()


if __name__ == "__main__":
    main()
