"""A YAML (or JSON) text as plain values, with the place of each, bounded in every direction.

The values are text, whole numbers, floats, true, false, null, lists and mappings with text as keys:
the core schema of YAML 1.2, in which `NO` and `12:30` are text. A text that would unfold into more
than 100,000 values, the nesting of more than 64 levels and an alias inside itself are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import MissingExtraError
from headgate.policy.problems import Path, PolicyError, Problem

try:
    import yaml
except ImportError as error:
    raise MissingExtraError("reading a policy file", extra="policy") from error

LARGEST_BYTES = 1 << 20
_MOST_VALUES = 100_000
_DEEPEST = 64
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(slots=True)
class Document:
    """The values of a text, and where each was written."""

    source: str
    value: Any = None
    marks: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, path: Path, message: str) -> Problem:
        """A problem at a path, with the place of the nearest value that was written there."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.marks:
                return Problem(path, message, *self.marks[path[:length]])
        return Problem(path, message)


def read_document(text: bytes | str, source: str) -> Document:
    """Read a text. What makes it unreadable raises PolicyError; doubled fields are among the problems."""
    if isinstance(text, bytes):
        text = _decode(text, source)
    if len(text) > LARGEST_BYTES:
        raise PolicyError(source, [Problem((), f"a policy has at most {LARGEST_BYTES} bytes, not {len(text)}")])
    document = Document(source)
    try:
        reader = _Reader(document, yaml.parse(text, Loader=_LOADER))
        document.value = reader.read()
    except yaml.MarkedYAMLError as error:
        raise PolicyError(source, [_syntax_problem(error)]) from error
    except yaml.reader.ReaderError as error:
        raise PolicyError(source, [Problem((), f"cannot read the text: {error.reason}")]) from error
    return document


class _Reader:
    """Builds values from the parser's events, without trusting them to be few or shallow."""

    def __init__(self, document: Document, events: Iterator[Any]) -> None:
        self._document = document
        self._events = events
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0

    def read(self) -> Any:
        value: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse((), event, "a policy is one document: nothing may follow a second ---")
                value = self._value(next(self._events), (), 0)
        if documents == 0:
            raise PolicyError(self._document.source, [Problem((), "the policy is empty; it begins with version: 1")])
        return value

    def _value(self, event: Any, path: Path, depth: int) -> Any:
        self._count(1, path, event)
        if depth > _DEEPEST:
            self._refuse(path[:1], event, f"nested deeper than {_DEEPEST} levels")
        self._document.marks.setdefault(path, _place(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if event.tag is not None and not event.tag.startswith("tag:yaml.org,2002:") and event.tag != "!":
            self._refuse(path, event, f"the tag {event.tag[:40]} means nothing here")
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
            self._refuse(path, event, f"the policy unfolds into more than {_MOST_VALUES} values")

    def _refuse(self, path: Path, event: Any, message: str) -> None:
        raise PolicyError(self._document.source, [Problem(path, message, *_place(event))])


def _scalar(event: Any) -> Any:
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) <= 40:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    what = ", ".join(part for part in (error.context, error.problem) if part)
    return Problem((), f"this is not YAML: {what}", line, column)


def _decode(text: bytes, source: str) -> str:
    if len(text) > LARGEST_BYTES:
        raise PolicyError(source, [Problem((), f"a policy has at most {LARGEST_BYTES} bytes, not {len(text)}")])
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        message = f"a policy is UTF-8 text: byte {error.start} is {text[error.start]:#04x}"
        raise PolicyError(source, [Problem((), message, line, 1)]) from error
