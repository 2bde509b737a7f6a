"""Metadata of arrays and groups, independent of the format of their documents.

Owns the codecs bound to chunk shapes, which arrays with equal chunks share. Knows nothing of the keys and
fields of documents, and makes no requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from xzarr3._types import JSON, Scalar
from xzarr3.codecs.base import ChunkSpec, Codec
from xzarr3.codecs.pipeline import CodecChain
from xzarr3.dtypes import ZDType
from xzarr3.errors import MetadataError
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.storage_transformers import StorageTransformer

if TYPE_CHECKING:
    from xzarr3.grid import Grid

_MAX_DIMENSIONS = 64  # numpy's limit
_MAX_KEPT_FILL = 2**12  # Bytes of a fill value; a chain with a larger fill value is not shared.


def check_shape(shape: tuple[int, ...]) -> None:
    """Refuse a shape that no array can have.

    Raises
    ------
    MetadataError
        If the shape has too many dimensions, or a length is negative or needs more than 63 bits.
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


class Origin(NamedTuple):
    """What metadata were read from.

    Parameters
    ----------
    documents : JSON
        The documents of the node, in the form that the format defines.
    values : mapping
        The values of the metadata that were read from them.
    ignored : mapping
        The fields of the documents that need not be understood and were not.
    """

    documents: Any
    values: Mapping[str, Any]
    ignored: Mapping[str, JSON]


class _Read:
    """Metadata that may have been read from documents."""

    origin: Origin | None
    zarr_format: int | str

    def read_from(self, documents: Any, ignored: Mapping[str, JSON]) -> Self:
        """The same metadata, which remember the documents that they were read from."""
        object.__setattr__(self, "origin", Origin(documents, {**vars(self), "origin": None}, ignored))
        return self

    def like(self, documents: Any, attributes: Mapping[str, Any]) -> Self:
        """The same metadata as other documents give them, which differ in attributes only."""
        new = object.__new__(type(self))
        vars(new).update(vars(self), attributes=attributes)
        return new.read_from(documents, self.ignored)

    @property
    def source(self) -> Any:
        """The documents that the metadata were read from; None if none of this format."""
        if self.origin is None or self.origin.values["zarr_format"] != self.zarr_format:
            return None
        return self.origin.documents

    @property
    def ignored(self) -> Mapping[str, JSON]:
        """The fields of the documents that need not be understood and were not."""
        return {} if self.origin is None else self.origin.ignored

    def is_as_read(self, *names: str) -> bool:
        """Whether these values are still the ones that were read from the documents."""
        origin, own = self.origin, vars(self)
        if origin is None or origin.values["zarr_format"] != self.zarr_format:
            return False
        return all(own[name] is origin.values[name] for name in names)


