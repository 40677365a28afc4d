"""The metrics of several workers: one set, which a successor continues; an unused folder is removed."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.parser import text_string_to_metric_families

from headgate import Gate, Request
from headgate.observe.events import DecisionEvent, PolicyApplied, PolicyRefused
from headgate.observe.locked_folder import METRICS, LockedFolder
from headgate.observe.prometheus import DecisionCounts, Metrics
from headgate.observe.worker_files import Sharing, WorkerCounts, make_files

GATE = Gate({"version": 1, "rules": [{"name": "all", "by": [], "limits": "3/minute"}]})


@pytest.fixture(autouse=True)
def own_value_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sharing applies to a whole process: here it ends with the test."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    monkeypatch.setattr(values, "MmapedDict", MmapedDict)
    yield
    GATE.store.clear()


def worker(folder: Path, number: int) -> Metrics:
    return Metrics(GATE.stats, Sharing(folder, number, lambda: WorkerCounts(2, 1)))


def figures(metrics: Metrics) -> list[tuple[str, tuple[str, ...], float]]:
    """(name, values of labels in the order of their names, value) of each sample."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return [(sample.name, tuple(sample.labels.values()), sample.value) for one in families for sample in one.samples]


def decide(metrics: Metrics, seconds: float) -> None:
    request = Request("GET", "/")
    metrics.handle(DecisionEvent(GATE.hit(request), seconds, request, "default"))


def test_every_worker_shows_the_sums_over_all_workers(tmp_path: Path) -> None:
    make_files(tmp_path, 2)
    one, two = worker(tmp_path, 1), worker(tmp_path, 2)
    for metrics in (one, two, two, two):
        decide(metrics, 3e-6)
    two.handle(PolicyRefused(ValueError("broken")))
    for metrics in (one, two):
        samples = figures(metrics)
        assert len({(name, labels) for name, labels, _ in samples}) == len(samples)
        assert ("headgate_decisions_total", ("allowed", "all"), 3.0) in samples
        assert ("headgate_decisions_total", ("refused", "all"), 1.0) in samples
        assert ("headgate_decision_seconds_count", (), 4.0) in samples
        assert ("headgate_decision_seconds_bucket", ("2e-06",), 0.0) in samples
        assert ("headgate_decision_seconds_bucket", ("5e-06",), 4.0) in samples
        assert ("headgate_policy_reloads_total", ("refused",), 1.0) in samples
        assert ("headgate_store_keys", (), 1.0) in samples
        assert ("headgate_workers", (), 2.0) in samples
        assert ("headgate_worker_restarts_total", (), 1.0) in samples


def test_a_successor_counts_on_from_where_a_worker_ended(tmp_path: Path) -> None:
    make_files(tmp_path, 1)
    for count in (1.0, 2.0, 3.0):
        metrics = worker(tmp_path, 1)
        decide(metrics, 1e-6)
        assert ("headgate_decisions_total", ("allowed", "all"), count) in figures(metrics)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_set_of_figures_looks_the_same_from_one_process_and_from_several(tmp_path: Path) -> None:
    alone = Metrics(GATE.stats)
    make_files(tmp_path, 1)
    shared = worker(tmp_path, 1)
    for metrics in (alone, shared):
        decide(metrics, 1e-6)
        metrics.handle(PolicyApplied(GATE.policy))

    def described(metrics: Metrics) -> set[str]:
        lines = metrics.exposition().decode().splitlines()
        return {line for line in lines if line.startswith("#") and "worker" not in line and "_created" not in line}

    assert described(shared) == described(alone)


@pytest.mark.parametrize("in_files", [False, True])
def test_counters_that_alerts_watch_are_there_before_they_count(tmp_path: Path, *, in_files: bool) -> None:
    if in_files:
        make_files(tmp_path, 1)
    samples = figures(worker(tmp_path, 1) if in_files else Metrics(GATE.stats))
    for name, values_of_label in (
        ("headgate_degraded_decisions_total", ("local", "open", "closed")),
        ("headgate_policy_reloads_total", ("applied", "refused")),
        ("headgate_late_settlements_total", ("sent", "lost")),
    ):
        assert {(labels, value) for each, labels, value in samples if each == name} == {
            ((label,), 0.0) for label in values_of_label
        }


def test_a_folder_goes_at_the_end(tmp_path: Path) -> None:
    folder = LockedFolder(METRICS, tmp_path)
    assert folder.path.parent == tmp_path
    assert folder.path.stat().st_mode & 0o777 == 0o700
    make_files(folder.path, 2)
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_left_behind_is_removed_by_the_next_and_one_in_use_is_not(tmp_path: Path) -> None:
    in_use = LockedFolder(METRICS, tmp_path)
    abandoned = LockedFolder(METRICS, tmp_path)
    (abandoned.path / "counter_1.db").write_bytes(b"x")
    os.close(abandoned._lock)  # as if its service had been killed
    stranger = tmp_path / "headgate-metrics-link"
    stranger.symlink_to(in_use.path)
    new = LockedFolder(METRICS, tmp_path)
    assert set(tmp_path.iterdir()) == {in_use.path, new.path, stranger}
    in_use.remove()
    new.remove()


