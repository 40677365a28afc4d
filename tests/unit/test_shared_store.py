"""A zone's file: made once, never misread, and only for permitted users."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headgate import ConfigError, Gate, Limiter, Request, SharedStore, StoreUnavailable, core
from headgate.stores.shared import default_zone
from headgate.stores.url import existing_zone, open_store
from headgate.testing import ManualClock
from subjects import KINDS, make_zone

pytestmark = pytest.mark.skipif("shared" not in KINDS, reason="the shared store needs the native core")
SIZE = 256 << 10
FULL_SIZE = 8 << 20
NAMESPACE = 128
"""Where the PID namespace of its processes is in a zone's file, in bytes."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "zone"


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def words(path: Path, *changes: tuple[int, int]) -> None:
    """Write words into a file, at places in bytes."""
    with path.open("r+b") as file:
        for place, value in changes:
            file.seek(place)
            file.write(struct.pack("=Q", value))


def test_two_stores_of_one_path_share_every_limit(path: Path) -> None:
    one, other = (Limiter("5/minute", store=f"shared://{path}?size=256KiB") for _ in range(2))
    assert [limiter.hit("user").remaining for limiter in (one, other, one)] == [4, 3, 2]
    assert other.reset("user")
    assert one.peek("user", 0).remaining == 5


