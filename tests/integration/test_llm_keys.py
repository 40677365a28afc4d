"""The proxy's own keys: made and revoked by the command, kept as digests, seen by a proxy that runs."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from provider import Provider, running_provider
from redis_servers import single
from running_proxy import RunningProxy, at, running_proxy

from headgate.cli.commands import headgate
from headgate.clock import SYSTEM_CLOCK
from headgate.errors import ConfigError
from headgate.llm.entry import Caller
from headgate.llm_proxy.key_file import KeyFile
from headgate.llm_proxy.own_key import digest_of, new_key
from headgate.llm_proxy.redis_keys import RedisKeys
from headgate.testing import ManualClock

pytestmark = pytest.mark.integration

HTTP = httpx.Client(timeout=30)
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TIERS = {"from": {"identity": "tier"}, "map": {"free": "free", "pro": "pro"}, "default": "free"}
RULES = [{"name": "user", "by": ["user"], "limits": {"free": "2/day", "pro": "100/day"}}]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def proxy(provider: Provider, tmp_path: Path, keys: Path) -> Iterator[RunningProxy]:
    with running_proxy(tmp_path, RULES, [at(provider)], keys=KeyFile(keys), tiers=TIERS) as proxy:
        yield proxy


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(headgate, ["llm", "key", *map(str, words)])


def made(keys: Path, name: str, *words: str) -> str:
    """A new key."""
    told = command("create", name, "--keys", keys, "--json", *words)
    assert told.exit_code == 0, told.output
    key: str = json.loads(told.stdout)["key"]
    return key


def ask(proxy: RunningProxy, key: str, **headers: str) -> httpx.Response:
    sent = {"authorization": f"Bearer {key}", **headers}
    return HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODY, headers=sent)


def test_a_key_says_who_calls_and_under_which_tier(proxy: RunningProxy, keys: Path) -> None:
    free = made(keys, "ci", "--user", "u1", "--team", "red", "--tier", "free")
    assert [ask(proxy, free).status_code for _ in range(3)] == [200, 200, 429]
    told = ask(proxy, free).json()["error"]["message"]
    assert " in ci " in told and free not in told
    pro = made(keys, "pro", "--user", "u2", "--organisation", "acme", "--tier", "pro")
    assert [ask(proxy, pro).status_code for _ in range(3)] == [200] * 3
    assert proxy.entries[0].caller == Caller("ci", "u1", "red", "", "free")
    assert proxy.entries[-1].caller == Caller("pro", "u2", "", "acme", "pro")


def test_a_key_is_revoked_from_the_next_call_on(proxy: RunningProxy, keys: Path) -> None:
    key = made(keys, "ci", "--user", "u1", "--tier", "pro")
    assert ask(proxy, key).status_code == 200
    assert command("revoke", "ci", "--keys", keys).exit_code == 0
    answer = ask(proxy, key)
    assert answer.status_code == 401 and answer.json()["error"]["message"] == "The API key ci is revoked."
    assert command("revoke", "ci", "--keys", keys).exit_code == 1
    again = made(keys, "ci", "--user", "u1", "--tier", "pro")
    assert ask(proxy, again).status_code == 200 and ask(proxy, key).status_code == 401


def test_what_is_no_key_opens_nothing_in_either_dialect(proxy: RunningProxy, keys: Path, provider: Provider) -> None:
    good, expired = made(keys, "good", "--tier", "pro", "--user", "u"), "hg-" + "x" * 43
    asked = len(provider.requests)
    url = f"{proxy.url}/v1/messages"
    for headers in (
        [], [("authorization", "Bearer hg-forged")], [("authorization", "Bearer")], [("authorization", good)],
        [("authorization", f"Basic {good}")], [("authorization", f"Bearer {good}"), ("x-api-key", expired)],
        [("x-api-key", good), ("x-api-key", expired)], [("x-api-key", good[:-1])], [("x-api-key", digest_of(good))],
        [("authorization", "Bearer \xff")],
    ):  # fmt: skip
        sent = [(name, value.encode("latin-1")) for name, value in headers]
        answer = HTTP.post(url, json=BODY, headers=[(name.encode(), value) for name, value in sent])
        assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error", headers
        assert HTTP.get(f"{proxy.url}/v1/models", headers=[(n.encode(), v) for n, v in sent]).status_code == 401
    assert len(provider.requests) == asked
    assert HTTP.post(url, json={**BODY, "max_tokens": 9}, headers={"x-api-key": good}).status_code == 200


def test_a_key_expires(keys: Path) -> None:
    secret, key = new_key("short", now_us=1_000, expires_us=2_000)
    assert key.is_active(1_999) and not key.is_active(2_000) and key.state(2_000) == "expired"
    assert digest_of(secret) == key.digest
    made(keys, "later", "--expires", "30d")
    made(keys, "dated", "--expires", "2199-01-31")
    assert '"expires": "2199-01-31T00:00:00Z"' in command("list", "--keys", keys, "--json").stdout
    for wrong in ("soon", "2001-01-01", "0d"):
        assert command("create", "wrong", "--keys", keys, "--expires", wrong).exit_code != 0


def test_only_a_trusted_key_names_users(proxy: RunningProxy, keys: Path) -> None:
    trusted = made(keys, "backend", "--tier", "pro", "--names-users")
    other = made(keys, "other", "--tier", "pro", "--user", "own")
    assert ask(proxy, trusted, **{"x-headgate-user": "u7"}).status_code == 200
    assert ask(proxy, other, **{"x-headgate-user": "u7"}).status_code == 200
    assert [entry.caller.user for entry in proxy.entries if entry.kind == "held"] == ["u7", "own"]
    assert ask(proxy, trusted, **{"x-headgate-user": "u" * 500}).status_code == 400


def test_the_file_holds_no_key_and_only_its_owner_reads_it(keys: Path) -> None:
    key = made(keys, "ci")
    assert key not in keys.read_text() and stat.S_IMODE(keys.stat().st_mode) == 0o600
    shown = command("list", "--keys", keys).stdout
    assert key not in shown and key[:8] in shown and "active" in shown


def test_a_key_that_is_revoked_by_a_link_to_the_file_opens_nothing(
    proxy: RunningProxy, keys: Path, tmp_path: Path
) -> None:
    link = tmp_path / "elsewhere" / "link.json"
    link.parent.mkdir()
    link.symlink_to(keys)
    key = made(link, "ci", "--user", "u1")
    assert ask(proxy, key).status_code == 200
    assert command("revoke", "ci", "--keys", link).exit_code == 0
    assert ask(proxy, key).status_code == 401
    assert link.is_symlink() and [each.name for each in link.parent.iterdir() if "lock" not in each.name] == [link.name]


def test_a_file_that_another_user_changes_stays_its_owners(keys: Path) -> None:
    made(keys, "first")
    with suppress(PermissionError):  # unless the tests run as root, it is this user's and stays so
        os.chown(keys, 12_345, 23_456)
    before = keys.stat()
    made(keys, "second")
    after = keys.stat()
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert stat.S_IMODE(after.st_mode) == 0o600


def test_names_are_unique_among_keys_that_are_in_force(keys: Path) -> None:
    made(keys, "ci")
    told = command("create", "ci", "--keys", keys)
    assert told.exit_code == 1 and "choose another name" in told.output
    assert command("create", "a/b", "--keys", keys).exit_code == 1


def test_commands_at_once_lose_no_key(keys: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        names = [f"k{number}" for number in range(24)]
        list(threads.map(lambda name: KeyFile(keys).add(new_key(name, now_us=1)[1]), names))
    assert sorted(key.name for key in KeyFile(keys).all()) == sorted(names)
    assert [file.name for file in keys.parent.iterdir() if file.name.startswith(".keys.json.")] == [".keys.json.lock"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "is no JSON"),
        ("[]", "is no file of keys"),
        ('{"version": 1, "keys": [{"name": "a"}]}', "keys[0]: lacks digest"),
        ('{"version": 1, "keys": [{"nam": "a"}]}', "keys[0]: a key has no field 'nam'"),
        ('{"version": 1, "keys": [{"name": 1}]}', "keys[0].name: is text"),
    ],
)
def test_a_broken_file_is_told_with_its_place_and_old_keys_stay(
    proxy: RunningProxy, keys: Path, text: str, wrong: str
) -> None:
    key = made(keys, "ci", "--user", "u", "--tier", "pro")
    assert ask(proxy, key).status_code == 200
    keys.write_text(text)
    assert ask(proxy, key).status_code == 200
    with pytest.raises(ConfigError) as caught:
        KeyFile(keys).check()
    assert wrong in str(caught.value)


def test_the_command_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def told(*words: str) -> str:
        answer = CliRunner().invoke(headgate, ["llm", "serve", *words])
        assert answer.exit_code != 0
        return answer.output

    assert "give a POLICY and --providers FILE, or --example" in told()
    Path("p.yaml").write_text("providers: [{name: a, base_url: 'ftp://x', api_key: secret-1}]")
    Path("k.yaml").write_text("version: 1\nllm: {}\nrules: [{name: a, by: [key], limits: 1/day}]")
    assert "give one of --keys FILE and --no-keys" in told("k.yaml", "--providers", "p.yaml")
    wrong = told("k.yaml", "--providers", "p.yaml", "--no-keys")
    assert "p.yaml:1:" in wrong and "providers[0].api_key: there is no such field" in wrong and "secret-1" not in wrong
    assert "providers[0].base_url: is a URL such as" in wrong
    assert "there are no keys yet: make one" in told("k.yaml", "--providers", "p.yaml", "--keys", "none.json")


def test_keys_on_redis_are_shared_and_revoked(provider: Provider, tmp_path: Path) -> None:
    with single() as server:
        url = f"redis://127.0.0.1:{server.port}"
        key = command("create", "ci", "--keys", url, "--json", "--user", "u1", "--tier", "pro")
        assert key.exit_code == 0, key.output
        secret = json.loads(key.stdout)["key"]
        assert command("create", "ci", "--keys", url).exit_code == 1
        clock = ManualClock(SYSTEM_CLOCK.now_us())
        keys = RedisKeys(url, clock)
        with running_proxy(tmp_path, RULES, [at(provider)], keys=keys, tiers=TIERS) as proxy:
            assert ask(proxy, secret).status_code == 200 and ask(proxy, "hg-forged").status_code == 401
            assert command("revoke", "ci", "--keys", url).exit_code == 0
            clock.advance(1_000_000)
            assert ask(proxy, secret).status_code == 401
        assert "revoked" in command("list", "--keys", url).stdout and keys.check() == 1
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda number: keys.add(new_key(f"k{number}", now_us=1)[1]), range(4)))
        assert len(keys.all()) == 5
        keys.close()
    assert command("list", "--keys", "memory://").exit_code == 1
