"""The crates that the native code uses: their sources, their licences, and the build scripts that they run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

RUST = Path(__file__).parents[2] / "rust"
FUZZERS = RUST / "fuzz"
"""Not a member of the workspace: nothing that users install is built with it."""
CANONICAL = "registry+https://github.com/rust-lang/crates.io-index"
LICENCES = {
    "MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT-0", "Unlicense",
    "Unicode-3.0",
}  # fmt: skip
"""Licences that require only attribution."""
BUILD_SCRIPTS = {
    "httparse": "queries the version of rustc",
    "libc": "queries the version of rustc",
    "proc-macro2": "queries the features of rustc",
    "pyo3": "queries the version of Python",
    "pyo3-build-config": "queries the version of Python",
    "pyo3-ffi": "queries the version of Python",
    "pyo3-macros-backend": "reads a variable of its environment",
    "quote": "queries the version of rustc",
    "ring": "compiles its own C and assembly with cc; what it is published with needs no other program",
    "rustix": "queries the features of rustc",
    "rustls": "queries the version of rustc, when a feature is on that is off here",
    "rustversion": "queries the version of rustc",
    "portable-atomic": "queries the features of rustc",
    "serde": "queries the version of rustc",
    "serde_core": "queries the version of rustc",
    "serde_json": "reads the width of a word",
    "target-lexicon": "reads the name of the target",
    "zmij": "queries the version of rustc",
}
"""What the build script of each crate does. All of them were read."""
OTHER_SYSTEMS = {"windows-sys"}
"""Named in the lock for systems that Headgate does not run on: never compiled, so several versions do not matter."""


def locked_packages() -> list[dict[str, Any]]:
    packages: list[dict[str, Any]] = tomllib.loads((RUST / "Cargo.lock").read_text())["package"]
    return packages


def compiled_packages() -> list[dict[str, Any]]:
    """The metadata from cargo of each crate that may be compiled for Linux."""
    if shutil.which("cargo") is None:
        pytest.skip("no Rust toolchain: the licences of crates cannot be read")
    command = [
        "cargo",
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--manifest-path",
        str(RUST / "Cargo.toml"),
    ]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    used = {node["id"] for node in metadata["resolve"]["nodes"]}
    return [package for package in metadata["packages"] if package["id"] in used and package["source"] is not None]


def test_crates_come_from_the_canonical_index_with_checksums() -> None:
    members = {package["name"] for package in locked_packages() if "source" not in package}
    assert members == {
        f"headgate-{folder.parent.name}" for folder in RUST.glob("*/Cargo.toml") if folder.parent != FUZZERS
    }
    for package in locked_packages():
        if package["name"] not in members:
            assert package["source"] == CANONICAL, package
            assert re.fullmatch(r"[0-9a-f]{64}", package["checksum"]), package


def test_each_crate_is_locked_in_one_version() -> None:
    twice = {
        name: count for name, count in Counter(package["name"] for package in locked_packages()).items() if count > 1
    }
    assert not twice.keys() - OTHER_SYSTEMS, "two versions of one crate compile twice and double its faults"


def test_crates_of_other_systems_are_not_compiled() -> None:
    assert not OTHER_SYSTEMS.intersection(package["name"] for package in compiled_packages())


def test_all_licences_require_only_attribution() -> None:
    for package in compiled_packages():
        offered = [choice.strip("() ") for choice in re.split(r" OR |/|\bAND\b", package["license"])]
        needed = re.findall(r"AND ([\w.-]+)", package["license"])
        assert LICENCES.intersection(choice.strip() for choice in offered), (package["name"], package["license"])
        assert LICENCES.issuperset(needed), (package["name"], package["license"])


def test_all_build_scripts_have_been_reviewed() -> None:
    scripted = {
        package["name"]
        for package in compiled_packages()
        if any("custom-build" in target["kind"] for target in package["targets"])
    }
    assert scripted <= BUILD_SCRIPTS.keys(), "read its build script, and add to BUILD_SCRIPTS what it does"
