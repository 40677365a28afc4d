"""How much to hold for the next call of a language model: learned from earlier calls by the processes of one store."""

from headgate.llm.learned.choice import learned_for
from headgate.llm.learned.local import Coverage, Learned, LocalLearned, NothingLearned

__all__ = ["Coverage", "Learned", "LocalLearned", "NothingLearned", "learned_for"]
