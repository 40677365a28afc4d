"""What applications may read in a header, and all values that some may read for a cookie or a query parameter.

Servers and frameworks parse them in different ways: what is one value for one of them is another for the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from urllib.parse import unquote, unquote_plus

from headgate.policy.subject import REPEATED, Repeated

_LONGEST_COOKIES = 1 << 14
_MOST_COOKIES = 512
_MOST_FIELDS = 1000
"""Beyond these a cookie or a parameter counts as repeated: nothing hides behind padding."""

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(?:([0-3][0-7]{2})|(.))", re.DOTALL)
_UNDERSCORES = str.maketrans(". [", "___")


def sent_text(value: str) -> str:
    """The value of a header as text, without white space around it.

    Most servers give bytes as Latin-1 (PEP 3333), whatever they are; programs that describe a request tell the
    characters. Bytes of UTF-8 are the characters that they mean, all others those of Latin-1.
    """
    if not value.isascii():
        with suppress(UnicodeError):
            value = value.encode("latin-1").decode()
    return value.strip()


def cookie_values(sent: str, name: str) -> Iterator[str]:
    """All values that some application may read for a cookie, decoded.

    Most split at ";" alone; `http.cookies` also at white space, parsers of RFC 2109 at commas. Some decode
    names (PHP, Rack), more decode values (Express, Litestar), some take upper for lower case (ASP.NET).
    """
    if len(sent) > _LONGEST_COOKIES or sent.count(";") > _MOST_COOKIES:
        yield REPEATED
        return
    plain, hidden = _plain_name(name), _hidden(name)
    for line in sent.values if type(sent) is Repeated else (sent,):
        for pair in line.split(";"):
            own, separator, value = pair.partition("=")
            if separator and (own.strip() == name or _plain_name(own) == plain):
                yield from _cookie_spellings(value)
            for found in hidden.finditer(pair):
                yield from _cookie_spellings(found[1])


def _cookie_spellings(text: str) -> Iterator[str]:
    """What applications may read of a cookie's value: all of it, or only what stands before white space."""
    text = sent_text(text)
    quoted = _QUOTED.match(text)
    if quoted is not None:
        yield _decoded(_ESCAPED.sub(_character, quoted[1]) if "\\" in quoted[1] else quoted[1])
        if quoted.end() == len(text):
            return
    if text.startswith('"') and '"' in text[quoted.end() if quoted else 0 :]:  # parsers disagree on where it ends
        yield REPEATED
        return
    yield _decoded(text)
    first = text.split(None, 1)[:1]
    if first and first[0] != text:
        yield _decoded(first[0])


def _decoded(text: str) -> str:
    return unquote(text, errors="replace") if "%" in text else text


def _character(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 8)) if escaped[1] else escaped[2]


@lru_cache(256)
def _hidden(name: str) -> re.Pattern[str]:
    """Finds what only some applications take for a cookie, as in `a=b name=value`."""
    literal = re.escape(name)
    return re.compile(rf"{literal}(?<=[,\s]{literal})\s*=([^;]*)")


def query_values(query: str, name: str) -> Iterator[str]:
    """All values that some application may read for a parameter, decoded.

    A server may cut off what begins with "#", an application may take ";" for "&".
    """
    spellings = [query]
    if "#" in query:
        spellings.append(query.partition("#")[0])
    spellings += [spelling.replace(";", "&") for spelling in spellings if ";" in spelling]
    plain = _plain_name(name)
    for spelling in spellings:
        if spelling.count("&") >= _MOST_FIELDS:
            yield REPEATED
            return
        for field in spelling.split("&"):
            own, _, value = field.partition("=")
            if own == name or _plain_name(own) == plain:
                yield unquote_plus(value, errors="replace")


def _plain_name(name: str) -> str:
    """A cookie's or a parameter's name, the same for all spellings that some application takes for one.

    PHP takes ".", " " and "[" for "_" and ends a name at a NUL; others ignore case.
    """
    if "%" in name or "+" in name:
        name = unquote_plus(name, errors="replace")
    return name.partition("\0")[0].strip().translate(_UNDERSCORES).lower()
