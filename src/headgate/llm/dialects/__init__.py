"""The dialects of language model clients: paths, refusals, errors, headers, and how a stream is ended.

Everything here makes text from plain decisions and names, without a store or a network.
"""

from headgate.llm.dialects.answers import Answer
from headgate.llm.dialects.fields import limit_headers
from headgate.llm.dialects.paths import Dialect, Family, dialect_of
from headgate.llm.dialects.problems import Problem, problem_answer
from headgate.llm.dialects.refusals import refusal, requested_units
from headgate.llm.dialects.stream_ends import StreamEnd, cut_events

__all__ = [
    "Answer",
    "Dialect",
    "Family",
    "Problem",
    "StreamEnd",
    "cut_events",
    "dialect_of",
    "limit_headers",
    "problem_answer",
    "refusal",
    "requested_units",
]
