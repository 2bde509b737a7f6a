"""Formats: convert metadata documents to format-neutral metadata and back; one module for each format.

A format is pure: it defines the keys of documents and their contents, and makes no requests to a store.
"""

from __future__ import annotations

from xzarr3.dtypes import ZarrFormat
from xzarr3.errors import MetadataError
from xzarr3.formats.base import Format
from xzarr3.formats.draft import DRAFT, DraftFormat
from xzarr3.formats.v2 import V2, V2Format
from xzarr3.formats.v3 import V3, V3Format

FORMATS: dict[ZarrFormat, Format] = {3: V3, 2: V2, "3-draft": DRAFT}
"""The format to write, by the value that users pass as ``zarr_format``."""


def parse_format(zarr_format: object) -> Format:
    """The format that a user names.

    Raises
    ------
    MetadataError
        If no format has this name.

    Examples
    --------
    >>> parse_format(3).keys("ocean/sst").array
    'ocean/sst/zarr.json'
    """
    if type(zarr_format) not in (int, str) or zarr_format not in FORMATS:
        raise MetadataError(
            "unknown Zarr format", field="zarr_format", found=zarr_format,
            accepted="3, 2, '3-draft'",
        )  # fmt: skip
    return FORMATS[zarr_format]


def name_of(format: Format) -> Format | ZarrFormat:
    """The pickled form of a format: its name where that identifies it, otherwise the format itself."""
    return format.zarr_format if FORMATS[format.zarr_format] == format else format


def format_of(name: Format | ZarrFormat) -> Format:
    """The format with this pickled form."""
    return name if isinstance(name, Format) else FORMATS[name]


__all__ = [
    "DRAFT",
    "FORMATS",
    "V2",
    "V3",
    "DraftFormat",
    "Format",
    "V2Format",
    "V3Format",
    "ZarrFormat",
    "format_of",
    "name_of",
    "parse_format",
]
