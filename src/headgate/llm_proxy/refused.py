"""Requests that are answered without a call."""

from __future__ import annotations

from headgate.llm.dialects import Answer, Family, Problem, problem_answer


class Refused(Exception):
    """Raised to answer a request without a call."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def refused(family: Family, problem: Problem, message: str) -> Refused:
    """A refusal in the format of a dialect's family."""
    return Refused(problem_answer(family, problem, message))
