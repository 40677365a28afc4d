"""A compressed body, inflated one bounded piece at a time: a few bytes may inflate to a thousand times as many."""

from __future__ import annotations

import zlib

_PIECE_BYTES = 64 * 1024
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_GZIP = b"\x1f"
"""The first byte of a further gzip member, behind the end of another one (RFC 1952, 2.2)."""


class Inflating:
    """Inflates the bytes of a compressed body. Bytes behind its end that begin no further gzip member are ignored."""

    __slots__ = ("_compressed", "_inflate", "_is_full")

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._compressed = b""
        self._is_full = False
        """Whether the last piece had the maximal length: the bytes received may hold more."""

    @property
    def waiting(self) -> int:
        """The number of compressed bytes that are not inflated yet."""
        return len(self._compressed)

    @property
    def has_more(self) -> bool:
        """Whether the bytes received may hold more than was read."""
        return self._is_full or bool(self._compressed)

    @property
    def is_at_end(self) -> bool:
        """Whether all was read, and the body is complete: it did not end in the middle of a member."""
        return not self.has_more and self._inflate.eof

    def feed(self, data: bytes) -> None:
        """Take the next compressed bytes."""
        self._compressed += data

    def read(self) -> bytes:
        """Return the next piece; b"" where more bytes must be fed first. Raises `zlib.error`."""
        while self.has_more:
            if self._inflate.eof:
                if not self._compressed.startswith(_GZIP):
                    self._compressed = b""
                    break
                self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            piece = self._inflate.decompress(self._compressed, _PIECE_BYTES)
            self._compressed = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            self._is_full = len(piece) == _PIECE_BYTES and not self._inflate.eof
            if piece:
                return piece
        return b""
