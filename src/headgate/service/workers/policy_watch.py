"""A policy file while it is in use: the policy in force is that of the file, or the log says why it is not.

The file may be written in place, replaced, or be a link that moves; it may be missing or unreadable for a
moment. So it is polled: a changed file is read until it stays the same, and an attempt that failed for a
temporary reason is repeated until it succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.errors import ConfigError, HeadgateError
from headgate.observe.events import Events, PolicyApplied, PolicyChecked, PolicyRefused
from headgate.policy.compiled import Policy, Rule
from headgate.policy.gate import AsyncGate
from headgate.policy.policy_file import is_read_once, read_again
from headgate.policy.problems import PolicyError

log = logging.getLogger("headgate")

_CHECK_EVERY_S = 0.2
_STEADY_AFTER_S = 0.05
"""A text that is read twice within this time, and is the same, is complete."""

_RACY_S = 2.0
"""A file that changed so shortly before may change again within the same tick of its clock."""

_LONGEST_DELAY_S = 5.0

_NAMED = 20
"""The most rules that a line of the log names."""

FileIdentity = tuple[int, ...]


def policy_of(text: bytes, file: Path) -> Policy:
    """The policy of a file's text; raises PolicyError."""
    from headgate.policy.compiler import compile_policy
    from headgate.policy.load import parse_policy

    return compile_policy(parse_policy(text, source=str(file)))


def store_change_error(file: Path) -> ConfigError:
    """The error for a changed policy that names another store."""
    return ConfigError(f"{file}: store: cannot change while running; restart to use another store")


class PolicyWatch:
    """Applies a policy file when it changes; a broken one is refused, and the old one stays."""

    def __init__(
        self,
        file: Path,
        gate: AsyncGate,
        events: Events,
        parse: Callable[[bytes], Policy],
        *,
        processed: bytes | None,
        refused: bool = False,
        applied: Callable[[bytes], None] = lambda text: None,
    ) -> None:
        """`parse` gives the policy of a text, or raises. `applied` is called with each text that is now in force.

        `processed` is the text that was applied before, or was `refused`; None where the file could not be read.
        """
        self._file = file
        self._gate = gate
        self._events = events
        self._parse = parse
        self._applied = applied
        self._processed = processed
        self._refused = refused
        self._retries = processed is None
        """Whether the last attempt failed for a temporary reason."""

        self._logged: tuple[bytes | None, str] | None = None
        """(text, error) that was logged last; None where there is no error."""

        self._failures = 0
        """The number of attempts in a row that could not read the file."""

        self._reload_requested = False
        self._delay_s = _CHECK_EVERY_S

    def reload(self) -> None:
        """Apply the file at the next poll, changed or not."""
        self._reload_requested = True

    async def run(self) -> None:
        """Poll the file until cancelled."""
        loop = asyncio.get_running_loop()
        previous: FileIdentity | None = None
        read_at = loop.time()
        self._publish_state()
        if is_read_once(self._file):
            log.info("%s is no regular file: the policy that came from it stays until a restart", self._file)
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            current = file_identity(self._file)
            if current != previous or self._reload_requested or loop.time() >= read_at:
                requested, self._reload_requested = self._reload_requested, False
                delay_s = await self._check(requested=requested)
                self._publish_state()
                if current is None:  # and was read all the same: a later removal would not be noticed
                    delay_s = min(delay_s, _CHECK_EVERY_S)
                previous, read_at = current, loop.time() + delay_s

    async def _check(self, *, requested: bool) -> float:
        """Read the file and apply it; return the seconds after which it is read again, changed or not."""
        try:
            text = await self._read()
        except Exception as error:  # no file, no descriptor, no thread: all of them may be temporary
            self._failures += 1
            if self._failures > 1:  # while an editor replaces a file, there may be none for a moment
                self._refuse(None, error)
            return _CHECK_EVERY_S
        self._failures = 0
        if text != self._processed or requested or self._retries:
            return await self._process(text)
        if self._logged is not None and self._logged[0] is None:
            self._logged = None
            log.info("the policy file can be read again, and has not changed")
        return self._recheck_after_s()

    async def _read(self) -> bytes:
        """The file's text; a changing file is read until it stays the same, so that no partial text is applied."""
        text = await asyncio.to_thread(read_again, self._file)
        while text != self._processed:
            await asyncio.sleep(_STEADY_AFTER_S)
            again = await asyncio.to_thread(read_again, self._file)
            if again == text:
                break
            text = again
        return text

    async def _process(self, text: bytes) -> float:
        try:
            policy = await asyncio.to_thread(self._parse, text)
            self._gate.reload(policy)
        except Exception as error:
            self._refuse(text, error)
            self._processed, self._refused = text, True
            self._retries = not isinstance(error, PolicyError)  # which is a fault of the text
            if not self._retries:
                return self._recheck_after_s()
            self._delay_s = min(self._delay_s * 2, _LONGEST_DELAY_S)
            return self._delay_s
        self._processed, self._refused, self._logged = text, False, None
        self._retries = False
        self._delay_s = _CHECK_EVERY_S
        self._applied(text)
        self._events.publish(PolicyApplied(policy))
        log.info("the changed policy is in force; its rules are %s", _named(policy.rules))
        return self._recheck_after_s()

    def _refuse(self, text: bytes | None, error: Exception) -> None:
        """Log and publish an error once."""
        problem = (text, str(error))
        if problem != self._logged:
            self._logged = problem
            self._events.publish(PolicyRefused(error))
            expected = isinstance(error, HeadgateError | OSError)
            log.error(
                "the changed policy is refused, the old one stays:\n%s", error, exc_info=None if expected else error
            )

    def _publish_state(self) -> None:
        self._events.publish(PolicyChecked(self._failures == 0 and not self._refused))

    def _recheck_after_s(self) -> float:
        """The seconds after which to read the file again though it has not changed: file times are coarse."""
        try:
            age_us = SYSTEM_CLOCK.now_us() - self._file.stat().st_mtime_ns // 1000
        except OSError:
            return _CHECK_EVERY_S
        return _RACY_S if age_us < _RACY_S * US_PER_SECOND else float("inf")


def _named(rules: Sequence[Rule]) -> str:
    """The names of the first rules: the line is short enough for workers to write it in one piece."""
    names = ", ".join(rule.name for rule in rules[:_NAMED])
    return names if len(rules) <= _NAMED else f"{names} and {len(rules) - _NAMED:,} more"


def file_identity(file: Path) -> FileIdentity | None:
    """Numbers that change when a file is written, replaced or swapped under its name; None where there is no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)
