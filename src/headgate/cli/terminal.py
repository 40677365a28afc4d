"""The terminal that shows results: its width, and what happens when it is closed."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_OF_A_FILE = 120


def width() -> int:
    """The width of results: that of COLUMNS, else that of the terminal, else that of a file."""
    return shutil.get_terminal_size((_WIDTH_OF_A_FILE, 24)).columns


def printable(text: str) -> str:
    """A message without control characters: names of files and columns may contain any."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def results() -> Console:
    """A console for results, on stdout."""
    from rich.console import Console

    class _Results(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return _Results(highlight=False, width=width(), file=sys.stdout)
