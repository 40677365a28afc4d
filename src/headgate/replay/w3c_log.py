"""The extended log format of the W3C, as IIS and CloudFront write it: lines under the names of a `#Fields:` line.

Fields are separated by blanks or tabs, `-` stands for none, and times are in UTC unless another zone is configured. A
server that restarts writes its `#Fields:` again, perhaps with other names. See https://www.w3.org/TR/WD-logfile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from headgate.errors import ConfigError
from headgate.replay.entries import LONGEST_LINE, Entry, Unreadable
from headgate.replay.fielded_log import FieldNames, row_reader
from headgate.replay.times import TimeReader

_FIELDS = "#fields:"
_FIELD = re.compile(r'"(?:[^"]|"")*"(?!\S)|\S+')
"""A field, or one in quotes, which may contain blanks, and quotes that are doubled."""

_PATH, _QUERY = "cs-uri-stem", "cs-uri-query"


def is_w3c(lines: Sequence[str]) -> bool:
    """Whether the first lines of a log are in this format."""
    return lines[0].startswith("#") and any(line.lower().startswith(_FIELDS) for line in lines)


def w3c_reader(
    name: str, names: FieldNames, read_time: TimeReader, headers: Mapping[str, str]
) -> Callable[[str], Entry | None]:
    """A reader of the lines of the log `name`; it returns None for a directive.

    It raises ConfigError where a needed or configured field is missing from the log.
    """
    columns: list[str] = []
    read_row: Callable[[Sequence[str]], Entry] | None = None
    query = path = -1

    def read(line: str) -> Entry | None:
        nonlocal columns, read_row, query, path
        if line.startswith("#"):
            if line.lower().startswith(_FIELDS):
                columns = line[len(_FIELDS) :].split()
                by_lower = [column.lower() for column in columns]
                has_query = _QUERY in by_lower and _PATH in by_lower
                path, query = (by_lower.index(_PATH), by_lower.index(_QUERY)) if has_query else (-1, -1)
                try:
                    read_row = row_reader(columns, names, read_time, headers)
                except Unreadable as error:
                    raise ConfigError(f"{name}: {error}") from error
            return None
        if read_row is None:
            raise Unreadable("no line before it names its fields: #Fields: date time c-ip ...")
        row = _row(line, len(columns))
        if query >= 0 and row[query] and row[path]:
            row[path] = f"{row[path]}?{row[query]}"
        return read_row(row)

    return read


def _row(line: str, width: int) -> list[str]:
    """The values of a line, "" for absent ones; raises Unreadable unless there are `width` of them."""
    if len(line) > LONGEST_LINE:
        raise Unreadable(f"the line is longer than {LONGEST_LINE} characters")
    values = line.split()
    if len(values) != width and '"' in line:
        values = [_unquoted(value) for value in _FIELD.findall(line)]
    if len(values) != width:
        raise Unreadable(f"it has {len(values)} of {width} fields")
    return ["" if value == "-" else value for value in values]


def _unquoted(value: str) -> str:
    return value[1:-1].replace('""', '"') if len(value) > 1 and value[0] == value[-1] == '"' else value
