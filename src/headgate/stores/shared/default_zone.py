"""Where the zone of a service is that names no store."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import quote

from headgate.errors import ConfigError

_MEMORY = Path("/dev/shm")
_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")
_NAMING_TEMPORARY = ("TMPDIR", "TEMP", "TMP")


def default_zone_url(namespace: str) -> str:
    """The URL of the zone for this user and namespace. Raises ConfigError where no folder for it can be written.

    It is never in the current folder, where it would be another one for a process that starts elsewhere.
    """
    folder = _MEMORY if os.access(_MEMORY, os.W_OK) else _temporary_folder()
    if folder is None:
        raise ConfigError(
            f"there is no place for the zone that the processes share: neither {_MEMORY} nor {', '.join(_TEMPORARY)} "
            f"can be written; mount {_MEMORY} in memory, or name a file that can be, --store shared:///path/of/it"
        )
    return f"shared://{quote(os.fsencode(folder / f'headgate-{os.geteuid()}-{namespace}'))}"


def _temporary_folder() -> Path | None:
    """The folder of temporary files; None where Python has none, or takes the current one for want of another."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:
        return None
    named = [os.environ.get(name, "") for name in _NAMING_TEMPORARY]
    known = {Path(path).resolve() for path in (*named, *_TEMPORARY) if path}
    place, current = Path(folder), Path.cwd()
    return None if place == current and current not in known else place
