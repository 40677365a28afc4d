"""Random policies, and requests that are made to slip past them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headgate.policy.descriptor import Descriptor
from headgate.policy.request import Request

HEADER_NAMES = ["X-User-Id", "X-Tier", "Authorization", "X-Kind"]
PATHS = ["/", "/api/**", "/api/{id}", "/api/login", "/api/{id}/items", "/health", "/a.b/**", "/%61dmin", "/{one}/{two}"]
HOSTS = ["a.example.com", "*.example.com", "*.b.example.com", "shop.test"]
NETWORKS = ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "fd00::/8", "unix"]
TIERS = ["free", "pro"]
LIMITS = ["3/minute bucket", "2/minute fixed", "4/minute", "9/hour counter", "5/minute queue 2", "6/hour leaky 4"]

IDENTITIES: dict[str, dict[str, Any]] = {
    "user": {"header": "X-User-Id"},
    "auth": {"header": "Authorization", "secret": True},
    "bearer": {"header": "authorization"},
    "kind": {"header": "X-Kind", "secret": True},
    "session": {"cookie": "sid"},
    "token": {"cookie": "auth_token", "secret": True},
    "page": {"query": "page"},
    "apikey": {"query": "api.key", "secret": True},
    "client": {"entry": "user"},
    "pass": {"entry": "Authorization", "secret": True},
    "generic": {"entry": "generic_key"},
    "all": {"entries": "all"},
    "sealed": {"entries": "all", "secret": True},
    "net": {"ip": {"ipv4_prefix": 24, "ipv6_prefix": 48}},
    "who": {"first_of": ["user", "session", "client", "ip"]},
    "place": {"first_of": ["endpoint", "page"]},
    "nested": {"first_of": ["auth", "pass", "who"]},
}
NAMES = [*IDENTITIES, "ip", "endpoint", "host", "method"]
PARSED = ["session", "token", "page", "apikey", "who", "place", "nested"]
"""Those that read a cookie or a parameter, which frameworks parse each in a way of its own."""

KEYS = ["generic_key", "generic_key", "user", "remote_address", "Authorization"]
WANTED: st.SearchStrategy[Any] = st.one_of(
    st.just(True),
    st.sampled_from(["1", "", "a*", "*b", "*,*", "*"]),
    st.lists(st.sampled_from(["a", "b", "1", "", "*1", "a*b", "x*", "u*"]), min_size=1, max_size=3),
)
EXCEPTED = st.lists(st.sampled_from(["a", "1", "", "b*", "*b"]), min_size=1, max_size=2)
WANTED_ENTRIES: st.SearchStrategy[Any] = st.one_of(
    st.dictionaries(st.sampled_from(KEYS), WANTED, min_size=1, max_size=2),
    st.lists(
        st.fixed_dictionaries({"key": st.sampled_from(KEYS)}, optional={"value": WANTED, "except": EXCEPTED}),
        min_size=1,
        max_size=3,
    ),
)


@st.composite
def conditions(draw: st.DrawFn) -> dict[str, Any]:
    """What a rule or an exemption is for."""
    some: dict[str, st.SearchStrategy[Any]] = {
        "method": st.lists(st.sampled_from(["GET", "POST", "PUT"]), min_size=1, max_size=2, unique=True),
        "path": st.lists(st.sampled_from(PATHS), min_size=1, max_size=3, unique=True),
        "host": st.lists(st.sampled_from(HOSTS), min_size=1, max_size=2, unique=True),
        "ip": st.lists(st.sampled_from(NETWORKS), min_size=1, max_size=2, unique=True),
        "header": st.dictionaries(
            st.sampled_from(["X-Kind", "X-User-Id"]),
            st.one_of(st.just(True), st.lists(st.sampled_from(["a", "b", "1"]), min_size=1, max_size=2, unique=True)),
            min_size=1,
        ),
        "entries": WANTED_ENTRIES,
    }
    chosen = draw(st.lists(st.sampled_from(["path", "path", *some]), max_size=2))
    return {name: draw(some[name]) for name in dict.fromkeys(chosen)}


@st.composite
def policies(draw: st.DrawFn, *, parsed: bool = True) -> dict[str, Any]:
    """A policy with every kind of identity, but for those that are `parsed` if that is False, and of condition."""
    names = [name for name in NAMES if parsed or name not in PARSED]
    kinds_of_tiers: list[dict[str, Any] | None] = [
        None,
        {"from": {"header": "X-Tier"}, "default": "free"},
        {"from": {"entry": "user"}, "default": "free"},
    ]
    if parsed:
        kinds_of_tiers.append({"from": {"identity": "nested"}, "map": {"1": "pro", "u": "free"}, "default": "free"})
    tiers = draw(st.sampled_from(kinds_of_tiers))
    texts = st.lists(st.sampled_from(LIMITS), min_size=1, max_size=2, unique=True).map("; ".join)
    in_units = texts.map(lambda text: f"{text}; 50 tokens/minute")
    limits: st.SearchStrategy[Any] = st.one_of(texts, texts, in_units)
    if tiers is not None:
        limits = st.one_of(limits, st.fixed_dictionaries({"free": limits, "pro": limits}))
    rules = []
    for number in range(draw(st.integers(1, 6))):
        rule: dict[str, Any] = {
            "name": f"rule{number}",
            "by": draw(st.lists(st.sampled_from(names), max_size=3, unique=True)),
            "limits": draw(limits),
            "missing": draw(st.sampled_from(["anonymous", "anonymous", "refuse"])),
            "repeated": draw(st.sampled_from(["count", "count", "refuse"])),
            "default": draw(st.sampled_from([False, False, True])),
            "shadow": draw(st.sampled_from([False, False, True])),
        }
        if (match := draw(conditions())) and number:
            rule["match"] = match
        counted = rule["limits"] if isinstance(rule["limits"], str) else "".join(rule["limits"].values())
        if draw(st.booleans()):
            rule["cost"] = {"tokens": draw(st.integers(1, 9))} if "tokens" in counted else draw(st.integers(1, 2))
        rules.append(rule)
    proxies = draw(
        st.sampled_from(
            [
                {},
                {"header": "X-Forwarded-For", "trusted_proxies": ["10.0.0.0/8", "fd00::/8", "unix"], "ipv6_prefix": 56},
                {"header": "Forwarded", "trusted_proxies": ["10.0.0.0/8"], "ipv4_prefix": 24},
                {"header": "X-Forwarded-For", "trusted_hops": 2},
            ]
        )
    )
    return {
        "version": 1,
        "identities": IDENTITIES,
        "client_ip": proxies,
        "rules": rules,
        "exempt": draw(st.lists(conditions().filter(bool), max_size=1)),
        "rulesets": {
            "some": draw(st.lists(st.sampled_from(rules).map(lambda rule: rule["name"]), unique=True, min_size=1))
        },
    } | ({} if tiers is None else {"tiers": tiers})


ADDRESSES = [
    "", "unix", "10.0.0.1", "10.1.2.3:80", "192.0.2.7", "203.0.113.9", "203.0.113.77", "2001:db8::1",
    "[2001:db8::1]:443", "::ffff:10.0.0.1", "fd00::1%eth0", "unknown", "_hidden", "300.1.2.3", "010.0.0.1",
    " 192.0.2.7 ", "testclient",
]  # fmt: skip
VALUES = [
    "", "1", "a", "b", "u1", " a ", "a, b", "a,a", "\x1ca\x1f", "a\tb", "pro", "free", "x" * 256, "x" * 257,
    "Bearer abc", "bearer  abc", "BEARER\tabc", "Basic dTpw", "basic dTpw==", "Basic dTpx", "Bearer a,b",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lo", ".eJxx.a.b",
    "\xe9", "\u0130stanbul", "\u2003a", "\ud800", "\U0001f600" * 200, "a|b", "{a}", "a%7Cb", "repeated", "anonymous",
    "\xc3\xa9", "Jol\xc3\xa0", "\xc2\xa0a",
]  # fmt: skip
COOKIES = [
    "", "sid=1", "sid=1; sid=1", "sid=1; sid=2", 'sid="1"', 'sid="a\\073b"', 'sid="1', "SID=1", " sid = 1 ", "s%69d=1",
    "a=b sid=1", "a=b,sid=2", "sid=%31", "sid=1 2", "auth_token=eyJhIjoxfQ; sid=3", "auth.token=1", "sid", "sid=",
    "sid=\xe9", "; " * 600 + "sid=1", "x" * 17000, "sid=1\x00", "auth%5Ftoken=7",
]  # fmt: skip
QUERIES = [
    "", "?", "?page=1", "?page=1&page=1", "?page=1&page=2", "?PAGE=3", "?p%61ge=1", "?page=%31", "?page=a+b",
    "?page=1;page=2", "?page=1#x", "?a#page=1", "?page", "?page=%ff", "?api.key=k", "?api_key=k",
    "?api%2Ekey=%6B", "?api[key=1", "?page=\xe9", "?" + "&".join(["x=1"] * 1001) + "&page=1", "?page%00x=1", "?+page=1",
]  # fmt: skip
SEGMENTS = [
    "api", "login", "items", "7", "health", "admin", "a.b", "..", ".", "", "%61pi", "ap%69", "api;v=1", "%2e%2e",
    "a%2Fb", "%5c", "\\", "API", "x%00", "%C3%A9", "\xe9", "%ff", "login.", "login ", "%2561dmin", "*", "{id}",
    "a:b", "\t",
]  # fmt: skip


@st.composite
def paths(draw: st.DrawFn) -> str:
    """A path as a client may send it."""
    whole = draw(
        st.one_of(
            st.none(), st.sampled_from(["*", "", "http://h/api/login", "//host/api/7", "x" * 5000, "/" + "a/" * 2100])
        )
    )
    if whole is not None:
        return whole
    segments = draw(st.lists(st.sampled_from(SEGMENTS[:8]) | st.sampled_from(SEGMENTS), max_size=4))
    slash = draw(st.sampled_from(["", "", "/", "#x", "?"]))
    return "/" + "/".join(segments) + slash + draw(st.sampled_from(["", ""]) | st.sampled_from(QUERIES))


ANY_VALUE = st.sampled_from(VALUES[:12]) | st.sampled_from(VALUES) | st.text(max_size=5)
FORWARDED_FOR = st.sampled_from(["X-Forwarded-For", "X-Forwarded-For", "X-Forwarded-For", "X_Forwarded_For"])
LISTS = st.lists(st.sampled_from(ADDRESSES), max_size=4).map(", ".join)
FORWARDED = st.sampled_from(
    [
        "for=203.0.113.9", 'for="[2001:db8::1]:80"', "for=10.0.0.1, for=203.0.113.9;by=x", "FOR = unknown", "by=a",
        'for="a\\"b"', 'for="10.0.0.1, for=1.2.3.4"', "for=_x, for=192.0.2.7",
    ]
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request, most often an ordinary one, of a client that may try anything."""
    lines = draw(
        st.lists(
            st.one_of(
                st.tuples(st.sampled_from([*HEADER_NAMES, "x_user_id"]), ANY_VALUE),
                st.tuples(st.just("X-Tier"), st.sampled_from([*TIERS, "none"])),
                st.tuples(st.just("Cookie"), st.sampled_from(COOKIES[:4]) | st.sampled_from(COOKIES)),
                st.tuples(FORWARDED_FOR, LISTS),
                st.tuples(st.just("Forwarded"), FORWARDED),
            ),
            max_size=5,
        )
    )
    hosts = ["a.example.com", "x.example.com", "x.b.example.com:80", "SHOP.test", "shop.test.", "[::1]:80", "",
             "shop.test, a.example.com", "b\xfccher.test", " a.example.com "]  # fmt: skip
    return Request(
        draw(st.sampled_from(["GET", "GET", "POST", "PUT", "get", "BREW", "\xdf", ""])),
        draw(paths()),
        headers=lines,
        client_ip=draw(st.sampled_from(ADDRESSES)),
        host=draw(st.sampled_from(hosts)),
        endpoint=draw(st.sampled_from(["", "", "/api/{id}", "/\xe9", "e" * 300])),
    )


