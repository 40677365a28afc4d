"""Signals that arrive while the command starts, at the first import of the package and later ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import RunningService, headgate_command

POLICY = "version: 1\nnamespace: test\nrules:\n  - {name: everyone, by: [ip], limits: 5/minute}\n"
SIGNAL_AT_IMPORT = """
import os, signal, sys

class SignalAtImport:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["SIGNAL_MODULE"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(os.environ["SIGNAL_NUMBER"]))

sys.meta_path.insert(0, SignalAtImport())
"""
SCRIPT = [str(Path(sys.executable).with_name("headgate"))]
IMPORTS = ["headgate.decision", "headgate.cli.commands", "headgate.service.workers.single"]


@pytest.fixture(autouse=True)
def unblocked() -> Iterator[None]:
    """Tests of commands in this process may have left SIGHUP blocked, as `serve` does while it starts."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_with_signal(folder: Path, number: signal.Signals, module: str, command: list[str]) -> subprocess.Popen[str]:
    """Start a command that gets a signal at the first import of a module."""
    (folder / "sitecustomize.py").write_text(SIGNAL_AT_IMPORT)
    variables = {"PYTHONPATH": str(folder), "SIGNAL_MODULE": module, "SIGNAL_NUMBER": str(int(number))}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})


def serve_command(folder: Path, *, script: bool) -> list[str]:
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    arguments = ["serve", str(policy), "--port", "0"]
    return [*SCRIPT, *arguments] if script else headgate_command(*arguments)


@pytest.mark.parametrize("module", IMPORTS)
@pytest.mark.parametrize("script", [True, False], ids=["script", "module"])
def test_a_reload_that_is_requested_while_the_service_starts_happens(tmp_path: Path, script: bool, module: str) -> None:
    service = RunningService(start_with_signal(tmp_path, signal.SIGHUP, module, serve_command(tmp_path, script=script)))
    try:
        service.wait_for("the changed policy is in force")
        assert service.check().status_code == 200
    finally:
        assert service.stop() == 0


@pytest.mark.parametrize("module", IMPORTS)
@pytest.mark.parametrize("script", [True, False], ids=["script", "module"])
def test_a_service_that_is_ended_while_it_starts_ends_well(tmp_path: Path, script: bool, module: str) -> None:
    process = start_with_signal(tmp_path, signal.SIGTERM, module, serve_command(tmp_path, script=script))
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_a_proxy_that_is_ended_while_it_starts_ends_well(tmp_path: Path) -> None:
    command = headgate_command("llm", "serve", "--example", "--port", "0")
    process = start_with_signal(tmp_path, signal.SIGTERM, "headgate.llm_proxy.several", command)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("module", IMPORTS[:2])
def test_ctrl_c_while_a_command_starts_prints_no_traceback(tmp_path: Path, module: str) -> None:
    process = start_with_signal(tmp_path, signal.SIGINT, module, headgate_command("info"))
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM], ids=lambda number: number.name)
def test_commands_that_serve_nothing_end_at_a_signal_as_any_program(tmp_path: Path, number: signal.Signals) -> None:
    process = start_with_signal(tmp_path, number, "headgate.cli.commands", headgate_command("info"))
    process.communicate(timeout=30)
    assert process.returncode == -number


def test_a_program_that_imports_the_package_keeps_its_signals(tmp_path: Path) -> None:
    program = (
        "import signal\n"
        "known = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)\n"
        "import headgate\n"
        "assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == known\n"
        "assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
    )
    subprocess.run([sys.executable, "-c", program, "serve"], check=True, timeout=30)
