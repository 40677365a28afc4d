"""Counts over time, in steps that grow with the time covered."""

from __future__ import annotations

MINUTE_US = 60_000_000

STEPS_S = (1, 2, 10, 30, 60, 120, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800, 1209600, 4838400, 38707200)
"""Round durations in seconds; each divides the next."""


class Series:
    """Counts over time, in steps of STEPS_S that grow so that there are never too many of them.

    Empty steps are not stored, so events that are weeks apart are stored with the same resolution.
    """

    MOST = 1024

    def __init__(self) -> None:
        self.level = 0
        """The index in `STEPS_S` of the length of its steps."""

        self.counts: dict[int, list[int]] = {}

    @property
    def step_us(self) -> int:
        """The length of a step."""
        return STEPS_S[self.level] * 1_000_000

    def add(self, time_us: int, passed: int, refused: int) -> None:
        """Count requests at a time."""
        index = time_us // self.step_us
        counts = self.counts.get(index)
        if counts is None:
            self.counts[index] = [passed, refused]
            while len(self.counts) > self.MOST and self.level + 1 < len(STEPS_S):
                self._widen()
        else:
            counts[0] += passed
            counts[1] += refused

    def _widen(self) -> None:
        self.level += 1
        ratio = STEPS_S[self.level] // STEPS_S[self.level - 1]
        narrow, self.counts = self.counts, {}
        for index, (passed, refused) in narrow.items():
            counts = self.counts.setdefault(index // ratio, [0, 0])
            counts[0] += passed
            counts[1] += refused
