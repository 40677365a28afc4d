"""Header fields by name, whatever the case in which somebody asks for one."""

from __future__ import annotations

from typing import Any


class Headers(dict[str, str]):
    """Fields by name: kept in lower case and with "-" for "_", found in any spelling.

    What is given has its names so already.
    """

    __slots__ = ()

    def __getitem__(self, name: str) -> str:
        return dict.__getitem__(self, _plain(name))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and dict.__contains__(self, _plain(name))

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, `default` where it is not there."""
        return dict.get(self, _plain(name), default)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
