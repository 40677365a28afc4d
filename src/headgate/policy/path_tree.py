"""Which templates match a path: a tree of their segments, walked as an automaton."""

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
"""A path that has one form, and stands in it already."""


@dataclass(slots=True, eq=False)
class _Node:
    literal: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    here: list[tuple[int, str]] = field(default_factory=list)
    below: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class PathMatch:
    """Whose templates match a path. Paths that are matched alike have the same one: it can be a key of what is known.

    `found` has the owners whose templates match in any form, each with the most literal that does; `surely`
    those whose templates match in every form.
    """

    found: Mapping[int, str]
    surely: frozenset[int]


class _State:
    """Where one is in the tree after some segments, and what that has found."""

    __slots__ = ("following", "found", "match", "nodes", "other")

    following: dict[str, _State | None]
    """By segments that are literal in some of the nodes; None for what was not met yet."""

    other: _State | None
    """After any other segment."""

    def __init__(self, nodes: tuple[_Node, ...], found: dict[int, str]) -> None:
        self.nodes = nodes
        for node in nodes:
            found.update(reversed(node.below))
        self.found = found
        """The templates that match whatever follows; what is found later is more literal, and stands."""

        here = dict(found)
        for node in nodes:
            here.update(reversed(node.here))
        self.match = PathMatch(here, frozenset(here))
        self.following = {segment: None for node in nodes for segment in node.literal}
        self.other = None

    def after(self, segment: str) -> _State:
        """Where a segment leads."""
        wild = [node.any for node in self.nodes if node.any is not None]
        literal = [node.literal[segment] for node in self.nodes if segment in node.literal]
        return _State((*wild, *literal), dict(self.found))


class PathTree:
    """Templates by their segments: which of them match a path costs its length, not their number.

    It is walked as an automaton whose states are made as they are met, and kept, up to a bound.
    """

    def __init__(self) -> None:
        self._root = _Node()
        self._start: _State | None = None
        """Where each walk begins; None until the first one after a template was added."""

        self._states = 0
        self._depth = 0
        """More segments than any template has are one more."""

        self._owners: dict[int, str] = {}
        """Each owner with its first template."""

        self._all: PathMatch | None = None
        """The match of a path that has too many forms to be meant: it meets all rules, and no exemption."""

        self._several: dict[tuple[PathMatch, ...], PathMatch] = {}
        self._rooted: dict[tuple[PathMatch, ...], PathMatch] = {}

    def add(self, template: str, owner: int) -> None:
        """Let `owner` be found by paths that match `template`."""
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
        """Whose templates match a path."""
        if _PLAIN.fullmatch(path):  # by far most
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
        """Whose templates match a path or, but for `surely`, one of those that an application may take it for."""
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
        """The owners whose templates match a path in any form, each with the most literal that does."""
        return self.match(path).found

    def find_surely(self, path: str) -> frozenset[int]:
        """The owners whose templates match a path in every form."""
        return self.match(path).surely

    def _walk(self, segments: Sequence[str]) -> PathMatch:
        state = self._start or self._begin()
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

    def _begin(self) -> _State:
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
    """What matches in any of these forms, and what in all; of two templates of one owner, that of the usual form."""
    found: dict[int, str] = {}
    for match in reversed(matches):
        found.update(match.found)
    surely = frozenset.intersection(*(match.surely for match in matches)) if matches else frozenset()
    return PathMatch(found, surely)
