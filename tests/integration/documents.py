"""The examples in README and docs, taken out of their pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RUN = ("python", "yaml", "console")
"""Blocks of these languages are run."""

NOT_RUN = ("sh", "text", "json", "ini", "nginx", "caddy", "http", "haproxy", "lua", "envoy", "toml")
"""`sh` is for what does not end, the others are for other programs."""

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str


class Command(NamedTuple):
    """A command of a console block, and what the page says that it prints."""

    line: int
    command: str
    output: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 2, match[2], _unindented(match[3], len(match[1])))
        for match in _BLOCK.finditer(text)
    ]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block: lines after `$ `, carried on by a backslash, then their output."""
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        assert lines[at].startswith("$ "), f"{block.page.name}:{block.line + at}: a command begins with $"
        first, command = at, lines[at][2:]
        while command.endswith("\\"):
            at += 1
            command += "\n" + lines[at]
        at += 1
        start = at
        while at < len(lines) and not lines[at].startswith("$ "):
            at += 1
        yield Command(block.line + first, command, "\n".join(lines[start:at]))


def says(expected: str) -> re.Pattern[str]:
    """What matches an output as a page shows it: `...` stands for any lines, `…` for any characters of a line."""
    pieces = []
    for line in expected.strip().splitlines():
        if line.strip() == "...":
            pieces.append(r"(?:.*\n)*?")
        else:
            words = [re.escape(word) for word in line.rstrip().split("…")]
            pieces.append(".*".join(words) + r" *\n")
    return re.compile("".join(pieces))


def _unindented(text: str, indent: int) -> str:
    return "".join(line[indent:] if line[:indent].isspace() else line for line in text.splitlines(keepends=True))
