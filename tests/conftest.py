"""What all tests share: both cores, and Hypothesis profiles."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import redis.utils
from hypothesis import HealthCheck, Phase, settings

from headgate import ConfigError, SharedStore, limit_text
from subjects import CORES, HOLDING, KINDS, ZONES, close_stores, deciding

pytest_plugins = ["redis_fixtures", "fronts"]

LONGEST = (
    "test_redis_topologies",
    "test_redis_replies",
    "test_docs",
    "test_workers",
    "test_redis_cold",
    "test_connections",
    "test_gateways",
    "test_shared_processes",
    "test_redis_outages",
    "test_cli",
    "test_front_door_redis",
    "test_redis_holds",
    "test_shared_kills",
    "test_redis_lines",
    "test_cli_redis",
    "test_front_door",
    "test_front_door_tls",
    "test_same_resource",
    "test_credentials_sent_twice",
)
"""Files of integration tests that take longest, the longest first."""

# Tests interrupt processes, which would ignore it as this one does where a shell runs it in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# It is read out of files for each connection, which takes longer than to connect.
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)

settings.register_profile("ci", max_examples=150, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("short", parent=settings.get_profile("ci"), max_examples=30)
settings.register_profile(
    "mutants", parent=settings.get_profile("short"), phases=[Phase.explicit, Phase.generate], print_blob=False
)
settings.register_profile(
    "long", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
LAWS = os.environ.get("HEADGATE_LAWS", "ci")
if LAWS.isdecimal():  # so many examples of each law
    settings.register_profile(LAWS, parent=settings.get_profile("long"), max_examples=int(LAWS))
settings.load_profile(LAWS)


def pytest_sessionstart() -> None:
    """Let go of zones that another version has left on this machine and no process uses: services take their default
    one, and would not start on those."""
    for path in Path("/dev/shm").glob(f"headgate-{os.geteuid()}-*") if ZONES else ():
        try:
            SharedStore(path)
        except ConfigError as error:
            if "is a zone of layout" not in str(error):
                continue
            with suppress(OSError), path.open("rb") as file:  # it is gone already, or in use
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that requests `core` runs on each core that is here, one for `store_kind` on each kind of store.

    One for `holding_kind` runs on each kind that holds.
    """
    if "core" in metafunc.fixturenames:
        metafunc.parametrize("core", CORES)
    is_law = metafunc.definition.path.parent.name == "laws"
    if "store_kind" in metafunc.fixturenames:
        metafunc.parametrize("store_kind", deciding(KINDS) if is_law else KINDS)
    if "holding_kind" in metafunc.fixturenames:
        metafunc.parametrize("holding_kind", deciding(HOLDING) if is_law else HOLDING)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take a minute or two come first: at the end, no worker has nothing to do while another has one."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    """What is there now stays until the end: no test that collects garbage looks through it again."""
    _set_aside()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """So does what the tests of a file have left; but no connection."""
    close_stores()
    if nextitem is None or nextitem.path != item.path:
        _set_aside()


def _set_aside() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def forgotten_texts() -> None:
    """Texts of limits are read anew in each test: what another test has read proves nothing about this one."""
    limit_text._parse.cache_clear()
