"""Which libraries read an array."""

from __future__ import annotations

from collections.abc import Mapping

from xzarr3.formats import Format
from xzarr3.formats.base import Held
from xzarr3.model.metadata import ArrayMetadata


def readable_by(
    format: Format, path: str, meta: ArrayMetadata, held: Held
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The libraries that read an array, and the reasons why others do not."""
    return (), {}
