"""Templates of paths in a policy.

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
    """A segment of a template that is not literal."""

    ANY = "{name}"
    """Any one segment."""

    BELOW = "**"
    """Any number of segments, none included."""


def template_segments(template: str) -> list[str | Wild]:
    """The segments of a template, literal ones decoded; raises ConfigError for one that cannot match as intended.

    Percent-encoded characters are literal: `%7Bx%7D` is the segment `{x}` and no parameter.
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


def _segment(text: str) -> str | Wild:
    if text == "**":
        return Wild.BELOW
    return Wild.ANY if _PARAMETER.fullmatch(text) else unquote(text)


def _advice(template: str) -> str:
    """A suggestion for an invalid template."""
    valid = _corrected(template)
    below = f"{valid.rpartition('/')[0]}/**"
    return f'write "{valid}" or "{below}"' if template.rstrip("/").endswith("/*") else f'write "{valid}"'


def _corrected(template: str) -> str:
    """A valid template that is close to an invalid one: each invalid segment becomes a `{name}`."""
    path = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/]*", "", template[:_LONGEST_TEMPLATE]).partition("?")[0]
    segments = [segment for segment in path.partition("#")[0].split("/") if segment not in ("", ".", "..")]
    valid: list[str] = []
    for place, segment in enumerate(segments):
        last = place == len(segments) - 1
        if segment in valid and _PARAMETER.fullmatch(segment):
            valid.append(f"{segment[:-1]}{place + 1}}}")
        elif (segment == "**" and last) or _PARAMETER.fullmatch(segment) or not set("{}*") & set(segment):
            valid.append(segment)
        else:
            valid.append("{name}" if "{name}" not in valid else f"{{name{place + 1}}}")
    return f"/{'/'.join(valid)}" if len("".join(valid)) <= _LONGEST_ADVICE else "/api/{name}"
