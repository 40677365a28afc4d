"""Numbers that were seen, counted in buckets, some of them only known to be at least so large.

An answer that was cut would have been longer: its length is a censored sample. What share of answers is longer than a
number is then estimated as Kaplan and Meier do ("Nonparametric estimation from incomplete observations", 1958). All is
whole numbers. Where there are too many samples all counts halve, so that old ones fade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FEWEST = 30
"""With fewer samples nothing is told."""

MOST = 1 << 10
"""With more samples all counts halve."""

_STEPS = 8
"""Buckets from a number to twice that number: the largest number of a bucket is at most an eighth above its least."""

_WHOLE = 1 << 32


def bucket_of(number: int) -> int:
    """The bucket of a number of tokens; one for each up to 15, then eight for each doubling."""
    shift = number.bit_length() - 4
    return number if shift <= 0 else _STEPS * shift + (number >> shift)


def largest_of(bucket: int) -> int:
    """The largest number of a bucket."""
    if bucket < 2 * _STEPS:
        return bucket
    shift, start = bucket // _STEPS - 1, bucket % _STEPS + _STEPS
    return ((start + 1) << shift) - 1


class Samples:
    """Counts by bucket; those that are only known to be at least so large are counted under `~bucket`."""

    __slots__ = ("_known", "counts", "due", "weight")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.weight = 0
        """How many samples there are."""

        self._known: int | None = None
        """What `quantile` last told."""

        self.due = 0
        """The weight from which on `quantile` looks again; 0: now."""

    def add(self, bucket: int) -> None:
        """Add a sample, `~bucket` for one that is at least so large."""
        counts = self.counts
        counts[bucket] = counts.get(bucket, 0) + 1
        self.weight += 1
        if self.weight > MOST:
            self.fade()

    def add_all(self, buckets: Sequence[int]) -> None:
        """`add` each of these."""
        if self.weight + len(buckets) > MOST:
            for bucket in buckets:
                self.add(bucket)
            return
        counts = self.counts
        for bucket in buckets:
            counts[bucket] = counts.get(bucket, 0) + 1
        self.weight += len(buckets)

    def fade(self) -> None:
        """Halve the counts, of which there are too many."""
        self.replace(halved(self.counts))

    def replace(self, counts: dict[int, int]) -> None:
        """Be what these counts say."""
        self.counts, self.weight, self.due = counts, sum(counts.values()), 0

    def quantile(self, percent: int) -> int | None:
        """The bucket that so many percent of all samples do not pass; None where the largest were cut before that.

        Always asked for the same share. It is looked for again when a 16th more samples have come.
        """
        if self.weight >= self.due:
            self._known = quantile_of(self.counts, percent)
            self.due = self.weight + 1 + self.weight // 16
        return self._known


def quantile_of(counts: Mapping[int, int], percent: int) -> int | None:
    """The bucket that so many percent of all samples do not pass, None where no bucket is known to be it."""
    left, longer, wanted = sum(counts.values()), _WHOLE, _WHOLE * (100 - percent) // 100
    for bucket in sorted({max(bucket, ~bucket) for bucket in counts}):
        ended, cut = counts.get(bucket, 0), counts.get(~bucket, 0)
        longer = -(-longer * (left - ended) // left)
        if longer <= wanted:
            return bucket
        left -= ended + cut
    return None


def halved(counts: Mapping[int, int]) -> dict[int, int]:
    """Counts of half as many samples: what is left of an odd count goes to the next larger bucket."""
    found: dict[int, int] = {}
    ended, cut = [bucket for bucket in counts if bucket >= 0], [bucket for bucket in counts if bucket < 0]
    for buckets in (sorted(ended), sorted(cut, reverse=True)):
        left = 0
        for bucket in buckets:
            left += counts[bucket]
            if left > 1:
                found[bucket] = left // 2
            left %= 2
    return found
