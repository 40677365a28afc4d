"""A queue for calls that can wait: jobs wait for capacity instead of being refused; users share it fairly by tokens."""

from headgate.llm.queue.attempt import QueuedCall
from headgate.llm.queue.backlog import Bounds, Fairness
from headgate.llm.queue.failures import ProviderError
from headgate.llm.queue.http import QueueApp
from headgate.llm.queue.job import Job, Position, QueueFull, UnknownJob
from headgate.llm.queue.pace import Pace
from headgate.llm.queue.queue import AsyncLlmQueue
from headgate.llm.queue.threads import LlmQueue, ThreadWorker
from headgate.llm.queue.worker import LlmWorker

__all__ = [
    "AsyncLlmQueue",
    "Bounds",
    "Fairness",
    "Job",
    "LlmQueue",
    "LlmWorker",
    "Pace",
    "Position",
    "ProviderError",
    "QueueApp",
    "QueueFull",
    "QueuedCall",
    "ThreadWorker",
    "UnknownJob",
]
