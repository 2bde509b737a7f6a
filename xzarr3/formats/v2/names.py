"""The names of the documents of version 2, and of the attribute that names dimensions."""

from __future__ import annotations

ARRAY = ".zarray"
GROUP = ".zgroup"
ATTRIBUTES = ".zattrs"
CONSOLIDATED = ".zmetadata"
DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute that names the dimensions of an array."""

OWN = (ARRAY, GROUP, ATTRIBUTES)
NCZARR_ARRAY = ".nczarray"
CONSOLIDATED_FORMAT = 1
