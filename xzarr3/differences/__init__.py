"""Compares two stores. See :func:`xzarr3.diff`.

:mod:`~xzarr3.differences.documents` compares what the documents say, whatever their formats,
:mod:`~xzarr3.differences.values` the elements, tile by tile. :mod:`~xzarr3.differences.report` holds what was
found, and its text and JSON.
"""

from __future__ import annotations

from xzarr3.differences.report import Diff, Element, FieldDifference, Problem, ValueDifference
from xzarr3.differences.run import diff

__all__ = ["Diff", "Element", "FieldDifference", "Problem", "ValueDifference", "diff"]


def __dir__() -> list[str]:
    return sorted(__all__)
