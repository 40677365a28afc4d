"""The file of a shared zone: made once, whoever comes first; opened by everybody else; never misread.

Every process that uses a zone holds a shared `flock` on its file, so that one that finds itself alone
(an exclusive one is granted) may look through it, or put a fresh zone in the place of one from before
the last start of the system. A file appears under its name only when it is a whole zone, so there is
no moment at which another process could see half of one. For Linux alone.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from headgate.errors import ConfigError, StoreUnavailable

_ATTEMPTS = 1000
_PAUSE_S = 0.01
_OF_A_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "lustre")
_MOUNTS = Path("/proc/self/mountinfo")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")


class Wanted(NamedTuple):
    """How a zone is to be made; `size` (bytes) and `log_percent` are None where any is right."""

    size: int | None
    log_percent: int | None
    mode: int


class Identity(NamedTuple):
    """What tells a file from another one that has taken its name."""

    device: int
    inode: int
    size: int


DEFAULT_SIZE = 64 << 20
DEFAULT_LOG_PERCENT = 25


def open_zone(native: Any, path: Path, wanted: Wanted | None, on_full: str) -> tuple[Any, Identity]:
    """The zone at a path and the identity of its file; made if there is none, unless `wanted` is None.

    Raises ConfigError for a file that is no usable zone, StoreUnavailable where the system refuses.
    """
    _refuse_network(path)
    with _system_errors(path):
        for _ in range(_ATTEMPTS):
            descriptor = _open(path)
            if descriptor is None and wanted is not None:
                descriptor = _make(native, path, wanted)
            elif descriptor is None:
                raise ConfigError(f"{path}: there is no zone")
            if descriptor is None:  # somebody else was faster
                continue
            try:
                zone = _take(native, path, descriptor, wanted, on_full)
                if zone is not None:
                    return zone, _identity(os.fstat(descriptor))
            finally:
                os.close(descriptor)
            threading.Event().wait(_PAUSE_S)
    raise StoreUnavailable(f"{path}: another process is busy with this zone for {_ATTEMPTS * _PAUSE_S:g} s")


def is_same_file(path: Path, identity: Identity) -> bool:
    """Whether the file at a path is still the one that was opened."""
    try:
        return _identity(path.stat()) == identity
    except OSError:
        return False


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no directory {path.parent}") from None
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(f"{path}: is a symbolic link; name the file itself") from None
        if error.errno == errno.EISDIR:
            raise ConfigError(f"{path}: is a directory; name a file in it") from None
        raise


def _take(native: Any, path: Path, descriptor: int, wanted: Wanted | None, on_full: str) -> Any | None:
    """The zone of an open file, once it is known to be one; None to try again."""
    _check_owner(path, os.fstat(descriptor), wanted)
    alone = _lock(descriptor, fcntl.LOCK_EX)
    if not alone and not _lock(descriptor, fcntl.LOCK_SH):
        return None
    if not is_same_file(path, _identity(os.fstat(descriptor))):
        return None  # replaced while we waited
    try:
        zone = native.Zone(descriptor, on_full=on_full)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if zone.boot != _boot():
        if not alone:
            raise ConfigError(f"{path}: is used by processes of another host or another clock; name another path")
        if wanted is None:
            raise ConfigError(f"{path}: is from before the last start of the system, and holds nothing any more")
        info = zone.info()
        del zone
        size, log_percent = wanted.size or info["size"], wanted.log_percent
        _replace(native, path, Wanted(size, info["log_percent"] if log_percent is None else log_percent, wanted.mode))
        return None
    if wanted is not None:
        _check_wanted(path, zone.info(), wanted)
    if alone:
        zone.renew_locks()
        fault = zone.check()
        if fault is not None:
            raise ConfigError(f"{path}: is damaged: {fault}; name another path, or delete the file")
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return zone


def _check_wanted(path: Path, info: dict[str, int], wanted: Wanted) -> None:
    for name in ("size", "log_percent"):
        value = getattr(wanted, name)
        if value is not None and value != info[name]:
            raise ConfigError(
                f"{path}: is a zone with {name}={info[name]}, not {value}; "
                "a zone keeps its shape: leave the option out, name another path, or delete the file and start afresh"
            )


def _check_owner(path: Path, status: os.stat_result, wanted: Wanted | None) -> None:
    """Refuse a file that somebody else could change under our hands, unless that was asked for."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path}: is no regular file")
    ours = os.geteuid()
    mode = wanted.mode if wanted else 0o600
    looked_at_by_root = wanted is None and ours == 0
    if status.st_uid not in (ours, 0) and not looked_at_by_root and not mode & 0o020:
        raise ConfigError(
            f"{path}: belongs to user {status.st_uid}, and this is user {ours}; "
            "name another path, or share it with a group by mode=660"
        )
    if status.st_mode & 0o022 & ~mode and not looked_at_by_root:
        raise ConfigError(
            f"{path}: others may write it (mode {stat.S_IMODE(status.st_mode):o}); "
            f"mode={mode:o} is wanted: say so in the store's URL, or take the permission away"
        )


