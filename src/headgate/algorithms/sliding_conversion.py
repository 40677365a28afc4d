"""The states of a sliding window that was a log and is now a counter, or was a counter and is now a log.

Neither kind can represent the other's state exactly. Both conversions err to one side: at every later moment at
least as much counts as used as the former state, left alone, would have counted under the new limit's period. So
a changed limit never passes what the former kind would have refused. Pure. See docs/algorithms.md#changing-the-numbers.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.algorithms import sliding_log, sliding_window
from headgate.algorithms.integers import ceil_div
from headgate.units import LARGEST, CompiledLimit


def counter_of_log(
    limit: CompiledLimit, state: sliding_log.State, now_us: int, former: CompiledLimit
) -> sliding_window.State | None:
    """The counter that takes over from a log; None where nothing of the log counts any more.

    All that is used counts as if it had been charged at once with the newest entry, at `last`. A log would drop it one
    period after that, `into` the next window. There the counter weighs it by the share `to_come / period`, so it is
    raised until that share of it is all that is used. Where so much would use up a limit that has room, the units
    are counted in the window after `last` instead, as they are: that counts them until they have left for certain.
    """
    period_us = limit.period * limit.unit_us
    shorter = replace(former, period=min(former.period, period_us // former.unit_us))
    live = sliding_log.roll(shorter, state, now_us // former.unit_us)
    if not live:
        return None
    most = LARGEST // limit.period
    used = min(sum(cost for _, cost in live), most)
    last = ceil_div(live[-1][0] * former.unit_us, limit.unit_us)
    window, into = divmod(last, limit.period)
    to_come = min(limit.period, limit.period - into + 1)
    raised = ceil_div(used * limit.period, to_come)
    if raised <= limit.quota or (used >= limit.quota and raised <= most):
        return (window, raised, 0)
    return (window + 1, used, 0)


def log_of_counter(
    limit: CompiledLimit, state: sliding_window.State, now_us: int, former: CompiledLimit
) -> sliding_log.State | None:
    """The log that takes over from a counter; None where nothing counts.

    What counts now becomes one entry. It stays for one period from now, or until the counter would have dropped its
    last unit, `dropped_us`, whichever is later. Where the period became shorter, it stays for one period from now.
    """
    now = now_us // former.unit_us
    window, current, previous = state = sliding_window.roll(former, state, now)
    used = sliding_window.used(former, state, now)
    if used == 0:
        return None
    last, count = (window + 1, current) if current else (window, previous)
    dropped_us = (last * former.period + sliding_window.gone(former, count, 0)) * former.unit_us
    moment_us, period_us = now_us, limit.period * limit.unit_us
    if period_us >= former.period * former.unit_us:
        moment_us = max(now_us, dropped_us - period_us)
    return ((ceil_div(moment_us, limit.unit_us), used),)
