"""``advise``: chunks and shards for the ways in which data are read."""

from xzarr3.advice.advice import advise
from xzarr3.advice.imagined import TARGETS, Target
from xzarr3.advice.patterns import PATTERNS
from xzarr3.advice.report import Advice, Candidate, Prediction

__all__ = ["PATTERNS", "TARGETS", "Advice", "Candidate", "Prediction", "Target", "advise"]


def __dir__() -> list[str]:
    return sorted(__all__)
