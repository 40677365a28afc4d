"""Leaky bucket as a meter (the continuous-state form of GCRA, ITU-T I.371).

What has been poured in and not yet leaked out is what a token bucket of the same numbers has not
yet regained: level = full - units. The two admit the same requests with the same waits, so they are
one transition; this name is kept because it is the one that people look for.
See docs/algorithms.md#leaky-bucket.
"""

from __future__ import annotations

from headgate.algorithms.token_bucket import State, admit, charge, convert, fits, give_back, mark, measure, roll, settle

__all__ = ["State", "admit", "charge", "convert", "fits", "give_back", "mark", "measure", "roll", "settle"]
