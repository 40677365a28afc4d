"""Paths of requests and the templates they are matched with.

A request's path is brought into one form before it is matched: what is percent-encoded is decoded
once, empty and `.` segments fall away, `..` goes up, and so does a trailing slash. Otherwise
`/api//login/` or `/api/%6Cogin` would slip past a rule for `/api/login`. A path with `..` is also taken
as it stands, for there are servers that do: a rule is for it in either form, an exemption in both.

A template is a path whose segments are literal, `{name}` for any one segment, or at the end `**` for
any number of segments, none included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from headgate.errors import ConfigError

_PARAMETER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
_LONGEST_TEMPLATE = 1024
_LONGEST_ADVICE = 60


def forms_of(path: str) -> list[list[str]]:
    """The segments of a request's path, decoded: without detours, and where it has any also with them.

    What does not begin with "/", such as the `*` of OPTIONS, has no path.
    """
    if not path.startswith("/"):
        return []
    decoded = unquote(path.partition("?")[0], errors="replace").split("/")
    plain = [segment for segment in decoded if segment not in ("", ".")]
    if ".." not in plain:
        return [plain]
    resolved: list[str] = []
    for segment in plain:
        if segment == "..":
            del resolved[-1:]
        else:
            resolved.append(segment)
    return [resolved, plain]


def template_segments(template: str) -> list[str]:
    """The segments of a template; raises ConfigError for one that could never match as meant."""
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
    return [unquote(segment) for segment in segments]


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


@dataclass(slots=True)
class _Node:
    literal: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    here: list[tuple[int, str]] = field(default_factory=list)
    below: list[tuple[int, str]] = field(default_factory=list)


class PathTree:
    """Templates by their segments: which of them match a path costs its length, not their number."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, template: str, owner: int) -> None:
        """Let `owner` be found by paths that match `template`."""
        node = self._root
        for segment in template_segments(template):
            if segment == "**":
                node.below.append((owner, template))
                return
            if _PARAMETER.fullmatch(segment):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.literal.setdefault(segment, _Node())
        node.here.append((owner, template))

    def find(self, path: str) -> dict[int, str]:
        """The owners whose templates match a path in any form, each with the most literal that does."""
        found: dict[int, str] = {}
        for segments in reversed(forms_of(path)):
            self._find(segments, found)
        return found

    def find_surely(self, path: str) -> set[int]:
        """The owners whose templates match a path in every form."""
        forms = forms_of(path)
        return set.intersection(*(set(self._find(segments, {})) for segments in forms)) if forms else set()

    def _find(self, segments: list[str], found: dict[int, str]) -> dict[int, str]:
        """Add the owners whose templates match; what is found later is more literal, and stands."""
        nodes = [self._root]
        for segment in segments:
            following: list[_Node] = []
            for node in nodes:
                found.update(reversed(node.below))
                if node.any is not None:
                    following.append(node.any)
            for node in nodes:
                child = node.literal.get(segment)
                if child is not None:
                    following.append(child)
            nodes = following
            if not nodes:
                return found
        for node in nodes:
            found.update(reversed(node.below))
        for node in nodes:
            found.update(reversed(node.here))
        return found
