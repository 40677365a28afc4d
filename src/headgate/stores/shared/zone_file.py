"""The file of a shared zone: the first process creates it, all others open it, and none misreads it.

Every process that uses a zone holds a shared `flock` on its file, so that a process that is alone
(it gets an exclusive lock) may check the whole zone, or delete one from before the last start of the
system. One process at a time creates a zone, under a temporary name, and renames it when it is
complete: at no moment can another process see an incomplete one. For Linux alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from headgate.errors import ConfigError, StoreUnavailable

_TIMEOUT_S = 60.0
"""How long to wait for another process that creates the zone, or checks it."""

_POLL_S = 0.01
_STRANGERS_S = 1.0
"""How long a zone must be in use by strangers, such as another container, before that is an error: the last of them
may be about to end."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")
_PID_NAMESPACE = Path("/proc/self/ns/pid")

_LOCAL_FILE_SYSTEMS = {
    0x01021994: "tmpfs", 0x858458F6: "ramfs", 0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs",
    0xF2F52010: "f2fs", 0x2FC12FC1: "zfs", 0xCA451A4E: "bcachefs", 0x794C7630: "overlay", 0x3153464A: "jfs",
}  # fmt: skip
"""By the numbers of statfs(2). On these, all processes that map a file share its memory, and allocated space stays."""

_OTHER_FILE_SYSTEMS = {
    0x6969: "nfs", 0xFF534D42: "cifs", 0xFE534D42: "smb", 0x01021997: "9p", 0x65735546: "fuse",
    0x00C36400: "ceph", 0x0BD00BD0: "lustre", 0x47504653: "gpfs", 0x4D44: "vfat", 0x9FA0: "proc",
}  # fmt: skip


class ZoneOptions(NamedTuple):
    """The options of a zone; `size` (bytes), `log_percent`, `max_holds` and `mode` are None where any is right."""

    size: int | None = None
    log_percent: int | None = None
    max_holds: int | None = None
    mode: int | None = None
    make: bool = False


class _UsedByStrangers(ConfigError):
    """Processes that cannot share the zone with this one use it now."""


class FileIdentity(NamedTuple):
    """Distinguishes a file from another one that has taken its name."""

    device: int
    inode: int
    size: int


DEFAULT_SIZE = 64 << 20
DEFAULT_LOG_PERCENT = 25
DEFAULT_MODE = 0o600
BYTES_PER_HOLD = 16 << 10
"""By default a zone has room for one hold per this many bytes: that takes 3 % of it."""


def open_zone(native: Any, path: Path, options: ZoneOptions, on_full: str) -> tuple[Any, FileIdentity]:
    """The zone at a path and the identity of its file; created if there is none and `options.make` is set.

    Raises ConfigError for a file that is no usable zone, StoreUnavailable where the system refuses.
    """
    with _system_errors(path):
        _check_file_system(native, path)
        strangers = 0
        for _ in range(round(_TIMEOUT_S / _POLL_S)):
            descriptor = _open(path)
            if descriptor is None:
                if not options.make:
                    raise ConfigError(f"{path}: there is no zone")
                if not _create(native, path, options):
                    _wait()
                continue
            zone = None
            try:
                zone = _attach(native, path, descriptor, options, on_full)
                if isinstance(zone, ZoneOptions):
                    options = zone
                elif zone is not None:
                    return zone, _identity(os.fstat(descriptor))
            except _UsedByStrangers as error:
                strangers += 1
                if strangers == round(_STRANGERS_S / _POLL_S):
                    raise ConfigError(str(error)) from None
            finally:
                os.close(descriptor)
            if not isinstance(zone, ZoneOptions):
                _wait()
    raise StoreUnavailable(f"{path}: another process is busy with this zone for {_TIMEOUT_S:g} s")


def is_same_file(path: Path, identity: FileIdentity) -> bool:
    """Whether the file at a path is still the one that was opened."""
    try:
        return _identity(path.stat()) == identity
    except OSError:
        return False


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(f"{path}: is a symbolic link; name the file itself") from None
        if error.errno == errno.EISDIR:
            raise ConfigError(f"{path}: is a directory; name a file in it") from None
        raise


def _attach(native: Any, path: Path, descriptor: int, options: ZoneOptions, on_full: str) -> Any | ZoneOptions | None:
    """The zone of an open file, after its checks; None to try again; the options to replace an old one by."""
    _check_owner(path, os.fstat(descriptor), options.mode, inspects=not options.make)
    alone = _lock(descriptor, fcntl.LOCK_EX)
    if not alone and not _lock(descriptor, fcntl.LOCK_SH):
        return None
    if not is_same_file(path, _identity(os.fstat(descriptor))):
        return None  # replaced while we waited
    namespace = _namespace()
    try:
        zone = native.Zone(descriptor, on_full=on_full, alone=namespace if alone else None)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if zone.boot != _boot():
        if not alone:
            raise _UsedByStrangers(f"{path}: is used by processes of another host or another clock; name another path")
        if not options.make:
            raise ConfigError(f"{path}: is from before the last start of the system, and holds nothing any more")
        path.unlink()  # its space is free once the descriptor is closed, and may be all there is
        return _with_shape_of(options, zone.info())
    _check_shape(path, zone.info(), options)
    if alone:
        fault = zone.check()
        if fault is not None:
            raise ConfigError(f"{path}: is damaged: {fault}; name another path, or delete the file")
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # not atomic: another process may have been alone in between
    if zone.namespace != namespace:
        raise _UsedByStrangers(
            f"{path}: is used by processes of another PID namespace, such as another container; the locks of a zone "
            "hold within one: run all processes that use it in the same (--pid=container:NAME, "
            "shareProcessNamespace: true), or let them ask one `headgate serve`"
        )
    return zone


