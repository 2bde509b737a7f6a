"""Chunk key encodings: turn the coordinates of a chunk into its key below the array, and back.

Specification: Zarr v3, "Chunk key encodings": ``default`` and ``v2``; draft of May 2022, "Regular grids".
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from xzarr3._types import JSON
from xzarr3.errors import MetadataError, UnknownExtensionError

_SEPARATORS = {"default": "/", "v2": "."}


@functools.lru_cache(maxsize=128)  # A listing asks for the same one with every key.
def _pattern(prefix: str, separator: str, ndim: int) -> re.Pattern[str]:
    """What the chunk keys of an array match; its groups are the coordinates."""
    return re.compile(re.escape(prefix) + re.escape(separator).join(["(0|[1-9][0-9]{0,18})"] * ndim))


@dataclass(frozen=True)
class ChunkKeyEncoding:
    """The form of chunk keys.

    Parameters
    ----------
    name : {"default", "v2"}
        ``default`` puts ``c`` before the coordinates, ``v2`` does not.
    separator : {"/", "."}, optional
        Separator of the coordinates; by default ``/`` for ``default`` and ``.`` for ``v2``.

    Examples
    --------
    >>> ChunkKeyEncoding().key((1, 23, 45))
    'c/1/23/45'
    >>> ChunkKeyEncoding("v2").key((1, 23, 45))
    '1.23.45'
    >>> ChunkKeyEncoding().key(()), ChunkKeyEncoding("v2").key(())
    ('c', '0')
    """

    name: str = "default"
    separator: str = ""

    def __post_init__(self) -> None:
        if self.name not in _SEPARATORS:
            raise UnknownExtensionError(
                "unknown chunk key encoding",
                field="chunk_key_encoding.name",
                found=self.name,
                accepted="'default', 'v2'",
            )
        if self.separator == "":
            object.__setattr__(self, "separator", _SEPARATORS[self.name])
        self._check_separator("chunk_key_encoding.configuration.separator")

    def _check_separator(self, field: str) -> None:
        if self.separator not in ("/", "."):
            raise MetadataError(
                "not a separator of chunk keys", field=field, found=self.separator, accepted="'/', '.'"
            )

    def prefix(self, ndim: int) -> str:
        """The part of a key before the coordinates, for an array with ``ndim`` dimensions."""
        if self.name == "default":
            return f"c{self.separator}" if ndim else "c"
        return "" if ndim else "0"

    def key(self, coords: tuple[int, ...]) -> str:
        """The key of a chunk, relative to its array."""
        return self.prefix(len(coords)) + self.separator.join(map(str, coords))

    def coords(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """The coordinates in ``key``, or None if it is no chunk key."""
        match = _pattern(self.prefix(ndim), self.separator, ndim).fullmatch(key)
        return None if match is None else tuple(map(int, match.groups()))

    def to_json(self) -> JSON:
        """The encoding in the form of a metadata document."""
        return {"name": self.name, "configuration": {"separator": self.separator}}


@dataclass(frozen=True)
class DraftChunkKeyEncoding(ChunkKeyEncoding):
    """The chunk keys of the draft of May 2022: ``c`` followed directly by the coordinates.

    This is a separate class because no document of version 3 can name it.

    Parameters
    ----------
    separator : {"/", "."}
        Separator of the coordinates.

    Examples
    --------
    >>> DraftChunkKeyEncoding().key((1, 23, 45)), DraftChunkKeyEncoding(separator=".").key((1, 23, 45))
    ('c1/23/45', 'c1.23.45')
    >>> DraftChunkKeyEncoding().key(())
    'c'
    """

    name: str = field(default="draft", init=False)
    separator: str = "/"

    def __post_init__(self) -> None:
        self._check_separator("chunk_grid.separator")

    def prefix(self, ndim: int) -> str:
        return "c"

    def to_json(self) -> JSON:
        """Always raises: the draft has the separator in the chunk grid, other formats have no such keys.

        Raises
        ------
        MetadataError
        """
        raise MetadataError(
            "only the draft of version 3 has chunk keys of this form", field="chunk_key_encoding",
            found="c0/0", accepted="'default', 'v2'",
        )  # fmt: skip
