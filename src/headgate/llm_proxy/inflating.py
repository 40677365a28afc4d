"""A compressed body, inflated a bounded piece at a time: a few bytes of it may say a thousand times as many."""

from __future__ import annotations

import zlib

_PIECE_BYTES = 64 * 1024
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_GZIP = b"\x1f"
"""What a part of a compressed body begins with that follows another one (RFC 1952, 2.2)."""


class Inflating:
    """What has come of a compressed body, and what it says. What comes behind its end and is no part is passed over."""

    __slots__ = ("_inflate", "_is_full", "_packed")

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._packed = b""
        self._is_full = False
        """Whether the last piece ended since it was as long as one may be: what has come may say more."""

    @property
    def waiting(self) -> int:
        """How many compressed bytes wait."""
        return len(self._packed)

    @property
    def has_more(self) -> bool:
        """Whether what has come may say more than was read."""
        return self._is_full or bool(self._packed)

    @property
    def is_at_end(self) -> bool:
        """Whether all was read, and it has ended as it should: not in the middle of a part."""
        return not self.has_more and self._inflate.eof

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._packed += data

    def read(self) -> bytes:
        """The next piece, b"" where more must come first. Raises `zlib.error`."""
        while self.has_more:
            if self._inflate.eof:
                if not self._packed.startswith(_GZIP):
                    self._packed = b""
                    break
                self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            made = self._inflate.decompress(self._packed, _PIECE_BYTES)
            self._packed = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            self._is_full = len(made) == _PIECE_BYTES and not self._inflate.eof
            if made:
                return made
        return b""
