"""Opens logs by their names: files, pipes and standard input."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from headgate.replay.pipes import copy_pipe, standard_input
from headgate.replay.sources import Log, Reading


def open_logs(names: Sequence[str], reading: Reading, copies: ExitStack) -> list[Log]:
    """Open the logs with these names; `-` is standard input. It and other pipes are first copied to a temporary folder,
    which `copies` removes."""
    logs = []
    folder = None
    for place, name in enumerate(names):
        path = Path(name)
        if name != "-" and (path.is_file() or path.is_dir() or not path.exists()):
            logs.append(Log(path, reading))
            continue
        if folder is None:
            folder = Path(copies.enter_context(tempfile.TemporaryDirectory(prefix="headgate-replay-")))
        copy = folder / f"copy-{place}"
        with copy.open("wb") as into, nullcontext(standard_input()) if name == "-" else path.open("rb") as stream:
            copy_pipe(stream, into)
        logs.append(Log(copy, reading, "standard input" if name == "-" else name))
    return logs
