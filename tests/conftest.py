"""What all tests share: both cores, and Hypothesis profiles."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from subjects import CORES, KINDS

settings.register_profile("ci", max_examples=150, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("short", parent=settings.get_profile("ci"), max_examples=30)
settings.register_profile(
    "long", max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HEADGATE_LAWS", "ci"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `core` runs on each core that is here, one for `store_kind` on each kind of store."""
    if "core" in metafunc.fixturenames:
        metafunc.parametrize("core", CORES)
    if "store_kind" in metafunc.fixturenames:
        metafunc.parametrize("store_kind", KINDS)
