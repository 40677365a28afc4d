"""Each fuzzer has seeds, and a test that replays them without the fuzzer's tools."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

RUST = Path(__file__).parents[2] / "rust"
FUZZ = RUST / "fuzz"
TARGETS = sorted(file.stem for file in (FUZZ / "fuzz_targets").glob("*.rs"))
CANONICAL = "registry+https://github.com/rust-lang/crates.io-index"


def test_a_target_is_a_program_a_file_of_seeds_and_a_test_that_replays_them() -> None:
    programs = tomllib.loads((FUZZ / "Cargo.toml").read_text())["bin"]
    assert sorted(program["name"] for program in programs) == TARGETS
    assert sorted(file.stem for file in (FUZZ / "seeds").glob("*.txt")) == TARGETS
    tests = [*RUST.glob("*/tests/*.rs"), *RUST.glob("*/src/**/fuzzing.rs")]
    tested = [name for file in tests for name in re.findall(r'bounded::each\("(\w+)"', file.read_text())]
    assert sorted(tested) == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_few_and_each_is_there_once(target: str) -> None:
    text = (FUZZ / "seeds" / f"{target}.txt").read_text(encoding="ascii")
    lines = text.splitlines()
    assert len(text) <= 40 << 10
    assert len(set(lines)) == len(lines)


def test_crates_of_fuzzers_come_from_the_canonical_index_with_checksums() -> None:
    for package in tomllib.loads((FUZZ / "Cargo.lock").read_text())["package"]:
        if "source" in package:
            assert package["source"] == CANONICAL, package
            assert re.fullmatch(r"[0-9a-f]{64}", package["checksum"]), package
        else:
            assert package["name"].startswith("headgate-"), package


def versions(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for package in tomllib.loads((folder / "Cargo.lock").read_text())["package"]:
        found.setdefault(package["name"], set()).add(package["version"])
    return found


def test_fuzzers_are_built_of_the_same_versions_as_the_workspace() -> None:
    used, own = versions(RUST), versions(FUZZ)
    # What builds libfuzzer may stand beside it in another version.
    others = {name: found for name, found in own.items() if not used.get(name, found) <= found}
    assert not others, "bring rust/fuzz/Cargo.lock to the workspace's versions with: cargo update --precise"
