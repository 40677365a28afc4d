"""The page of benchmarks: measured sections, each with its day and machine, as Markdown.

A section is stored as JSON in `benchmarks/measured` until it is measured again, so that one can be brought up to
date without measuring all the others. What is compared is within one section, and was measured in turns.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks.measuring import Section, Target
from headgate import core

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
NOTES = PAGE.with_name("benchmarks-notes.md")
MEASURED = ROOT / "benchmarks" / "measured"
PEERS = (
    *("limits", "throttled-py", "pyrate-limiter", "aiolimiter", "tenacity"),
    *("slowapi", "fastapi-limiter", "Flask-Limiter", "django-ratelimit"),
    *("starlette", "fastapi", "Flask", "Django", "uvicorn", "gunicorn"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A section as it was measured, with the day and the machine."""

    section: Section
    day: str
    machine: str


def store(name: str, section: Section, directory: Path = MEASURED) -> None:
    """Store a section that was just measured."""
    directory.mkdir(exist_ok=True)
    stored = {"day": f"{date.today():%Y-%m-%d}", "machine": machine(), "section": asdict(section)}
    (directory / f"{name}.json").write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


def stored(names: Iterable[str], directory: Path = MEASURED) -> Iterator[Measured]:
    """The stored sections with these names, in this order."""
    for name in names:
        file = directory / f"{name}.json"
        if file.exists():
            values = json.loads(file.read_text())
            section = values["section"]
            targets = [Target(**target) for target in section.pop("targets")]
            yield Measured(Section(**section, targets=targets), values["day"], values["machine"])


def page(measured: Iterable[Measured], notes: str) -> str:
    """The report as Markdown, with `notes` at its end."""
    sections = list(measured)
    lines = [
        "# Benchmarks",
        "",
        "`make bench` measures all of this and writes this page; each section tells when it was measured. All "
        "subjects of a table are measured in turns, after a round that warms up; a time is the median of its rounds, "
        "with the least and the most in parentheses. The machine is shared and noisy: read ratios, not times.",
        "",
        "| target | measured | |",
        "| --- | --- | --- |",
    ]
    lines.extend(
        f"| {target.asked} | {target.measured} | {'met' if target.met else '**missed**'} |"
        for one in sections
        for target in one.section.targets
    )
    for one in sections:
        section = one.section
        lines.extend(["", f"## {section.title}", "", section.text, "", f"Measured on {one.day}: {one.machine}.", ""])
        lines.append(f"| {' | '.join(section.columns)} |")
        lines.append(f"| {' | '.join('---' for _ in section.columns)} |")
        lines.extend(f"| {' | '.join(row)} |" for row in section.rows)
    versions = ", ".join(f"{peer} {version(peer)}" for peer in PEERS)
    lines.extend(["", "## Versions", "", f"When this page was written these were installed: {versions}."])
    lines.extend(["", notes.strip()])
    return "\n".join(lines) + "\n"


def machine() -> str:
    """The processor, as the system names it, the version of Python, and the core that decides."""
    cpus = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    system = f"{len(cpus)} cores of {cpus[0]}, {platform.system()} {platform.release().split('-')[0]}"
    return f"{system}; Python {platform.python_version()}, the {core.CORE} core"
