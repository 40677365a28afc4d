"""Keys in a JSON file that only its owner may read: replaced atomically, and read again when it changes."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headgate.errors import ConfigError
from headgate.llm_proxy.own_key import OwnKey, add_to, key_values, read_key, revoked_in

log = logging.getLogger("headgate")

_FileIdentity = tuple[int, int, int]


class KeyFile:
    """The keys of a file. The next call sees a change; while the file cannot be read, the previous keys stay valid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: _FileIdentity | None = None
        self._by_digest: dict[str, OwnKey] = {}

    def check(self) -> int:
        """Read the keys, and return their number; raises ConfigError where they cannot be read."""
        try:
            self._read(_identity(self.path))
        except FileNotFoundError:
            raise self._no_file() from None
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        return len(self._by_digest)

    async def find(self, digest: str) -> OwnKey | None:
        """Find the key of a digest. Each call checks whether the file has changed, which takes two microseconds."""
        try:
            identity = _identity(self.path)
            if identity != self._identity:
                self._identity = identity  # also if reading fails, so that it is tried and logged once for each change
                self._read(identity)
        except (OSError, ConfigError) as error:
            if not isinstance(error, OSError) or self._identity is not None:
                log.error("the keys cannot be read, those from before stay: %s", error)
            if isinstance(error, OSError):
                self._identity = None
        return self._by_digest.get(digest)

    def all(self) -> list[OwnKey]:
        """All keys, in the order of their creation; raises ConfigError where there is no file."""
        if not self.path.exists():
            raise self._no_file()
        return _keys_of(self.path)

    def add(self, key: OwnKey) -> None:
        """Store a new key; raises ConfigError where one of its name is active."""
        self._change(lambda keys: (add_to(keys, key), 1))

    def revoke(self, name: str, now_us: int) -> int:
        """Revoke the keys of a name; return how many were revoked. Raises ConfigError where there is no file."""
        if not self.path.exists():
            raise self._no_file()
        return self._change(lambda keys: revoked_in(keys, name, now_us))

    def _no_file(self) -> ConfigError:
        command = f"headgate llm key create NAME --keys {self.path}"
        return ConfigError(f"{self.path}: there is no such file: `{command}` makes it, with a key")

    def _read(self, identity: _FileIdentity) -> None:
        keys = _keys_of(self.path)
        self._by_digest = {key.digest: key for key in keys}
        self._identity = identity

    def _change(self, change: Callable[[list[OwnKey]], tuple[list[OwnKey], int]]) -> int:
        with self._locked():
            keys, changed = change(_keys_of(self.path))
            if changed:
                self._write(keys)
            return changed

    def _write(self, keys: list[OwnKey]) -> None:
        """Replace the file atomically: a process that is killed leaves the old one or the new one, complete.

        The file keeps its owner, whichever user changes it: a proxy that cannot read it goes on with the previous keys.
        """
        place = self._place()
        text = json.dumps({"version": 1, "keys": [key_values(key) for key in keys]}, indent=1) + "\n"
        number, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with suppress(FileNotFoundError, PermissionError):
                owner = place.stat()
                os.fchown(number, owner.st_uid, owner.st_gid)
            with os.fdopen(number, "w") as file:  # mkstemp makes it readable for its owner alone
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(place)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file against changes by other processes."""
        place = self._place()
        if not place.parent.is_dir():
            raise ConfigError(f"{self.path}: there is no directory {place.parent}")
        with place.with_name(f".{place.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _place(self) -> Path:
        """The real path: a symbolic link stays one, so that a proxy which was given its target sees changes."""
        return Path(os.path.realpath(self.path))


def _identity(path: Path) -> _FileIdentity:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _keys_of(path: Path) -> list[OwnKey]:
    """The keys of a file, none where there is no file; raises ConfigError with the place of an error."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("version") != 1 or not isinstance(document.get("keys"), list):
        raise ConfigError(f'{path}: is no file of keys: it is {{"version": 1, "keys": [...]}}')
    return [read_key(entry, f"{path}: keys[{index}]") for index, entry in enumerate(document["keys"])]
