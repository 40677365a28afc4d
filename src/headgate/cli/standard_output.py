"""The standard output of the command: an error in writing to it names it, also where it was closed from the start."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

_NAME = "standard output"


class _NamedFile(io.FileIO):
    """The file behind stdout; its errors have the name that people know it by."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, _NAME) from error


class _Closed(io.TextIOBase):
    """Stands for a stdout that was closed before Python began, in which Python loses what is printed."""

    def write(self, text: str, /) -> NoReturn:
        raise OSError(errno.EBADF, "closed, and the results go there", _NAME)


def name_standard_output() -> None:
    """Replace `sys.stdout` by one whose errors name it, and which writes as soon as the old one did."""
    stdout = sys.stdout
    if stdout is None:
        sys.stdout = _Closed()
    elif isinstance(stdout, io.TextIOWrapper):
        file = _NamedFile(stdout.fileno(), "wb", closefd=False)
        sys.stdout = io.TextIOWrapper(
            file if isinstance(stdout.buffer, io.RawIOBase) else io.BufferedWriter(file),
            encoding=stdout.encoding, errors=stdout.errors, newline="\n",
            line_buffering=stdout.line_buffering, write_through=stdout.write_through,
        )  # fmt: skip


def discard_if_closed() -> None:
    """Discard what is printed where stdout was closed, as Python does: for commands that run code of their users."""
    if isinstance(sys.stdout, _Closed):
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
