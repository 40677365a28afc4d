"""Headgate is installed, from source and from a wheel, where there is no Rust toolchain, and decides there."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import headgate

ROOT = Path(__file__).parents[2]
RUST = ROOT / "rust"
SOURCE_PARTS = ("src", "rust", "pyproject.toml", "setup.py", "README.md", "LICENSE")
BUILD_PRODUCTS = shutil.ignore_patterns("target", "*.so", "*.pyd", "*.egg-info", "__pycache__")


def copy_of_the_source(folder: Path, *more_parts: str) -> Path:
    """Copy what a build needs, and `more_parts`, into a folder of their own, and return it."""
    source = folder / "headgate"
    source.mkdir()
    for part in (*SOURCE_PARTS, *more_parts):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=BUILD_PRODUCTS)
        else:
            shutil.copy(ROOT / part, source / part)
    return source


def user_environment(path: str) -> dict[str, str]:
    """The environment of a user who has these programs, and no settings of cargo, Rust or Headgate."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("CARGO", "RUST", "HEADGATE"))
    }
    return {**variables, "PATH": path, "PIP_BUILD_CONSTRAINT": str(ROOT / "constraints.txt")}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python into which Headgate was installed without cargo, rustc or a compiler."""
    folder = tmp_path_factory.mktemp("install")
    source = copy_of_the_source(folder)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    binaries = folder / "venv" / "bin"
    environment = user_environment(str(binaries))
    assert shutil.which("cargo", path=environment["PATH"]) is None
    completed = subprocess.run(
        [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    return binaries / "python"


def run(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE")}
    return subprocess.run(
        [python, *arguments], check=False, env=variables, cwd=python.parent, capture_output=True, text=True
    )


def test_every_vector_is_answered_without_the_native_core(python: Path) -> None:
    completed = run(python, ROOT / "tests" / "vector_check.py", ROOT / "vectors")
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert (result["core"], result["wrong"]) == ("python", 0)
    assert result["steps"] > 1000


def test_nothing_else_is_installed(python: Path) -> None:
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check").stdout)
    versions = {
        package["name"]: package["version"] for package in listed if package["name"] not in ("pip", "setuptools")
    }
    assert versions == {"headgate": headgate.__version__}


@pytest.fixture(scope="module")
def wheel() -> tuple[Path, Path]:
    """A wheel that `make wheels` built, and the Python that it is for."""
    for version in ("3.12", "3.13", "3.11"):
        found = subprocess.run([ROOT / "scripts" / "find-python", version], check=False, capture_output=True, text=True)
        if found.returncode == 0:
            break
    completed = subprocess.run(
        ["make", "--no-print-directory", "wheels", f"PYTHONS={version}"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    [line] = completed.stdout.splitlines()
    built = re.fullmatch(r"(dist/\S+): \d+ KiB, built in \d+ s, needs glibc 2\.(\d+) or later", line)
    assert built, line
    assert int(built[2]) <= 17
    return ROOT / built[1], Path(found.stdout.strip())


@pytest.mark.skipif(shutil.which("cargo") is None, reason="wheels are built where a Rust toolchain is at hand")
def test_a_wheel_installs_into_an_empty_environment_and_its_native_core_answers_every_vector(
    wheel: tuple[Path, Path], tmp_path: Path
) -> None:
    path, python = wheel
    assert re.search(r"-cp3\d+-cp3\d+-manylinux2014_\w+\.manylinux_2_17_\w+\.whl$", path.name), path.name
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    completed = subprocess.run(
        [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", path],
        check=False,
        env=user_environment(str(binaries)),
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    completed = run(
        binaries / "python", "-c", "from headgate import Limiter; print(Limiter('2/minute').hit('user:42'))"
    )
    assert completed.returncode == 0, completed.stderr
    assert "remaining=1" in completed.stdout, completed.stdout
    completed = run(binaries / "python", ROOT / "tests" / "vector_check.py", ROOT / "vectors")
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert (result["core"], result["wrong"]) == ("native", 0)
    assert result["steps"] > 1000


def test_make_reports_before_each_step_of_an_installation_what_it_does_and_how_long_that_takes(tmp_path: Path) -> None:
    source = copy_of_the_source(tmp_path, "Makefile", "scripts", "constraints.txt")
    environment = user_environment("/usr/bin:/bin")
    completed = subprocess.run(
        ["make", "install", f"PYTHON={sys.executable}", "EXTRA=zones"],
        check=False,
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    core = "without its native core" if shutil.which("cargo", path=environment["PATH"]) is None else "native core"
    steps = [line for line in completed.stderr.splitlines() if line.startswith("headgate: ")]
    for line, step in zip(
        steps[-3:], ("making .venv with Python 3.", core, "what headgate[zones] depends on"), strict=True
    ):
        assert step in line and re.search(r": (about )?(\w+ to )?\w+ (seconds|minutes)", line), line
    assert run(source / ".venv" / "bin" / "python", "-c", "import headgate, tzdata").returncode == 0


def rust_compiler() -> str:
    """Return the version text of the compiler; "" where there is none."""
    if shutil.which("rustc") is None:
        return ""
    return subprocess.run(["rustc", "-vV"], check=False, cwd=RUST, capture_output=True, text=True).stdout


@pytest.mark.skipif(
    rust_compiler() != (RUST / "profile" / "compiler.txt").read_text(), reason="the profile is of another compiler"
)
def test_the_native_core_is_built_along_the_profile_of_its_hot_paths() -> None:
    packed_profile = (RUST / "profile" / "hot-paths.profdata.xz").read_bytes()
    unpacked_profile = RUST / "target" / f"{hashlib.sha256(packed_profile).hexdigest()[:16]}.profdata"
    assert unpacked_profile.read_bytes() == lzma.decompress(packed_profile), "the profile that cargo was given"


def test_a_part_is_added_to_what_is_installed_without_a_release_of_headgate() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "headgate[fastapi,jwt]"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    assert "Would install" not in completed.stdout and "already satisfied: headgate" in completed.stdout


EXTRA = re.compile(r"headgate\[([\w,]+)\]")


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_no_page_promises_a_release_and_every_extra_that_it_names_exists(page: Path) -> None:
    text = page.read_text()
    if page.name == "README.md":
        text = text.replace("`pip install 'headgate[jwt]'` adds an extra to it", "")
        assert "There is no release on PyPI yet." in text
    assert not re.search(r"pip install '?headgate(\[[\w,]+\])?['`\s](?! @)", text.replace("] @", "]@"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for found in EXTRA.findall(text) for extra in found.split(",")}
    assert named <= set(extras)


def test_the_pips_that_come_with_python_can_read_what_the_readme_installs() -> None:
    """Before 24.1, pip cannot read a `name @ URL` whose URL has no host, as in git+file:///path."""
    urls = re.findall(r"pip install '[^']* @ ([^']+)'", (ROOT / "README.md").read_text())
    assert urls and all(urlsplit(url).netloc for url in urls)


def test_the_command_names_the_package_to_install(python: Path) -> None:
    completed = run(python, "-m", "headgate", "info")
    assert completed.returncode != 0
    assert "pip install" in completed.stderr
    assert "Traceback" not in completed.stderr