@st.composite
def descriptors(draw: st.DrawFn) -> Descriptor:
    """A set of entries, most often an ordinary one, of a client that may try anything."""
    entry = st.one_of(
        st.tuples(st.sampled_from(KEYS), ANY_VALUE),
        st.tuples(st.just("remote_address"), st.sampled_from(ADDRESSES)),
        st.tuples(st.just("user"), st.sampled_from([*TIERS, "1", "2"])),
        st.tuples(st.sampled_from(["USER", "x-user-id", "user ", "a=b", "a&b", "%", "\xe9", "\ud800"]), ANY_VALUE),
    )
    return Descriptor(draw(st.lists(entry, min_size=1, max_size=4)))


def subjects() -> st.SearchStrategy[Request | Descriptor]:
    """A request or a descriptor."""
    return st.one_of(requests(), requests(), descriptors())


HEADERS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([*HEADER_NAMES, "x_user_id"]), ANY_VALUE),
        st.tuples(st.just("X-Tier"), st.sampled_from([*TIERS, "none"])),
        st.tuples(st.just("Cookie"), st.sampled_from(COOKIES[:4]) | st.sampled_from(COOKIES)),
        st.tuples(FORWARDED_FOR, LISTS),
        st.tuples(st.just("Forwarded"), FORWARDED),
        st.tuples(st.just("Host"), st.sampled_from(["a.example.com", "shop.test:80", "x.b.example.com", "[::1]", ""])),
        st.tuples(st.sampled_from(["Origin", "Access-Control-Request-Method"]), st.sampled_from(["", "null", "PUT"])),
        st.tuples(st.sampled_from(["Content-Type", "Content-Length", ""]), st.sampled_from(["", "0", "a/b"])),
    ),
    max_size=6,
)  # fmt: skip
METHODS = st.sampled_from(["GET", "GET", "POST", "OPTIONS", "put", "\xdf", ""])
BAD: st.SearchStrategy[Any] = st.sampled_from([None, 7, b"\xff", "\u0416", [], {}, ("x",)])
"""What no server puts there."""


