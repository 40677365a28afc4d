"""Processes that share a store learn together: no sample counts twice, none is lost, and calls never wait."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis.asyncio

from headgate import GuardedStore, MemoryStore, SharedStore
from headgate.errors import StoreError, StoreUnavailable
from headgate.llm.learned import LocalLearned, file_samples, learned_for
from headgate.llm.learned.file_samples import FileSamples
from headgate.llm.learned.samples import MOST, bucket_of, halved, largest_of
from headgate.llm.learned.shared import Addition, SampleStore, SharedLearned
from headgate.stores.protocol import Store
from headgate.stores.redis.store import RedisStore
from subjects import REDIS, ZONES, make_store
from until import until

SHARING = (*ZONES, *REDIS)


@pytest.fixture(params=SHARING)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "shared":
        return SharedStore(tmp_path / "zone", size=1 << 20)
    return make_store(request.param)


def sample_store_of(store: Store) -> SampleStore:
    learned = learned_for(store)
    assert isinstance(learned, SharedLearned)
    return learned._sample_store


def process(sample_store: SampleStore, namespace: str = "") -> SharedLearned:
    """The estimates of one of several processes; it shares when a test calls `share`."""
    learned = SharedLearned(sample_store, namespace=namespace, interval_s=3600)
    learned._is_running = True  # so that no thread is started
    return learned


def settle(learned: LocalLearned, output: int, times: int = 1, *, key: str = "k", cut: bool = False) -> None:
    for _ in range(times):
        learned.settled(key, "m", 4096, 1, output, cut, 200, 300)


class LossyStore:
    """A sample store whose answers are lost, before or after it has added the counts."""

    def __init__(self, sample_store: SampleStore) -> None:
        self.sample_store = sample_store
        self.loses = ""

    def merge(self, process: str, number: int, additions: list[Addition]) -> list[dict[int, int]]:
        if self.loses == "request":
            raise StoreUnavailable("no answer")
        counts = self.sample_store.merge(process, number, additions)
        if self.loses == "answer":
            raise StoreUnavailable("no answer")
        return counts


def test_processes_learn_together(store: Store) -> None:
    one, other, third = (process(sample_store_of(store)) for _ in range(3))
    settle(one, 100, 20)
    settle(other, 100, 20)
    assert one.output("k", "m", 4096) is None
    assert one.share() and other.share()
    for each in (one, other):
        each.output("k", "m", 4096)
        each.input_permille("m")
        assert each.share(), "requested series are read"
        assert each.output("k", "m", 4096) == largest_of(bucket_of(100)) and each.input_permille("m") == 1500
    assert third.output("k", "m", 4096) is None
    third.input_permille("m")
    assert third.share()
    assert third.output("k", "m", 4096) == largest_of(bucket_of(100)) and third.input_permille("m") == 1500
    assert other.coverage()["m"] == (40, 40)


def test_samples_added_meanwhile_are_sent_later(store: Store) -> None:
    one, other = process(sample_store_of(store)), process(sample_store_of(store))
    for _ in range(3):
        settle(one, 100, 7)
        settle(other, 3000, 2, cut=True)
        assert one.share() and other.share()
    one.output("k", "m", 4096)
    assert one.share()
    expected = {bucket_of(100): 21, ~bucket_of(3000): 6}
    assert one._of_keys["k", "m", 7].counts == other._of_keys["k", "m", 7].counts == expected


def test_a_batch_that_was_sent_again_after_a_lost_answer_counts_once(store: Store) -> None:
    sample_store = LossyStore(sample_store_of(store))
    one = process(sample_store)
    settle(one, 100, 5)
    for sample_store.loses in ("answer", "answer", "request", ""):
        settle(one, 200)
        one.share()
    assert one.share()
    assert one._of_keys["k", "m", 7].counts == {bucket_of(100): 5, bucket_of(200): 4}
    reader = process(sample_store_of(store))
    reader.output("k", "m", 4096)
    assert reader.share() and reader._of_keys["k", "m", 7].counts == {bucket_of(100): 5, bucket_of(200): 4}


def test_all_sample_stores_halve_counts_alike_and_once(store: Store) -> None:
    sample_store, expected = sample_store_of(store), dict[int, int]()
    steps = [{5: 700, ~9: 4}, {6: 300, ~9: 21, ~3: 1}, {40: 1}, {40: 7, 2: 3000}, {7: 1, 8: 1}]
    for number, more in enumerate(steps):
        for bucket, count in more.items():
            expected[bucket] = expected.get(bucket, 0) + count
        while sum(expected.values()) > MOST:
            expected = halved(expected)
        assert sample_store.merge("a", number, [("0a", more)]) == [expected]
        assert sample_store.merge("b", number, [("0a", {})]) == [expected]


def test_without_an_answer_the_process_learns_alone_and_logs_it_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    sample_store = LossyStore(FileSamples(tmp_path / "zone"))
    learned = process(sample_store)
    sample_store.loses = "request"
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(5):
            settle(learned, 100, 600)
            assert not learned.share()
    assert [record.message for record in caplog.records] == [
        "the usage of model calls is learned in this process alone: no answer"
    ]
    assert learned.output("k", "m", 4096) == largest_of(bucket_of(100))
    assert learned._of_keys["k", "m", 7].weight <= 2 * MOST, "old samples fade"
    sample_store.loses = ""
    assert learned.share() and learned.share() and learned._of_keys["k", "m", 7].weight <= MOST
    learned.close()


def test_a_thread_shares_and_ends_with_its_estimates(tmp_path: Path) -> None:
    one, other = (SharedLearned(FileSamples(tmp_path / "zone"), interval_s=0.01) for _ in range(2))
    settle(one, 100, 30)

    until(lambda: other.output("k", "m", 4096))
    one.close()
    other.close()
    until(lambda: not any(thread.name == "headgate-learned" for thread in threading.enumerate()))
    settle(one, 100)
    assert one.output("k", "m", 4096) == largest_of(bucket_of(100)), "it continues to learn alone"


def test_closing_sends_the_unsent_samples(tmp_path: Path) -> None:
    one, other = (process(FileSamples(tmp_path / "zone")) for _ in range(2))
    other.output("k", "m", 4096)
    settle(one, 100, 30)
    one.close()
    assert other.share() and other.output("k", "m", 4096) == largest_of(bucket_of(100))
    other.close()


def test_policies_that_share_a_store_learn_apart(tmp_path: Path) -> None:
    one, other = (process(FileSamples(tmp_path / "zone"), namespace=name) for name in "ab")
    settle(one, 100, 30)
    assert one.share()
    other.output("k", "m", 4096)
    assert other.share() and other.output("k", "m", 4096) is None
    one.close()
    other.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_send_the_samples_of_its_parent(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from headgate.llm.learned.file_samples import FileSamples\n"
        "from headgate.llm.learned.shared import SharedLearned\n"
        "learned = SharedLearned(FileSamples(Path(sys.argv[1])), interval_s=3600)\n"
        "def settle(times):\n"
        "    for _ in range(times):\n"
        "        learned.settled('k', 'm', 4096, 1, 100, False, 0, 0)\n"
        "settle(10)\n"
        "child = os.fork()\n"
        "settle(3 if child else 2)\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "learned.close()\n"
        "if child:\n"
        "    print(learned._of_keys['k', 'm', 7].weight)\n"
        "os._exit(0) if not child else None\n"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(tmp_path / "zone")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("15\n", "")


def test_only_the_user_can_read_the_samples_beside_a_zone(tmp_path: Path) -> None:
    sample_store = FileSamples(tmp_path / "zone")
    assert sample_store.merge("a", 1, [("0a", {5: 1})]) == [{5: 1}]
    assert sample_store.path == tmp_path / "zone.learned" / "samples.sqlite"
    assert stat.S_IMODE(sample_store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(sample_store.path.parent.stat().st_mode) == 0o700
    sample_store.path.parent.chmod(0o777)
    with pytest.raises(StoreUnavailable, match="another user may write to it"):
        sample_store.merge("a", 2, [("0a", {5: 1})])


def test_a_zone_that_is_shared_with_a_group_shares_its_samples(tmp_path: Path) -> None:
    SharedStore(tmp_path / "zone", size=1 << 20, mode=0o660)
    sample_store = FileSamples(tmp_path / "zone")
    assert sample_store.merge("a", 1, [("0a", {5: 1})]) == [{5: 1}]
    assert stat.S_IMODE(sample_store.path.stat().st_mode) == 0o660
    assert stat.S_IMODE(sample_store.path.parent.stat().st_mode) == 0o2770


def test_a_directory_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "zone.learned").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="its directory is not a directory, or another user may write to it"):
        FileSamples(tmp_path / "zone").merge("a", 1, [("0a", {5: 1})])
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("text", ["x", "[]", '{"a": 1}', '{"1": "x"}'])
def test_a_damaged_row_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    sample_store = FileSamples(tmp_path / "zone")
    sample_store.merge("a", 1, [("0a", {5: 1})])
    with sqlite3.connect(sample_store.path) as database:
        database.execute("UPDATE samples SET counts = ?", (text,))
    database.close()
    with pytest.raises(StoreUnavailable, match=r"samples\.sqlite: the samples 0a are damaged"):
        sample_store.merge("a", 2, [("0a", {5: 1})])


def test_a_file_that_is_no_database_is_an_error_that_names_it(tmp_path: Path) -> None:
    sample_store = FileSamples(tmp_path / "zone")
    sample_store.merge("a", 1, [("0a", {5: 1})])
    sample_store.path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(StoreUnavailable, match=r"samples\.sqlite: file is not a database"):
        sample_store.merge("a", 2, [("0a", {5: 1})])


def test_the_file_is_bounded_and_the_least_recent_series_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_samples, "MOST_SERIES", 10)
    sample_store = FileSamples(tmp_path / "zone")
    for number in range(30):
        sample_store.merge("a", number, [(f"{number:02x}", {5: 1})])
    assert [len(counts) for counts in sample_store.merge("b", 1, [("00", {}), ("1d", {}), ("14", {}), ("13", {})])] == [
        0,
        1,
        1,
        0,
    ]


@pytest.fixture
def servers() -> RedisStore:
    store = make_store("redis")
    assert isinstance(store, RedisStore)
    return store


def test_series_on_redis_expire_when_they_are_not_used(servers: RedisStore) -> None:
    sample_store = sample_store_of(servers)
    sample_store.merge("a", 1, [("0a", {5: 29}), ("0b", {5: 30})])
    lives = [servers.client.ttl(f"{servers.prefix}:{{learned:{name}}}:samples") for name in ("0a", "0b")]
    assert 80_000 < lives[0] <= 86_400 < 2_000_000 < lives[1]
    servers.clear()
    assert sample_store.merge("b", 1, [("0a", {}), ("0b", {})]) == [{}, {}], "cleared with the store"


def test_data_of_another_program_is_an_error(servers: RedisStore) -> None:
    servers.client.hset(f"{servers.prefix}:{{learned:0a}}:samples", "x", "y")
    with pytest.raises(StoreError, match="the learned samples of a model"):
        sample_store_of(servers).merge("a", 1, [("0a", {})])


def test_a_store_in_memory_and_a_client_of_asyncio_learn_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert type(learned_for(MemoryStore())) is LocalLearned
    with caplog.at_level(logging.WARNING, "headgate"):
        learned = learned_for(GuardedStore(RedisStore(redis.asyncio.Redis())))
    assert type(learned) is LocalLearned and "learned in this process alone" in caplog.text
    learned.start()
    learned.close()


def test_samples_are_shared_once_the_system_has_resources_for_a_thread(store: Store) -> None:
    learned = learned_for(store)
    before = threading.stack_size(1 << 46)
    try:
        assert learned.output("k", "m", 4096) is None
    finally:
        threading.stack_size(before)
    assert learned.output("k", "m", 4096) is None
    until(lambda: any(thread.name == "headgate-learned" for thread in threading.enumerate()))
    learned.close()
