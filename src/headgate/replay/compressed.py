"""The bytes of a log as they were before it was compressed: plain, gzip, xz, bzip2 or zstd, told by their content.

What was packed in several members is read as one. What is damaged ends in `Damaged` after all that could be
unpacked before it. No small file becomes a large piece of memory.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol

from headgate.errors import MissingExtraError

CHUNK = 1 << 20
_SKIPPED = {bytes((0x50 + number, 0x2A, 0x4D, 0x18)): "zstd" for number in range(16)}
"""Frames that hold no data, as pzstd begins with."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd", **_SKIPPED}
_LONGEST_MAGIC = 6
_SIP = 16_384
_ZSTD_SIP = 512
"""zstd is unpacked without a bound: so much of it makes 16 MiB at the most."""


class Damaged(Exception):
    """Compressed data that cannot be unpacked any further; the text says why."""


class _Member(Protocol):
    """What unpacks one member, as the modules `bz2` and `lzma` have it."""

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
    """The bytes of a file in pieces of about CHUNK; raises Damaged after the last that could be unpacked."""
    head = raw.read(_LONGEST_MAGIC)
    raw.seek(0)
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    if kind is None:
        while chunk := raw.read(CHUNK):
            yield chunk
        return
    make, faults = _member_of(kind, name)
    pieces: list[bytes] = []
    length = 0
    fault: Damaged | None = None
    unpacked = _unpacked(raw, make, faults, kind)
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


def _unpacked(
    raw: IO[bytes], make: Callable[[], _Member], faults: tuple[type[Exception], ...], kind: str
) -> Iterator[bytes]:
    """What each sip of a file unpacks to."""
    member: _Member | None = None
    members = 0
    while data := raw.read(_ZSTD_SIP if kind == "zstd" else _SIP):
        while data or (member is not None and not member.needs_input):
            if member is None:
                data = data.lstrip(b"\0")  # what pads a tape, or a member of xz
                if not data:
                    break
                member = make()
                members += 1
            try:
                yield member.decompress(data, CHUNK)
            except faults as error:
                # What follows a whole member and is none itself was put there by mistake.
                what = "what follows its end is no more of it" if members > 1 else "it is damaged"
                raise Damaged(f"{what} ({kind}: {error})") from error
            data = b""
            if member.eof:
                data, member = member.unused_data, None
    if member is not None:
        raise Damaged(f"it is cut off ({kind})")


def _member_of(kind: str, name: str) -> tuple[Callable[[], _Member], tuple[type[Exception], ...]]:
    """What unpacks a member of this kind, and what it raises for one that is damaged."""
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
