"""Peers that need an environment of their own: another Python than ours, or packages that ours cannot have beside."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEER_PYTHON = "3.12"


def peer_program(name: str, package: str, version: str) -> Path | None:
    """A program of a package in `.venv-NAME`, installed at its first use; None where that is not to be had here."""
    found = subprocess.run([ROOT / "scripts/find-python", version], capture_output=True, text=True, check=False)
    if found.returncode:
        return None
    place = ROOT / f".venv-{name}"
    installed = place / ".installed"
    if not installed.exists():
        subprocess.run([found.stdout.strip(), "-m", "venv", place], check=True)
        pip: list[str | Path] = [place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, package], check=False).returncode:
            return None
        installed.touch()
    return place / "bin" / name
