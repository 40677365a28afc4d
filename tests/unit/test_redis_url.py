"""URLs of Redis and Valkey: all parts are read, refusals say what would be right, and no password is shown."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from certificates import Authority
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import ConfigError, Gate, GuardedStore, Limiter, RedisStore
from headgate.stores.redis.clients import open_async_pool
from headgate.stores.redis.url import Address, read_url
from headgate.stores.url import check_store_url, existing_zone, open_store
from headgate.stores.url_parts import split_url


@pytest.mark.parametrize(
    ("url", "kind", "addresses"),
    [
        ("redis://localhost", "single", (Address("localhost", 6379),)),
        ("valkey://cache.internal:7000/3", "single", (Address("cache.internal", 7000),)),
        ("rediss://[::1]:6380", "single", (Address("::1", 6380),)),
        ("unix:///run/redis.sock?db=1", "single", ()),
        ("redis+sentinel://a,b:26380/mymaster/2", "sentinel", (Address("a", 26379), Address("b", 26380))),
        ("valkeys+cluster://u:p@a:1,[::1]:2", "cluster", (Address("a", 1), Address("::1", 2))),
    ],
)
def test_every_kind_is_read(url: str, kind: str, addresses: tuple[Address, ...]) -> None:
    target = read_url(url)
    assert (target.kind, target.addresses) == (kind, addresses)
    assert isinstance(open_store(url), GuardedStore)


def test_options_are_headgates_or_redis_pys() -> None:
    target = read_url(
        "redis+sentinel://u%40x:p%2Fw@a/main/2?timeout=1.5s&prefix=shop:1&max_connections=9&socket_keepalive=1"
    )
    assert (target.timeout_s, target.prefix, target.connections, target.service) == (1.5, "shop:1", 9, "main")
    assert target.options == {"socket_keepalive": True, "username": "u@x", "password": "p/w", "db": 2}
    target = read_url("redis+sentinel://u:pw@a/main?sentinel_username=eye&sentinel_password=o%2Fp+%26&password=")
    assert target.sentinel == {"username": "eye", "password": "o/p &"}
    assert read_url("redis+sentinel://u:pw@a/main?sentinel_password=").sentinel == {}
    for url in ("redis://bob@h/2?password=p%2Fw", "redis://:p%2Fw@h?username=bob&db=2", "redis://bob:p%2Fw@h/2?db=2"):
        assert read_url(url).options == {"username": "bob", "password": "p/w", "db": 2}
    store = open_store("redis://h?on_error=closed&local_share=.25&remember=no&timeout=20ms")
    assert isinstance(store, GuardedStore) and isinstance(store.inner, RedisStore)
    assert (store.on_error, float(store.local_share), store.remember) == ("closed", 0.25, False)
    assert store.inner.timeout_s == 0.02


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h?timeout=soon", "timeout is a time such as 50ms or 1.5s, not 'soon'"),
        ("redis://h?timeout=0ms", "timeout is a time such as 50ms"),
        ("redis://h?prefix=a{b", "prefix is up to 40 letters, digits"),
        ("redis://h?max_connections=0", "max_connections is a whole number from 1 to 99999"),
        ("redis://h?on_error=maybe", "on_error is one of local, open, closed, not 'maybe'"),
        ("redis://h?local_share=2", "local_share is a number above 0, up to 1, not '2'"),
        ("redis://h?local_share=0", "local_share is a number above 0, up to 1, not '0'"),
        ("redis://h?remember=perhaps", "remember is yes or no, not 'perhaps'"),
        ("redis://h?timeout=1s&timeout=2s", '"timeout" is given twice'),
        ("redis://h:123456", "the port is a number up to 65535"),
        ("redis://h/first", "the database is a number, not 'first'"),
        ("redis+sentinel://h:26379", "ends with the name of the service, such as /mymaster/0"),
        ("redis+sentinel://h:99999/main", "the port is a number up to 65535"),
        ("redis+cluster://h/2", "a Cluster has database 0 alone"),
        ("unix://run/redis.sock", 'a Unix socket is "unix:///path/of/the/socket"'),
    ],
)
def test_invalid_values_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", "\\?").replace("(", "\\(")):
        check_store_url(url)


@pytest.mark.parametrize("prefix", ["", "{a}", "a*", "a b", "a\n", "x" * 41, "\u00fc", 5])
def test_a_prefix_that_is_given_beside_a_url_or_a_client_is_checked_as_one_in_a_url(prefix: Any) -> None:
    for server in ("redis://h", "redis://h?prefix=shop", redis.Redis()):
        with pytest.raises(ConfigError, match="RedisStore: prefix is up to 40 letters, digits"):
            RedisStore(server, prefix=prefix)
    assert RedisStore("redis://h?prefix=shop").prefix == "shop"
    assert RedisStore("redis://h?prefix=shop", prefix="hg:2").prefix == "hg:2"


@pytest.mark.parametrize("scheme", ["redis", "redis+sentinel", "redis+cluster"])
@pytest.mark.parametrize("tail", ["h:1/main", "h:1/main?timeout=x", "h:1/main?prefix=%7B", "h:999999/main"])
def test_no_password_is_shown(scheme: str, tail: str) -> None:
    url = f"{scheme}://someone:s3cr3t@{tail}"
    try:
        shown = repr(open_store(url))
    except ConfigError as error:
        shown = str(error)
    assert "s3cr3t" not in shown and "someone" not in shown


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h/0?on_eror=open", 'not "on_eror": did you mean "on_error"?'),
        ("redis://h/0?pasword=hunter2", 'not "pasword": did you mean "password"?'),
        ("redis+cluster://h?timout=50ms", 'not "timout": did you mean "timeout"?'),
        ("redis://h/0?db=x", "db is a number, not 'x'"),
        ("redis://h/0?db=3", "the path names database 0, and db is 3: give one"),
        ("redis://:hunter2@h/0?password=hunter22", 'password is given twice, before the "@" and after the "?"'),
        ("redis://h/0?socket_timeout=abc", "the deadline of a call is timeout, such as timeout=50ms"),
        ("redis://h/0?retry_on_timeout=yes", "may have been charged and is never repeated"),
        ("redis://h/0?socket_keepalive=perhaps", "socket_keepalive is yes or no, not 'perhaps'"),
        ("redis://h/0?ssl_ca_certs=/ca.pem", "ssl_ca_certs is for TLS, which rediss://"),
        ("redis://h/0?sentinel_password=hunter2", "sentinel_password is for Sentinels, which redis+sentinel:// names"),
        ("redis+cluster://h?sentinel_username=hunter2", "sentinel_username is for Sentinels"),
        ("redis+sentinel://h/m?sentinel_pasword=hunter2", 'did you mean "sentinel_password"?'),
        ("redis+sentinel://h/m?sentinel_password=a@hunter2", '"@" stands after a "?"'),
        ("rediss://h/0?ssl_cert_reqs=no", "ssl_cert_reqs is none, optional or required, not 'no'"),
        ("rediss://h/0?ssl_min_version=3", "ssl_min_version is TLSv1.2 or TLSv1.3, not '3'"),
        ("redis://[::1/0", "the server is named by host:port, an IPv6 address by [address]:port"),
        ("redis://h:port/0", "the port is a number up to 65535"),
        ("redis+cluster://a:1,:b", "server 2 is named by host:port"),
        ("redis+cluster://a:1?db=2", "a Cluster has database 0 alone"),
        ("redis://h/0?timeout", 'option 1 after "?" is not name=value'),
        ("redis://h/0\n", "character 12 is a control character"),
        ("redis:/:hunter2@h", 'did you mean "redis://"?'),
        ("reddis://:hunter2@h", "not 'reddis://***@h': did you mean \"redis://\"?"),
        ("redis://:a?hunter2@h/0", '"?" is written %3F'),
        ("redis://:a/hunter2@h/0", '"/" is written %2F'),
        ("redis://:a#hunter2@h/0", '"#" in a store\'s URL is written %23'),
        ("memory://[::1", 'the memory store is "memory://"'),
        ("memory://?max_key=5", 'did you mean "max_keys"?'),
        ("shared://[x/y", "with three slashes"),
        ("shared:///a%00b", "a path has no NUL in it"),
        ("shared:///z?sice=1MiB", 'did you mean "size"?'),
    ],
)
def test_the_error_is_named_where_the_url_is_passed(url: str, message: str) -> None:
    for read in (check_store_url, open_store, lambda url: Limiter("1/minute", store=url), gate_on):
        refusal = refusal_of(read, url)
        assert message in refusal[0]
        assert not any("hunter2" in text for text in refusal)


@pytest.mark.parametrize(
    ("hiredis", "reason"),
    [
        ("__version__ = '3.1.1'", "cannot be imported (redis-py takes no hiredis before 3.2, and 3.1.1 is installed)"),
        ("raise ModuleNotFoundError('no hiredis')", "are not installed"),
    ],
)
def test_a_hiredis_that_redis_py_does_not_use_is_reported(hiredis: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "hiredis.py").write_text(hiredis)
    program = "import headgate\ntry: headgate.RedisStore\nexcept headgate.MissingExtraError as error: print(error)"
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    output = subprocess.check_output([sys.executable, "-c", program], env=path, text=True, timeout=60)
    assert f"{reason}: pip install 'headgate[redis]'" in output


def test_a_store_without_a_guard_refuses_the_options_of_one() -> None:
    with pytest.raises(ConfigError, match="on_error is for a store with a guard"):
        RedisStore("redis://h/0?on_error=open")


def test_every_option_that_is_taken_makes_a_connection_in_both_colours(tmp_path: Path) -> None:
    authorities = quote(Authority(tmp_path).file.read_text(), safe="")
    tls = (
        f"&ssl_ca_certs=/a&ssl_ca_path=/b&ssl_ca_data={authorities}&ssl_certfile=/d&ssl_keyfile=/e&ssl_password=f"
        "&ssl_cert_reqs=optional&ssl_check_hostname=no&ssl_min_version=TLSv1.2&ssl_ciphers=ALL"
    )
    common = "?username=u&password=p&client_name=shop&socket_read_size=4096"
    tcp = common + "&socket_keepalive=yes"
    sentinel = "&sentinel_username=su&sentinel_password=sp"
    for url in (
        f"redis://h/2{tcp}", f"unix:///run/redis.sock{common}&db=3", f"rediss://h/2{tcp}{tls}",
        f"redis+sentinel://h/main/2{tcp}{sentinel}", f"rediss+sentinel://h/main/2{tcp}{sentinel}{tls}",
    ):  # fmt: skip
        connection = RedisStore(url).client.connection_pool.make_connection()
        assert (connection.username, connection.password, connection.client_name) == ("u", "p", "shop")
        assert connection.db == (3 if "unix" in url else 2)

        async def connect(url: str = url) -> Any:
            return open_async_pool(read_url(url)).make_connection()

        assert asyncio.run(connect()).username == "u"


SECRET = "Zq9Xsecret7"
"""A text that no message contains by chance."""

PIECES = st.sampled_from(
    ["redis://", "rediss://", "unix://", "redis+sentinel://", "redis+cluster://", "memory://", "shared://",
     "redis:/", "redis:", "mysql://", "reddis://", ":", "@", "/", "?", "#", "&", "=", "%", "%4", "[", "]", ",", ";",
     " ", "\n", "\0", "\\", "h", "127.0.0.1:6379", "[::1]:6379", "/0", "/mymaster/0", "?db=", "db=", "timeout=50ms",
     "password=", "sentinel_password=", "on_error=open", "on_eror=", "socket_timeout=", "size=1MiB", "max_keys=",
     "user:", ":99999",
     "\ud800", "\u0663"]
)  # fmt: skip


@given(
    before=st.lists(PIECES, max_size=8),
    mark=st.sampled_from([":", "user:", "u@v:", "password=", "?password=", "//:"]),
    after=st.lists(PIECES, max_size=6),
    tail=st.sampled_from(["@h/0", "@h", "", "@", "@[::1", "@h:x"]),
)
@settings(max_examples=1000, deadline=None)
def test_a_password_in_a_url_of_any_form_is_never_shown(
    before: list[str], mark: str, after: list[str], tail: str
) -> None:
    url = "".join(before) + mark + SECRET + "".join(after) + tail
    for read in (check_store_url, RedisStore, gate_on, *((existing_zone,) if "://" in url else ())):
        assert not any(SECRET in text for text in refusal_of(read, url)), url


@given(st.data())
@settings(max_examples=1000, deadline=None)
def test_a_url_with_a_character_more_or_less_shows_no_password(data: st.DataObject) -> None:
    url = data.draw(
        st.sampled_from(
            [f"redis://:{SECRET}@h/0", f"rediss://user:{SECRET}@h:6379/0?timeout=50ms&ssl_check_hostname=no",
             f"redis+sentinel://u:{SECRET}@a:1,b:2/main/0?on_error=open", f"redis+cluster://:{SECRET}@a:1,b:2",
             f"redis://h/0?password={SECRET}", f"redis+sentinel://a/main?sentinel_password={SECRET}&db=1", f"unix://u:{SECRET}@/run/redis.sock?db=1"]
        )
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(url)))
        removed = data.draw(st.integers(0, 1))
        character = "" if removed else data.draw(st.sampled_from(":/?#@[]%&=,; \n"))
        if SECRET in (changed := url[:at] + character + url[at + removed :]):
            url = changed
    refusal = refusal_of(open_store, url)
    assert not any(SECRET in text for text in refusal), url
    if not refusal:
        # Without its ":" or "@" a password stands where a host, a path or a service does, in a URL that is right.
        parts = split_url(url)
        assert SECRET not in repr(open_store(url)) or SECRET in parts.host + parts.path, url


def test_a_key_that_can_never_be_used_is_an_error_before_its_first_use(tmp_path: Path) -> None:
    for name, locked in (("locked", True), ("open", False)):
        encryption = ["-passout", f"pass:{SECRET}"] if locked else ["-nodes"]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-subj", "/CN=client", *encryption]
        command += ["-keyout", f"{tmp_path}/{name}.key", "-out", f"{tmp_path}/{name}.crt"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    (tmp_path / "none.key").write_text("no key")

    def refusal_with(certificate: str, key: str, password: str = "") -> list[str]:
        values = {"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_password": password}
        options = [
            f"{name}={f'{tmp_path}/{value}' if 'file' in name else value}" for name, value in values.items() if value
        ]
        return refusal_of(open_store, f"rediss://h/0?{'&'.join(options)}")

    assert not refusal_with("open.crt", "open.key")
    assert not refusal_with("locked.crt", "locked.key", SECRET)
    assert not refusal_with("later.crt", "later.key")
    assert refusal_with("locked.crt", "locked.key", "other")[0] == (
        "rediss://: ssl_keyfile has no key that can be read: ssl_password is wrong, or it is no PEM file"
    )
    for refusal, reason in (
        (refusal_with("locked.crt", "locked.key"), "it is no PEM file, or needs ssl_password"),
        (refusal_with("open.crt", "none.key", SECRET), "ssl_password is wrong, or it is no PEM file"),
        (refusal_with("open.crt", "locked.key", SECRET), "the key in ssl_keyfile is not that of the certificate"),
        (refusal_with("", "open.key"), "ssl_keyfile is the key of a certificate: ssl_certfile is missing"),
    ):
        assert reason in refusal[0] and not any(SECRET in text for text in refusal)


def gate_on(url: str) -> Gate:
    return Gate({"version": 1, "store": url, "rules": [{"name": "all", "by": ["ip"], "limits": "5/minute"}]})


def refusal_of(read: Callable[[str], object], url: str) -> list[str]:
    """All texts that the refusal of a URL, and the errors handled when it was raised, would show."""
    shown: list[str] = []
    try:
        read(url)
    except ConfigError as refusal:
        error: BaseException | None = refusal
        while error is not None:
            shown += [str(error), repr(error), repr(error.args)]
            error = error.__cause__ or error.__context__
    return shown
