"""Chunk key encodings: turn the coordinates of a chunk into its key below the array, and back.

Specification: Zarr v3, "Chunk key encodings": ``default`` and ``v2``; draft of May 2022, "Regular grids".
Others are registered with :func:`register_chunk_key_encoding`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from xzarr3._types import JSON
from xzarr3.errors import MetadataError, UnknownExtensionError, foreign, shorten
from xzarr3.extensions import forget, unknown_fields

_SEPARATORS = {"default": "/", "v2": "."}
_known: dict[str, type[ChunkKeyEncoding]] = {}


@functools.lru_cache(maxsize=128)  # A listing asks for the same one with every key.
def _pattern(prefix: str, separator: str, ndim: int) -> re.Pattern[str]:
    """What the chunk keys of an array match; its groups are the coordinates."""
    return re.compile(re.escape(prefix) + re.escape(separator).join(["(0|[1-9][0-9]{0,18})"] * ndim))


@dataclass(frozen=True)
class ChunkKeyEncoding:
    """The form of chunk keys.

    One's own is a frozen dataclass derived from it, with another ``name``, :meth:`key` and :meth:`coords`;
    see :func:`register_chunk_key_encoding`.

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
        if type(self) is ChunkKeyEncoding and self.name not in _SEPARATORS:
            raise UnknownExtensionError(
                "unknown chunk key encoding", field="chunk_key_encoding.name", found=self.name,
                accepted=[*_SEPARATORS, *sorted(_known)],
                advice="make it known with register_chunk_key_encoding()",
            )  # fmt: skip
        if self.separator == "":
            object.__setattr__(self, "separator", _SEPARATORS.get(self.name, "/"))
        self._check_separator("chunk_key_encoding.configuration.separator")

    def _check_separator(self, field: str) -> None:
        if self.separator not in ("/", "."):
            raise MetadataError(
                "not a separator of chunk keys", field=field, found=self.separator, accepted="'/', '.'"
            )

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        """Make the encoding of a registered class that a metadata document describes.

        Raises
        ------
        MetadataError
            If the configuration has an unknown field or a wrong value.
        """
        unknown_fields(configuration, ("separator",), "separator", within="chunk_key_encoding.configuration")
        return cls(separator=_separator(configuration))

    def configuration(self) -> dict[str, JSON]:
        """The configuration in the form of a metadata document."""
        return {"separator": self.separator}

    @property
    def is_joined(self) -> bool:
        """Whether a key is the prefix and the coordinates with separators between them."""
        return type(self).key is ChunkKeyEncoding.key

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
        configuration = self.configuration()
        return {"name": self.name, "configuration": configuration} if configuration else {"name": self.name}


def _separator(configuration: Mapping[str, JSON]) -> str:
    separator = configuration.get("separator", "")
    is_given = "separator" in configuration
    return separator if isinstance(separator, str) and (separator or not is_given) else shorten(separator)


def register_chunk_key_encoding(cls: type[ChunkKeyEncoding]) -> type[ChunkKeyEncoding]:
    """Register a chunk key encoding under its name, replacing an earlier one; returns ``cls``.

    Arrays with such keys are read and written without native code. Where the class is not registered, opening
    them raises :class:`xzarr3.UnknownExtensionError`, as it does for other libraries.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import xzarr3
    >>> @xzarr3.register_chunk_key_encoding
    ... @dataclass(frozen=True)
    ... class Padded(xzarr3.ChunkKeyEncoding):
    ...     name: str = "example.padded"
    ...     def key(self, coords):
    ...         return "c" + "".join(f"/{at:06}" for at in coords)
    ...     def coords(self, key, ndim):
    ...         _, *parts = key.split("/")
    ...         found = tuple(int(part) for part in parts if len(part) == 6 and part.isdecimal())
    ...         return found if len(found) == ndim and self.key(found) == key else None
    >>> store = xzarr3.MemoryStore()
    >>> array = xzarr3.create_array(store, data=[1, 2, 3], chunks=2, chunk_key_encoding="example.padded")
    >>> sorted(store.list()), xzarr3.open_array(store)[:].tolist()
    (['c/000000', 'c/000001', 'zarr.json'], [1, 2, 3])
    """
    _known[cls.name] = cls
    forget()
    return cls


def chunk_key_encoding(name: str, configuration: Mapping[str, JSON]) -> ChunkKeyEncoding:
    """The chunk key encoding that a metadata document describes.

    Raises
    ------
    UnknownExtensionError
        If none has this name.
    MetadataError
        If the configuration is not valid.
    """
    cls = _known.get(name)
    if cls is None:
        known = ChunkKeyEncoding(name)  # Raises if the name is unknown.
        unknown_fields(configuration, ("separator",), "separator", within="chunk_key_encoding.configuration")
        return replace(known, separator=_separator(configuration))
    field = "chunk_key_encoding.configuration"
    with foreign(f"chunk key encoding '{name}'", field=field, found=dict(configuration)):
        return cls.from_configuration(configuration)


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
