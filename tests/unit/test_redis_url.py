"""URLs of Redis and Valkey: read whole, refused with what would be right, and never shown with a password."""

from __future__ import annotations

import pytest

pytest.importorskip("redis")

from headgate import ConfigError, GuardedStore, RedisStore
from headgate.stores.opening import check_store_url, open_store
from headgate.stores.redis_url import Address, read_url


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
    place = read_url(url)
    assert (place.kind, place.addresses) == (kind, addresses)
    assert isinstance(open_store(url), GuardedStore)


def test_options_are_headgates_or_redis_pys() -> None:
    place = read_url(
        "redis+sentinel://u%40x:p%2Fw@a/main/2?timeout=1.5s&prefix=shop:1&max_connections=9&socket_keepalive=1"
    )
    assert (place.timeout_s, place.prefix, place.connections, place.service) == (1.5, "shop:1", 9, "main")
    assert place.options == {"socket_keepalive": "1", "username": "u@x", "password": "p/w", "db": 2}
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
        ("redis://h?local_share=0", "local_share is a number above 0, up to 1, not 0"),
        ("redis://h?remember=perhaps", "remember is yes or no, not 'perhaps'"),
        ("redis://h?timeout=1s&timeout=2s", '"timeout" is given twice'),
        ("redis://h:123456", "the port is a number up to 65535"),
        ("redis://h/first", "the database is a number, not 'first'"),
        ("redis+sentinel://h:26379", "ends with the name of the service, such as /mymaster/0"),
        ("redis+sentinel://h:99999/main", "'h:99999' is no host:port"),
        ("redis+cluster://h/2", "a Cluster has database 0 alone"),
        ("unix://run/redis.sock", 'a Unix socket is "unix:///path/of/the/socket"'),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", "\\?").replace("(", "\\(")):
        check_store_url(url)


@pytest.mark.parametrize("scheme", ["redis", "redis+sentinel", "redis+cluster"])
@pytest.mark.parametrize("tail", ["h:1/main", "h:1/main?timeout=x", "h:1/main?prefix=%7B", "h:999999/main"])
def test_no_password_is_shown(scheme: str, tail: str) -> None:
    url = f"{scheme}://someone:s3cr3t@{tail}"
    try:
        shown = repr(open_store(url))
    except ConfigError as error:
        shown = str(error)
    assert "s3cr3t" not in shown and "someone" not in shown
