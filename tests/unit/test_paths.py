"""Templates match the paths they mean, in whatever form a client writes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ConfigError
from headgate.policy import path_tree
from headgate.policy.path_forms import forms_of
from headgate.policy.path_templates import template_segments
from headgate.policy.path_tree import PathTree

MATCHES = [
    ("/", "/", True),
    ("/", "/a", False),
    ("/api/login", "/api/login", True),
    ("/api/login", "/api/login/", True),
    ("/api/login", "//api///login", True),
    ("/api/login", "/api/./login", True),
    ("/api/login", "/api/x/../login", True),
    ("/api/login", "/../../api/login", True),
    ("/api/login", "/api/%6Cogin", True),
    ("/api/login", "/api%2Flogin", True),
    ("/api/login", "/api/login?next=/", True),
    ("/api/login", "/api/Login", False),
    ("/api/login", "/api/login/x", False),
    ("/api/login", "/api", False),
    ("/users/{id}", "/users/42", True),
    ("/users/{id}", "/users/", False),
    ("/users/{id}", "/users/42/posts", False),
    ("/users/{id}/posts", "/users/42/posts", True),
    ("/users/{id}/posts/{post}", "/users/42/posts/7", True),
    ("/api/**", "/api", True),
    ("/api/**", "/api/", True),
    ("/api/**", "/api/a/b/c", True),
    ("/api/**", "/apis", False),
    ("/api/{v}/**", "/api/v1/x", True),
    ("/api/{v}/**", "/api", False),
    ("/**", "/", True),
    ("/**", "/anything/at/all", True),
    ("/api/login", "/api/login#a", True),
    ("/api/login", "/api/login#a?b", True),
    ("/api/login", "/api/login?a#b", True),
    ("/api/login", "/api/log#in", False),
    ("/api/login", "/api/login;x=1", True),
    ("/api/login", "/api;x=1/login;jsessionid=7", True),
    ("/api/login", "/api\\login", True),
    ("/api/login", "/api%5Clogin", True),
    ("/api/login", "/api/log\tin", True),
    ("/api/login", "/api/login%0A", True),
    ("/api/login", "/api/login%00.html", True),
    ("/api/login", "/api/%256Cogin", True),
    ("/api/login", "/api%252Flogin", True),
    ("/api/login", "/api/login.", True),
    ("/api/login", "/api./login%20", True),
    ("/api/login", "/api/..;/api/login", True),
    ("/api/login", "http://example.com/api/login", True),
    ("/api/login", "HTTPS://example.com:8443/api/login?a", True),
    ("/api/login", "//example.com/api/login", True),
    ("/api/login", "//api/login", True),
    ("/api/login", "api/login", True),
    ("/api/login", "/api/x//../login", True),
    ("/api/x/login", "/api/x//../login", True),
    ("/files/{name}", "/files/a%2Fb", True),
    ("/files/a/b", "/files/a%2Fb", True),
    ("/", "http://example.com", True),
    ("/", "/", True),
    ("/", "/?a", True),
    ("/", "/#a", True),
    ("/a.b/.well-known", "/a.b/.well-known", True),
    ("/**", "*", False),
    ("/**", "", False),
    ("/caf%C3%A9", "/café", True),
    ("/café", "/caf%c3%a9", True),
    ("/%7Bx%7D", "/%7Bx%7D", True),
    ("/%7Bx%7D", "/y", False),
    ("/a/%2A%2A", "/a/**", True),
    ("/a/%2A%2A", "/a/b/c", False),
]


SEGMENTS = ["/", "*", "**", "a", "{x}", "{", "}", ".", "..", "?", "#", "{x}2", "{name}", "https://", "%2a"]


@given(template=st.lists(st.sampled_from(SEGMENTS), max_size=9).map("".join))
def test_the_advised_replacement_of_a_template_is_valid(template: str) -> None:
    try:
        template_segments(template)
    except ConfigError as error:
        for advised in re.findall(r'(?:write|or) "(/.*?)"', error.message):
            template_segments(advised)


def test_a_star_for_a_segment_is_advised_a_name_or_all_below() -> None:
    for template in ("/api/*", "api/*", "/api/*/"):
        with pytest.raises(ConfigError, match=r'write "/api/\{name\}" or "/api/\*\*"$'):
            template_segments(template)


@pytest.mark.parametrize(("template", "path", "matches"), MATCHES, ids=[f"{t} {p}" for t, p, _ in MATCHES])
def test_a_template_matches(template: str, path: str, matches: bool) -> None:
    tree = PathTree()
    tree.add(template, 7)
    assert tree.find(path) == ({7: template} if matches else {})


def test_all_templates_that_match_are_found_each_owner_with_its_own() -> None:
    tree = PathTree()
    for owner, template in enumerate(["/a/b", "/a/{x}", "/{y}/b", "/**", "/a/**", "/c"]):
        tree.add(template, owner)
    tree.add("/a/b", 3)
    assert tree.find("/a/b") == {0: "/a/b", 1: "/a/{x}", 2: "/{y}/b", 3: "/a/b", 4: "/a/**"}


def test_a_template_costs_the_same_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, sizes = path_tree._State, []

    def counted(nodes: tuple[path_tree._Node, ...], found: dict[int, str]) -> path_tree._State:
        sizes.append(sum(len(node.literal) for node in nodes))
        return usual(nodes, found)

    monkeypatch.setattr(path_tree, "_State", counted)
    tree = PathTree()
    for owner in range(1000):
        tree.add(f"/a{owner}", owner)
    assert tree.find("/a7") == {7: "/a7"}
    assert sum(sizes) <= 1000


def test_a_pattern_that_is_added_after_a_match_is_found_by_the_next_match() -> None:
    tree = PathTree()
    too_long = "//" + "a" * 5000
    for owner, template in enumerate(["/a", "/a/{x}", "/a"]):
        tree.add(template, owner)
        tree.add("/later", owner)
        assert tree.find("/a").keys() == {owner for owner in range(owner + 1) if owner != 1}
        assert tree.find(too_long) == dict(list({0: "/a", 1: "/a/{x}", 2: "/a"}.items())[: owner + 1])


@given(path=st.text(alphabet="ab/.%2Ff?é", max_size=30))
def test_any_path_comes_into_a_form_without_detours(path: str) -> None:
    for segments in forms_of(f"/{path}")[:1]:
        assert not {"", ".", ".."} & set(segments)
        assert forms_of("/" + "/".join(segments).replace("%", "%25").replace("?", "%3F"))[:1] == [segments]


@pytest.mark.parametrize("path", ["/api/x/../../health", "/api/..%2fhealth", "/api/%2e%2e/health", "/api/.%2e/health"])
def test_a_path_with_detours_meets_the_rules_of_both_its_forms_and_is_exempt_in_neither_alone(path: str) -> None:
    tree = PathTree()
    for owner, template in enumerate(["/health", "/api/**", "/**", "/other"]):
        tree.add(template, owner)
    assert tree.find(path) == {0: "/health", 1: "/api/**", 2: "/**"}
    assert tree.find_surely(path) == {2}
    assert tree.find_surely("/health") == {0, 2}


EVERYWHERE = ["#", ";x", "\\", "%5C", "\t", "%0A", "%00", "%2F", "%2f..%2f", "..;/", ".", "%20", "%2541"]


@pytest.mark.parametrize("sign", EVERYWHERE)
def test_a_path_that_servers_read_differently_is_exempt_only_if_all_forms_are(sign: str) -> None:
    tree = PathTree()
    for owner, template in enumerate(["/health", "/health/**", "/**"]):
        tree.add(template, owner)
    assert 0 not in tree.find_surely(f"/health{sign}/../api")
    assert 2 in tree.find_surely(f"/health{sign}/../api")


def test_a_path_with_more_forms_than_anybody_means_meets_every_rule_and_no_exemption() -> None:
    tree = PathTree()
    for owner, template in enumerate(["/a", "/b/**", "/**"]):
        tree.add(template, owner)
    path = "/;x/..%2F\\" * 1000
    assert tree.find(path).keys() == {0, 1, 2}
    assert tree.find_surely(path) == set()
    assert tree.find("/x" * 5000).keys() == {2}, "one that has one form may be as long as it likes"


@given(st.text(alphabet="a/.%25CcFf#;\\?\t\0 ", max_size=40))
def test_the_forms_of_a_path_are_few(path: str) -> None:
    assert len(forms_of(f"/{path}")) <= 64


def template_of(parts: list[str]) -> str:
    return "/" + "/".join(f"{{x{place}}}" if part == "{x}" else part for place, part in enumerate(parts))


@given(
    templates=st.lists(
        st.lists(st.sampled_from(["a", "b", "{x}"]), max_size=3).map(template_of)
        | st.lists(st.sampled_from(["a", "{x}"]), max_size=2).map(lambda parts: template_of([*parts, "**"])),
        max_size=8,
    ),
    paths=st.lists(st.lists(st.sampled_from(["a", "b", "c"]), max_size=4), min_size=1, max_size=6),
)
def test_a_tree_finds_what_each_template_says_by_itself(templates: list[str], paths: list[list[str]]) -> None:
    tree = PathTree()
    for owner, template in enumerate(templates):
        tree.add(template, owner)
    for segments in paths:
        path = "/" + "/".join(segments)
        matching: set[int] = set()
        for owner, template in enumerate(templates):
            alone = PathTree()
            alone.add(template, owner)
            matching |= alone.find(path).keys()
            wanted = [part for part in template.split("/") if part]
            fits = [own == part or own.startswith("{") for own, part in zip(wanted, segments, strict=False)]
            whole = len(wanted) == len(segments) if wanted[-1:] != ["**"] else len(segments) >= len(wanted) - 1
            assert (owner in alone.find(path)) == (whole and all(fits[: len(wanted) - (wanted[-1:] == ["**"])]))
        assert tree.find(path).keys() == matching == tree.find_surely(path)


def test_paths_that_are_matched_alike_have_one_match() -> None:
    tree = PathTree()
    tree.add("/users/{id}", 0)
    assert len({id(tree.match(f"/users/{number}")) for number in range(100)}) == 1
    assert tree.match("/users/7/x") is tree.match("/users/8/y/z")


def test_of_several_templates_of_one_owner_the_most_literal_names_the_endpoint() -> None:
    tree = PathTree()
    for template in ["/**", "/api/**", "/api/{version}/login", "/api/v1/login", "/api/v1/{page}"]:
        tree.add(template, 7)
    found = {path: tree.find(path)[7] for path in ("/x", "/api/a/b", "/api/v2/login", "/api/v1/login", "/api/v1/x")}
    assert found == {
        "/x": "/**",
        "/api/a/b": "/api/**",
        "/api/v2/login": "/api/{version}/login",
        "/api/v1/login": "/api/v1/login",
        "/api/v1/x": "/api/v1/{page}",
    }


@given(path=st.text(max_size=60))
def test_no_path_is_an_error(path: str) -> None:
    tree = PathTree()
    tree.add("/a/{b}/**", 0)
    tree.find(path)


def test_a_thousand_templates_cost_what_the_path_costs() -> None:
    tree = PathTree()
    for owner in range(1000):
        tree.add(f"/r{owner}/{{id}}", owner)
    assert tree.find("/r500/x") == {500: "/r500/{id}"}
