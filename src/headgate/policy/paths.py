"""Paths of requests and the templates they are matched with.

A request's path is brought into one form before it is matched: the query and the fragment are cut off, what
is percent-encoded is decoded once, empty and `.` segments fall away, `..` goes up, and so does a trailing
slash. Otherwise `/api//login/`, `/api/%6Cogin` or `/api/login#a` would slip past a rule for `/api/login`.

Servers differ in what else they do: some take `..`, `#` or `%2F` as they stand, some strip `;parameters`, take
`\\` for `/`, decode twice. A path with such characters has a form for each of them: a rule is for it in any form,
an exemption in all. See docs/policy.md#matching.

A template is a path whose segments are literal, `{name}` for any one segment, or at the end `**` for
any number of segments, none included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from headgate.errors import ConfigError

_PARAMETER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
_LONGEST_TEMPLATE = 1024
_LONGEST_ADVICE = 60
_LONGEST_PATH = 4096
_MOST_STATES = 4096

_LITERAL = r"A-Za-z0-9_~!$&'()*+,=:@-"
_PLAIN = re.compile(rf"(?:/[.{_LITERAL}]*[{_LITERAL}])+/?")
"""A path that has one form, and stands in it already."""

_AUTHORITY = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//[^/?#\\]*")
_REMOVED = str.maketrans("", "", "\t\r\n")
"""What parsers of URLs drop wherever it is (WHATWG; Python's `urlsplit`)."""

_STRANGE = re.compile(r"[;\\\x00\t\r\n#]|//|[. ](?:/|\Z)")
"""What gives a path more than one form, beside what stays encoded and encoded separators."""

_ENCODED_SEPARATOR = re.compile("%2[fF]|%5[cC]")


def forms_of(path: str) -> list[list[str]]:
    """The segments of a request's path in each form that some server may give it, the usual one first.

    The `*` of OPTIONS, and nothing at all, is no path.
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
    """The path that is in a request's target, which may have a scheme and a host; with `#`, also as it stands."""
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
"""What a path has that some servers read in another way, and how they do."""


def _without_dots(decoded: list[str]) -> Iterator[list[str]]:
    """The segments without empty ones and `.`; `..` goes up, or stands where a server leaves that alone."""
    plain = [segment for segment in decoded if segment not in ("", ".")]
    if ".." not in plain:
        yield plain
        return
    yield _resolved(plain)
    if "" in decoded[1:-1]:  # RFC 3986 takes an empty segment for one that ".." goes up from
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
        self._start = _State((self._root,), {})
        self._states = 0
        self._depth = 0
        """More segments than any template has are one more."""

        self._all = PathMatch({}, frozenset())
        """The match of a path that has too many forms to be meant: it meets all rules, and no exemption."""

        self._several: dict[tuple[PathMatch, ...], PathMatch] = {}

    def add(self, template: str, owner: int) -> None:
        """Let `owner` be found by paths that match `template`."""
        node = self._root
        for segment in template_segments(template):
            if segment == "**":
                node.below.append((owner, template))
                break
            if _PARAMETER.fullmatch(segment):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.literal.setdefault(segment, _Node())
        else:
            node.here.append((owner, template))
        self._depth = max(self._depth, template.count("/"))
        self._all = PathMatch({owner: template, **self._all.found}, frozenset())
        self._start = _State((self._root,), {})
        self._states = 0
        self._several = {}

    def match(self, path: str) -> PathMatch:
        """Whose templates match a path."""
        if _PLAIN.fullmatch(path):  # by far most
            return self._walk(path.strip("/").split("/", self._depth))
        if len(path) > _LONGEST_PATH:
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

    def find(self, path: str) -> Mapping[int, str]:
        """The owners whose templates match a path in any form, each with the most literal that does."""
        return self.match(path).found

    def find_surely(self, path: str) -> frozenset[int]:
        """The owners whose templates match a path in every form."""
        return self.match(path).surely

    def _walk(self, segments: Sequence[str]) -> PathMatch:
        state = self._start
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
