"""Finds the templates that match a path: a tree of their segments, walked as an automaton."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.policy.path_forms import forms_of
from headgate.policy.path_templates import Wild, template_segments

_LONGEST_PATH = 4096
_MOST_STATES = 4096

_LITERAL = r"A-Za-z0-9_~!$&'()*+,=:@-"
_PLAIN = re.compile(rf"(?:/[.{_LITERAL}]*[{_LITERAL}])+/?")
"""A path that has one form only, and is written in it."""


@dataclass(slots=True, eq=False)
class _Node:
    literal: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    here: list[tuple[int, str]] = field(default_factory=list)
    below: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class PathMatch:
    """The owners whose templates match a path. Paths with equal matches share one object, which can be a cache's key.

    `found` has the owners whose templates match in any form, each with the most literal of these templates; `surely`
    has those whose templates match in every form.
    """

    found: Mapping[int, str]
    surely: frozenset[int]


class _State:
    """A state of the automaton: the nodes that some segments lead to, and the templates that match so far."""

    __slots__ = ("following", "found", "match", "nodes", "other")

    following: dict[str, _State | None]
    """The next state by segments that are literal in some of the nodes; None for one that was not needed yet."""

    other: _State | None
    """The next state after any other segment."""

    def __init__(self, nodes: tuple[_Node, ...], found: dict[int, str]) -> None:
        self.nodes = nodes
        for node in nodes:
            found.update(reversed(node.below))
        self.found = found
        """The templates that match whatever follows; a template that is found later is more literal, and wins."""

        here = dict(found)
        for node in nodes:
            here.update(reversed(node.here))
        self.match = PathMatch(here, frozenset(here))
        self.following = {segment: None for node in nodes for segment in node.literal}
        self.other = None

    def after(self, segment: str) -> _State:
        """The state after a segment."""
        wild = [node.any for node in self.nodes if node.any is not None]
        literal = [node.literal[segment] for node in self.nodes if segment in node.literal]
        return _State((*wild, *literal), dict(self.found))


class PathTree:
    """Templates by their segments: the time of a match depends on the path's length, not on the number of templates.

    It is walked as an automaton whose states are made when they are first reached, and cached up to a bound.
    """

    def __init__(self) -> None:
        self._root = _Node()
        self._start: _State | None = None
        """The first state of each walk; None until the first walk after a template was added."""

        self._states = 0
        self._depth = 0
        """The most segments of a template; all further segments of a path count as one."""

        self._owners: dict[int, str] = {}
        """Each owner with its first template."""

        self._all: PathMatch | None = None
        """The match of a path that is too long to be matched: it matches all rules, and no exemption."""

        self._several: dict[tuple[PathMatch, ...], PathMatch] = {}
        self._rooted: dict[tuple[PathMatch, ...], PathMatch] = {}

    def add(self, template: str, owner: int) -> None:
        """Add a template: paths that match it find `owner`."""
        node = self._root
        for segment in template_segments(template):
            if segment is Wild.BELOW:
                node.below.append((owner, template))
                break
            if segment is Wild.ANY:
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.literal.setdefault(segment, _Node())
        else:
            node.here.append((owner, template))
        self._depth = max(self._depth, template.count("/"))
        self._owners.setdefault(owner, template)
        self._all = self._start = None
        self._states = 0
        self._several = {}
        self._rooted = {}

    def match(self, path: str) -> PathMatch:
        """Match a path with all templates."""
        if _PLAIN.fullmatch(path):  # by far the most paths
            return self._walk(path.strip("/").split("/", self._depth))
        if len(path) > _LONGEST_PATH:
            self._all = self._all or PathMatch(dict(self._owners), frozenset())
            return self._all
        matches = tuple(dict.fromkeys([self._walk(segments) for segments in forms_of(path)]))
        if len(matches) == 1:
            return matches[0]
        several = self._several.get(matches)
        if several is None:
            several = _together(matches)
            if len(self._several) < _MOST_STATES:
                self._several[matches] = several
        return several

    def match_rooted(self, path: str, others: Sequence[str]) -> PathMatch:
        """Match a path and the other paths that an application may read instead; `surely` is by `path` alone."""
        matches = tuple(dict.fromkeys(map(self.match, (path, *others))))
        if len(matches) == 1:
            return matches[0]
        rooted = self._rooted.get(matches)
        if rooted is None:
            rooted = PathMatch(_together(matches).found, matches[0].surely)
            if len(self._rooted) < _MOST_STATES:
                self._rooted[matches] = rooted
        return rooted

    def find(self, path: str) -> Mapping[int, str]:
        """The owners whose templates match a path in any form, each with the most literal of these templates."""
        return self.match(path).found

    def find_surely(self, path: str) -> frozenset[int]:
        """The owners whose templates match a path in every form."""
        return self.match(path).surely

    def _walk(self, segments: Sequence[str]) -> PathMatch:
        state = self._start or self._make_start()
        for segment in segments:
            following = state.following.get(segment)
            if following is None:
                following = state.other if segment not in state.following else None
                if following is None:
                    following = self._step(state, segment)
            state = following
            if not state.nodes:
                break
        return state.match

    def _make_start(self) -> _State:
        self._start = _State((self._root,), {})
        return self._start

    def _step(self, state: _State, segment: str) -> _State:
        following = state.after(segment)
        if self._states < _MOST_STATES:
            self._states += 1
            if segment in state.following:
                state.following[segment] = following
            else:
                state.other = following
        return following


def _together(matches: Sequence[PathMatch]) -> PathMatch:
    """Combine the matches of all forms: `found` in any, `surely` in all; of an owner's templates, the first form's."""
    found: dict[int, str] = {}
    for match in reversed(matches):
        found.update(match.found)
    surely = frozenset.intersection(*(match.surely for match in matches)) if matches else frozenset()
    return PathMatch(found, surely)
