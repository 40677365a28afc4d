"""Removes what is no text of a log: the NUL bytes that lines begin with.

A file that is truncated while a server writes to it (`copytruncate` of logrotate) may get them in place of what it had,
and a crash of the system may leave them at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_HOLE = re.compile(rb"\n\0+")


def without_holes(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same chunks of a log without the NUL bytes at the start of lines; none of them is empty."""
    starts_line = True
    for chunk in chunks:
        text = chunk.lstrip(b"\0") if starts_line else chunk
        if b"\n\0" in text:
            text = _HOLE.sub(b"\n", text)
        if text:
            starts_line = text.endswith(b"\n")
            yield text
