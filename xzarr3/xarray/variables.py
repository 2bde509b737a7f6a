"""The arrays of a group as xarray variables, not decoded."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from xarray import Variable
from xarray.backends.common import AbstractDataStore
from xarray.core import indexing

from xzarr3.conventions.fill_value_attribute import decode_fill_value, follows_version_2
from xzarr3.dtypes import ZDType
from xzarr3.dtypes.specs import OBJECT_CODECS
from xzarr3.errors import ArgumentError, ArgumentTypeError, MetadataError, StoreCapabilityError
from xzarr3.formats import Format, ZarrFormat
from xzarr3.formats.base import is_array, node_prefix
from xzarr3.formats.v2 import ARRAY
from xzarr3.grid import Edges, Grid, Steps
from xzarr3.groups import Group
from xzarr3.io.chunk_cache import ChunkCacheLike
from xzarr3.joined.group import JoinedGroup
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.find import read_held
from xzarr3.options import Missing
from xzarr3.parallel import parallel_map
from xzarr3.quantities import check_switches
from xzarr3.readable import ReadableArray
from xzarr3.xarray import unreadable
from xzarr3.xarray.absent import marked
from xzarr3.xarray.lazy import LazyArray
from xzarr3.xarray.unreadable import UnreadableVariable

Node: TypeAlias = "ReadableArray | Group | MetadataError"

_MOST_LENGTHS = 10**5  # Most chunks along a dimension whose lengths are listed one by one.
UNNAMED = "__values__"
"""The name under which xarray stores a variable whose name is None."""


_DECODERS = (
    "mask_and_scale", "decode_times", "concat_characters", "decode_coords", "use_cftime", "decode_timedelta",
)  # fmt: skip


@dataclass(kw_only=True)
class OpenOptions:
    """What :meth:`xzarr3.xarray.backend.Xzarr3BackendEntrypoint.open_dataset` describes."""

    mask_and_scale: bool | Mapping[str, bool] = True
    decode_times: Any = True
    concat_characters: bool | Mapping[str, bool] = True
    decode_coords: bool | Literal["coordinates", "all"] = True
    use_cftime: bool | Mapping[str, bool] | None = None
    decode_timedelta: Any = None
    drop_variables: str | Iterable[str] = ()
    group: str | None = None
    mode: str = "r"
    consolidated: bool | None = None
    storage_options: Mapping[str, Any] | None = None
    zarr_format: ZarrFormat | None = None
    use_zarr_fill_value_as_mask: bool | None = None
    cache_members: bool = True
    missing: Missing | None = None
    chunk_cache: ChunkCacheLike = None
    keep_variables: str | Iterable[str] | None = None
    group_chunks: bool = False
    on_unreadable: Literal["keep", "raise"] = "keep"
    nullable: bool = False
    branch: str | None = None
    tag: str | None = None
    snapshot: str | None = None

    def __post_init__(self) -> None:
        if self.on_unreadable not in ("keep", "raise"):
            raise ArgumentError(f"on_unreadable={self.on_unreadable!r} is unknown; accepted: 'keep', 'raise'")
        if self.mode not in ("r", "r+"):
            raise ArgumentError(f"mode={self.mode!r} cannot open a dataset; accepted: 'r', 'r+'")
        optional = {name: getattr(self, name) for name in ("consolidated", "use_zarr_fill_value_as_mask")}
        check_switches(optional, group_chunks=self.group_chunks, nullable=self.nullable, **optional)
        self.drop_variables = names_of(self.drop_variables)
        if self.keep_variables is not None:
            self.keep_variables = names_of(self.keep_variables)

    @property
    def decoders(self) -> dict[str, Any]:
        """The arguments of :func:`xarray.conventions.decode_cf_variables`."""
        return {name: getattr(self, name) for name in _DECODERS}


class Xzarr3DataStore(AbstractDataStore):
    """The arrays directly below a group, as xarray's variables.

    Parameters
    ----------
    group : Group or JoinedGroup
    asked : OpenOptions, optional
        What to open of it. Of other arrays no documents are read.
    """

    __slots__ = ("asked", "errors", "group")

    def __init__(self, group: Group | JoinedGroup, asked: OpenOptions | None = None) -> None:
        self.group, self.asked = group, asked or OpenOptions()
        self.errors: dict[str, MetadataError] = {}
        """Why arrays cannot be read, once :meth:`get_variables` has returned the others."""

    def arrays(self) -> Iterator[tuple[str, ReadableArray]]:
        """Names and arrays that become variables; their documents are read concurrently."""
        nodes: list[tuple[str, Node]]
        kept, dropped = self.asked.keep_variables, frozenset(self.asked.drop_variables)
        if kept is not None:
            nodes = list(self._named(kept))
            dims = {
                dim: None
                for _, node in nodes
                if isinstance(node, ReadableArray)
                for dim in node.dimension_names or ()
                if dim is not None and dim not in kept
            }
            nodes += (
                (dim, node)
                for dim, node in self._named(dims)
                if isinstance(node, ReadableArray) and node.dimension_names == (dim,)
            )
        elif isinstance(self.group, JoinedGroup):
            nodes = [(name, array) for name, array in self.group.items() if name not in dropped]
        else:
            group = self.group
            with for_xarray():
                nodes = [
                    (name, group._node_or_error(name, held))
                    for name, held in group._held(0, dropped, as_opened=True)
                    if isinstance(held, MetadataError) or is_array(held)
                ]
        for name, node in nodes:
            if isinstance(node, MetadataError):
                self._note(name, node)
            elif isinstance(node, ReadableArray):
                yield name, node

    def _note(self, name: str, error: MetadataError) -> None:
        if self.asked.on_unreadable == "raise":
            raise left_out(error, name)
        self.errors[name] = error

    def _named(self, names: Iterable[str]) -> Iterator[tuple[str, Node]]:
        """The nodes of these names that exist, found concurrently."""
        wanted = [
            name for name in names if name not in self.asked.drop_variables and name and "/" not in name
        ]
        found = parallel_map(self._find, wanted, self.group.store.concurrency)
        return ((name, node) for name, node in zip(wanted, found, strict=True) if node is not None)

    def _find(self, name: str) -> Node | None:
        try:
            found: Node | None = self.group.get(name)
        except MetadataError as error:
            return error
        return found

    def get_variables(self) -> dict[Any, Variable]:
        """The variables by the names that they have in a dataset."""
        variables = {}
        for name, array in self.arrays():
            try:
                variables[name] = self.variable(array)
            except MissingDimensionNamesError:
                raise
            except MetadataError as error:
                self._note(name, error)
        for var in variables.values():
            bounds = variables.get(bounds_of(var))
            if bounds is not None and "bounds" not in bounds.attrs:  # Bounds have no bounds themselves.
                lazy_array(bounds).array._bounded = lazy_array(var).array
        return {None if name == UNNAMED else name: var for name, var in variables.items()}

    def variable(self, array: ReadableArray) -> Variable:
        """An array as a variable, not decoded."""
        array._is_decoded = True
        variable = as_variable(array, self.asked.use_zarr_fill_value_as_mask)
        if isinstance(self.group, JoinedGroup):
            lazy_array(variable).values = self.group.labels.get(array.basename)
        if self.asked.group_chunks:
            variable.encoding["preferred_chunks"] = dict(zip(variable.dims, _grouped(array), strict=True))
        return variable

    def unreadable(self, name: str) -> UnreadableVariable | None:
        """The variable of an array of ``errors``; None if its documents do not tell its dimensions."""
        group = self.group
        if isinstance(group, JoinedGroup):
            return None
        try:
            held = (
                read_held(group.store, group.format, node_prefix(group.path) + name, consolidated=False)
                if group._documents is None
                else group._documents.get(name)
            )
        except MetadataError:
            return None
        return unreadable.variable_of(held, self.errors[name])

    def get_attrs(self) -> dict[str, Any]:
        attributes = _own(self.group.metadata.attributes)
        _hide(attributes)
        return attributes


def lazy_array(variable: Variable) -> LazyArray:
    """The lazy array of a variable from :func:`as_variable`."""
    lazy: LazyArray = variable._data.array  # type: ignore[union-attr]
    return lazy


def are_times(attributes: Mapping[str, Any]) -> bool:
    """Whether values are times by their attributes, which have units as "days since 2000-01-01"."""
    units = attributes.get("units")
    return isinstance(units, str) and "since" in units


def bounds_of(variable: Variable) -> str:
    """The name of the bounds of a variable of times, which have its units; empty if there are none."""
    bounds = variable.attrs.get("bounds")
    return bounds if isinstance(bounds, str) and are_times(variable.attrs) else ""


def names_of(names: str | Iterable[str] | None) -> list[str]:
    """Names of variables that a user gives, each once; none for None."""
    names = () if names is None else names
    is_one = isinstance(names, str) or not hasattr(names, "__iter__") or getattr(names, "shape", None) == ()
    found: list[Any] = [names] if is_one else [*names]
    if not all(isinstance(name, str) for name in found):
        raise ArgumentTypeError(f"{names!r} names no variables; accepted: a name, or a list of names")
    return [*dict.fromkeys(found)]


def left_out(error: MetadataError, name: str) -> MetadataError:
    """The error of a variable, with the advice how to open the others."""
    error.advice = _to_open_others(name)
    return error


def _to_open_others(name: str) -> str:
    return f"pass drop_variables=[{name!r}] to open the other variables"


def as_variable(array: ReadableArray, mask: bool | None = None) -> Variable:
    """An array as a variable, not decoded; ``mask`` is that of :func:`seen_attributes`."""
    meta = array.metadata
    mask = follows_version_2(array.format) if mask is None else mask
    shape, dims = meta.shape, meta.dimension_names or ()
    if len(dims) != len(shape):
        raise MissingDimensionNamesError(
            "xarray needs the names of the dimensions",
            path=array.path,
            field="dimension_names",
            found=meta.dimension_names,
            accepted=f"{len(shape)} names",
            advice=_to_open_others(array.basename),
        )
    attributes = seen_attributes(array, mask)
    units = _lengths(meta.chunk_grid, shape)
    blocks = units if array.unit_grid is meta.chunk_grid else _lengths(array.unit_grid, shape)
    sharded = array._shard is not None
    encoding: dict[str, Any] = {
        "chunks": array.chunks if sharded else units,
        "preferred_chunks": dict(zip(dims, blocks, strict=True)),
        **_codecs(array),
        "shards": units if sharded else None,
    }
    if not follows_version_2(array.format):
        encoding["serializer"] = array.serializer.to_json()
    if array.dtype.kind == "T" and not array.is_optional:
        encoding["dtype"] = array.dtype
    if not (mask or follows_version_2(array.format) or array.is_optional):
        encoding["fill_value"] = meta.fill_value
    data: Any = indexing.LazilyIndexedArray(LazyArray(array, marked(array)))
    return Variable(dims, data, attributes, encoding, fastpath=True)


def seen_attributes(array: ReadableArray, mask: bool | None = None) -> dict[str, Any]:
    """The attributes of an array as a variable has them, before they are decoded.

    ``mask`` makes the fill value the ``_FillValue``; by default in formats where xarray stores it so.
    """
    meta = array.metadata
    attributes = own_attributes(meta, array.format)
    is_version_2 = follows_version_2(array.format)
    if not (is_version_2 if mask is None else mask):
        if "_FillValue" in attributes:
            attributes["_FillValue"] = _fill_value(attributes["_FillValue"], array)
    elif not meta.fill_is_null and _can_be_masked(meta.data_type):
        attributes["_FillValue"] = meta.fill_value
    return attributes


def own_attributes(meta: ArrayMetadata, format: Format) -> dict[str, Any]:
    """A copy of the attributes of an array, without those that netCDF-C uses internally in version 2."""
    attributes = _own(meta.attributes)
    if follows_version_2(format):
        _hide(attributes)
    return attributes


def _codecs(array: ReadableArray) -> dict[str, Any]:
    """The compressors and filters: as JSON, or as codecs of numcodecs in version 2, as xarray keeps them.

    The codec of strings and objects is left out, since it follows from the data type.
    """
    if not follows_version_2(array.format):
        return {
            "compressors": tuple([codec.to_json() for codec in array.compressors]),
            "filters": tuple([codec.to_json() for codec in array.filters]),
        }
    words = array.format.hold(array.metadata, array.path)[ARRAY]
    compressor, filters = words["compressor"], words.get("filters") or ()
    return {
        "compressors": () if compressor is None else (_of_numcodecs(compressor),),
        "filters": tuple([_of_numcodecs(each) for each in filters if each["id"] not in OBJECT_CODECS]),
    }


def _of_numcodecs(configuration: Mapping[str, Any]) -> Any:
    """The codec with this configuration; a copy of the configuration if numcodecs does not have it."""
    from numcodecs import get_codec

    try:
        return get_codec(dict(configuration))
    except (ValueError, TypeError):
        return copy.deepcopy(dict(configuration))


@contextmanager
def for_xarray() -> Iterator[None]:
    """Context manager that adds advice for xarray users to the error of a store that cannot list keys."""
    try:
        yield
    except StoreCapabilityError as error:
        raise StoreCapabilityError(
            f"{error}; for xarray, write the store with consolidated=True, or make variables of arrays that "
            "xzarr3.open_array() opens by their paths"
        ) from error


def _can_be_masked(data_type: ZDType) -> bool:
    """Whether xarray can mask missing elements; it cannot for records and raw bytes."""
    return data_type.name != "optional" and str(data_type.to_native_dtype().kind) != "V"


def _own(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of attributes, so that users may change it, also inside lists, without changing the metadata."""
    return {
        name: copy.deepcopy(value) if isinstance(value, (list, dict)) else value
        for name, value in attributes.items()
    }


