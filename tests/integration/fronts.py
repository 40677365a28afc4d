"""Who answers the clients of `headgate serve`: Python by itself, or the native front door with Python behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

FRONTS = {"python": ("--threads", "0"), "door": ("--threads", "1")}
"""By name, the options that choose it."""

TOLD = {"python": "", "door": ", a front door of 1 thread"}
"""What the first line of a service says of it."""


class Chosen:
    """What services are started with, if a test does not say."""

    options: ClassVar[tuple[str, ...]] = ()


@pytest.fixture(scope="module", params=FRONTS)
def front(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each of both in turns: all services that a test starts are answered by it, unless the test says otherwise."""
    name = str(request.param)
    Chosen.options = FRONTS[name]
    yield name
    Chosen.options = ()
