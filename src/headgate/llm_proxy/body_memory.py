"""How much memory the body of a call takes once it is read: told before that, by its bytes alone."""

from __future__ import annotations

_TEXT, _OTHER_TEXT = 2, 10
"""For each byte of a body in ASCII: the whole as text, and the texts in it. One other character, written as it is or as
`\\u`, makes each character of its text, and of the whole, take up to four bytes."""

_LIST, _OBJECT, _VALUE, _FIELD = 88, 136, 48, 96
"""What `[`, `{`, `,` and `:` stand for in CPython: a list, an object with its table, a value and its place, a name and
its place. Where texts contain them, what is told is too much."""


def read_bytes(raw: bytes) -> int:
    """At least the bytes that reading this body takes beside itself, whatever it holds."""
    text = len(raw) * (_TEXT if raw.isascii() and b"\\u" not in raw else _OTHER_TEXT)
    lists, objects, values, fields = (raw.count(sign) for sign in (b"[", b"{", b",", b":"))
    return text + lists * _LIST + objects * _OBJECT + values * _VALUE + fields * _FIELD
