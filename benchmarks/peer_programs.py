"""Peers that are installed at their first use: in a Python of their own, or built by Cargo or Go.

One of them is an older Headgate.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEER_PYTHON = "3.12"
_LONGEST_INSTALL_S = 300
_BUILDS_WITHIN_S = 15 * 60


def peer_program(name: str, version: str) -> Path | None:
    """A program of a package in `.venv-NAME`, of the versions in `peer_requirements/NAME.txt`; None where that fails.

    It is installed at its first use, and anew when its file changes. The file names every package that the peer needs,
    so that nothing is resolved: for LiteLLM's proxy that takes pip longer than everything that is measured.
    """
    found = subprocess.run([ROOT / "scripts/find-python", version], capture_output=True, text=True, check=False)
    if found.returncode:
        return None
    requirements = Path(__file__).with_name("peer_requirements") / f"{name}.txt"
    place = ROOT / f".venv-{name}"
    installed = place / ".installed"
    if not installed.exists() or installed.read_bytes() != requirements.read_bytes():
        subprocess.run([found.stdout.strip(), "-m", "venv", "--clear", place], check=True)
        pip: list[str | Path] = [
            place / "bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        try:
            done = subprocess.run(
                [*pip, "--no-deps", "--requirement", requirements], check=False, timeout=_LONGEST_INSTALL_S
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            return None
        installed.write_bytes(requirements.read_bytes())
    return place / "bin" / name


def cargo_program(name: str, version: str) -> Path | str:
    """The program of a crate of the same name, built at its first use with locked versions; or why there is none."""
    place = ROOT / f".peer-{name}-{version}"
    command = ["cargo", "install", "--quiet", "--locked", "--root", str(place), "--version", version, name]
    return _built(place / "bin" / name, command, {})


def go_program(name: str, package: str, version: str) -> Path | str:
    """The program of a Go package, which is called `name`, built at its first use; or why there is none."""
    place = ROOT / f".peer-{name}-{version}"
    command = ["go", "install", f"{package}@{version}"]
    return _built(place / package.rpartition("/")[2], command, {"GOBIN": str(place)})


def headgate_of(commit: str) -> Path | str:
    """A Python with the Headgate of a commit, built at its first use; or why there is none."""
    place = ROOT / f".peer-headgate-{commit[:7]}"
    python = place / "bin" / "python"
    if (place / "bin" / "headgate").exists():
        return python
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        return f"the history of the repository has no {commit[:7]}"
    with tempfile.TemporaryDirectory() as source:
        subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pinned = f"{source}/constraints.txt"
        environment = {"PIP_CONSTRAINT": pinned, "PIP_BUILD_CONSTRAINT": pinned}
        built = _built(place / "bin" / "headgate", [*command, f"{source}[service,redis]"], environment)
    return python if isinstance(built, Path) else built


def _built(program: Path, command: Sequence[str], environment: Mapping[str, str]) -> Path | str:
    if program.exists():
        return program
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    # Outside of this project, whose settings of Cargo are not the peer's.
    with subprocess.Popen(
        command, cwd="/", env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as building:
        try:
            _, stderr_text = building.communicate(timeout=_BUILDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(building.pid, signal.SIGKILL)  # its compilers too
            return f"it was not built within {_BUILDS_WITHIN_S // 60} minutes"
    if building.returncode == 0 and program.exists():
        return program
    lines = stderr_text.strip().splitlines() or ["it left no program"]
    return f"{command[0]}: {next((line for line in lines if line.startswith('error')), lines[-1]).strip()}"
