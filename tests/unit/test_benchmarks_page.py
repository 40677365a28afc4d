"""The page of benchmarks shows what was measured, all of it, and ends with its notes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import report

NAMES = sorted(file.stem for file in report.MEASURED.glob("*.json"))
TARGETS_END = "\n## "


@pytest.fixture(scope="module")
def shown() -> str:
    return report.PAGE.read_text()


def test_something_was_measured() -> None:
    assert len(NAMES) > 10


@pytest.mark.parametrize("name", NAMES)
def test_a_section_is_shown_as_it_was_measured(name: str, shown: str) -> None:
    made = report.page(report.stored([name]), "")
    _, section = made.split(TARGETS_END, 1)
    assert f"{TARGETS_END}{section.split(f'{TARGETS_END}Versions', 1)[0].rstrip()}\n" in shown
    for line in made.split(TARGETS_END, 1)[0].splitlines():
        assert f"{line}\n" in shown


def test_no_target_is_shown_that_was_not_measured(shown: str) -> None:
    def targets(page: str) -> list[str]:
        return sorted(line for line in page.split(TARGETS_END, 1)[0].splitlines() if line.endswith(("| met |", "** |")))

    assert targets(shown) == targets(report.page(report.stored(NAMES), ""))


def test_its_notes_end_it(shown: str) -> None:
    assert shown.endswith(f"\n\n{report.NOTES.read_text().strip()}\n")
