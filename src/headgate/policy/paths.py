"""Paths of requests and the templates they are matched with.

A request's path is brought into one form before it is matched: what is percent-encoded is decoded
once, empty and `.` segments fall away, `..` goes up, and so does a trailing slash. Otherwise
`/api//login/` or `/api/%6Cogin` would slip past a rule for `/api/login`.

A template is a path whose segments are literal, `{name}` for any one segment, or at the end `**` for
any number of segments, none included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from headgate.errors import ConfigError

_PARAMETER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
_LONGEST_TEMPLATE = 1024


def segments_of(path: str) -> list[str]:
    """The segments of a request's path, decoded and without detours."""
    segments: list[str] = []
    for segment in unquote(path.partition("?")[0], errors="replace").split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return segments


def template_segments(template: str) -> list[str]:
    """The segments of a template; raises ConfigError for one that could never match as meant."""
    if not template.startswith("/"):
        raise ConfigError(f'a path begins with "/", not {template[:1]!r}: write "/{template[:60]}"')
    if len(template) > _LONGEST_TEMPLATE:
        raise ConfigError(f"a path has at most {_LONGEST_TEMPLATE} characters, not {len(template)}")
    if "?" in template or "#" in template:
        raise ConfigError('a path ends before "?" and "#"; to look into the query, use an identity')
    segments = [segment for segment in template.split("/") if segment]
    names: set[str] = set()
    for place, segment in enumerate(segments):
        if segment == "**":
            if place != len(segments) - 1:
                raise ConfigError('"**" stands for all that follows: it can only be the last segment')
        elif _PARAMETER.fullmatch(segment):
            if segment in names:
                raise ConfigError(f'"{segment}" is there twice')
            names.add(segment)
        elif segment in (".", ".."):
            raise ConfigError(f'"{segment}" never matches: paths are matched without detours')
        elif set("{}*") & set(segment):
            raise ConfigError(
                f'cannot read the segment "{segment}": a segment is literal, {{name}} for any one segment, '
                "or ** at the end for any number of them"
            )
    return [unquote(segment) for segment in segments]


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
        """The owners whose templates match, each with the first of its templates that does.

        What does not begin with "/", such as the `*` of OPTIONS, has no path and matches none.
        """
        if not path.startswith("/"):
            return {}
        found: dict[int, str] = {}
        nodes = [self._root]
        for segment in segments_of(path):
            following: list[_Node] = []
            for node in nodes:
                _collect(found, node.below)
                child = node.literal.get(segment)
                if child is not None:
                    following.append(child)
                if node.any is not None:
                    following.append(node.any)
            nodes = following
            if not nodes:
                return found
        for node in nodes:
            _collect(found, node.here)
            _collect(found, node.below)
        return found


def _collect(found: dict[int, str], owners: Iterable[tuple[int, str]]) -> None:
    for owner, template in owners:
        found.setdefault(owner, template)
