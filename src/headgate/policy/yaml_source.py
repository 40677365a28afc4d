"""Reads a YAML (or JSON) text as plain values, with the place of each; its size, depth and aliases are bounded.

The values are text, whole numbers, floats, true, false, null, lists and mappings with text as keys:
the core schema of YAML 1.2, in which `NO` and `12:30` are text. A text that would expand to more
than 100,000 values, nesting of more than 64 levels and an alias inside itself are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import MissingExtraError
from headgate.policy.policy_file import LARGEST_BYTES
from headgate.policy.problems import Path, PolicyError, Problem, shown

try:
    import yaml
except ImportError as error:
    raise MissingExtraError("a policy", extra="policy", why=error) from error

_MOST_VALUES = 100_000
_DEEPEST = 64
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9]+")
_MOST_DIGITS = 640
"""Of a whole number; further ones are left out, since so large a number is refused whatever follows.

So many digits Python reads under any `sys.set_int_max_str_digits`.
"""

_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HALF_ESCAPES = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_ENCODINGS = {b"\xff\xfe\x00\x00": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""The byte order marks of other encodings; the longer marks first."""

_OF_YAML = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(_OF_YAML + name for name in ("int", "float", "bool", "null"))
_TAGS = {
    yaml.ScalarEvent: _PLAIN_TAGS | {_OF_YAML + "str", "!"},
    yaml.SequenceStartEvent: {_OF_YAML + "seq", "!"},
    yaml.MappingStartEvent: {_OF_YAML + "map", "!"},
}
"""The tags that a value may have, by the kind of its event."""