def _hide(attributes: dict[str, Any]) -> None:
    """Remove the attributes that netCDF-C uses internally."""
    for key in [key for key in attributes if key.lower().startswith("_nc")]:
        del attributes[key]


def _lengths(grid: Grid, shape: tuple[int, ...]) -> tuple[int | tuple[int, ...], ...]:
    """The length of the stored units along each dimension, or a tuple of all lengths where they differ."""
    if grid.is_regular:
        return grid.largest
    return tuple(_axis_lengths(axis, size) for axis, size in zip(grid.axes, shape, strict=True))


def _axis_lengths(axis: Steps | Edges, size: int) -> int | tuple[int, ...]:
    if isinstance(axis, Steps) or size == 0 or axis.count(size) > _MOST_LENGTHS:
        return max(axis.longest, 1)
    lengths = axis.lengths(size)
    regular = len({*lengths[:-1]}) <= 1 and lengths[-1] <= lengths[0]
    return lengths[0] if regular else lengths


def _grouped(array: ReadableArray) -> Iterator[int | tuple[int, ...]]:
    """The lengths of blocks that group small stored units, along each dimension."""
    from xzarr3.dask.blocks import asked_blocks

    for axis, size in zip(asked_blocks(array, "grouped"), array.shape, strict=True):
        yield _axis_lengths(axis, size)


class MissingDimensionNamesError(MetadataError, KeyError):
    """An array without dimension names, which cannot be an xarray variable."""

    __str__ = MetadataError.__str__


_decode_text = lru_cache(64)(decode_fill_value)  # The arrays of a dataset mostly have the same.


def _fill_value(value: Any, array: ReadableArray) -> Any:
    decode = _decode_text if isinstance(value, str) else decode_fill_value
    try:
        return decode(value, array.dtype)
    except ValueError as error:
        raise MetadataError(
            str(error),
            path=array.path,
            field="attributes._FillValue",
            found=value,
            accepted="a number, or the base64 of a little-endian double",
            advice=_to_open_others(array.basename),
        ) from error
