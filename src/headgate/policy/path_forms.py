"""The forms of a request's path: how different servers may read it.

A request's path is brought into one form before it is matched: the query and the fragment are cut off,
percent-encoding is decoded once, empty and `.` segments and a trailing slash are removed, `..` goes up.
Otherwise `/api//login/`, `/api/%6Cogin` or `/api/login#a` would bypass a rule for `/api/login`.

Servers differ beyond that: some read `..`, `#` or `%2F` literally, some strip `;parameters`, read
`\\` as `/`, or decode twice. A path with such characters has a form for each of them: a rule matches if any form does,
an exemption only if all do. See docs/policy.md#matching.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import unquote

_AUTHORITY = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//[^/?#\\]*")
_REMOVED = str.maketrans("", "", "\t\r\n")
"""Characters that parsers of URLs remove wherever they are (WHATWG; Python's `urlsplit`)."""

_STRANGE = re.compile(r"[;\\\x00\t\r\n#]|//|[. ](?:/|\Z)")
"""Characters that give a path more than one form; so do encoded separators, and text that is still encoded."""

_ENCODED_SEPARATOR = re.compile("%2[fF]|%5[cC]")


def forms_of(path: str) -> list[list[str]]:
    """The segments of a request's path in each form that some server may read, the usual one first.

    The `*` of OPTIONS and an empty text are no path.
    """
    if "#" not in path:
        path = path.partition("?")[0]
    if path in ("*", ""):
        return []
    if path == "/":
        return [[]]
    if path.startswith("/") and not _ENCODED_SEPARATOR.search(path):
        decoded = unquote(path, errors="replace") if "%" in path else path
        if not (_STRANGE.search(path) or _STRANGE.search(decoded) or "%" in decoded):
            return [decoded.strip("/").split("/")]
    forms: list[list[str]] = []
    for target in _targets(path):
        for segments in _readings(target):
            for form in _without_dots(segments):
                if form not in forms:
                    forms.append(form)
    return forms


def _targets(path: str) -> Iterator[str]:
    """The path in a request's target, which may have a scheme and a host; with `#` once cut there and once whole."""
    for cut in (_fragment_cut, _query_cut) if "#" in path else (_query_cut,):
        target = cut(path)
        authority = _AUTHORITY.match(target)
        if authority is None or target.startswith("/"):
            yield target if target.startswith("/") else f"/{target}"
        if authority is not None:  # "//host/path" is a path for most servers, and has a host for others
            yield target[authority.end() :] or "/"


def _fragment_cut(path: str) -> str:
    return path.partition("#")[0].partition("?")[0]


def _query_cut(path: str) -> str:
    return path.partition("?")[0]


def _readings(target: str) -> Iterator[list[str]]:
    """The decoded segments of a path: as usual, then by each habit that some servers have, then by all of them."""
    decoded = unquote(target, errors="replace")
    yield decoded.split("/")
    habits = [habit for sign, habit in _HABITS if sign(decoded)]
    for habit in habits:
        yield habit(decoded).split("/")
    if len(habits) > 1:
        for habit in habits:
            decoded = habit(decoded)
        yield decoded.split("/")
    if _ENCODED_SEPARATOR.search(target):
        yield [unquote(segment, errors="replace") for segment in target.split("/")]


def _in(character: str) -> Callable[[str], bool]:
    return lambda path: character in path


_AGAIN = re.compile("%[0-9A-Fa-f]{2}")
_TRAILING = re.compile(r"(?<=[^/. ])[. ]+(?=/|\Z)")

_HABITS: tuple[tuple[Callable[[str], object], Callable[[str], str]], ...] = (
    (_AGAIN.search, lambda path: unquote(path, errors="replace")),  # decoded by a gateway and by an application
    (_in("\\"), lambda path: path.replace("\\", "/")),  # IIS
    (re.compile("[\t\r\n]").search, lambda path: path.translate(_REMOVED)),
    (_in("\0"), lambda path: path.partition("\0")[0]),  # written in C
    (_in(";"), lambda path: re.sub(";[^/]*", "", path)),  # Java
    (_TRAILING.search, lambda path: _TRAILING.sub("", path)),  # Windows
)
"""(what a path contains that some servers read in another way, how these servers read it)."""


def _without_dots(decoded: list[str]) -> Iterator[list[str]]:
    """The segments without empty ones and `.`; once with `..` going up, once with `..` left as it is."""
    plain = [segment for segment in decoded if segment not in ("", ".")]
    if ".." not in plain:
        yield plain
        return
    yield _resolved(plain)
    if "" in decoded[1:-1]:  # in RFC 3986, ".." removes an empty segment, too
        yield [segment for segment in _resolved([segment for segment in decoded[1:] if segment != "."]) if segment]
    yield plain


def _resolved(segments: Iterable[str]) -> list[str]:
    resolved: list[str] = []
    for segment in segments:
        if segment == "..":
            del resolved[-1:]
        else:
            resolved.append(segment)
    return resolved
