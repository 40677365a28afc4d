"""`headgate serve --pin-threads`: each thread of the front doors on a CPU of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from running import run_headgate, running_service

POLICY = """
version: 1
rules:
  - {name: all, by: [ip], limits: 5/hour}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


def cpus_of_threads(pid: int) -> dict[str, set[str]]:
    """Return the CPUs that the threads of a process may run on, by the names of the threads."""
    cpus: dict[str, set[str]] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        match = re.search(r"^Cpus_allowed_list:\s*(\S+)", (task / "status").read_text(), re.MULTILINE)
        assert match
        cpus.setdefault((task / "comm").read_text().strip(), set()).add(match[1])
    return cpus


def test_each_thread_has_a_cpu_of_its_own_and_python_has_all(policy: Path) -> None:
    available = sorted(os.sched_getaffinity(0))
    with running_service(policy, "--threads", str(len(available)), "--pin-threads") as service:
        assert re.search("each on a CPU of its own; ctrl-c", "".join(service.lines))
        cpus = cpus_of_threads(service.process.pid)
        doors = [cpus.pop(f"headgate-door-{number}") for number in range(len(available))]
        assert sorted(int(cpu) for [cpu] in doors) == available
        assert not any(allowed == {str(cpu)} for allowed in cpus.values() for cpu in available if len(available) > 1)
        assert [service.check().status_code for _ in range(6)] == [200] * 5 + [429]


def test_workers_have_cpus_of_their_own_and_a_new_worker_those_of_its_predecessor(policy: Path, tmp_path: Path) -> None:
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        pytest.skip("one CPU cannot be shared out to two workers")
    zone = f"shared://{tmp_path}/zone?size=1MiB"
    with running_service(policy, "--workers", "2", "--pin-threads", "--store", zone) as service:

        def cpu_by_worker() -> dict[int, set[str]]:
            children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
            return {int(child): cpus_of_threads(int(child))["headgate-door-0"] for child in children}

        before = cpu_by_worker()
        assert len({cpu for [cpu] in before.values()}) == 2
        killed = min(before)
        line_count = len(service.lines)
        os.kill(killed, 9)
        pid = int(service.wait_for(r"started again as pid (\d+)", line_count)[1])
        while "headgate-door-0" not in cpus_of_threads(pid):
            assert service.process.poll() is None
        assert cpu_by_worker()[pid] == before[killed]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--threads", "0"), "--pin-threads pins those of the front door, and --threads 0 has none"),
        (("--threads", "256"), "--pin-threads: each thread needs a CPU of its own; 256 threads need 256, and this"),
        (("--threads", "128", "--workers", "2"), "2 workers of 128 threads each need 256, and this process may run on"),
    ],
)
def test_threads_that_cannot_be_pinned_are_refused_before_anything_starts(
    policy: Path, arguments: tuple[str, ...], message: str
) -> None:
    if len(os.sched_getaffinity(0)) >= 256:
        pytest.skip("this machine has a CPU for each of 256 threads")
    completed = run_headgate("serve", str(policy), "--port", "0", "--pin-threads", *arguments)
    assert (completed.returncode, completed.stdout) == (1, "")
    assert message in completed.stderr