def _make(native: Any, path: Path, wanted: Wanted) -> int | None:
    """A descriptor of a new zone under this path, with a shared lock; None where somebody else was faster."""
    with _formatted(native, path, wanted) as (descriptor, beside):
        try:
            os.link(beside, path)
        except (FileExistsError, FileNotFoundError):
            return None
        return os.dup(descriptor)


def _replace(native: Any, path: Path, wanted: Wanted) -> None:
    """Put a fresh zone in the place of another, which nobody else uses."""
    with _formatted(native, path, wanted) as (_, beside), suppress(FileNotFoundError):
        beside.rename(path)


@contextmanager
def _formatted(native: Any, path: Path, wanted: Wanted) -> Iterator[tuple[int, Path]]:
    """A new zone beside this path, locked; the name it has there is taken away at the end."""
    _remove_unfinished(path)
    size = DEFAULT_SIZE if wanted.size is None else wanted.size
    log_percent = DEFAULT_LOG_PERCENT if wanted.log_percent is None else wanted.log_percent
    beside = path.with_name(f".{path.name}.{os.urandom(6).hex()}.new")
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.fchmod(descriptor, wanted.mode)  # whatever the umask is
        os.posix_fallocate(descriptor, 0, size)  # a full disk is told here, not when a page is first touched
        native.Zone.format(descriptor, size=size, log_percent=log_percent, seed=os.urandom(16), boot=_boot())
        yield descriptor, beside
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()
        os.close(descriptor)


def _remove_unfinished(path: Path) -> None:
    """Remove what processes that died while they made this zone left beside it: nobody has a lock on it."""
    for beside in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}.new"):
        with suppress(OSError):
            descriptor = os.open(beside, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _lock(descriptor, fcntl.LOCK_EX):
                    beside.unlink()
            finally:
                os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size)


def _boot() -> bytes:
    """16 bytes that are the same for all who share this run of the system and its monotonic clock."""
    mark = blake2b(digest_size=16)
    with suppress(OSError):
        mark.update(_BOOT_ID.read_bytes())
    with suppress(OSError):
        mark.update(str(_TIME_NAMESPACE.readlink()).encode())
    return mark.digest()


def _refuse_network(path: Path) -> None:
    """Locks in mapped memory hold on one host; a file that two of them see would be locked by neither."""
    place = path.parent.resolve()
    found = (Path("/"), "")
    with suppress(OSError):
        for line in _MOUNTS.read_text(errors="replace").splitlines():
            fields = line.split()
            mounted, kind = Path(fields[4].replace("\\040", " ")), fields[fields.index("-") + 1]
            if place.is_relative_to(mounted) and len(mounted.parts) >= len(found[0].parts):
                found = (mounted, kind)
    if found[1] in _OF_A_NETWORK:
        raise ConfigError(f"{path}: lies on {found[1]}, a network's file system; a zone is for one host: use /dev/shm")


@contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """What the system refuses, in words that tell the next step."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = os.statvfs(path.parent)
            reason = (
                f"no room for the zone: {free.f_bavail * free.f_frsize:,} bytes are free; "
                "choose a smaller size or another path (a container's /dev/shm grows with --shm-size)"
            )
        elif error.errno in (errno.EACCES, errno.EPERM):
            reason = f"{reason}: user {os.geteuid()} must be able to read and write it, and to create it"
        raise StoreUnavailable(f"{path}: {reason}") from error