def test_a_zone_outlives_its_processes(path: Path) -> None:
    program = (
        "import sys; from headgate import Limiter; "
        "print(Limiter('5/hour', store='shared://' + sys.argv[1], name='x').hit('user').remaining)"
    )
    outputs = [
        subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    assert outputs == ["4\n", "3\n", "2\n"]


def test_a_forked_process_shares_the_zone_of_its_parent(path: Path) -> None:
    program = """
import os, sys
from headgate import Limiter
limiter = Limiter("5/hour", store="shared://" + sys.argv[1])
limiter.hit("user")
pid = os.fork()
if pid == 0:
    limiter.hit("user")
    os._exit(0)
os.waitpid(pid, 0)
print(limiter.hit("user").remaining)
"""
    result = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert result.stdout == "2\n"


def test_processes_that_start_at_once_make_one_zone(path: Path) -> None:
    program = """
import sys
from headgate import Limiter
sys.stdin.read()
print(sum(Limiter("7/hour", store="shared://" + sys.argv[1] + "?size=1MiB").hit("user").allowed for _ in range(3)))
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(path)], stdin=-1, stdout=-1, text=True) for _ in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    passed = 0
    for process in processes:
        assert process.stdout is not None
        passed += int(process.stdout.read())
        assert process.wait(30) == 0
        process.stdout.close()
    assert passed == 7
    assert names(path.parent) == ["zone"]


def test_the_file_is_for_its_owner_alone_by_default(path: Path) -> None:
    SharedStore(path, size=SIZE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = path.with_name("other")
    open_store(f"shared://{other}?size=256KiB&mode=660")
    assert stat.S_IMODE(other.stat().st_mode) == 0o660
    with pytest.raises(ConfigError, match=r"others may write it \(mode 660\); mode=600 is wanted"):
        SharedStore(other)


def test_the_owner_of_a_zone_may_inspect_it_with_any_permissions(path: Path) -> None:
    SharedStore(path, size=SIZE, mode=0o660)
    assert SharedStore.existing(path).info()["size"] == SIZE
    path.chmod(0o666)
    assert existing_zone(f"shared://{path}?mode=660").info()["size"] == SIZE


def test_root_may_inspect_a_zone_of_a_group_by_its_url(path: Path) -> None:
    SharedStore(path, size=SIZE, mode=0o660)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, 12345)
    assert existing_zone(f"shared://{path}?mode=660").info()["size"] == SIZE


def test_a_file_with_a_second_name_is_refused(path: Path) -> None:
    SharedStore(path, size=SIZE)
    path.with_name("other").hardlink_to(path)
    with pytest.raises(ConfigError, match=r"has 2 names \(hard links\); a zone has one"):
        SharedStore(path)


def test_a_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SharedStore(path, size=SIZE)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345, and this is user 0"):
        SharedStore(path)  # root as well: its owner could cut it short
    SharedStore.existing(path)  # an administrator of the host may inspect it
    path.chmod(0o660)
    with pytest.raises(ConfigError, match="is shared with group 12345, and this process is in "):
        SharedStore(path, mode=0o660)  # a group that any user may have made up
    path.chmod(0o666)
    SharedStore(path, mode=0o666)  # requested, for every user of the host
    path.chmod(0o660)
    with pytest.raises(ConfigError, match="is shared with group 12345, and this process is in "):
        SharedStore(path, mode=0o666)
    os.chown(path, 12345, os.getegid())
    SharedStore(path, mode=0o660)  # it was asked for
    SharedStore.existing(path, mode=0o660)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ConfigError, match="belongs to user 12345, and this is user 4242"):
        SharedStore(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no zone of Headgate, it has 0 bytes; name another path"),
        (b"root:x:0:0\n" * 500, "is no zone of Headgate; name another path"),
        (bytes(SIZE), "is no zone of Headgate; name another path"),
    ],
)
def test_a_foreign_file_is_refused_and_left_alone(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=f"{path}: {message}"):
        SharedStore(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (8, 77, "is a zone of layout 77, and this program reads layout 6, or 2 to 5 without holds"),
        (16, 5, "was made for another kind of processor or C library"),
        (24, SIZE * 2, "is damaged in its header"),
        (72, 1, "is damaged in its header"),
    ],
)
def test_a_zone_of_another_kind_or_with_a_damaged_header_is_refused(
    path: Path, place: int, value: int, message: str
) -> None:
    SharedStore(path, size=SIZE)
    words(path, (place, value))
    with pytest.raises(ConfigError, match=message):
        SharedStore(path)


def test_a_truncated_zone_is_refused(path: Path) -> None:
    SharedStore(path, size=SIZE)
    os.truncate(path, SIZE // 2)
    with pytest.raises(ConfigError, match=f"is damaged, it has {SIZE // 2} bytes instead of {SIZE}"):
        SharedStore(path)


def test_damage_anywhere_in_the_states_is_found_and_never_crashes(path: Path) -> None:
    store = SharedStore(path, size=SIZE)
    limiter = Limiter("50/hour; 40/hour log", store=store)
    for index in range(300):
        limiter.hit(f"user:{index % 60}")
    del limiter, store
    original = path.read_bytes()
    found = 0
    used = [place for place in range(4096, SIZE, 8) if original[place : place + 8] != bytes(8)]
    shard = 4096 + (32 << 10)  # its lock, its notes, its records
    notes = range(shard + 48, shard + 48 + 26 * 8, 8)
    changes = [(place, 0x5A5A_5A5A_5A5A_5A5A) for place in [*used[:: max(1, len(used) // 150)], *notes]]
    changes += [(notes[0], step << 32 | records) for step in range(7) for records in (0, 1, 200, 257, 1 << 31)]
    for place, value in changes:
        words(path, (place, value))
        try:
            damaged = Limiter("50/hour; 40/hour log", store=SharedStore(path))
        except (ConfigError, StoreUnavailable):
            found += 1
        else:  # the word was one that any value fits: how much was used, a text, a record of the past
            damaged.peek("user:7")
            damaged.hit("user:7")
            del damaged  # the next process is alone again
        path.write_bytes(original)
    assert found > 20


def test_damage_during_the_use_of_a_zone_is_reported(path: Path) -> None:
    limiter = Limiter("50/hour", store=SharedStore(path, size=SIZE))
    words(path, (4096 + (32 << 10) + 48, 9 << 32))
    with pytest.raises(StoreUnavailable, match="the shared zone is damaged, it has notes that make no sense: stop all"):
        limiter.hit("user")


def test_a_zone_from_before_the_last_start_begins_afresh(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate.stores.shared import zone_file

    Limiter("5/hour", store=SharedStore(path, size=SIZE)).hit("user")
    monkeypatch.setattr(zone_file, "_boot", lambda: bytes(16))
    fresh = SharedStore(path)
    assert Limiter("5/hour", store=fresh).hit("user").remaining == 4
    assert fresh.info()["size"] == SIZE
    fresh.ping()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="is used by processes of another host or another clock"):
        SharedStore(path)


def test_the_file_of_a_process_that_died_while_making_a_zone_is_reused(path: Path) -> None:
    path.with_name(".zone.new").write_bytes(b"x" * 100_000)
    path.with_name(".zone.new").chmod(0o600)
    assert Limiter("5/hour", store=SharedStore(path, size=SIZE)).hit("user").remaining == 4
    assert names(path.parent) == ["zone"]


def test_one_process_at_a_time_makes_a_zone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate.stores.shared import zone_file

    temporary = path.with_name(".zone.new")
    temporary.touch(0o600)
    monkeypatch.setattr(zone_file, "_TIMEOUT_S", 0.2)
    with temporary.open("r+b") as maker:
        fcntl.flock(maker, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match=r"another process is busy with this zone for 0\.2 s"):
            SharedStore(path, size=SIZE)
        assert temporary.stat().st_size == 0, "it took space that the maker may need"
    SharedStore(path, size=SIZE)


def test_processes_that_start_at_once_share_a_zone_where_there_is_room_for_one(path: Path) -> None:
    free = os.statvfs("/dev/shm")
    if free.f_bavail * free.f_frsize < 3 * FULL_SIZE:
        pytest.skip("too little memory in /dev/shm")
    program = """
import ctypes, os, sys
from pathlib import Path
from headgate import SharedStore
libc = ctypes.CDLL(None, use_errno=True)
folder = Path(sys.argv[1]); size = int(sys.argv[2])
if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size + (64 << 10)}".encode()) != 0:
    print("no mount"); sys.exit()
