"""The memory that the body of a call takes once it is parsed, estimated before that from its bytes alone."""

from __future__ import annotations

_TEXT, _OTHER_TEXT = 2, 10
"""Bytes of memory for each byte of a body: the whole as a str, and the strings in it. The first is for ASCII. One other
character, raw or as `\\u`, makes each character of its string, and of the whole, take up to four bytes."""

_LIST, _OBJECT, _VALUE, _FIELD = 88, 136, 48, 96
"""Bytes in CPython of what `[`, `{`, `,` and `:` each denote: a list, a dict with its table, a value and its slot, a
name and its slot."""

_DEEPEST = 100_000
"""No parser nests deeper than this: it gives up, so further unclosed lists and objects are never created."""

_FEW = 8
"""A factor on the body's size. A higher estimate for its punctuation is checked: the signs may be inside strings."""

_BYTES_PER_QUOTE = 16
"""Strings shorter than twice this on average are not cut out: that would take more memory than the body itself."""


def read_bytes(raw: bytes) -> int:
    """An upper bound of the bytes that parsing this body takes besides the body itself, whatever it contains.

    Punctuation in long strings does not count, nor does punctuation that valid JSON could not contain.
    """
    text = len(raw) * (_TEXT if raw.isascii() and b"\\u" not in raw else _OTHER_TEXT)
    structure = _structure_bytes(raw)
    return text + (min(structure, _structure_outside_strings(raw)) if structure > _FEW * len(raw) else structure)


def _structure_bytes(raw: bytes) -> int:
    """The bytes of the lists, objects, values and fields that this punctuation can denote."""
    lists = min(raw.count(b"["), raw.count(b"]") + _DEEPEST)
    objects = min(raw.count(b"{"), raw.count(b"}") + _DEEPEST)
    commas = raw.count(b",")
    values, fields = min(commas, len(raw) - commas), min(raw.count(b":"), raw.count(b'"') // 2)
    return lists * _LIST + objects * _OBJECT + values * _VALUE + fields * _FIELD


def _structure_outside_strings(raw: bytes) -> int:
    """`_structure_bytes` outside of strings, with quotes paired from the start; of the whole where quotes are many."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > len(raw) // _BYTES_PER_QUOTE:
        return _structure_bytes(raw)
    return _structure_bytes(b'""'.join(plain.split(b'"')[::2]))
