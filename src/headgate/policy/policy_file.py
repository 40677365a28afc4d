"""Reads the file of a policy: no more than the largest policy; read again, it must be a regular file."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from headgate.errors import ConfigError, without_credentials

LARGEST_BYTES = 1 << 20
"""The most bytes that the text of a policy may have."""

_LIKE_LIMITS = re.compile(r"\s*[0-9][0-9_]*\s*([a-z_-]+\s*)?(/|per\s|concurrent\b)", re.IGNORECASE)
"""The beginning of a limits text, whether or not the rest is valid."""


def read_policy_file(file: Path) -> bytes:
    """Read the text of a file, a pipe or a device, but at most one byte more than `LARGEST_BYTES`.

    Raises OSError.
    """
    with file.open("rb") as source:
        return _read(source, file)


def read_again(file: Path) -> bytes:
    """`read_policy_file`, of a regular file only. Raises OSError for others: reading a pipe would wait for ever."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "it must be a regular file, not a pipe, a socket or a device", str(file))
        with os.fdopen(descriptor, "rb", closefd=False) as source:
            return _read(source, file)
    finally:
        os.close(descriptor)


def _read(source: BinaryIO, file: Path) -> bytes:
    """Read at most one byte more than `LARGEST_BYTES`; raises OSError that names the file, as the system does not."""
    try:
        return source.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def check_path(path: str | os.PathLike[str], error: OSError) -> None:
    """Raise ConfigError for a path that could not be read because it is a limits text, a URL, or the policy itself."""
    if not isinstance(path, str) or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return
    cause: OSError | None = error
    if "\n" in path or path.lstrip().startswith("{"):
        mistake = "this text is that of a policy: write it to a file, or give its values"
    elif reads_as_limits(path):
        quoted = f'"{path:.60}"'
        mistake = (
            f"{quoted} is no file and reads as limits: give a middleware limits={quoted}, or use Limiter({quoted})"
        )
    elif "://" in path:
        mistake = f"{without_credentials(path)[:60]!r} is a URL"
        cause = None  # it has the path, perhaps with a password
    else:
        return
    raise ConfigError(f"a policy is the path of a file, its values or a Policy; {mistake}") from cause


def reads_as_limits(path: str) -> bool:
    """Whether a path is the text of limits, such as 5/minute, given in place of a policy that has them."""
    return _LIKE_LIMITS.match(path) is not None and not Path(path).suffix


def is_read_once(file: Path) -> bool:
    """Whether a file exists and can be read only once: a pipe, a socket or a device."""
    try:
        kind = file.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)
