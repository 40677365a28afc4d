"""Templates of paths, as a policy writes them.

A template is a path whose segments are literal, `{name}` for any one segment, or at the end `**` for
any number of segments, none included.
"""

from __future__ import annotations

import re
from enum import Enum
from urllib.parse import unquote

from headgate.errors import ConfigError

_PARAMETER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
_LONGEST_TEMPLATE = 1024
_LONGEST_ADVICE = 60


class Wild(Enum):
    """A segment of a template that is no literal."""

    ANY = "{name}"
    """Any one segment."""

    BELOW = "**"
    """Any number of segments, none included."""


def template_segments(template: str) -> list[str | Wild]:
    """The segments of a template, literal ones decoded; raises ConfigError for one that could never match as meant.

    What is percent-encoded is literal: `%7Bx%7D` is the segment `{x}` and no parameter.
    """
    if not template.startswith("/"):
        raise ConfigError(f'a path begins with "/", not {template[:1]!r}: {_advice(template)}')
    if len(template) > _LONGEST_TEMPLATE:
        raise ConfigError(f"a path has at most {_LONGEST_TEMPLATE} characters, not {len(template)}")
    if "?" in template or "#" in template:
        raise ConfigError('a path ends before "?" and "#"; to look into the query, use an identity')
    segments = [segment for segment in template.split("/") if segment]
    names: set[str] = set()
    for place, segment in enumerate(segments):
        if segment == "**":
            if place != len(segments) - 1:
                raise ConfigError(
                    f'"**" stands for all that follows: it can only be the last segment; {_advice(template)}'
                )
        elif _PARAMETER.fullmatch(segment):
            if segment in names:
                raise ConfigError(f'"{segment}" is there twice; {_advice(template)}')
            names.add(segment)
        elif segment in (".", ".."):
            raise ConfigError(f'"{segment}" never matches: paths are matched without detours; {_advice(template)}')
        elif set("{}*") & set(segment):
            raise ConfigError(
                f'cannot read the segment "{segment[:60]}": a segment is literal, {{name}} for any one segment, '
                f"or ** at the end for any number of them; {_advice(template)}"
            )
    return list(map(_segment, segments))


def _segment(written: str) -> str | Wild:
    if written == "**":
        return Wild.BELOW
    return Wild.ANY if _PARAMETER.fullmatch(written) else unquote(written)


def _advice(template: str) -> str:
    """What to write in place of a template that cannot be read."""
    advised = _readable(template)
    below = f"{advised.rpartition('/')[0]}/**"
    return f'write "{advised}" or "{below}"' if template.rstrip("/").endswith("/*") else f'write "{advised}"'


def _readable(template: str) -> str:
    """A template that can be read, close to one that cannot: what is no segment becomes a `{name}`."""
    path = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/]*", "", template[:_LONGEST_TEMPLATE]).partition("?")[0]
    segments = [segment for segment in path.partition("#")[0].split("/") if segment not in ("", ".", "..")]
    kept: list[str] = []
    for place, segment in enumerate(segments):
        last = place == len(segments) - 1
        if segment in kept and _PARAMETER.fullmatch(segment):
            kept.append(f"{segment[:-1]}{place + 1}}}")
        elif (segment == "**" and last) or _PARAMETER.fullmatch(segment) or not set("{}*") & set(segment):
            kept.append(segment)
        else:
            kept.append("{name}" if "{name}" not in kept else f"{{name{place + 1}}}")
    return f"/{'/'.join(kept)}" if len("".join(kept)) <= _LONGEST_ADVICE else "/api/{name}"
