"""Books by URL or path: `jsonl:///var/log/headgate/books.jsonl?keep=400`, `sqlite:///var/lib/headgate/books.db`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from headgate.errors import ConfigError
from headgate.llm.books.database import SqliteFile
from headgate.llm.books.json_lines import JsonLinesFile
from headgate.llm.books.queued import MOST_WAITING, QueuedBooks
from headgate.stores.url_parts import check_options, scheme_of, split_url

_SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".jsonl.gz": "jsonl", ".ndjson.gz": "jsonl",
    ".db": "sqlite", ".sqlite": "sqlite", ".sqlite3": "sqlite",
}  # fmt: skip
_OPTIONS = {"jsonl": ("rotate", "daily", "keep", "compress", "queue"), "sqlite": ("queue",)}
_SMALLEST_ROTATION = 4096


def open_books(books: str | os.PathLike[str]) -> QueuedBooks:
    """Open books for writing, by their URL, or by a path that ends in .jsonl, .ndjson, .db, .sqlite or .sqlite3.

    They are created where there are none, readable only by their owner. Raises ConfigError.
    """
    kind, path, options = _read(books)
    file = _file(kind, path, options)
    return QueuedBooks(file, most_waiting=_integer("queue", options.get("queue", str(MOST_WAITING)), least=1))


def books_file(books: str | os.PathLike[str]) -> JsonLinesFile | SqliteFile:
    """The file of existing books, for appending without a queue; raises ConfigError."""
    kind, path, options = _read(books)
    if not path.exists():
        raise ConfigError(f"{path}: there are no such books")
    return _file(kind, path, options)


def books_path(books: str | os.PathLike[str]) -> tuple[str, Path]:
    """("jsonl" or "sqlite", their path); raises ConfigError."""
    kind, path, _ = _read(books)
    return kind, path


def _read(books: str | os.PathLike[str]) -> tuple[str, Path, dict[str, str]]:
    text = os.fspath(books)
    if "://" not in text:
        return _kind_of_path(text), Path(text), {}
    kind = scheme_of(text).removesuffix("://")
    if kind not in _OPTIONS:
        raise ConfigError(
            f"books are jsonl:///path or sqlite:///path, not {kind}://"
            if kind
            else "books are jsonl:///path or sqlite:///path"
        )
    parts = split_url(text)
    if parts.credentials or parts.host or len(parts.path) < 2:
        raise ConfigError(
            f'books are "{kind}:///path/of/a/file", with three slashes; a relative path is written without a scheme'
        )
    option_names = _OPTIONS[kind]
    if kind == "sqlite" and any(name != "queue" for name, _ in parts.options):
        raise ConfigError('books of sqlite have one option after "?", queue')
    check_options(parts.options, option_names, f"books of {kind}")
    path = unquote_to_bytes(parts.path)
    if b"\0" in path:
        raise ConfigError("a path contains no NUL character, which %00 stands for")
    return kind, Path(os.fsdecode(path)), dict(parts.options)


def _kind_of_path(path: str) -> str:
    for suffix, kind in _SUFFIXES.items():
        if path.lower().endswith(suffix):
            return kind
    raise ConfigError(
        "books are named by a path that ends in .jsonl or .db, or as jsonl:///path or sqlite:///path, "
        f"not {path[-60:]!r}"
    )


def _file(kind: str, path: Path, options: dict[str, str]) -> JsonLinesFile | SqliteFile:
    file: JsonLinesFile | SqliteFile
    if kind == "sqlite":
        file = SqliteFile(path)
    elif path.suffix == ".gz":
        raise ConfigError(f"{path}: compressed books can be read, not written")
    else:
        file = JsonLinesFile(path, **_rotation(options))
    try:
        file.open()
    except OSError as error:
        if not path.parent.is_dir():
            raise ConfigError(f"books at {path}: there is no directory {path.parent}") from error
        raise ConfigError(f"books at {path} cannot be written: {error.strerror or error}") from error
    return file


def _rotation(options: dict[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, value in options.items():
        if name == "rotate":
            arguments["most_bytes"] = _bytes(value)
        elif name == "keep":
            arguments["keep"] = _integer("keep", value, least=0)
        elif name in ("daily", "compress"):
            if value not in ("yes", "no"):
                raise ConfigError(f"the books' option {name} is yes or no, not {value[:40]!r}")
            arguments[name] = value == "yes"
    return arguments


def _bytes(value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12})(B|KiB|MiB|GiB|)", value)
    size = 0 if match is None else int(match[1]) << {"KiB": 10, "MiB": 20, "GiB": 30}.get(match[2], 0)
    if size < _SMALLEST_ROTATION:
        raise ConfigError(f"the books' option rotate is a size such as 64MiB, of at least 4KiB, not {value[:40]!r}")
    return size


def _integer(name: str, value: str, *, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
        raise ConfigError(f"the books' option {name} is a whole number of at least {least}, not {value[:40]!r}")
    return int(value)
