"""Reads the file of a policy: no more of it than a policy may have, and again only what is a regular file."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from headgate.errors import ConfigError

LARGEST_BYTES = 1 << 20
"""So many bytes the text of a policy has at most."""

_LIKE_LIMITS = re.compile(r"\s*[0-9][0-9_]*\s*([a-z_-]+\s*)?(/|per\s|concurrent\b)", re.IGNORECASE)
"""How limits begin, whether or not the rest of them can be read."""


def read_policy_file(file: Path) -> bytes:
    """The text of a file, a pipe or a device; of one that is too long for a policy its beginning, and a byte too many.

    Raises OSError.
    """
    with file.open("rb") as source:
        return source.read(LARGEST_BYTES + 1)


def read_again(file: Path) -> bytes:
    """`read_policy_file` of a regular file. Raises OSError for any other, as a pipe would be waited for without end."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "it must be a regular file, not a pipe, a socket or a device", str(file))
        with os.fdopen(descriptor, "rb", closefd=False) as source:
            return source.read(LARGEST_BYTES + 1)
    finally:
        os.close(descriptor)


def check_path(path: str | os.PathLike[str], error: OSError) -> None:
    """Raise ConfigError for a path that could not be read since it is limits, or the policy itself, and say so."""
    if not isinstance(path, str) or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return
    if "\n" in path or path.lstrip().startswith("{"):
        wrong = "this text is that of a policy: write it to a file, or give its values"
    elif reads_as_limits(path):
        told = f'"{path:.60}"'
        wrong = f"{told} is no file and reads as limits: give a middleware limits={told}, or use Limiter({told})"
    else:
        return
    raise ConfigError(f"a policy is the path of a file, its values or a Policy; {wrong}") from error


def reads_as_limits(path: str) -> bool:
    """Whether a path is rather the text of limits, such as 5/minute, given in place of a policy that has them."""
    return _LIKE_LIMITS.match(path) is not None and not Path(path).suffix


def is_read_once(file: Path) -> bool:
    """Whether a file is there and gives its text once only: a pipe, a socket or a device."""
    try:
        kind = file.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)
