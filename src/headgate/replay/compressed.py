"""Decompresses logs: plain, gzip, xz, bzip2 or zstd, recognized by their content.

Several members of a file are read as one log. Damaged data raises `Damaged` after everything before it has been
decompressed. Memory stays bounded, even for a small file with large content.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol

from headgate.errors import ConfigError, MissingExtraError

CHUNK = 1 << 20
_SKIPPED = {bytes((0x50 + number, 0x2A, 0x4D, 0x18)): "zstd" for number in range(16)}
"""Frames without data, such as the first one of pzstd."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd", **_SKIPPED}
_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf\x27\x1c": "a 7z archive", b"Rar!": "a RAR archive"}
_LONGEST_MAGIC = 6
_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_PIECE = 16_384
_ZSTD_PIECE = 512
"""zstd is decompressed without a bound on its output: this many bytes make at most 16 MiB."""


class Damaged(Exception):
    """Compressed data that cannot be decompressed any further; the text says why."""


class _Member(Protocol):
    """A decompressor of one member, as those of the modules `bz2` and `lzma`."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """A member of gzip."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class _Zstd:
    """A frame of zstd."""

    needs_input = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return bytes(self._inner.decompress(data))


def chunks_of(raw: IO[bytes], name: str) -> Iterator[bytes]:
    """The bytes of a file in pieces of about CHUNK; raises Damaged after the last that could be decompressed.

    Raises ConfigError for an archive, whose files have to be unpacked first.
    """
    head = raw.read(_LONGEST_MAGIC)
    raw.seek(0)
    archive = next((archive for magic, archive in _ARCHIVES.items() if head.startswith(magic)), None)
    if archive is not None:
        raise ConfigError(f"{name}: this is {archive}: unpack it, and name the files in it")
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    if kind is None:
        while chunk := raw.read(CHUNK):
            yield chunk
        return
    new_member, faults = _member_of(kind, name)
    pieces: list[bytes] = []
    length = 0
    fault: Damaged | None = None
    unpacked = _unpacked(raw, new_member, faults, kind)
    while fault is None:
        try:
            piece = next(unpacked)
        except StopIteration:
            break
        except Damaged as error:
            fault = error
            break
        pieces.append(piece)
        length += len(piece)
        if length >= CHUNK:
            yield b"".join(pieces)
            pieces, length = [], 0
    if length:  # a piece may be empty, and an empty chunk would be the end of the log
        yield b"".join(pieces)
    if fault is not None:
        raise fault


def check_text(start: bytes, name: str) -> None:
    """Raise ConfigError where a file whose content begins like this is not UTF-8 text."""
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            raise ConfigError(
                f"{name}: this is {encoding}; a log is UTF-8 text, and iconv -f {encoding} -t UTF-8 makes it"
            )


def _unpacked(
    raw: IO[bytes], new_member: Callable[[], _Member], faults: tuple[type[Exception], ...], kind: str
) -> Iterator[bytes]:
    """Decompress each piece that is read of a file."""
    member: _Member | None = None
    members = 0
    while data := raw.read(_ZSTD_PIECE if kind == "zstd" else _PIECE):
        while data or (member is not None and not member.needs_input):
            if member is None:
                data = data.lstrip(b"\0")  # padding of a tape, or of a member of xz
                if not data:
                    break
                member = new_member()
                members += 1
            try:
                yield member.decompress(data, CHUNK)
            except faults as error:
                # Data after a whole member that is no member itself was appended by mistake.
                reason = "the data after its end is not part of it" if members > 1 else "it is damaged"
                raise Damaged(f"{reason} ({kind}: {error})") from error
            data = b""
            if member.eof:
                data, member = member.unused_data, None
    if member is not None:
        raise Damaged(f"it is cut off ({kind})")


def _member_of(kind: str, name: str) -> tuple[Callable[[], _Member], tuple[type[Exception], ...]]:
    """The constructor of a decompressor of this kind, and the errors that it raises for damaged data."""
    if kind == "gzip":
        return _Gzip, (zlib.error,)
    if kind == "xz":
        return lzma.LZMADecompressor, (lzma.LZMAError,)
    if kind == "bzip2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError(f"reading {name}, which zstd compressed,", extra="replay", why=error) from error
    decompressor = zstandard.ZstdDecompressor()
    return lambda: _Zstd(decompressor.decompressobj()), (zstandard.ZstdError,)
