"""How much memory the body of a call takes once it is read: told before that, by its bytes alone."""

from __future__ import annotations

_TEXT, _OTHER_TEXT = 2, 10
"""For each byte of a body in ASCII: the whole as text, and the texts in it. One other character, written as it is or as
`\\u`, makes each character of its text, and of the whole, take up to four bytes."""

_LIST, _OBJECT, _VALUE, _FIELD = 88, 136, 48, 96
"""What `[`, `{`, `,` and `:` stand for in CPython: a list, an object with its table, a value and its place, a name and
its place."""

_DEEPEST = 100_000
"""No reader is in more lists and objects at once: those that are not closed are not made, as the reader gives up."""

_FEW = 8
"""Times its own bytes: what takes more than that for its signs may have them in its texts."""

_BYTES_PER_QUOTE = 16
"""Texts that are shorter than twice that are not looked for: to cut them out would take more than the body itself."""


def read_bytes(raw: bytes) -> int:
    """At least the bytes that reading this body takes beside itself, whatever it holds.

    Signs in long texts do not count, nor do those of which a body that can be read has no use.
    """
    text = len(raw) * (_TEXT if raw.isascii() and b"\\u" not in raw else _OTHER_TEXT)
    made = _made_bytes(raw)
    return text + (min(made, _made_outside_texts(raw)) if made > _FEW * len(raw) else made)


def _made_bytes(raw: bytes) -> int:
    """The bytes of the lists, objects, values and fields that these signs can stand for."""
    lists = min(raw.count(b"["), raw.count(b"]") + _DEEPEST)
    objects = min(raw.count(b"{"), raw.count(b"}") + _DEEPEST)
    commas = raw.count(b",")
    values, fields = min(commas, len(raw) - commas), min(raw.count(b":"), raw.count(b'"') // 2)
    return lists * _LIST + objects * _OBJECT + values * _VALUE + fields * _FIELD


def _made_outside_texts(raw: bytes) -> int:
    """`_made_bytes` of what is not between quotes, as a reader finds them that begins in front; of all with many."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > len(raw) // _BYTES_PER_QUOTE:
        return _made_bytes(raw)
    return _made_bytes(b'""'.join(plain.split(b'"')[::2]))
