"""What calls of language models use and cost: tokens that are sent, usage as answers and streams tell it, and prices.

Nothing here asks a network. `headgate[llm]` installs the vocabularies, what counts with them, and a list of prices.
"""

from headgate.llm.events import EventReader, ServerSentEvent
from headgate.llm.inputs import InputCount, count_input
from headgate.llm.price import Price, Rate, dollars
from headgate.llm.prices import PriceBook
from headgate.llm.streams import StreamUsage
from headgate.llm.tokens import TokenCount, count_text
from headgate.llm.usage import Usage, read_usage

__all__ = [
    "EventReader",
    "InputCount",
    "Price",
    "PriceBook",
    "Rate",
    "ServerSentEvent",
    "StreamUsage",
    "TokenCount",
    "Usage",
    "count_input",
    "count_text",
    "dollars",
    "read_usage",
]
