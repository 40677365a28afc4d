"""The terminal that results are shown on: how wide it is, and what happens when it goes away."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_OF_A_FILE = 120


def width() -> int:
    """How wide results are: as COLUMNS says, else as the terminal is, else as wide as a page."""
    return shutil.get_terminal_size((_WIDTH_OF_A_FILE, 24)).columns


def printable(text: str) -> str:
    """A message without what a terminal would obey: names of files and columns may hold anything."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def results() -> Console:
    """A console for results, on stdout."""
    from rich.console import Console

    class _Results(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return _Results(highlight=False, width=width(), file=sys.stdout)
