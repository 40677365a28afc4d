"""What the native code brings in: from where, under which licences, and what of it runs while it is built."""

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
"""No member of the workspace: nothing that users get is built with it."""
CANONICAL = "registry+https://github.com/rust-lang/crates.io-index"
LICENCES = {
    "MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT-0", "Unlicense",
    "Unicode-3.0",
}  # fmt: skip
"""Those that only ask to be named."""
RUN_WHILE_BUILT = {
    "httparse": "asks rustc for its version",
    "libc": "asks rustc for its version",
    "proc-macro2": "asks rustc what it can do",
    "pyo3": "asks Python for its version",
    "pyo3-build-config": "asks Python for its version",
    "pyo3-ffi": "asks Python for its version",
    "pyo3-macros-backend": "reads a variable of its environment",
    "quote": "asks rustc for its version",
    "ring": "compiles its own C and assembly with cc; what it is published with needs no other program",
    "rustix": "asks rustc what it can do",
    "rustls": "asks rustc for its version, where a feature is on that is not",
    "rustversion": "asks rustc for its version",
    "portable-atomic": "asks rustc what it can do",
    "serde": "asks rustc for its version",
    "serde_core": "asks rustc for its version",
    "serde_json": "reads the width of a word",
    "target-lexicon": "reads the name of the target",
    "zmij": "asks rustc for its version",
}
"""Crates with a build script, all of which were read: what it does."""
OF_OTHER_SYSTEMS = {"windows-sys"}
"""Named in the lock for systems that Headgate does not run on: never compiled, so several versions do not matter."""


def locked() -> list[dict[str, Any]]:
    packages: list[dict[str, Any]] = tomllib.loads((RUST / "Cargo.lock").read_text())["package"]
    return packages


def described() -> list[dict[str, Any]]:
    """What cargo says of each crate that may be compiled for Linux."""
    if shutil.which("cargo") is None:
        pytest.skip("no Rust toolchain: crates cannot be asked for their licences")
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", str(RUST / "Cargo.toml")]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    used = {node["id"] for node in told["resolve"]["nodes"]}
    return [package for package in told["packages"] if package["id"] in used and package["source"] is not None]


def test_crates_come_from_the_canonical_index_with_checksums() -> None:
    own = {package["name"] for package in locked() if "source" not in package}
    assert own == {f"headgate-{folder.parent.name}" for folder in RUST.glob("*/Cargo.toml") if folder.parent != FUZZERS}
    for package in locked():
        if package["name"] not in own:
            assert package["source"] == CANONICAL, package
            assert re.fullmatch(r"[0-9a-f]{64}", package["checksum"]), package


def test_each_crate_is_there_in_one_version() -> None:
    twice = {name: count for name, count in Counter(package["name"] for package in locked()).items() if count > 1}
    assert not twice.keys() - OF_OTHER_SYSTEMS, "two versions of one crate are two of its faults, and compile twice"


def test_crates_of_other_systems_are_not_compiled() -> None:
    assert not OF_OTHER_SYSTEMS.intersection(package["name"] for package in described())


def test_licences_only_ask_to_be_named() -> None:
    for package in described():
        offered = [choice.strip("() ") for choice in re.split(r" OR |/|\bAND\b", package["license"])]
        needed = re.findall(r"AND ([\w.-]+)", package["license"])
        assert LICENCES.intersection(choice.strip() for choice in offered), (package["name"], package["license"])
        assert LICENCES.issuperset(needed), (package["name"], package["license"])


def test_build_scripts_are_known() -> None:
    scripted = {
        package["name"] for package in described() if any("custom-build" in own["kind"] for own in package["targets"])
    }
    assert scripted <= RUN_WHILE_BUILT.keys(), "read its build script, and say here what it does"
