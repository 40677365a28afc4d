"""What older versions of libraries lack that Headgate works with: tests of it are skipped there, and say so."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, TypeVar

import pytest
from packaging.version import Version

if TYPE_CHECKING:
    from litestar.params import FromPath as FromPath
    from litestar.params import FromQuery as FromQuery
else:
    try:
        from litestar.params import FromPath, FromQuery
    except ImportError:  # before 2.22 a parameter's name says where it is from
        T = TypeVar("T")
        FromPath = FromQuery = Annotated[T, ...]


def is_older(package: str, than: str) -> bool:
    """Whether the installed version of a package is older."""
    return Version(version(package)) < Version(than)


def needs(package: str, oldest: str, what: str) -> pytest.MarkDecorator:
    """Return the mark of tests of what a package has since a version."""
    reason = f"{what}: since {package} {oldest}, this is {version(package)}"
    return pytest.mark.skipif(is_older(package, oldest), reason=reason)


CLIENT_MIDDLEWARES = needs("aiohttp", "3.12", "clients have middlewares")
FAST_PRICES = needs("genai-prices", "0.2.3", "fast modes have prices")