def _with_shape_of(options: ZoneOptions, info: dict[str, int]) -> ZoneOptions:
    size = info["size"] if options.size is None else options.size
    log_percent = info["log_percent"] if options.log_percent is None else options.log_percent
    max_holds = info["max_holds"] if options.max_holds is None else options.max_holds
    return options._replace(size=size, log_percent=log_percent, max_holds=max_holds)


def _check_shape(path: Path, info: dict[str, int], options: ZoneOptions) -> None:
    for name in ("size", "log_percent", "max_holds"):
        value = getattr(options, name)
        if value is not None and value != info[name]:
            raise ConfigError(
                f"{path}: is a zone with {name}={info[name]}, not {value}; "
                "a zone keeps its shape: leave the option out, name another path, or delete the file and start afresh"
            )


def _check_owner(path: Path, status: os.stat_result, mode: int | None, *, inspects: bool) -> None:
    """Refuse a file that another user could change while it is in use, unless `mode` allows it.

    With `inspects`, the owner of the file and root may open it anyway.
    """
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path}: is no regular file")
    if status.st_nlink > 1:
        raise ConfigError(f"{path}: has {status.st_nlink} names (hard links); a zone has one")
    own_user = os.geteuid()
    if inspects and own_user in (0, status.st_uid):
        return  # the owner of the file and root may open it
    shared = (mode or 0) & 0o020
    if status.st_uid not in (own_user, 0) and not shared:
        raise ConfigError(
            f"{path}: belongs to user {status.st_uid}, and this is user {own_user}; "
            "name another path, or share it with a group by mode=660"
        )
    groups = {os.getegid(), *os.getgroups()}
    for_all = (mode or 0) & status.st_mode & 0o002
    if status.st_uid != own_user and shared and status.st_mode & 0o020 and not for_all and status.st_gid not in groups:
        own_groups = ", ".join(str(group) for group in sorted(groups))
        raise ConfigError(
            f"{path}: is shared with group {status.st_gid}, and this process is in {own_groups}; "
            "name another path, or put it into that group"
        )
    mode = DEFAULT_MODE if mode is None else mode
    if status.st_mode & 0o022 & ~mode:
        raise ConfigError(
            f"{path}: others may write it (mode {stat.S_IMODE(status.st_mode):o}); "
            f"mode={mode:o} is wanted: say so in the store's URL, or take the permission away"
        )


def _create(native: Any, path: Path, options: ZoneOptions) -> bool:
    """Create a zone at this path; return False where another process is creating it, or was faster."""
    temporary = path.with_name(f".{path.name}.new")
    mode = DEFAULT_MODE if options.mode is None else options.mode
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except PermissionError:
        if mode & 0o020 and temporary.exists():
            return False  # another user of the group created it, and has not shared it yet
        raise
    try:
        _check_owner(temporary, os.fstat(descriptor), mode, inspects=False)
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)  # whatever the umask is
        if not _lock(descriptor, fcntl.LOCK_EX) or not is_same_file(temporary, _identity(os.fstat(descriptor))):
            return False
        try:
            if path.exists():
                temporary.unlink()
                return False
            _format(native, descriptor, options)
            temporary.rename(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    finally:
        os.close(descriptor)
    return True


def _format(native: Any, descriptor: int, options: ZoneOptions) -> None:
    size = DEFAULT_SIZE if options.size is None else options.size
    log_percent = DEFAULT_LOG_PERCENT if options.log_percent is None else options.log_percent
    max_holds = size // BYTES_PER_HOLD if options.max_holds is None else options.max_holds
    os.ftruncate(descriptor, 0)  # a process that died while creating it may have left some bytes
    os.posix_fallocate(descriptor, 0, size)  # fails on a full disk here, not when a page is first used
    shape = {"size": size, "log_percent": log_percent, "max_holds": max_holds}
    native.Zone.format(descriptor, **shape, seed=os.urandom(16), boot=_boot())
    # Processes that open it at the same moment may never be alone with it, so its maker writes the namespace.
    native.Zone(descriptor, on_full="forget", alone=_namespace())


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait() -> None:
    threading.Event().wait(_POLL_S)


def _identity(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_dev, status.st_ino, status.st_size)


def _boot() -> bytes:
    """16 bytes that are the same for all processes of this run of the system with its monotonic clock."""
    with _proc_errors():
        hasher = blake2b(_BOOT_ID.read_bytes(), digest_size=16)
    with suppress(OSError):  # a kernel from before 5.6 has one clock for all
        hasher.update(os.fsencode(_TIME_NAMESPACE.readlink()))
    return hasher.digest()


def _namespace() -> int:
    """The number of the PID namespace of this process."""
    with _proc_errors():
        return _PID_NAMESPACE.stat().st_ino


@contextmanager
def _proc_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the shared store needs /proc, to know this run of the system: {error}") from None


def _check_file_system(native: Any, path: Path) -> None:
    """Refuse file systems that hosts share: locks in mapped memory work on one host alone."""
    if "\0" in str(path):
        raise ConfigError(f"{str(path)!r}: a path has no NUL in it")
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path}: there is no directory {path.parent}") from None
    try:
        kind = native.Zone.file_system(folder)
    finally:
        os.close(folder)
    if kind not in _LOCAL_FILE_SYSTEMS:
        name = _OTHER_FILE_SYSTEMS.get(kind, hex(kind))
        raise ConfigError(
            f"{path}: lies on a file system of kind {name}; a zone is for one host, "
            f"and is known to hold on {', '.join(_LOCAL_FILE_SYSTEMS.values())}: use /dev/shm"
        )


@contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Map errors of the system to StoreUnavailable, with a message that states the next step."""
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
