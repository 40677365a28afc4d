"""The order in which settlements are sent that are kept: where a server of several does not answer, others come first.

Those of one place of a store stay in their order: of what a hold of a bucket has too much, less comes back where holds
that were made later have been settled before it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from headgate.holding import place_of_id


def put_last(kept: OrderedDict[str, Any], whole_id: str) -> None:
    """Move what is kept for the place of a hold behind all else."""
    place = place_of_id(whole_id)
    for each in [each for each in kept if place_of_id(each) == place]:
        kept.move_to_end(each)
