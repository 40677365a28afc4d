"""Peers that need an environment of their own: another Python than ours, or packages that ours cannot have beside."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEER_PYTHON = "3.12"
_LONGEST_INSTALL_S = 300


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
        pip: list[str | Path] = [place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
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
