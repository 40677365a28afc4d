"""Calls of language models: held by a policy before, settled by their actual usage after; tokens, usage and prices.

Nothing here uses a network. `headgate[llm]` installs the vocabularies, a tokenizer for them, and a list of prices.
"""

from headgate.llm.call import AsyncCall, Call
from headgate.llm.call_costs import UnknownPriceError
from headgate.llm.entry import Books, Caller, Entry
from headgate.llm.events import EventReader, ServerSentEvent
from headgate.llm.gate import AsyncLlmGate, LlmGate
from headgate.llm.inputs import InputCount, count_input, count_input_async
from headgate.llm.price import Price, Rate, dollars
from headgate.llm.prices import PriceBook
from headgate.llm.soft_limits import SoftLimit
from headgate.llm.streams import StreamUsage
from headgate.llm.tokens import TokenCount, count_text
from headgate.llm.usage import Usage, read_usage

__all__ = [
    "AsyncCall",
    "AsyncLlmGate",
    "Books",
    "Call",
    "Caller",
    "Entry",
    "EventReader",
    "InputCount",
    "LlmGate",
    "Price",
    "PriceBook",
    "Rate",
    "ServerSentEvent",
    "SoftLimit",
    "StreamUsage",
    "TokenCount",
    "UnknownPriceError",
    "Usage",
    "count_input",
    "count_input_async",
    "count_text",
    "dollars",
    "read_usage",
]