def _spoilt(draw: st.DrawFn, values: dict[str, Any]) -> dict[str, Any]:
    """These, of which once in a while one is bad or lacks."""
    kind = draw(st.sampled_from([""] * 6 + ["bad", "lacks"]))
    if kind:
        name = draw(st.sampled_from([name for name in values if name != "type"]))
        values[name] = draw(BAD)
        if kind == "lacks":
            del values[name]
    return values


@st.composite
def scopes(draw: st.DrawFn) -> dict[str, Any]:
    """An ASGI scope, most often one that servers create."""
    path, _, query = draw(paths()).partition("?")
    lines = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in draw(HEADERS)
    ]  # fmt: skip
    as_lists = draw(st.sampled_from([False, False, False, True]))
    headers: Any = [list(line) for line in lines] if as_lists else lines
    peer = draw(st.sampled_from(ADDRESSES))
    client = draw(st.sampled_from([(peer, 50000), (peer, 50000), [peer, 1], None, ()]))
    scope: dict[str, Any] = {
        "type": draw(st.sampled_from(["http", "http", "http", "websocket"])),
        "method": draw(METHODS),
        "path": path,
        "root_path": draw(st.sampled_from(["", "", "/api", "/api/v1", "/", None])),
        "raw_path": draw(st.sampled_from([path.encode("utf-8", "surrogatepass"), None, b"", b"/caf\xe9/%41"])),
        "query_string": query.encode("latin-1", "replace"),
        "headers": tuple(headers) if draw(st.sampled_from([False, False, True])) else headers,
        "client": client,
    }
    if draw(st.sampled_from([False, False, True])):  # a mount of Starlette
        scope["app_root_path"] = draw(st.sampled_from(["", "/api"]))
    return _spoilt(draw, scope)


@st.composite
def environs(draw: st.DrawFn) -> dict[str, Any]:
    """A WSGI environ, most often one that servers create."""
    path, _, query = draw(paths()).partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": draw(METHODS),
        "SCRIPT_NAME": draw(st.sampled_from(["", "", "/api", "/\xe9"])),
        "PATH_INFO": path.encode("utf-8", "surrogatepass").decode("latin-1"),
        "QUERY_STRING": query,
        "REMOTE_ADDR": draw(st.sampled_from(ADDRESSES)),
        "SERVER_NAME": draw(st.sampled_from(["shop.test", "a.example.com"])),
    }
    if draw(st.sampled_from([False, False, True])):  # the variable from which gunicorn reads the mount
        environ["HTTP_SCRIPT_NAME"] = draw(st.sampled_from(["", "/api", "/x,/api", "/", "x", "\xe9"]))
    for name, value in draw(HEADERS):
        upper = name.upper().replace("-", "_")
        environ[upper if upper in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{upper}"] = value
    return _spoilt(draw, environ)
