"""What calls of language models used, and how much to hold for the next one: learned by the processes of one store."""

from headgate.llm.learned.choice import learned_for
from headgate.llm.learned.here import Coverage, Learned, LearnedHere, NothingLearned

__all__ = ["Coverage", "Learned", "LearnedHere", "NothingLearned", "learned_for"]
