"""A policy file while it is in use: what is in force is what the file says, or the log says why not.

The file may be written in place, replaced, or be a link that moves; it may be away or unreadable for a
moment. So it is looked at again and again: what changed is read until it stays the same, and what failed
for a reason that may pass is tried again until it holds.
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

_LOOK_EVERY_S = 0.2
_STEADY_AFTER_S = 0.05
"""What is read twice in this time, and is the same, is whole."""

_RACY_S = 2.0
"""A file that changed so shortly before may change again within the same tick of its clock."""

_LONGEST_DELAY_S = 5.0

_NAMED = 20
"""So many rules are named in a line of the log."""

FileIdentity = tuple[int, ...]


def policy_of(text: bytes, file: Path) -> Policy:
    """The policy of a file's text; raises PolicyError."""
    from headgate.policy.compiler import compile_policy
    from headgate.policy.load import parse_policy

    return compile_policy(parse_policy(text, source=str(file)))


def other_store(file: Path) -> ConfigError:
    """What is wrong with a changed policy that names another store."""
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
        judged: bytes | None,
        refused: bool = False,
        applied: Callable[[bytes], None] = lambda text: None,
    ) -> None:
        """`parse` gives the policy of a text, or raises. `applied` is called with each text that is now in force.

        `judged` is the text that was dealt with before, and was `refused` or is in force; None where it could
        not be read.
        """
        self._file = file
        self._gate = gate
        self._events = events
        self._parse = parse
        self._applied = applied
        self._judged = judged
        self._refused = refused
        self._retries = judged is None
        """Whether the last try failed for a reason that may pass."""

        self._logged: tuple[bytes | None, str] | None = None
        """What was logged last, of which text; None where all is well."""

        self._failures = 0
        """How often in a row the file could not be read."""

        self._ordered = False
        self._delay_s = _LOOK_EVERY_S

    def reload(self) -> None:
        """Apply what the file says at the next look, changed or not."""
        self._ordered = True

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        seen: FileIdentity | None = None
        read_at = loop.time()
        self._publish_state()
        if is_read_once(self._file):
            log.info("%s is no regular file: the policy that came from it stays until a restart", self._file)
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            now_seen = file_identity(self._file)
            if now_seen != seen or self._ordered or loop.time() >= read_at:
                ordered, self._ordered = self._ordered, False
                delay_s = await self._look(ordered=ordered)
                self._publish_state()
                if now_seen is None:  # and was read all the same: that it goes away again does not show
                    delay_s = min(delay_s, _LOOK_EVERY_S)
                seen, read_at = now_seen, loop.time() + delay_s

    async def _look(self, *, ordered: bool) -> float:
        """Read the file and deal with it; in how many seconds it is to be read again, changed or not."""
        try:
            text = await self._read()
        except Exception as error:  # no file, no descriptor, no thread: all of them may pass
            self._failures += 1
            if self._failures > 1:  # an editor that replaces a file may leave a moment without one
                self._refuse(None, error)
            return _LOOK_EVERY_S
        self._failures = 0
        if text != self._judged or ordered or self._retries:
            return await self._deal_with(text)
        if self._logged is not None and self._logged[0] is None:
            self._logged = None
            log.info("the policy file can be read again, and has not changed")
        return self._settled_s()

    async def _read(self) -> bytes:
        """The file's text; one that changes is read until it stays the same, so that no half of it is applied."""
        text = await asyncio.to_thread(read_again, self._file)
        while text != self._judged:
            await asyncio.sleep(_STEADY_AFTER_S)
            again = await asyncio.to_thread(read_again, self._file)
            if again == text:
                break
            text = again
        return text

    async def _deal_with(self, text: bytes) -> float:
        try:
            policy = await asyncio.to_thread(self._parse, text)
            self._gate.reload(policy)
        except Exception as error:
            self._refuse(text, error)
            self._judged, self._refused = text, True
            self._retries = not isinstance(error, PolicyError)  # which is the text's own fault
            if not self._retries:
                return self._settled_s()
            self._delay_s = min(self._delay_s * 2, _LONGEST_DELAY_S)
            return self._delay_s
        self._judged, self._refused, self._logged = text, False, None
        self._retries = False
        self._delay_s = _LOOK_EVERY_S
        self._applied(text)
        self._events.publish(PolicyApplied(policy))
        log.info("the changed policy is in force; its rules are %s", _named(policy.rules))
        return self._settled_s()

    def _refuse(self, text: bytes | None, error: Exception) -> None:
        """Log and publish what is wrong, once."""
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

    def _settled_s(self) -> float:
        """In how many seconds to read the file again though it has not changed: clocks of files tick slowly."""
        try:
            age_us = SYSTEM_CLOCK.now_us() - self._file.stat().st_mtime_ns // 1000
        except OSError:
            return _LOOK_EVERY_S
        return _RACY_S if age_us < _RACY_S * US_PER_SECOND else float("inf")


def _named(rules: Sequence[Rule]) -> str:
    """The names of rules, of many the first: what several workers write in one piece stays a line."""
    names = ", ".join(rule.name for rule in rules[:_NAMED])
    return names if len(rules) <= _NAMED else f"{names} and {len(rules) - _NAMED:,} more"


def file_identity(file: Path) -> FileIdentity | None:
    """What changes when a file is written, replaced or swapped under its name; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)
