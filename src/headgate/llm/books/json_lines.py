"""Books as JSON lines: a file that several processes append to, rotated by size and by day.

Each entry is a line. Batches are written under a lock of the file (flock), so a process that is killed truncates at
most one line, the last one; the next batch begins on a new line.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from headgate.clock import utc_moment
from headgate.llm.books.records import Record, fields_of

log = logging.getLogger("headgate")

MOST_BYTES = 64 << 20
_DAY_US = 86_400_000_000
_AT_US = re.compile(rb'"at_us":([0-9]{1,16})')
_FIRST_BYTES = 1 << 16

Line = tuple[int, bytes]
"""The time of a record, in microseconds, and its line."""


class JsonLinesFile:
    """The file at `path`, with older ones beside it: `books.jsonl`, `books-20261123-000001.jsonl.gz`.

    A file is rotated before it grows past `most_bytes`, and, if `daily`, before the first record of a later day (UTC)
    than that of its first one. Of the rotated files the last `keep` remain, or all where that is None; they are
    compressed if `compress`.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_bytes: int = MOST_BYTES,
        daily: bool = True,
        keep: int | None = None,
        compress: bool = True,
    ) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._daily = daily
        self._keep = keep
        self._compress = compress
        self._descriptor: int | None = None
        self._has_logged_failure = False

    @property
    def name(self) -> str:
        return str(self.path)

    def open(self) -> None:
        """Create the file where there is none; raises OSError."""
        with self._locked():
            pass

    def encode(self, record: Record) -> Line:
        fields = fields_of(record)
        return fields["at_us"], json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    def append(self, encoded: Sequence[Line]) -> None:
        data = b"".join(line for _, line in encoded)
        rotated: Path | None = None
        with self._locked() as descriptor:
            size = os.fstat(descriptor).st_size
            if size and self._is_full(descriptor, size + len(data), encoded[0][0]):
                rotated = self._rotate(descriptor)
        with self._locked() as descriptor:
            _append(descriptor, data)
        if rotated is not None:
            self._clean_up(rotated)

    @contextmanager
    def exclusive(self) -> Iterator[Callable[[Record], None]]:
        """Yield a function that appends a record, while other processes wait."""
        with self._locked() as descriptor:
            yield lambda record: _append(descriptor, self.encode(record)[1])

    def close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.fsync(self._descriptor)
        self.after_fork()

    def after_fork(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)  # a lock that the parent holds stays the parent's
            self._descriptor = None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the file that is at the path now for this process."""
        while True:
            if self._descriptor is None:
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags, 0o600)
            descriptor = self._descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, self.path):
                break
            self.after_fork()  # another process has rotated it
        try:
            yield descriptor
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _is_full(self, descriptor: int, size: int, at_us: int) -> bool:
        if size > self._most_bytes:
            return True
        first_us = _first_at_us(descriptor)
        return self._daily and first_us is not None and at_us // _DAY_US > first_us // _DAY_US

    def _rotate(self, descriptor: int) -> Path | None:
        """Rename the file to its name among the older ones; the next file is created when it is needed.

        None where that fails, such as in a directory that this user may not change: then the file keeps growing, since
        waiting entries would be lost.
        """
        try:
            os.fsync(descriptor)
            path = self.path.resolve()  # not the symbolic link, which continues to point to the books
            number = 1 + max((number_of(file) for file in older_files(path)), default=0)
            first_time = utc_moment(_first_at_us(descriptor) or 0)
            rotated = path.with_name(f"{path.stem}-{first_time:%Y%m%d}-{number:06}{path.suffix}")
            path.rename(rotated)
        except OSError as error:
            if not self._has_logged_failure:
                self._has_logged_failure = True
                log.error("books %s: cannot be rotated, so the file keeps growing: %s", self.name, error.strerror)
            return None
        self._has_logged_failure = False
        return rotated

    def _clean_up(self, rotated: Path) -> None:
        """Delete the oldest files, and compress the rotated one. What fails is not retried.

        Deleting comes first: on a disk that is nearly full, it frees the space that compressing needs.
        """
        with suppress(OSError):
            if self._keep is not None:
                for file in older_files(self.path)[: -self._keep or None]:
                    file.unlink(missing_ok=True)
        with suppress(OSError):
            if self._compress:
                _compress(rotated)


def older_files(path: Path) -> list[Path]:
    """The rotated files, the oldest first, each once: the uncompressed one where both exist.

    They are beside the file itself, also where `path` is a symbolic link to it.
    """
    path = path.resolve() if path.is_symlink() else path
    pattern = re.compile(rf"{re.escape(path.stem)}-[0-9]{{8}}-([0-9]{{6,}}){re.escape(path.suffix)}(\.gz)?")
    by_number: dict[int, Path] = {}
    for file in sorted(path.parent.iterdir(), reverse=True):  # compressed files come first, and are replaced
        if match := pattern.fullmatch(file.name):
            by_number[int(match[1])] = file
    return [file for _, file in sorted(by_number.items())]


def number_of(older: Path) -> int:
    """The number of a rotated file."""
    return int(older.name.partition(".")[0].rpartition("-")[2])


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        at_path = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (opened.st_dev, opened.st_ino) == (at_path.st_dev, at_path.st_ino)


def _append(descriptor: int, data: bytes) -> None:
    """Write all of `data`, or leave the file as it was."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        data = b"\n" + data  # after a truncated line
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _first_at_us(descriptor: int) -> int | None:
    match = _AT_US.search(os.pread(descriptor, _FIRST_BYTES, 0))
    return None if match is None else int(match[1])


def _compress(file: Path) -> None:
    part = file.with_name(f"{file.name}.gz.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            with (
                file.open("rb") as plain,
                gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as compressed,
            ):
                shutil.copyfileobj(plain, compressed, 1 << 20)
            raw.flush()
            os.fsync(descriptor)
    except OSError:
        part.unlink(missing_ok=True)  # such as on a full disk: the file stays uncompressed
        raise
    part.rename(file.with_name(f"{file.name}.gz"))
    file.unlink()
