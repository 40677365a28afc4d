"""What the performers of waiting steps have in common: the last attempt of a caller, and what becomes of its charge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.clock import Clock
from headgate.errors import StoreError
from headgate.holding import Reserved
from headgate.operation import Operation, Receipt
from headgate.waiting.steps import Answer, AttemptIfNoLine, Reserve, decision_in


class Performer:
    """Performs the steps of one caller, and records its last attempt: when it was made, and the answer to it."""

    def __init__(self, bound: Any, clock: Clock) -> None:
        self._bound = bound
        self._clock = clock
        self._attempt: Operation | Reserve | None = None
        self._attempted_us = 0
        self._answers: list[Any] = []
        self._lost_id = ""
        """The id of a hold that the store may have made without the caller's knowledge: an answer to it was lost."""

        self._is_undoing = False
        self._leave_line: Callable[[], Any] | None = None

    def _record(self, step: Operation | Reserve | AttemptIfNoLine) -> Callable[[Any], Any]:
        """Record an attempt before it is made, and return the function that makes it."""
        attempt = step.attempt if isinstance(step, AttemptIfNoLine) else step
        self._attempt, self._attempted_us, self._answers = attempt, self._clock.now_us(), []
        self._is_undoing = False
        if isinstance(step, AttemptIfNoLine):
            return _attempt_if_no_line
        return self._bound.decide if isinstance(step, Operation) else self._reserve

    def _reserve(self, step: Reserve) -> Any:
        return self._bound.reserve(step.operation, step.hold)

    def _note_failure(self, error: Exception) -> None:
        """Forget an attempt that ended with an error; the store may have made its hold."""
        attempt, self._attempt = self._attempt, None
        if isinstance(attempt, Reserve) and not attempt.is_named and isinstance(error, StoreError) and error.was_sent:
            self._lost_id = attempt.whole_id

    def _note_answer(self, answer: Any) -> None:
        """Note a refusal in the store's place: it has the id of the hold that the store may have made."""
        attempt = self._attempt
        if isinstance(attempt, Reserve) and not attempt.is_named and isinstance(answer, Reserved):
            refused = answer.decision
            if refused.degraded and not refused.allowed and answer.id == attempt.whole_id:
                self._lost_id = attempt.whole_id

    def _cancel_lost(self, answer: Answer | None) -> Any:
        """Settle a hold whose answer was lost as if it had never been made.

        Not where this answer is that hold, or one that was made in its place: then both are settled alike.
        """
        lost_id, self._lost_id = self._lost_id, ""
        if not lost_id:
            return None
        held_id = answer.id if isinstance(answer, Reserved) and answer.decision.allowed else ""
        settle_also = getattr(self._bound, "settle_also", None)  # of limits with a choice for outages
        if held_id and (held_id == lost_id or (settle_also is not None and settle_also(lost_id))):
            return None
        return self._bound.commit(lost_id, 0)

    def _give_back(self) -> Any:
        """Give back the last attempt if it was charged, at most once.

        Where no answer arrived, a hold with a random name is settled by its id: if the store does not know the id, the
        hold was never made.
        """
        attempt, answers, self._attempt = self._attempt, self._answers, None
        if attempt is None or (answers and (answers[0] is None or not decision_in(answers[0]))):
            return None
        if isinstance(attempt, Operation):
            ago_us = max(0, self._clock.now_us() - self._attempted_us)
            return self._bound.give_back(Receipt.of(attempt, answers[0]), ago_us) if answers else None
        if (answers and answers[0].repeated) or (not answers and attempt.is_named):
            return None
        return self._bound.commit(attempt.whole_id, 0)


def _attempt_if_no_line(step: AttemptIfNoLine) -> Any:
    attempt = step.attempt
    return step.call(attempt, None) if isinstance(attempt, Operation) else step.call(attempt.operation, attempt.hold)
