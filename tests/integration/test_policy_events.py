"""A policy file that changes is told to subscribers: applied or refused, and whether what it says is in force."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from served import answers_http
from test_several_workers import free_port

from headgate.http.asgi import RateLimitMiddleware
from headgate.observe.events import Event, Events, PolicyApplied, PolicyChecked, PolicyRefused
from headgate.policy.gate import AsyncGate
from headgate.policy.policy_file import read_again
from headgate.service.workers import policy_watch
from headgate.service.workers.policy_watch import PolicyWatch, policy_of

pytestmark = pytest.mark.integration

TEXT = b"version: 1\nrules: [{name: all, by: [], limits: 5/minute}]\n"


class Recorder:
    """Keeps what it is called with, and tells when each kind has come."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.refused, self.applied = asyncio.Event(), asyncio.Event()

    def handle(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, PolicyRefused):
            self.refused.set()
        elif isinstance(event, PolicyApplied):
            self.applied.set()


def test_a_policy_that_changes_is_refused_or_applied_and_that_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_bytes(TEXT)

    async def changes() -> None:
        recorder, events, gate = Recorder(), Events(), AsyncGate(policy_of(TEXT, file))
        events.subscribe(recorder)
        watch = PolicyWatch(file, gate, events, lambda text: policy_of(text, file), processed=TEXT)
        task = asyncio.create_task(watch.run())
        file.write_bytes(TEXT.replace(b"minute", b"minit"))
        await recorder.refused.wait()
        file.write_bytes(TEXT.replace(b"5/", b"6/"))
        await recorder.applied.wait()
        task.cancel()
        refused, applied = [event for event in recorder.events if not isinstance(event, PolicyChecked)]
        assert isinstance(refused, PolicyRefused) and "minit" in str(refused.error)
        assert isinstance(applied, PolicyApplied) and applied.policy is gate.policy
        in_force = [event.in_force for event in recorder.events if isinstance(event, PolicyChecked)]
        assert in_force[0] is True and False in in_force

    asyncio.run(asyncio.wait_for(changes(), 10))


def test_a_changed_file_without_the_ruleset_of_a_middleware_is_refused_until_it_has_it_again(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    whole = TEXT + b"rulesets: {logins: [all]}\n"
    file.write_bytes(whole)

    async def answer(scope: object, receive: object, send: object) -> None: ...

    async def changes() -> None:
        recorder, events, gate = Recorder(), Events(), AsyncGate(policy_of(whole, file))
        app = RateLimitMiddleware(answer, gate, ruleset="logins")
        events.subscribe(recorder)
        watch = PolicyWatch(file, gate, events, lambda text: policy_of(text, file), processed=whole)
        task = asyncio.create_task(watch.run())
        file.write_bytes(TEXT.replace(b"5/", b"6/"))
        await recorder.refused.wait()
        assert "logins" in gate.policy.rulesets
        file.write_bytes(whole.replace(b"5/", b"7/"))
        await recorder.applied.wait()
        task.cancel()
        refused = [event.error for event in recorder.events if isinstance(event, PolicyRefused)]
        assert [str(error) for error in refused] == [
            "RateLimitMiddleware cannot use this policy: ruleset is one of the policy's, default, not 'logins'"
        ]
        assert isinstance(app, RateLimitMiddleware)

    asyncio.run(asyncio.wait_for(changes(), 10))


def test_a_pipe_in_place_of_the_policy_is_refused_and_the_file_after_it_applied(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_bytes(TEXT)

    async def changes() -> None:
        recorder, events, gate = Recorder(), Events(), AsyncGate(policy_of(TEXT, file))
        events.subscribe(recorder)
        task = asyncio.create_task(
            PolicyWatch(file, gate, events, lambda text: policy_of(text, file), processed=TEXT).run()
        )
        await asyncio.sleep(0)  # it has begun to watch a file
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "pipe").replace(file)
        try:
            await asyncio.wait_for(recorder.refused.wait(), 5)
        except TimeoutError:
            os.close(os.open(file, os.O_RDWR | os.O_NONBLOCK))  # frees a thread that waits for the pipe's other end
            raise
        (tmp_path / "next").write_bytes(TEXT.replace(b"5/", b"6/"))
        (tmp_path / "next").replace(file)
        await recorder.applied.wait()
        task.cancel()
        refused = next(event for event in recorder.events if isinstance(event, PolicyRefused))
        assert "must be a regular file" in str(refused.error)

    asyncio.run(asyncio.wait_for(changes(), 10))


def test_a_file_that_comes_back_for_a_moment_only_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, away = tmp_path / "policy.yaml", tmp_path / "away"
    file.write_bytes(TEXT)
    os.utime(file, (1, 1))  # it is old: what it says is settled

    def come_back_and_read(path: Path) -> bytes:
        if away.exists():
            away.replace(path)
        return read_again(path)

    class LeavesAgain(Recorder):
        """The file goes away each time when it was looked at."""

        def handle(self, event: Event) -> None:
            super().handle(event)
            if isinstance(event, PolicyChecked) and file.exists():
                file.replace(away)
                monkeypatch.setattr(
                    policy_watch, "read_again", come_back_and_read if len(self.events) < 3 else read_again
                )

    async def changes() -> None:
        recorder, events, gate = LeavesAgain(), Events(), AsyncGate(policy_of(TEXT, file))
        events.subscribe(recorder)
        watch = PolicyWatch(file, gate, events, lambda text: policy_of(text, file), processed=TEXT)
        task = asyncio.create_task(watch.run())
        await recorder.refused.wait()
        task.cancel()

    asyncio.run(asyncio.wait_for(changes(), 5))


def test_a_policy_that_was_read_from_a_pipe_stays_in_force() -> None:
    reader, writer = os.pipe()
    os.write(writer, TEXT)
    os.close(writer)
    file = Path(f"/dev/fd/{reader}")
    text = file.read_bytes()

    async def looks() -> None:
        recorder, events, gate = Recorder(), Events(), AsyncGate(policy_of(text, file))
        events.subscribe(recorder)
        watch = PolicyWatch(file, gate, events, lambda text: policy_of(text, file), processed=text)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.run(), 1)
        assert [event.in_force for event in recorder.events if isinstance(event, PolicyChecked)] == [True]
        assert not recorder.refused.is_set()

    asyncio.run(looks())
    os.close(reader)


@pytest.mark.parametrize("serve", [("serve", "policy.yaml"), ("llm", "serve", "--example")])
def test_a_service_whose_log_cannot_be_written_serves_all_the_same(tmp_path: Path, serve: tuple[str, ...]) -> None:
    (tmp_path / "policy.yaml").write_bytes(TEXT)
    port = free_port()
    command = [sys.executable, "-m", "headgate", *serve, "--port", str(port)]
    with Path("/dev/full").open("w") as full, subprocess.Popen(command, cwd=tmp_path, stderr=full) as service:
        try:
            deadline = time.monotonic() + 20
            while not answers_http(port):
                assert service.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            with pytest.raises(subprocess.TimeoutExpired):
                service.wait(1)
            assert answers_http(port)
        finally:
            service.terminate()
    assert service.returncode == 0
