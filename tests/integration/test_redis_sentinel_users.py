"""Sentinels that require their own user and password, beside those of the servers."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
from redis_askers import COLOURS, Asker
from redis_servers import SERVICE, Sentinels, sentinels

from headgate import RedisStore, StoreError, StoreUnavailable

PASSWORD = "open/sesame @:#?%"
"""The password of the Sentinels; `WRITTEN` is its form in a URL."""

WRITTEN = "open%2Fsesame+%40%3A%23%3F%25"
PATIENT = "timeout=10s"


@pytest.fixture(scope="module")
def watched() -> Iterator[Sentinels]:
    """One server with its own user, and a Sentinel with other users."""
    with sentinels(replicas=0, quorum=1, watchers=1, sentinel_password=PASSWORD) as watched:
        watched.servers[0].cli("ACL", "SETUSER", "shop", "on", ">till", "~hg:*", "&*", "+@all")
        watched.watchers[0].cli("ACL", "SETUSER", "asking", "on", f">{PASSWORD}", "-@all", "+sentinel|masters")
        watched.watchers[0].cli("ACL", "SETUSER", "idle", "on", f">{PASSWORD}", "-@all", "+ping")
        yield watched


def url_of(watched: Sentinels, *options: str) -> str:
    """Its URL with the user of the servers and these options."""
    return f"{watched.url.replace('://', '://shop:till@')}?{'&'.join((PATIENT, *options))}"


@pytest.mark.parametrize("user", ["", "sentinel_username=default", "sentinel_username=asking"])
@pytest.mark.parametrize("colour", COLOURS)
def test_sentinels_are_queried_with_their_own_user_and_password(watched: Sentinels, colour: str, user: str) -> None:
    options = [each for each in (user, f"sentinel_password={WRITTEN}") if each]
    with Asker(colour, "2/week", RedisStore(url_of(watched, *options))) as asker:
        assert [asker.hit(f"{colour} {user}").allowed for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("sentinel_password=",),
        ("sentinel_password=shibboleth",),
        ("sentinel_username=nobody", f"sentinel_password={WRITTEN}"),
        ("sentinel_username=asking",),
    ],
)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_user_or_password_that_sentinels_refuse_is_reported_and_never_shown(
    watched: Sentinels, colour: str, options: tuple[str, ...]
) -> None:
    with (
        Asker(colour, "2/week", RedisStore(url_of(watched, *options))) as asker,
        pytest.raises(StoreUnavailable, match="a Sentinel requires another user or password") as raised,
    ):
        asker.hit("key")
    assert SERVICE in str(raised.value) and "sentinel_password" in str(raised.value)
    shown = "".join(traceback.format_exception(raised.value))
    assert not any(secret in shown for secret in (PASSWORD, "shibboleth", "till"))


@pytest.mark.parametrize("colour", COLOURS)
def test_a_right_that_the_user_at_the_sentinels_lacks_is_named(watched: Sentinels, colour: str) -> None:
    url = url_of(watched, "sentinel_username=idle", f"sentinel_password={WRITTEN}")
    with (
        Asker(colour, "2/week", RedisStore(url)) as asker,
        pytest.raises(StoreError, match=r"the user at the Sentinels .* needs \+sentinel\|masters \(NOPERM\)$"),
    ):
        asker.hit("key")


@pytest.mark.parametrize("colour", COLOURS)
def test_sentinels_that_require_a_password_over_tls_name_a_new_primary(colour: str) -> None:
    with sentinels(replicas=1, sentinel_password=PASSWORD, tls=True) as watched:
        options = f"sentinel_password={WRITTEN}&ssl_ca_certs={watched.servers[0].ca_file}"
        with Asker(colour, "2/week", RedisStore(f"{watched.url}?{PATIENT}&{options}")) as asker:
            assert asker.hit("key").allowed
            before = watched.primary
            before.kill()
            watched.wait_failover(before)
            assert [asker.hit("other").allowed for _ in range(3)] == [True, True, False]
