"""What the metadata documents of arrays and groups say, whatever the format they are written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from xzarr3._types import JSON, Scalar
from xzarr3.chunk_keys import ChunkKeyEncoding
from xzarr3.codecs.base import ChunkSpec, Codec
from xzarr3.codecs.chain import CodecChain
from xzarr3.dtypes import ZDType
from xzarr3.errors import MetadataError
from xzarr3.grids import RegularGrid

_MAX_DIMENSIONS = 64  # numpy's limit


def check_shape(shape: tuple[int, ...]) -> None:
    """Refuse a shape that no array can have.

    Raises
    ------
    MetadataError
        If it has too many dimensions, or a length is negative or beyond 63 bits.
    """
    if len(shape) > _MAX_DIMENSIONS:
        raise MetadataError(
            "too many dimensions", field="shape", found=len(shape), accepted=f"at most {_MAX_DIMENSIONS}"
        )
    for at, length in enumerate(shape):
        if not 0 <= length < 2**63:
            raise MetadataError(
                "not a length", field=f"shape[{at}]", found=length, accepted="an integer from 0 to 2^63 - 1"
            )


@dataclass(frozen=True, eq=False)
class ArrayMetadata:
    """An array.

    Parameters
    ----------
    shape : tuple of int
        Length of each dimension.
    data_type : ZDType
        Type of the elements.
    chunk_grid : RegularGrid
        How the array is divided into units of storage.
    chunk_key_encoding : ChunkKeyEncoding
        The keys of these units.
    fill_value : scalar
        Value of elements that were never written.
    codecs : tuple of Codec
        How a unit is encoded.
    attributes : mapping
        User attributes, as in the document.
    dimension_names : tuple of str or None, optional
        Names of the dimensions; None if the document has none.
    ignored : mapping
        Fields that are not known here but need not be understood; kept when the document is rewritten.
    zarr_format : int
        Version of the format.
    """

    shape: tuple[int, ...]
    data_type: ZDType
    chunk_grid: RegularGrid
    chunk_key_encoding: ChunkKeyEncoding
    fill_value: Scalar
    codecs: tuple[Codec, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dimension_names: tuple[str | None, ...] | None = None
    ignored: Mapping[str, JSON] = field(default_factory=dict)
    zarr_format: int = 3

    def __post_init__(self) -> None:
        check_shape(self.shape)
        self.chunk_grid.check(self.shape)

    def stores_as(self, other: ArrayMetadata) -> bool:
        """Whether the units of storage of ``other`` have the same keys and mean the same."""
        return (
            self.data_type == other.data_type
            and self.chunk_grid == other.chunk_grid
            and self.chunk_key_encoding == other.chunk_key_encoding
            and self.codecs == other.codecs
            and self.fill_value.tobytes() == other.fill_value.tobytes()
        )

    @cached_property
    def chain(self) -> CodecChain:
        """The codecs, bound to the chunks of this array."""
        return _chain(self.codecs, self.chunk_grid.chunk_shape, self.data_type, self.fill_value.tobytes())


@lru_cache(maxsize=512)
def _chain(codecs: tuple[Codec, ...], shape: tuple[int, ...], data_type: ZDType, fill: bytes) -> CodecChain:
    """One chain for all arrays with such chunks; the fill value goes by its bits, as a NaN equals none."""
    fill_value: Scalar = np.frombuffer(fill, data_type.to_native_dtype())[0]
    return CodecChain(codecs, ChunkSpec(shape, data_type, fill_value))


@dataclass(frozen=True, eq=False)
class GroupMetadata:
    """A group.

    Parameters
    ----------
    attributes : mapping
        User attributes, as in the document.
    consolidated : mapping of str to document, optional
        The documents of all nodes below, by their path relative to the group, if the document holds them.
    ignored : mapping
        Fields that are not known here but need not be understood; kept when the document is rewritten.
    zarr_format : int
        Version of the format.
    """

    attributes: Mapping[str, Any] = field(default_factory=dict)
    consolidated: Mapping[str, Any] | None = None
    ignored: Mapping[str, JSON] = field(default_factory=dict)
    zarr_format: int = 3


NodeMetadata = ArrayMetadata | GroupMetadata
