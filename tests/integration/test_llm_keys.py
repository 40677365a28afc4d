"""The proxy's own keys: the command creates and revokes them, only digests are stored, a running proxy follows."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
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
from versions import needs

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


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(headgate, ["llm", "key", *map(str, arguments)])


def create_key(keys: Path, name: str, *options: str) -> str:
    """Create a key; return its secret."""
    result = command("create", name, "--keys", keys, "--json", *options)
    assert result.exit_code == 0, result.output
    key: str = json.loads(result.stdout)["key"]
    return key


def post_chat(proxy: RunningProxy, key: str, **headers: str) -> httpx.Response:
    all_headers = {"authorization": f"Bearer {key}", **headers}
    return HTTP.post(f"{proxy.url}/v1/chat/completions", json=BODY, headers=all_headers)


def test_a_key_identifies_its_caller_and_tier(proxy: RunningProxy, keys: Path) -> None:
    free = create_key(keys, "ci", "--user", "u1", "--team", "red", "--tier", "free")
    assert [post_chat(proxy, free).status_code for _ in range(3)] == [200, 200, 429]
    message = post_chat(proxy, free).json()["error"]["message"]
    assert " in ci " in message and free not in message
    pro = create_key(keys, "pro", "--user", "u2", "--organisation", "acme", "--tier", "pro")
    assert [post_chat(proxy, pro).status_code for _ in range(3)] == [200] * 3
    assert proxy.entries[0].caller == Caller("ci", "u1", "red", "", "free")
    assert proxy.entries[-1].caller == Caller("pro", "u2", "", "acme", "pro")


def test_a_key_is_revoked_from_the_next_call_on(proxy: RunningProxy, keys: Path) -> None:
    key = create_key(keys, "ci", "--user", "u1", "--tier", "pro")
    assert post_chat(proxy, key).status_code == 200
    assert command("revoke", "ci", "--keys", keys).exit_code == 0
    response = post_chat(proxy, key)
    assert response.status_code == 401 and response.json()["error"]["message"] == "The API key ci is revoked."
    assert command("revoke", "ci", "--keys", keys).exit_code == 1
    new = create_key(keys, "ci", "--user", "u1", "--tier", "pro")
    assert post_chat(proxy, new).status_code == 200 and post_chat(proxy, key).status_code == 401


def test_an_invalid_key_is_refused_in_both_dialects(proxy: RunningProxy, keys: Path, provider: Provider) -> None:
    good, expired = create_key(keys, "good", "--tier", "pro", "--user", "u"), "hg-" + "x" * 43
    requests_before = len(provider.requests)
    url = f"{proxy.url}/v1/messages"
    for headers in (
        [], [("authorization", "Bearer hg-forged")], [("authorization", "Bearer")], [("authorization", good)],
        [("authorization", f"Basic {good}")], [("authorization", f"Bearer {good}"), ("x-api-key", expired)],
        [("x-api-key", good), ("x-api-key", expired)], [("x-api-key", good[:-1])], [("x-api-key", digest_of(good))],
        [("authorization", "Bearer \xff")],
    ):  # fmt: skip
        encoded = [(name, value.encode("latin-1")) for name, value in headers]
        response = HTTP.post(url, json=BODY, headers=[(name.encode(), value) for name, value in encoded])
        assert response.status_code == 401 and response.json()["error"]["type"] == "authentication_error", headers
        assert HTTP.get(f"{proxy.url}/v1/models", headers=[(n.encode(), v) for n, v in encoded]).status_code == 401
    assert len(provider.requests) == requests_before
    assert HTTP.post(url, json={**BODY, "max_tokens": 9}, headers={"x-api-key": good}).status_code == 200


def test_a_key_expires(keys: Path) -> None:
    secret, key = new_key("short", now_us=1_000, expires_us=2_000)
    assert key.is_active(1_999) and not key.is_active(2_000) and key.state(2_000) == "expired"
    assert digest_of(secret) == key.digest
    create_key(keys, "later", "--expires", "30d")
    create_key(keys, "dated", "--expires", "2199-01-31")
    assert '"expires": "2199-01-31T00:00:00Z"' in command("list", "--keys", keys, "--json").stdout
    for wrong in ("soon", "2001-01-01", "0d"):
        assert command("create", "wrong", "--keys", keys, "--expires", wrong).exit_code != 0


def test_only_a_trusted_key_may_name_users(proxy: RunningProxy, keys: Path) -> None:
    trusted = create_key(keys, "backend", "--tier", "pro", "--names-users")
    other = create_key(keys, "other", "--tier", "pro", "--user", "own")
    assert post_chat(proxy, trusted, **{"x-headgate-user": "u7"}).status_code == 200
    assert post_chat(proxy, other, **{"x-headgate-user": "u7"}).status_code == 200
    assert [entry.caller.user for entry in proxy.entries if entry.kind == "held"] == ["u7", "own"]
    assert post_chat(proxy, trusted, **{"x-headgate-user": "u" * 500}).status_code == 400


def test_the_file_contains_no_key_and_only_its_owner_may_read_it(keys: Path) -> None:
    key = create_key(keys, "ci")
    assert key not in keys.read_text() and stat.S_IMODE(keys.stat().st_mode) == 0o600
    shown = command("list", "--keys", keys).stdout
    assert key not in shown and key[:8] in shown and "active" in shown


def test_a_key_that_is_revoked_through_a_link_to_the_file_is_refused(
    proxy: RunningProxy, keys: Path, tmp_path: Path
) -> None:
    link = tmp_path / "elsewhere" / "link.json"
    link.parent.mkdir()
    link.symlink_to(keys)
    key = create_key(link, "ci", "--user", "u1")
    assert post_chat(proxy, key).status_code == 200
    assert command("revoke", "ci", "--keys", link).exit_code == 0
    assert post_chat(proxy, key).status_code == 401
    assert link.is_symlink() and [each.name for each in link.parent.iterdir() if "lock" not in each.name] == [link.name]


def test_a_file_keeps_its_owner_when_another_user_changes_it(keys: Path) -> None:
    create_key(keys, "first")
    with suppress(PermissionError):  # unless the tests run as root, the file belongs to this user and stays so
        os.chown(keys, 12_345, 23_456)
    before = keys.stat()
    create_key(keys, "second")
    after = keys.stat()
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert stat.S_IMODE(after.st_mode) == 0o600


def test_names_are_unique_among_active_keys(keys: Path) -> None:
    create_key(keys, "ci")
    result = command("create", "ci", "--keys", keys)
    assert result.exit_code == 1 and "choose another name" in result.output
    assert command("create", "a/b", "--keys", keys).exit_code == 1


def test_concurrent_commands_lose_no_key(keys: Path) -> None:
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
def test_a_broken_file_is_reported_with_the_position_and_old_keys_stay(
    proxy: RunningProxy, keys: Path, text: str, wrong: str
) -> None:
    key = create_key(keys, "ci", "--user", "u", "--tier", "pro")
    assert post_chat(proxy, key).status_code == 200
    keys.write_text(text)
    assert post_chat(proxy, key).status_code == 200
    with pytest.raises(ConfigError) as caught:
        KeyFile(keys).check()
    assert wrong in str(caught.value)


def test_the_command_reports_missing_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def output(*arguments: str) -> str:
        result = CliRunner().invoke(headgate, ["llm", "serve", *arguments])
        assert result.exit_code != 0
        return result.output

    assert "give a POLICY and --providers FILE, or --example" in output()
    Path("p.yaml").write_text("providers: [{name: a, base_url: 'ftp://x', api_key: secret-1}]")
    Path("k.yaml").write_text("version: 1\nllm: {}\nrules: [{name: a, by: [key], limits: 1/day}]")
    assert "give one of --keys FILE and --no-keys" in output("k.yaml", "--providers", "p.yaml")
    wrong = output("k.yaml", "--providers", "p.yaml", "--no-keys")
    assert "p.yaml:1:" in wrong and "providers[0].api_key: there is no such field" in wrong and "secret-1" not in wrong
    assert "providers[0].base_url: is a URL such as" in wrong
    no_keys = output("k.yaml", "--providers", "p.yaml", "--keys", "none.json")
    assert "none.json: there is no such file: `headgate llm key create NAME --keys none.json` makes it" in no_keys


@needs("click", "8.2", "the runner of tests distinguishes the two outputs")
@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("revoke", "ci")])
def test_a_file_of_keys_that_does_not_exist_is_an_error_that_names_it(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    missing = tmp_path / "typo.json"
    result = command(*arguments, "--keys", str(missing))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"headgate: {missing}: there is no such file: `headgate llm key create NAME" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_key_in_a_directory_that_does_not_exist_is_an_error_that_names_both(tmp_path: Path) -> None:
    keys = tmp_path / "nowhere" / "keys.json"
    result = command("create", "ci", "--keys", str(keys))
    assert (result.exit_code, result.output) == (1, f"headgate: {keys}: there is no directory {keys.parent}\n")


def test_a_key_that_could_not_be_printed_is_revoked(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    with Path("/dev/full").open("w") as full:
        made = subprocess.run(
            [sys.executable, "-m", "headgate", "llm", "key", "create", "ci", "--keys", str(keys)],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert made.returncode == 1
    assert made.stderr.splitlines() == [
        "headgate: the key ci could not be printed, and is revoked",
        "headgate: standard output: No space left on device",
    ]
    assert [key.state(SYSTEM_CLOCK.now_us()) for key in KeyFile(keys).all()] == ["revoked"]


def test_keys_on_redis_without_its_extra_name_the_extra() -> None:
    program = (
        "import sys; sys.modules['hiredis'] = None; sys.argv = ['headgate', *sys.argv[1:]]; "
        "from headgate.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "llm", "key", "list", "--keys", "redis://127.0.0.1:1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    missing = "optional parts that are not installed: pip install 'headgate[redis]'"
    assert (result.returncode, result.stderr) == (2, f"headgate: a place of keys on Redis needs {missing}\n")


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
            assert post_chat(proxy, secret).status_code == 200 and post_chat(proxy, "hg-forged").status_code == 401
            assert command("revoke", "ci", "--keys", url).exit_code == 0
            clock.advance(1_000_000)
            assert post_chat(proxy, secret).status_code == 401
        assert "revoked" in command("list", "--keys", url).stdout and keys.check() == 1
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda number: keys.add(new_key(f"k{number}", now_us=1)[1]), range(4)))
        assert len(keys.all()) == 5
        keys.close()
    assert command("list", "--keys", "memory://").exit_code == 1
