"""The order in which pending settlements are sent: those for other servers first, where one of several does not answer.

The settlements for one place of a store stay in their order: of what a hold of a bucket does not use, less comes back
where holds that were made later have been settled before it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from headgate.holding import place_of_id


def put_last(pending: OrderedDict[str, Any], whole_id: str) -> None:
    """Move the settlements for the place of this hold behind all others."""
    place = place_of_id(whole_id)
    for other_id in [other_id for other_id in pending if place_of_id(other_id) == place]:
        pending.move_to_end(other_id)