@dataclass(frozen=True, eq=False)
class ArrayMetadata(_Read):
    """Metadata of an array.

    Parameters
    ----------
    shape : tuple of int
        Length of each dimension.
    data_type : ZDType
        Type of the elements.
    chunk_grid : Grid
        Divides the array into stored units.
    chunk_key_encoding : ChunkKeyEncoding
        Form of the keys of these units.
    fill_value : scalar
        Value of elements that were never written.
    codecs : tuple of Codec
        The codecs of a unit.
    attributes : mapping
        User attributes, as in the document.
    dimension_names : tuple of str or None, optional
        Names of the dimensions; None if the document has none.
    storage_transformers : tuple of StorageTransformer
        Transformers between the array and the store; the first one is next to the array.
    origin : Origin, optional
        The documents that the metadata were read from. A change is made to these, so that a rewrite loses
        nothing of them.
    zarr_format : {3, 2, "3-draft"}
        The format of the document.
    fill_is_null : bool
        Whether the document has no fill value, which version 2 allows. Elements that were never written then
        read as ``fill_value``, and chunks that hold only this value are stored.
    """

    shape: tuple[int, ...]
    data_type: ZDType
    chunk_grid: Grid
    chunk_key_encoding: ChunkKeyEncoding
    fill_value: Scalar
    codecs: tuple[Codec, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dimension_names: tuple[str | None, ...] | None = None
    storage_transformers: tuple[StorageTransformer, ...] = ()
    origin: Origin | None = field(default=None, repr=False)
    zarr_format: int | str = 3
    fill_is_null: bool = False

    def __post_init__(self) -> None:
        check_shape(self.shape)
        self.chunk_grid.check(self.shape)

    def stores_as(self, other: ArrayMetadata) -> bool:
        """Whether the stored units of ``other`` have the same keys and the same meaning."""
        return (
            self.data_type == other.data_type
            and self.chunk_grid.agrees(other.chunk_grid)
            and self.chunk_key_encoding == other.chunk_key_encoding
            and self.codecs == other.codecs
            and self.storage_transformers == other.storage_transformers
            and self.data_type.bits(self.fill_value) == other.data_type.bits(other.fill_value)
        )

    @cached_property
    def _fill(self) -> _Fill:
        try:
            return _Fill(self.data_type.bits(self.fill_value), self.fill_value)
        except MemoryError as error:
            raise MetadataError(
                f"no memory for one element of data type '{self.data_type.name}'",
                field="data_type",
                found=self.data_type.name,
                accepted="smaller elements",
            ) from error

    @cached_property
    def chain(self) -> CodecChain:
        """The codecs, bound to the largest chunk shape: that of all chunks in a regular grid."""
        return self.chain_of(self.chunk_grid.largest)

    def check_codecs(self) -> None:
        """Refuse codecs that cannot encode the chunks of this array.

        Raises
        ------
        MetadataError
        """
        _ = self.chain
        if not self.chunk_grid.is_regular:
            for shape in self.chunk_grid.sample_shapes():
                self.chain_of(shape)

    def chain_of(self, chunk_shape: tuple[int, ...]) -> CodecChain:
        """The codecs, bound to chunks of this shape."""
        fill = self._fill
        make = _chain if len(fill.bits) <= _MAX_KEPT_FILL else _chain.__wrapped__
        return make(self.codecs, chunk_shape, self.data_type, fill)


@dataclass(frozen=True)
class _Fill:
    """A fill value compared by its bits, because a NaN does not equal itself."""

    bits: bytes
    value: Scalar = field(compare=False)


@lru_cache(maxsize=512)
def _chain(codecs: tuple[Codec, ...], shape: tuple[int, ...], data_type: ZDType, fill: _Fill) -> CodecChain:
    """One chain for all arrays with equal chunks."""
    return CodecChain(codecs, ChunkSpec(shape, data_type, fill.value))


@dataclass(frozen=True, eq=False)
class GroupMetadata(_Read):
    """Metadata of a group.

    Parameters
    ----------
    attributes : mapping
        User attributes, as in the document.
    consolidated : mapping of str to documents, optional
        Consolidated metadata, if present: the documents of all nodes below, by their path relative to the
        group.
    origin : Origin, optional
        The documents that the metadata were read from.
    zarr_format : {3, 2, "3-draft"}
        The format of the document.
    """

    attributes: Mapping[str, Any] = field(default_factory=dict)
    consolidated: Mapping[str, Any] | None = None
    origin: Origin | None = field(default=None, repr=False)
    zarr_format: int | str = 3

    def __post_init__(self) -> None:
        if self.consolidated is not None:
            object.__setattr__(self, "consolidated", Consolidated.of(self.consolidated))


class Consolidated(dict[str, Any]):
    """The documents of the nodes below a group, by relative path. They do not change.

    Examples
    --------
    >>> below = Consolidated({"ocean": 1, "ocean/sst": 2, "ocean-ice": 3, "land": 4}).below("ocean")
    >>> dict(below)
    {'sst': 2}
    """

    @classmethod
    def of(cls, documents: Mapping[str, Any]) -> Consolidated:
        """``documents`` as an instance of this class."""
        return documents if isinstance(documents, cls) else cls(documents)

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {path: at for at, path in enumerate(self)}

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self)

    def below(self, relative: str) -> Consolidated:
        """The documents below one of the groups, in the same order. Does not search all documents."""
        prefix = f"{relative}/"
        first, last = (bisect_left(self._sorted, end) for end in (prefix, f"{relative}0"))  # "0" follows "/".
        paths = sorted(self._sorted[first:last], key=self._places.__getitem__)
        return Consolidated({path[len(prefix) :]: self[path] for path in paths})


NodeMetadata = ArrayMetadata | GroupMetadata
