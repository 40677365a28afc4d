"""Standard input and other pipes, which can be read once."""

from __future__ import annotations

import os
import select
import shutil
import sys
from errno import EBADF
from typing import BinaryIO

from headgate.replay.compressed import CHUNK

_SIGNAL_CHECK_S = 0.5


def copy_pipe(stream: BinaryIO, into: BinaryIO) -> None:
    """Copy a stream until its end. A signal is handled soon, even one that arrives just before a read."""
    try:
        pipe = stream.fileno()
    except OSError:  # it has no file descriptor
        shutil.copyfileobj(stream, into, CHUNK)
        return
    while True:
        if select.select([pipe], [], [], _SIGNAL_CHECK_S)[0]:
            piece = os.read(pipe, CHUNK)
            if not piece:
                return
            into.write(piece)


def standard_input() -> BinaryIO:
    """Standard input; raises OSError where it was closed before Python began."""
    if sys.stdin is None:
        raise OSError(EBADF, os.strerror(EBADF), "standard input")
    return sys.stdin.buffer
