"""Books as JSON lines: a file that several processes append to, rotated by size and by day.

An entry is a line. Batches are written under a lock of the file (flock), so a process that is killed leaves at most one
line that is cut off, the last one; the next batch begins on a line of its own.
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
_FIRST_MOMENT = re.compile(rb'"at_us":([0-9]{1,16})')
_BEGINNING = 1 << 16

Line = tuple[int, bytes]
"""The moment of a record, and its line."""


class JsonLinesFile:
    """The file at `path`, with older ones beside it: `books.jsonl`, `books-20261123-000001.jsonl.gz`.

    A file is put aside before it grows past `most_bytes`, and, where `daily`, when a record of a later day (UTC) than
    that of its first one comes. Of the files put aside the last `keep` remain, or all where that is None; they are
    compressed where `compress` says so.
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
        self._has_told_failure = False

    @property
    def name(self) -> str:
        return str(self.path)

    def open(self) -> None:
        """Make the file where there is none; raises OSError."""
        with self._locked():
            pass

    def encode(self, record: Record) -> Line:
        fields = fields_of(record)
        return fields["at_us"], json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    def append(self, encoded: Sequence[Line]) -> None:
        data = b"".join(line for _, line in encoded)
        aside: Path | None = None
        with self._locked() as descriptor:
            size = os.fstat(descriptor).st_size
            if size and self._is_full(descriptor, size + len(data), encoded[0][0]):
                aside = self._put_aside(descriptor)
        with self._locked() as descriptor:
            _append(descriptor, data)
        if aside is not None:
            self._tidy(aside)

    @contextmanager
    def alone(self) -> Iterator[Callable[[Record], None]]:
        """What appends a record, while other processes wait."""
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
        """The file that is at the path now, for this process alone."""
        while True:
            if self._descriptor is None:
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags, 0o600)
            descriptor = self._descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, self.path):
                break
            self.after_fork()  # another process has put it aside
        try:
            yield descriptor
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _is_full(self, descriptor: int, size: int, at_us: int) -> bool:
        if size > self._most_bytes:
            return True
        first_us = _first_moment(descriptor)
        return self._daily and first_us is not None and at_us // _DAY_US > first_us // _DAY_US

    def _put_aside(self, descriptor: int) -> Path | None:
        """Give the file its name among the older ones; the next one is made when it is needed.

        None where that fails, such as in a folder that this user may not change: the file grows on, for entries that
        wait would be lost.
        """
        try:
            os.fsync(descriptor)
            path = self.path.resolve()  # not the symbolic link, which goes on to say where the books are
            number = 1 + max((number_of(file) for file in older_files(path)), default=0)
            moment = utc_moment(_first_moment(descriptor) or 0)
            aside = path.with_name(f"{path.stem}-{moment:%Y%m%d}-{number:06}{path.suffix}")
            path.rename(aside)
        except OSError as error:
            if not self._has_told_failure:
                self._has_told_failure = True
                log.error("books %s: cannot be put aside, so the file grows on: %s", self.name, error.strerror)
            return None
        self._has_told_failure = False
        return aside

    def _tidy(self, aside: Path) -> None:
        """Delete the oldest files, and compress one that was put aside. What fails is tried at no other time.

        Deleting comes first: on a disk that is nearly full, it makes the room that compressing needs.
        """
        with suppress(OSError):
            if self._keep is not None:
                for file in older_files(self.path)[: -self._keep or None]:
                    file.unlink(missing_ok=True)
        with suppress(OSError):
            if self._compress:
                _compress(aside)


def older_files(path: Path) -> list[Path]:
    """The files that were put aside, the oldest first, each once: where it is not yet compressed, as it was.

    They lie beside the file itself, also where `path` is a symbolic link to it.
    """
    path = path.resolve() if path.is_symlink() else path
    form = re.compile(rf"{re.escape(path.stem)}-[0-9]{{8}}-([0-9]{{6,}}){re.escape(path.suffix)}(\.gz)?")
    found: dict[int, Path] = {}
    for file in sorted(path.parent.iterdir(), reverse=True):  # what is compressed comes first, and is replaced
        if match := form.fullmatch(file.name):
            found[int(match[1])] = file
    return [file for _, file in sorted(found.items())]


def number_of(older: Path) -> int:
    """The number of a file that was put aside."""
    return int(older.name.partition(".")[0].rpartition("-")[2])


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _append(descriptor: int, data: bytes) -> None:
    """Write all of it, or leave the file as it was."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        data = b"\n" + data  # after a line that was cut off
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _first_moment(descriptor: int) -> int | None:
    match = _FIRST_MOMENT.search(os.pread(descriptor, _BEGINNING, 0))
    return None if match is None else int(match[1])


def _compress(file: Path) -> None:
    part = file.with_name(f"{file.name}.gz.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            with file.open("rb") as plain, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
                shutil.copyfileobj(plain, packed, 1 << 20)
            raw.flush()
            os.fsync(descriptor)
    except OSError:
        part.unlink(missing_ok=True)  # such as of a disk that is full: it stays as it is
        raise
    part.rename(file.with_name(f"{file.name}.gz"))
    file.unlink()