_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(slots=True)
class Document:
    """The values of a text, and the place of each."""

    source: str
    value: Any = None
    marks: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    kind: str = "policy"

    def problem(self, path: Path, message: str) -> Problem:
        """A problem at a path, with the place of the nearest value in the text."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.marks:
                return Problem(path, message, *self.marks[path[:length]])
        return Problem(path, message)


def read_document(text: bytes | str, source: str, *, kind: str = "policy", begins: str = "version: 1") -> Document:
    """Read a text. A text that cannot be read raises PolicyError; duplicate fields are among the problems.

    Messages call the text `kind`; that of an empty text states how one `begins`.
    """
    if len(text) > LARGEST_BYTES:
        raise PolicyError(source, [Problem((), f"a {kind} has at most {LARGEST_BYTES} bytes, and this has more")])
    if isinstance(text, bytes):
        text = _decode(text, source, kind)
    if lone := re.search("[\ud800-\udfff]", text):
        raise PolicyError(source, [_encoding_problem(kind, text[: lone.start()], f"{lone[0]!a} is half a character")])
    document = Document(source, kind=kind)
    try:
        reader = _Reader(document, yaml.parse(text, Loader=_LOADER))
        document.value = reader.read(begins)
    except yaml.MarkedYAMLError as error:
        raise PolicyError(source, [_syntax_problem(error, text)]) from error
    except yaml.reader.ReaderError as error:
        raise PolicyError(source, [_character_problem(error, text)]) from error
    return document


def unusable_texts(document: Document) -> Iterator[Problem]:
    """Yield a problem for each name and text of a document with characters that cannot be sent or stored."""
    for path, value in _values(document):
        if len(path) > _DEEPEST:
            yield document.problem(path[:1], f"nested deeper than {_DEEPEST} levels")
            return
        if isinstance(value, Mapping):
            for name in value:
                if isinstance(name, str) and (bad := _NO_TEXT.search(name)):
                    yield document.problem((*path, name), f"the name of a field {_holds(bad[0])}")
        elif isinstance(value, str) and (bad := _NO_TEXT.search(value)):
            yield document.problem(path, f"the text {_holds(bad[0])}")


def names_that_are_no_text(document: Document) -> Iterator[Problem]:
    """Yield a problem for each name that is no text, as only a mapping in a program can have: in a file names are text.

    The document must not be nested too deep, see `unusable_texts`: a mapping in a program may contain itself.
    """
    for path, value in _values(document):
        for name in value if isinstance(value, Mapping) else ():
            if not isinstance(name, str):
                yield document.problem((*path, name), f"must be text, not {shown(name)}")


def _values(document: Document) -> Iterator[tuple[Path, Any]]:
    """Yield all values of a document, with their paths; each before the values inside it."""
    pending: list[tuple[Path, Any]] = [((), document.value)]
    while pending:
        path, value = pending.pop()
        yield path, value
        if isinstance(value, Mapping):
            pending.extend(((*path, name), content) for name, content in value.items())
        elif isinstance(value, list | tuple):
            pending.extend(((*path, place), content) for place, content in enumerate(value))


def _holds(character: str) -> str:
    code = ord(character)
    kind = "half a character, a lone surrogate" if 0xD800 <= code <= 0xDFFF else "a control character"
    return f"holds U+{code:04X}, {kind}: write it without"


class _Reader:
    """Builds values from the parser's events, without trusting them to be few or shallow."""

    def __init__(self, document: Document, events: Iterator[Any], seek: tuple[int, int] | None = None) -> None:
        self._document = document
        self._events = events
        self._seek = seek
        self.found: Path = ()
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0

    def read(self, begins: str = "") -> Any:
        kind = self._document.kind
        value: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse((), event, f"a {kind} is one document: nothing may follow a second ---")
                value = self._value(next(self._events), (), 0)
        if documents == 0:
            raise PolicyError(self._document.source, [Problem((), f"the {kind} is empty; it begins with {begins}")])
        return value

    def _value(self, event: Any, path: Path, depth: int) -> Any:
        self._count(1, path, event)
        if self._seek == _place(event):
            self.found = path
        if depth > _DEEPEST:
            self._refuse(path[:1], event, f"nested deeper than {_DEEPEST} levels")
        self._document.marks.setdefault(path, _place(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if event.tag is not None and event.tag not in _TAGS[type(event)]:
            self._refuse(path, event, f"the tag {event.tag.replace(_OF_YAML, '!!')[:40]} means nothing here")
        before = self._values
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(path, depth)
        else:
            value = self._mapping(path, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._values - before + 1)
        return value

    def _sequence(self, path: Path, depth: int) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            values.append(self._value(event, (*path, len(values)), depth + 1))
        return values

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(path, event, "the name of a field is text")
            name: str = event.value
            place = (*path, name)
            if self._seek == _place(event):
                self.found = place
            if name in values:
                first = self._document.marks[place][0]
                message = f"the field {name!r} is given twice, first in line {first}"
                self._document.problems.append(Problem(place, message, *_place(event)))
            else:
                self._document.marks[place] = _place(event)
            values[name] = self._value(next(self._events), place, depth + 1)
        return values

    def _alias(self, event: Any, path: Path) -> Any:
        if event.anchor not in self._anchors:
            self._refuse(path, event, f"the alias *{event.anchor[:40]} names nothing that is complete here")
        value, size = self._anchors[event.anchor]
        self._count(size, path, event)
        return value

    def _count(self, values: int, path: Path, event: Any) -> None:
        self._values += values
        if self._values > _MOST_VALUES:
            self._refuse(path, event, f"the {self._document.kind} unfolds into more than {_MOST_VALUES} values")

    def _refuse(self, path: Path, event: Any, message: str) -> None:
        raise PolicyError(self._document.source, [Problem(path, message, *_place(event))])


def _scalar(event: Any) -> Any:
    text: str = event.value
    if not event.implicit[0] and event.tag not in _PLAIN_TAGS:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text[:_MOST_DIGITS])
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    description = ", ".join(part for part in (error.context, error.problem) if part)
    if any(line_text[column - 1 : column] == "\t" for line_text in text.split("\n")[line - 1 : line]):
        description += ": indent with spaces, not with tabs"
    if error.problem == "found invalid Unicode character escape code":
        path = _path_at(_HALF_ESCAPES.sub(r"\\ufffd", text), error.context_mark)
        return Problem(path, "the text holds an escape that is no character, such as half of one", line, column)
    return Problem((), f"this is not YAML: {description}", line, column)


def _path_at(text: str, mark: Any) -> Path:
    """The path of the value or field that begins at a mark."""
    reader = _Reader(Document(""), yaml.parse(text, Loader=_LOADER), seek=(mark.line + 1, mark.column + 1))
    with suppress(yaml.YAMLError, PolicyError):
        reader.read()
    return reader.found


def _decode(text: bytes, source: str, kind: str) -> str:
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        encoding = next((name for mark, name in _ENCODINGS.items() if text.startswith(mark)), None)
        description = f"this is {encoding}" if encoding else f"byte {error.start} is {text[error.start]:#04x}"
        before = text[: error.start].decode("utf-8-sig", "replace")
        raise PolicyError(source, [_encoding_problem(kind, before, description)]) from error


def _character_problem(error: yaml.reader.ReaderError, text: str) -> Problem:
    """The problem of the first character that YAML does not allow."""
    match = _NOT_YAML.search(text)
    if match is None:
        return Problem((), f"cannot read the text: {error.reason}")
    before = text[: match.start()]
    column = match.start() - before.rfind("\n")
    return Problem((), f"the text {_holds(match[0])}", before.count("\n") + 1, column)


def _encoding_problem(kind: str, before: str, description: str) -> Problem:
    """The problem of bytes that are not UTF-8; `before` is the text before them."""
    return Problem(
        (), f"a {kind} is UTF-8 text: {description}", before.count("\n") + 1, len(before) - before.rfind("\n")
    )
