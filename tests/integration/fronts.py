"""What answers the clients of `headgate serve`: Python by itself, or the native front door with Python behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

FRONTS = {"python": ("--threads", "0"), "door": ("--threads", "1")}
"""The options that choose each front, by its name."""

START_LINE_PARTS = {"python": "", "door": ", a front door of 1 thread"}
"""The part of the first line of a service that names the front."""


class DefaultFront:
    """The options that services start with unless a test names others."""

    options: ClassVar[tuple[str, ...]] = ()


@pytest.fixture(scope="module", params=FRONTS)
def front(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each front in turn: it answers for all services that a test starts, unless the test says otherwise."""
    name = str(request.param)
    DefaultFront.options = FRONTS[name]
    yield name
    DefaultFront.options = ()
