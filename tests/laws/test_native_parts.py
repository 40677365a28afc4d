"""The parts of the native gate give the answers of `headgate.policy`, for whatever a client sends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core import native
from policy_parts import MAY_LEAVE, NATIVE, PYTHON


def mixed(*signs: str, most: int = 16) -> st.SearchStrategy[str]:
    """Text of these signs, and any text."""
    return st.lists(st.sampled_from(signs), max_size=most).map("".join) | st.text(max_size=24)


ENCODED = ["%2F", "%2f", "%5C", "%2e", "%25", "%2541", "%00", "%0A", "%C3", "%A9", "%E2%82", "%ED%A0%80",
           "%F0%9F%98%80", "%", "%4", "%zz", "%3B", "%20", "%41"]  # fmt: skip
SPACES = [" ", "\t", "\x1c", "\x85", "\xa0", "\u3000", "\u200b"]
SIGNS = ["a%2Fb", "%7Bx%7D", "/", "//", "a", "b", ".", "..", ";", ";x=1", "\\", "#", "?", "&", "\0", "\n", " ", "é",
         "*", "http:", "//h", "x:1", "@", "~", "{x}", "**"]  # fmt: skip
PATHS = mixed(*SIGNS, *ENCODED) | st.text("ab/", max_size=12).map("/".__add__)
SEGMENTS = st.sampled_from(["a", "b", "{}", "{}", "%C3%A9", "a%2Fb", "%2E%2E", "%7Bx%7D", "%2A%2A", "é"])
TEMPLATES = st.lists(
    st.builds(
        lambda segments, end: (
            "/" + "/".join([*(one.replace("{}", f"{{x{n}}}") for n, one in enumerate(segments)), *end])
        ),
        st.lists(SEGMENTS, max_size=4),
        st.sampled_from([(), ("**",)]),
    ),
    max_size=8,
)
ADDRESS = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses(v=4).map(lambda address: f"::ffff:{address}"),
    st.sampled_from(
        ["10.0.0.1", "fd00::1", "", "unix", "unknown", "_hidden", "::", "::1.2.3.4", "1::2%eth0", "010.0.0.1"]
    ),
    mixed("1", "0", "255", ".", ":", "::", "[", "]", "%", "ffff", "g", " ", "\t", "\0", ":80", "１", most=12),
)
PORT = st.sampled_from(["", "", ":80", ":", ":123456", ":x", "%1", " ", "\u2003", "]"])
WRITTEN = st.builds(
    lambda a, b, port: a.replace("A", b) + port, st.sampled_from(["A", "A", "[A]", " A"]), ADDRESS, PORT
)
NODE = WRITTEN | WRITTEN.map(lambda node: f'"{node}"') | mixed('"', "\\", ",", ";", "=", "for", "1.2.3.4", "\n", " ")
FORWARDED = st.lists(
    st.builds("{}{}{}".format, st.sampled_from(["for=", "For =", " FOR=", "by=", "proto=http;for=", "for"]), NODE,
              st.sampled_from(["", ";proto=http", ";for=9.9.9.9", '"'])), max_size=5
).map(",".join)  # fmt: skip
HEADERS = (
    st.lists(WRITTEN, max_size=5).map(", ".join)
    | FORWARDED
    | st.sampled_from(["1.1.1.1," * 63, "1.1.1.1," * 64, " " * 5000])
)
NETWORKS = st.lists(
    st.sampled_from(["10.0.0.0/8", "fd00::/8", "0.0.0.0/0", "::/0", "203.0.113.9", "::ffff:10.0.0.0/104", "::1"]),
    max_size=3,
)
RULES = st.fixed_dictionaries({
    "header": st.sampled_from(["", "x-forwarded-for", "forwarded"]), "trusted": NETWORKS, "trust_unix": st.booleans(),
    "hops": st.integers(0, 3), "ipv4_prefix": st.integers(0, 32), "ipv6_prefix": st.integers(0, 128),
})  # fmt: skip
PACKED = st.ip_addresses().map(lambda address: address.packed.hex()) | st.lists(
    st.sampled_from(["0000", "0001", "ffff", "0a00"]), min_size=8, max_size=8
).map("".join)
NAMES = st.sampled_from(
    ["s", "session", "my_id", "my.id", "a b", "K", "\u212a", "%73", "s[x]", " s", "é", "ss", "+", "İ"]
)
TOKENS = mixed("eyJ", ".eJ", "A", "B", "Q", "=", "==", "-", "_", "+", "/", ".", " ", "\n", "é", "!", most=24)
COOKIES = mixed("s", "session", "my_id", "my.id", "a+b", "K", "\u212a", "=", ";", "; ", ",", '"', "\\", "\\163",
                "\\777", "%73", "1", "x", "[", ".", "_", "\n", "S", "é", "Ã", "©", *SPACES, *ENCODED)  # fmt: skip
QUERIES = mixed("s", "session", "my_id", "my.id", "a+b", "k", "\u212a", "=", "&", ";", "#", "+", "%26", "%73", "1",
                "[", ".", "?", "S", "é", "İ", *SPACES, *ENCODED)  # fmt: skip
LIKE = mixed("a", "b", "ab", "aab", "*", "*", "**", "é", "\n", most=9)
ENTRY_TEXTS = mixed("a", "=", "&", "%", "%26", "%3D", "|", "é", most=5)
LINES = st.lists(COOKIES, min_size=1, max_size=3)

ARGUMENTS: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "forms_of": st.tuples(PATHS),
    "match_path": st.tuples(
        TEMPLATES.map(lambda templates: [(n % 5 - 2, one) for n, one in enumerate(templates)]), PATHS
    ),
    "client": st.tuples(RULES, WRITTEN, HEADERS),
    "parse_address": st.tuples(WRITTEN),
    "address_text": st.tuples(PACKED),
    "is_in": st.tuples(PACKED, NETWORKS),
    "forwarded_for": st.tuples(FORWARDED | mixed('"', "\\", ",", ";", "=", "for", "é", " ", "\n")),
    "host_of": st.tuples(mixed("A", "b.", ".", ":80", "[", "]", "::1", ",", *SPACES)),
    "hosts_of": st.tuples(mixed("A", "b.", "@", ".", ":80", "[", "]", "::1", ",", "," * 16, *SPACES)),
    "one_spelling": st.tuples(mixed("Basic", "bearer", "eyJ", "QQ==", "QR", "=", ".", "\u212a", *SPACES)),
    "plain_token": st.tuples(TOKENS | TOKENS.map("eyJ".__add__)),
    "bounded": st.tuples(st.text() | st.builds(str.__mul__, st.sampled_from("aé😀"), st.integers(250, 260))),
    "digest": st.tuples(st.text() | st.text("ab").map(lambda text: text * 50)),
    "cookie_values": st.tuples(LINES, NAMES),
    "query_values": st.tuples(QUERIES, NAMES),
    "one_of_values": st.tuples(st.lists(st.none() | st.sampled_from(["", " ", "a", " a", "a\u3000", "b"]), max_size=4)),
    "one_of_lines": st.tuples(
        st.lists(
            st.sampled_from(["", " ", "a", " a", "a\u3000", "b"])
            | mixed("é", "Ã", "©", "\xa0", "\x85", "日", "a", " "),
            max_size=4,
        )
    ),
    "is_like": st.tuples(LIKE, LIKE | st.text()),
    "entries_text": st.tuples(
        st.lists(st.tuples(st.text(min_size=1) | ENTRY_TEXTS, st.text() | ENTRY_TEXTS), max_size=5)
    ),
    "encode_key": st.tuples(st.lists(mixed("%", "|", "{", "}", " ", "\x7f", "é", "a" * 5000), max_size=18)),
}
NATIVELY = pytest.mark.parametrize("name", NATIVE)


def is_ascii(arguments: Any) -> bool:
    return arguments.isascii() if isinstance(arguments, str) else all(map(is_ascii, arguments))


def test_every_part_has_a_law() -> None:
    assert ARGUMENTS.keys() == PYTHON.keys()


@NATIVELY
@given(data=st.data())
def test_a_part_answers_as_it_does_in_python(name: str, data: st.DataObject) -> None:
    arguments = data.draw(ARGUMENTS[name])
    found = NATIVE[name](*arguments)
    if found is None and name in MAY_LEAVE:
        assert not is_ascii(arguments), "ASCII is never left to Python"
        return
    assert found == PYTHON[name](*arguments)


@pytest.mark.parametrize("parts", [native.PolicyParts] if native else [])
@given(key=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4), seed=st.binary(min_size=16, max_size=16))
def test_a_key_of_parts_is_hashed_as_a_limiter_hashes_it(parts: Any, key: list[str], seed: bytes) -> None:
    assert parts.hash_key(key, seed) == parts.hash_of_limiter(tuple(key), seed)
    if len(key) == 1:
        assert parts.hash_key(key, seed) == parts.hash_of_limiter(key[0], seed)