def test_a_folder_for_which_memory_has_no_room_is_on_the_disk_and_removed_there_too() -> None:
    folder = LockedFolder(METRICS, size=1 << 60)
    abandoned = Path(tempfile.mkdtemp(prefix=METRICS))
    assert folder.path.parent == Path(tempfile.gettempdir())
    other = LockedFolder(METRICS)
    assert (folder.path.exists(), abandoned.exists()) == (True, False)
    folder.remove()
    other.remove()


def test_a_system_without_a_folder_for_temporary_files_has_one_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_folder() -> str:  # as where a container's file system is read-only
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    folder = LockedFolder(METRICS)
    assert folder.path.parent == Path("/dev/shm")
    folder.remove()
    with pytest.raises(
        OSError, match=r"cannot take 1,152,921,504,606,846,976 bytes, and there is no .*name one in TMPDIR"
    ):
        LockedFolder(METRICS, size=1 << 60)


def test_a_full_disk_is_found_when_files_are_created_and_not_when_a_worker_counts(tmp_path: Path) -> None:
    make_files(tmp_path, 2)
    sizes = {(file.stat().st_size, file.stat().st_blocks * 512) for file in tmp_path.iterdir()}
    assert all(taken >= size > 0 for size, taken in sizes)


def test_all_results_of_all_rules_have_their_room_when_files_are_made(tmp_path: Path) -> None:
    make_files(tmp_path, 1, 500)
    sizes = {file: file.stat().st_size for file in tmp_path.iterdir()}
    rules = [f"{number:x<64}" for number in range(500)]
    results = ("allowed", "refused", "blocked")
    counts = {(rule, result): 1 for rule in rules for result in results}
    worker(tmp_path, 1).add(DecisionCounts(counts, {}, [0] * 15, 0.0))
    assert {file: file.stat().st_size for file in tmp_path.iterdir()} == sizes


def test_a_file_does_not_grow_where_there_is_no_room_and_what_was_left_out_is_shown_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_files(tmp_path, 1)
    sizes = {file: file.stat().st_size for file in tmp_path.iterdir()}
    metrics = worker(tmp_path, 1)

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    original = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", full)
    rules = [f"{number:x<64}" for number in range(500)]  # as after a reload: there were fewer when files were made
    for _ in range(2):
        metrics.add(DecisionCounts({(rule, "allowed"): 1 for rule in rules}, {}, [0] * 15, 0.0))
    assert {file: file.stat().st_size for file in tmp_path.iterdir()} == sizes
    assert ("headgate_decisions_total", ("allowed", rules[0]), 2.0) in figures(metrics)
    assert ("headgate_decisions_total", ("allowed", rules[-1]), 2.0) not in figures(metrics)
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "No space left on device: new metrics are left out until there is room"
    ]
    monkeypatch.setattr(os, "posix_fallocate", original)
    metrics.add(DecisionCounts({(rule, "allowed"): 1 for rule in rules}, {}, [0] * 15, 0.0))
    assert {("headgate_decisions_total", ("allowed", rule), 3.0) for rule in rules} <= set(figures(metrics))
    assert all(file.stat().st_blocks * 512 >= file.stat().st_size for file in tmp_path.iterdir())


@pytest.mark.parametrize("in_files", [False, True])
def test_counts_from_elsewhere_are_added_to_local_counts(tmp_path: Path, *, in_files: bool) -> None:
    if in_files:
        make_files(tmp_path, 1)
    metrics = worker(tmp_path, 1) if in_files else Metrics(GATE.stats)
    decide(metrics, 3e-6)
    buckets = [0, 0, 4, *[0] * 11, 1]
    metrics.add(DecisionCounts({("all", "allowed"): 4, ("all", "refused"): 1}, {"open": 2}, buckets, 1.5))
    samples = {(name, *sorted(labels)): value for name, labels, value in figures(metrics)}
    assert samples["headgate_decisions_total", "all", "allowed"] == 5
    assert samples["headgate_decisions_total", "all", "refused"] == 1
    assert samples["headgate_degraded_decisions_total", "open"] == 2
    assert samples["headgate_decision_seconds_count",] == 6
    assert samples["headgate_decision_seconds_bucket", "2e-06"] == 0
    assert samples["headgate_decision_seconds_bucket", "5e-06"] == 5
    assert samples["headgate_decision_seconds_bucket", "0.05"] == 5
    assert samples["headgate_decision_seconds_bucket", "+Inf"] == 6
    assert samples["headgate_decision_seconds_sum",] == pytest.approx(1.500003)
