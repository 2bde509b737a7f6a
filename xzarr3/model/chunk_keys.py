"""Chunk key encodings: from the coordinates of a chunk to its key below the array.

Specification: Zarr v3, "Chunk key encodings": ``default`` and ``v2``; draft of May 2022, "Regular grids".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from xzarr3._types import JSON
from xzarr3.errors import MetadataError, UnknownExtensionError

_SEPARATORS = {"default": "/", "v2": "."}


@dataclass(frozen=True)
class ChunkKeyEncoding:
    """How the keys of chunks are spelled.

    Parameters
    ----------
    name : {"default", "v2"}
        ``default`` puts ``c`` before the coordinates, ``v2`` does not.
    separator : {"/", "."}, optional
        What stands between the coordinates; by default ``/`` for ``default`` and ``.`` for ``v2``.

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
        """What comes before the coordinates of a chunk of an array with ``ndim`` dimensions."""
        if self.name == "default":
            return f"c{self.separator}" if ndim else "c"
        return "" if ndim else "0"

    def key(self, coords: tuple[int, ...]) -> str:
        """The key of a chunk, relative to its array."""
        return self.prefix(len(coords)) + self.separator.join(map(str, coords))

    def coords(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """The coordinates that ``key`` stands for, or None if it is no key of a chunk."""
        number = "(0|[1-9][0-9]{0,18})"
        pattern = re.escape(self.prefix(ndim)) + re.escape(self.separator).join([number] * ndim)
        match = re.fullmatch(pattern, key)
        return None if match is None else tuple(map(int, match.groups()))

    def to_json(self) -> JSON:
        """The encoding as a metadata document has it."""
        return {"name": self.name, "configuration": {"separator": self.separator}}


@dataclass(frozen=True)
class DraftChunkKeyEncoding(ChunkKeyEncoding):
    """The keys of chunks in the draft of May 2022: ``c`` and right after it the coordinates.

    A class of its own, as no document of version 3 can name it.

    Parameters
    ----------
    separator : {"/", "."}
        What stands between the coordinates.
    scalar : {"c", "c0"}
        The key of the chunk of an array without dimensions; earlier tools write ``c0``.

    Examples
    --------
    >>> DraftChunkKeyEncoding().key((1, 23, 45)), DraftChunkKeyEncoding(separator=".").key((1, 23, 45))
    ('c1/23/45', 'c1.23.45')
    >>> DraftChunkKeyEncoding().key(())
    'c'
    """

    name: str = field(default="draft", init=False)
    separator: str = "/"
    scalar: str = "c"

    def __post_init__(self) -> None:
        self._check_separator("chunk_grid.separator")

    def prefix(self, ndim: int) -> str:
        return "c" if ndim else self.scalar

    def to_json(self) -> JSON:
        """Refused: in the draft the separator is part of the chunk grid, and other formats have no such keys.

        Raises
        ------
        MetadataError
        """
        raise MetadataError(
            "only the draft of version 3 has such keys of chunks", field="chunk_key_encoding",
            found="c0/0", accepted="'default', 'v2'",
        )  # fmt: skip
