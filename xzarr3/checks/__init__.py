"""Checks a store: an fsck for Zarr. See :func:`xzarr3.check`.

What is wrong with a store becomes a list of findings, each with its key, meaning, severity and remedy.
:mod:`~xzarr3.checks.report` has the codes of all findings. The other modules look for them: in documents,
keys and sizes, shard indexes, chunks, coordinates and unfinished writes. None of them changes anything.
"""

from __future__ import annotations

from xzarr3.checks.report import ArrayReport, CheckReport, Finding
from xzarr3.checks.run import check

__all__ = ["ArrayReport", "CheckReport", "Finding", "check"]


def __dir__() -> list[str]:
    return sorted(__all__)