try:
    pids = []
    for _ in range(6):
        pid = os.fork()
        if pid == 0:
            SharedStore(folder / "zone", size=size)
            os._exit(0)
        pids.append(pid)
    print(*[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], *os.listdir(folder))
finally:
    libc.umount2(os.fsencode(folder), 2)
"""
    result = subprocess.run(
        [sys.executable, "-c", program, str(path.parent), str(FULL_SIZE)], capture_output=True, text=True, check=True
    )
    if result.stdout == "no mount\n":
        pytest.skip("this user may not mount a file system")
    assert result.stdout == "0 0 0 0 0 0 zone\n", result.stderr


def test_a_zone_keeps_its_shape(path: Path) -> None:
    SharedStore(path, size=SIZE, log_percent=10)
    assert SharedStore(path).info()["size"] == SIZE
    with pytest.raises(ConfigError, match=f"is a zone with size={SIZE}, not {SIZE * 2}"):
        SharedStore(path, size=SIZE * 2)
    with pytest.raises(ConfigError, match="is a zone with log_percent=10, not 20"):
        SharedStore(path, log_percent=20)


def test_a_full_disk_is_reported_at_once_and_leaves_no_file(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"no room for the zone: .* bytes are free; choose a smaller size"):
        SharedStore(path, size=1 << 40)
    assert names(path.parent) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("shared://zone", 'the shared store is "shared:///path/of/a/file", with three slashes'),
        ("shared:///", "with three slashes"),
        ("shared:///x?size=1", "size is 128 KiB to 1 TiB, not 1 bytes"),
        ("shared:///x?size=lots", "size is a number with KiB, MiB, GiB or TiB, such as 64MiB, not 'lots'"),
        ("shared:///x?mode=999", "mode is three octal digits such as 660, not '999'"),
        ("shared:///x?mode=400", "mode is 600 with what others may do, such as 660, not 400"),
        ("shared:///x?log_percent=95", "log_percent is 0 to 90, not 95"),
        ("shared:///x?max_keys=95", 'has the options size, log_percent, max_holds, on_full and mode, not "max_keys"'),
        ("shared:///x?size=1MiB&size=2MiB", 'the store option "size" is given twice'),
        ("shared:///no/such/place/x", "there is no directory /no/such/place"),
        ("shared:///tmp", "is a directory; name a file in it"),
    ],
)
def test_the_error_of_a_bad_url_states_what_would_be_right(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(url)


def test_a_symbolic_link_is_refused(path: Path) -> None:
    SharedStore(path, size=SIZE)
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="is a symbolic link; name the file itself"):
        SharedStore(link)


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("HEADGATE_CORE=python", "take HEADGATE_CORE out of the environment; or run one"),
        ("the native core cannot be loaded (no module)", "install a wheel, or install from source"),
    ],
)
def test_without_the_native_core_the_error_names_a_remedy(
    path: Path, monkeypatch: pytest.MonkeyPatch, why: str, remedy: str
) -> None:
    monkeypatch.setattr(core, "native", None)
    monkeypatch.setattr(core, "why_not_native", why)
    with pytest.raises(ConfigError, match=re.escape(f"needs the native core, which is not here ({why}): {remedy}")):
        SharedStore(path)


def test_ping_reports_a_deleted_zone(path: Path) -> None:
    store = SharedStore(path, size=SIZE)
    store.ping()
    path.unlink()
    with pytest.raises(StoreUnavailable, match="was deleted or replaced while in use"):
        store.ping()
    assert Limiter("5/hour", store=store).hit("user")  # processes that have it continue


def test_existing_creates_no_zone(path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no zone"):
        SharedStore.existing(path)
    assert names(path.parent) == []


def test_the_usage_of_a_key_can_be_inspected_and_forgotten(path: Path) -> None:
    store = SharedStore(path, size=SIZE)
    Limiter("5/hour counter; 9/day", store=store, name="api").hit("user", 3)
    Limiter("7/hour bucket", store=store).hit(("a", 1), 2)
    assert store.known_limits() == [
        ("limiter/api/sliding.0", "5/hour counter"),
        ("limiter/api/sliding.1", "9/day"),
        ("limits/7/hour bucket/token_bucket.0", "7/hour bucket"),
    ]
    assert [(found["limit"], found["remaining"]) for found in store.look("user")] == [(0, 2), (1, 6)]
    assert [(found["limit"], found["remaining"]) for found in store.look(("a", 1))] == [(2, 5)]
    assert store.look("nobody") == []
    assert store.forget("user") and not store.forget("user")
    assert store.look("user") == []


def test_clear_forgets_everything_for_all_processes(path: Path) -> None:
    store, other = SharedStore(path, size=SIZE), SharedStore(path)
    limiter = Limiter("5/hour counter; 5/hour", store=store)
    for index in range(50):
        limiter.hit(f"user:{index}")
    other.clear()
    assert store.stats().keys == 0
    assert store.info()["log_blocks_held"] == 0
    assert limiter.hit("user:1").remaining == 4


@pytest.mark.parametrize("on_full", ["forget", "refuse", "pass"])
def test_a_full_zone_does_what_was_chosen(on_full: str) -> None:
    store = make_zone(128 << 10, on_full=on_full)
    limiter = Limiter("5/hour counter", store=store, clock=ManualClock())
    most = store.stats().max_keys
    decisions = [limiter.hit(f"user:{index}") for index in range(most + 500)]
    stats = store.stats()
    assert most - 5 <= stats.keys <= most
    late = decisions[most:]
    if on_full == "forget":
        assert all(late) and stats.evicted >= 500
        assert not any(decision.degraded for decision in decisions)
    elif on_full == "refuse":
        assert not any(late) and stats.refused_full >= 500
        assert {decision.degraded for decision in late} == {"closed"}
        assert all((decision.retry_after_us or 0) > 0 for decision in late)
    else:
        assert all(late) and stats.passed_full >= 500
        assert {decision.degraded for decision in late} == {"open"}


def test_a_flood_of_new_keys_never_frees_a_blocked_one() -> None:
    store = make_zone(128 << 10)
    limiter = Limiter("5/hour", store=store, clock=ManualClock())
    assert limiter.hit("blocked", 5) and not limiter.hit("blocked")
    for index in range(3 * store.stats().max_keys):
        limiter.hit(f"flood:{index}")
    assert not limiter.hit("blocked")


def test_expired_states_make_room() -> None:
    store = make_zone(128 << 10, on_full="refuse")
    clock = ManualClock()
    limiter = Limiter("5/second bucket; 5/second log", store=store, clock=clock)
    for round_number in range(20):
        assert all(limiter.hit(f"{round_number}-{index}") for index in range(100))
        clock.advance(2_000_000)
    assert store.stats().refused_full == 0
    assert store._zone.check() is None


def test_the_warning_of_a_long_log_suggests_a_counter(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SharedStore(path, size=SIZE, log_percent=0)
    with caplog.at_level(logging.WARNING, "headgate"):
        Limiter("100/hour counter", store=store)
        assert not caplog.text
        Limiter("100/hour", store=store)
    assert "the log of 100/hour may have more entries than the 0 of one key" in caplog.text
    assert caplog.text.endswith("and a limit with the word counter needs no log\n")


@pytest.mark.parametrize("earlier_hits", [0, 1, 6])
def test_a_log_longer_than_its_room_refuses_and_logs_a_warning(
    caplog: pytest.LogCaptureFixture, earlier_hits: int
) -> None:
    store = make_zone(128 << 10)
    with caplog.at_level(logging.WARNING, "headgate"):
        limiter = Limiter("1000000/hour log", store=store, clock=(clock := ManualClock()))
    assert "may have more entries than" in caplog.text
    for _ in range(earlier_hits):
        clock.advance(10)
        limiter.hit("user")
    clock.advance(3_599_000_000)
    passed = int(limiter.hit("user").allowed)
    clock.advance(10)
    passed += int(limiter.hit("user").allowed)
    clock.advance(1_000_000)  # the earlier entries have left, and the log begins in the middle of a block
    room = store.info()["max_log_entries_per_key"]
    for _ in range(room + 50):
        clock.advance(10)
        decision = limiter.hit("user")
        passed += decision.allowed
    assert passed == room + 6 - earlier_hits
    assert decision.degraded == "closed"


def test_more_limits_at_once_than_a_zone_can_charge_are_refused(path: Path) -> None:
    from headgate.decision import name_limits
    from headgate.limit_text import parse_limits

    store = SharedStore(path, size=SIZE)
    limits = [
        named for index in range(40) for named in name_limits(parse_limits("5/hour log"), scope=f"{index}", name="x")
    ]
    with pytest.raises(ConfigError, match="40 sliding logs are decided together; a zone can charge 256 limits"):
        store.bind(limits)


def full_of_limits(path: Path) -> SharedStore:
    """A zone with a state of as many limits as it has room for."""
    store = SharedStore(path, size=128 << 10)
    for number in range(store.info()["max_limits"]):
        assert Limiter("500/hour", store=store, name=f"x{number}").hit("user")
    return store


def test_a_zone_knows_as_many_limits_as_it_holds_states_of(path: Path) -> None:
    store = full_of_limits(path)
    with pytest.raises(StoreUnavailable, match="holds states of 256 limits, which is all that it can know"):
        Limiter("500/hour", store=store, name="another")
    known = Limiter("500/hour", store=store, name="x7")
    assert known.hit("user").remaining == 498
    store.forget("user")
    another = Limiter("500/hour", store=SharedStore(path), name="another")  # as in another process
    assert another.hit("user").remaining == 499
    assert known.hit("user").remaining == 499  # its number was taken back: it has a new one
    assert store._zone.check() is None


def test_a_policy_that_a_zone_has_no_room_for_is_refused_and_the_old_one_stays(path: Path) -> None:
    store = full_of_limits(path)
    store.forget("user")
    rules = [{"name": f"r{number}", "by": ["ip"], "limits": "500/hour"} for number in range(300)]
    gate = Gate({"version": 1, "rules": rules[:3]}, store=store)
    assert gate.hit(Request("GET", "/", client_ip="192.0.2.1")).remaining == 499
    with pytest.raises(
        ConfigError, match=r"cannot keep the 300 limits of this policy: a zone of this size knows up to 256"
    ):
        gate.reload({"version": 1, "rules": rules})
    assert len(gate.policy.rules) == 3
    assert gate.hit(Request("GET", "/", client_ip="192.0.2.1")).remaining == 498
    with pytest.raises(ConfigError, match="cannot keep the 300 limits"):
        Gate({"version": 1, "rules": rules}, store=store)


def test_a_limit_that_finds_no_room_at_a_request_is_decided_by_the_rule(path: Path) -> None:
    store = SharedStore(path, size=128 << 10)
    rule = {"name": "late", "by": ["ip"], "limits": "500/hour", "on_store_error": "closed"}
    gate = Gate({"version": 1, "rules": [rule]}, store=store)
    for number in range(store.info()["max_limits"]):
        assert Limiter("500/hour", store=store, name=f"x{number}").hit("user")
    request = Request("GET", "/", client_ip="192.0.2.1")
    assert gate.hit(request).degraded == "closed"
    store.forget("user")
    Limiter("500/hour", store=SharedStore(path), name="another")  # another process makes room
    assert gate.hit(request).degraded == "" and gate.hit(request).remaining == 498


def test_policies_whose_numbers_change_a_thousand_times_fill_no_zone_and_forgive_no_usage(path: Path) -> None:
    def policy(number: int) -> dict[str, Any]:
        kinds = ("fixed", "", "bucket", "log")
        rules = [
            {"name": f"rule{place}", "by": ["ip"], "limits": f"{10_000 + number}/day {kinds[place % 4]}"}
            for place in range(36)
        ]
        return {"version": 1, "rules": rules}

    gates = [Gate(policy(0), store=SharedStore(path, size=1 << 20)) for _ in range(2)]
    busy, idle = Request("GET", "/", client_ip="192.0.2.1"), Request("GET", "/", client_ip="192.0.2.2")
    gates[0].hit(idle)
    for number in range(1, 1001):
        gates[0].reload(policy(number))
        if number % 3 == 0:  # the other process has former numbers
            gates[1].reload(policy(number))
        for gate in gates if number % 20 == 0 else ():
            decision = gate.hit(busy)
            assert not decision.degraded
    store = gates[0].store
    assert isinstance(store, SharedStore) and store._zone.check() is None
    last = gates[0].peek(busy, 0)
    used = {reading.definition.limit.algorithm: reading.limit - reading.remaining for reading in last.limits}
    assert {"fixed_window", "sliding_log"} <= set(used)
    assert min(used.values()) == 100, used


def test_all_processes_of_a_zone_share_its_clock(path: Path) -> None:
    store, other = SharedStore(path, size=SIZE), SharedStore(path)
    moments = [store.clock.now_us(), other.clock.now_us(), store.clock.now_us()]
    assert moments == sorted(moments) and moments[-1] - moments[0] < 60_000_000
    assert Limiter("5/hour", store=store)._clock is store.clock


def test_threads_of_one_process_share_a_zone_exactly() -> None:
    limiter = Limiter("1000/hour; 900/hour log", store=make_zone())
    passed = []

    def hit_user() -> None:
        passed.append(sum(limiter.hit("user").allowed for _ in range(400)))

    threads = [threading.Thread(target=hit_user) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(passed) == 900


@pytest.mark.parametrize("path", ["/proc/zone", "//proc/zone", "/proc/../proc/zone"])
def test_a_file_system_that_is_not_known_to_be_local_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="lies on a file system of kind proc; a zone is for one host, and is known"):
        SharedStore(path, size=SIZE)


def test_processes_of_another_pid_namespace_are_refused(path: Path) -> None:
    """Process numbers differ between namespaces, and the kernel finds the dead holder of a lock by its number."""
    store = SharedStore(path, size=SIZE)
    enter = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*enter, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not make a PID namespace")
    program = "import sys; from headgate import SharedStore; print(SharedStore(sys.argv[1]).info()['size'])"
    command = [*enter, sys.executable, "-c", program, str(path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "is used by processes of another PID namespace, such as another container" in result.stderr
    del store
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{SIZE}\n"
    assert SharedStore(path).info()["size"] == SIZE  # no process of the other namespace is left


def test_a_new_zone_that_no_process_has_been_alone_with_is_of_the_pid_namespace_of_its_maker(path: Path) -> None:
    from headgate.stores.shared import zone_file

    assert zone_file._create(core.native, path, zone_file.ZoneOptions(size=SIZE))
    with path.open("rb") as file:  # another process was as fast
        fcntl.flock(file, fcntl.LOCK_SH)
        assert SharedStore(path).info()["size"] == SIZE


def test_a_zone_is_opened_once_the_last_process_of_another_pid_namespace_has_ended(path: Path) -> None:
    SharedStore(path, size=SIZE)
    words(path, (NAMESPACE, 1))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        end = threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN))
        end.start()
        assert SharedStore(path).info()["size"] == SIZE
        end.join()


@pytest.mark.parametrize("missing", ["_BOOT_ID", "_PID_NAMESPACE"])
def test_without_proc_the_store_raises_an_error(path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    from headgate.stores.shared import zone_file

    monkeypatch.setattr(zone_file, missing, path.with_name("nothing"))
    with pytest.raises(ConfigError, match="needs /proc, to know this run of the system"):
        SharedStore(path, size=SIZE)
    assert names(path.parent) == []


def test_a_zone_needs_no_descriptor_of_its_own(path: Path) -> None:
    before = names(Path("/proc/self/fd"))
    store = SharedStore(path, size=SIZE)
    assert names(Path("/proc/self/fd")) == before
    with path.open("r+b") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the file is still seen to be in use
    del store
    with path.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_path_of_any_bytes_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"z\xff %25 \xc3\xbc")
    url = f"shared://{quote(os.fsencode(path))}?size=256KiB"
    assert Limiter("5/hour", store=url).hit("user").remaining == 4
    assert names(tmp_path) == [path.name]
    with pytest.raises(ConfigError, match="a path has no NUL in it"):
        open_store("shared:///tmp/%00")


def test_the_default_zone_is_this_users_and_this_namespaces() -> None:
    url = default_zone.default_zone_url("shop")
    assert url.startswith("shared:///") and url.endswith(f"headgate-{os.geteuid()}-shop")


def test_the_default_zone_is_never_in_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(default_zone, "_MEMORY", tmp_path / "no memory")
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "no folder"), str(Path.cwd())])
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"neither .*/no memory nor /tmp, /var/tmp, .* --store shared:///"):
        default_zone.default_zone_url("shop")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert default_zone.default_zone_url("shop").startswith(f"shared://{quote(str(tmp_path))}/headgate-")
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "no folder")])
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ConfigError, match="there is no place for the zone"):
        default_zone.default_zone_url("shop")


@pytest.fixture(autouse=True)
def _no_zone_is_left() -> Iterator[None]:
    yield
    assert not [name for name in names(Path("/dev/shm")) if f"headgate-test-{os.getpid()}" in name]
