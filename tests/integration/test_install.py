"""Where no Rust toolchain is in sight: the package installs, alone, and answers every vector."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("src", "rust", "pyproject.toml", "README.md", "LICENSE")
BUILT = shutil.ignore_patterns("target", "*.so", "*.pyd", "*.egg-info", "__pycache__")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python into which Headgate was installed with neither cargo nor rustc nor a compiler to be found."""
    folder = tmp_path_factory.mktemp("install")
    source = folder / "headgate"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=BUILT)
        else:
            shutil.copy(ROOT / part, source / part)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    binaries = folder / "venv" / "bin"
    names = {name: value for name, value in os.environ.items() if not name.startswith(("CARGO", "RUST", "HEADGATE"))}
    environment = {**names, "PATH": str(binaries), "PIP_BUILD_CONSTRAINT": str(ROOT / "constraints.txt")}
    assert shutil.which("cargo", path=environment["PATH"]) is None
    told = subprocess.run(
        [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    return binaries / "python"


def run(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    names = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE")}
    return subprocess.run(
        [python, *arguments], check=False, env=names, cwd=python.parent, capture_output=True, text=True
    )


def test_every_vector_is_answered_without_the_native_core(python: Path) -> None:
    told = run(python, ROOT / "tests" / "vector_check.py", ROOT / "vectors")
    assert told.returncode == 0, told.stderr
    result = json.loads(told.stdout)
    assert (result["core"], result["wrong"]) == ("python", 0)
    assert result["steps"] > 1000


def test_nothing_else_is_installed(python: Path) -> None:
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check").stdout)
    assert {package["name"] for package in listed} - {"pip", "setuptools"} == {"headgate"}


def test_a_part_is_added_to_what_is_installed_without_a_release_of_headgate() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "headgate[fastapi,jwt]"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    assert "Would install" not in told.stdout and "already satisfied: headgate" in told.stdout


EXTRA = re.compile(r"headgate\[([\w,]+)\]")


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_no_page_promises_a_release_and_every_extra_that_it_names_is_there(page: Path) -> None:
    text = page.read_text()
    if page.name == "README.md":
        text = text.replace("`pip install 'headgate[jwt]'` adds an extra to it", "")
        assert "There is no release on PyPI yet." in text
    assert not re.search(r"pip install '?headgate(\[[\w,]+\])?['`\s](?! @)", text.replace("] @", "]@"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for found in EXTRA.findall(text) for extra in found.split(",")}
    assert named <= set(extras)


def test_the_command_names_what_to_install(python: Path) -> None:
    told = run(python, "-m", "headgate", "info")
    assert told.returncode != 0
    assert "pip install" in told.stderr
    assert "Traceback" not in told.stderr
