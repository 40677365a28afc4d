"""Samples of numbers, counted in buckets; of some only a lower bound is known.

An answer that was cut would have been longer: its length is a censored sample. The share of answers longer than a
number is therefore the estimate of Kaplan and Meier ("Nonparametric estimation from incomplete observations", 1958).
All arithmetic is in integers. Where there are too many samples all counts are halved, so that old ones fade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FEWEST = 30
"""With fewer samples there is no estimate."""

MOST = 1 << 10
"""With more samples all counts are halved."""

_STEPS = 8
"""Buckets from a number to twice that number: a bucket's largest number is at most an eighth above its smallest."""

_ONE = 1 << 32


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
    """Counts by bucket; samples of which only a lower bound is known are counted under `~bucket`."""

    __slots__ = ("_quantile", "counts", "due", "weight")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.weight = 0
        """The number of samples."""

        self._quantile: int | None = None
        """The last result of `quantile`."""

        self.due = 0
        """The weight at which `quantile` computes its result again; 0: at the next call."""

    def add(self, bucket: int) -> None:
        """Add a sample, `~bucket` for one that is at least as large."""
        counts = self.counts
        counts[bucket] = counts.get(bucket, 0) + 1
        self.weight += 1
        if self.weight > MOST:
            self.fade()

    def add_all(self, buckets: Sequence[int]) -> None:
        """`add` each of `buckets`."""
        if self.weight + len(buckets) > MOST:
            for bucket in buckets:
                self.add(bucket)
            return
        counts = self.counts
        for bucket in buckets:
            counts[bucket] = counts.get(bucket, 0) + 1
        self.weight += len(buckets)

    def fade(self) -> None:
        """Halve the counts."""
        self.replace(halved(self.counts))

    def replace(self, counts: dict[int, int]) -> None:
        """Replace all counts."""
        self.counts, self.weight, self.due = counts, sum(counts.values()), 0

    def quantile(self, percent: int) -> int | None:
        """The bucket that `percent` of all samples do not exceed; None where the largest were cut before that.

        `percent` is the same in each call. The result is computed again when a 16th more samples have been added.
        """
        if self.weight >= self.due:
            self._quantile = quantile_of(self.counts, percent)
            self.due = self.weight + 1 + self.weight // 16
        return self._quantile


def quantile_of(counts: Mapping[int, int], percent: int) -> int | None:
    """The bucket that `percent` of all samples do not exceed, None where it cannot be known."""
    remaining, share_longer, target_share = sum(counts.values()), _ONE, _ONE * (100 - percent) // 100
    for bucket in sorted({max(bucket, ~bucket) for bucket in counts}):
        ended, cut = counts.get(bucket, 0), counts.get(~bucket, 0)
        share_longer = -(-share_longer * (remaining - ended) // remaining)
        if share_longer <= target_share:
            return bucket
        remaining -= ended + cut
    return None


def halved(counts: Mapping[int, int]) -> dict[int, int]:
    """Counts of half as many samples: the remainder of an odd count is carried to the next larger bucket."""
    halves: dict[int, int] = {}
    ended, cut = [bucket for bucket in counts if bucket >= 0], [bucket for bucket in counts if bucket < 0]
    for buckets in (sorted(ended), sorted(cut, reverse=True)):
        remainder = 0
        for bucket in buckets:
            remainder += counts[bucket]
            if remainder > 1:
                halves[bucket] = remainder // 2
            remainder %= 2
    return halves
