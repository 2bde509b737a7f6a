"""Plans new nodes: a call of :func:`xzarr3.to_zarr` as a request, and datasets encoded as groups and arrays.

Values in memory are encoded and checked before the first byte is written, dask arrays when they are computed.
This module accesses no store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from xarray import DataArray, Dataset, DataTree, Variable, conventions
from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE
from xarray.coding import strings

from xzarr3._types import JSON
from xzarr3.conventions.fill_value_attribute import encode_fill_value, follows_version_2
from xzarr3.conventions.nonfinite_attributes import finite_attributes, finite_marks
from xzarr3.dask.plan import WrittenArray
from xzarr3.dtypes import VariableLengthUTF8, ZDType, parse_dtype
from xzarr3.errors import (
    FOREIGN_ERRORS,
    ArgumentError,
    ArgumentTypeError,
    DataTypeValidationError,
    InvalidKeyError,
    MetadataError,
    UnknownNameError,
    Xzarr3Error,
    located,
    one_of,
    shorten,
)
from xzarr3.formats import DraftFormat, Format, ZarrFormat, documents, parse_format
from xzarr3.formats.base import node_prefix
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata
from xzarr3.nodes.array_settings import array_metadata
from xzarr3.nodes.node import check_new_path
from xzarr3.quantities import check_switches
from xzarr3.stores.keys import OWN
from xzarr3.xarray.absent import is_nullable, stored_type, with_plain_labels
from xzarr3.xarray.coders import is_lazy
from xzarr3.xarray.encode import ENCODING_KEYS, array_settings, made_with_settings
from xzarr3.xarray.exact import encode_values
from xzarr3.xarray.variables import UNNAMED

_RESERVED = ("__zarr", OWN)


@dataclass(frozen=True, kw_only=True, eq=False)
class WriteOptions:
    """The settings of a call of :func:`xzarr3.to_zarr`, which documents them."""

    mode: str
    encoding: Mapping[Any, Mapping[Any, Any]]
    consolidated: bool | None
    append_dim: Hashable | None
    """The dimension to append along, or to prepend along if ``prepends``."""
    region: Any
    write_empty_chunks: bool | None
    write_inherited_coords: bool
    zarr_format: ZarrFormat | None
    widen_units: bool
    resume: bool
    check_labels: bool = True
    prepends: bool = False
    others: Literal["write", "compare", "keep"] = "write"
    """What is done with existing variables that do not grow."""

    def __post_init__(self) -> None:
        if not isinstance(self.encoding, Mapping):
            raise ArgumentTypeError(
                f"encoding={self.encoding!r}; accepted: for each variable, a mapping of settings"
            )
        if self.zarr_format is not None:
            parse_format(self.zarr_format)

    @property
    def growing_option(self) -> str:
        """The name of the option that is kept in ``append_dim``."""
        return "prepend_dim" if self.prepends else "append_dim"

    def check_growing(self, sizes: Mapping[Any, int]) -> None:
        """Refuse to grow along a dimension that is not among those of a dataset, given with their lengths."""
        dim = self.append_dim
        if dim is not None and (not isinstance(dim, Hashable) or dim not in sizes):
            raise ArgumentError(
                f"{self.growing_option}={dim!r} does not match any existing dataset dimensions "
                f"{dict(sizes)}; {one_of(dim, sizes)}"
            )


@dataclass(frozen=True, eq=False)
class DatasetNode:
    """A dataset, the path of its group, and the settings for this group alone."""

    path: str
    dataset: Dataset
    asked: WriteOptions


def nodes_of(data: Dataset | DataArray | DataTree, path: str, asked: WriteOptions) -> dict[str, DatasetNode]:
    """The datasets to write at ``path`` and below, by path relative to ``path``, from the top down.

    Raises
    ------
    ValueError, TypeError
        If the settings do not fit the data.
    """
    if not isinstance(data, DataTree):
        return {"": DatasetNode(path, as_dataset(data), asked)}
    for option, value in ((asked.growing_option, asked.append_dim), ("region", asked.region)):
        if value is not None:
            raise ArgumentError(
                f"{option} is not for trees; write each dataset by a call of its own, as in "
                f"to_zarr(tree['name'].to_dataset(), store, group='name', {option}=...)"
            )
    unknown = set(asked.encoding) - set(data.groups)
    if unknown:
        raise ArgumentError(
            f"unexpected encoding group name(s) provided: {unknown}; {one_of(min(unknown), data.groups)}"
        )
    nodes = {}
    for name, node in data.subtree_with_keys:  # The top of a subtree gets all that it inherits.
        relative = "" if node is data else name
        place = f"{node_prefix(path)}{relative}".rstrip("/")
        check_group_path(place)
        dataset = node.to_dataset(inherit=asked.write_inherited_coords or node is data)
        nodes[relative] = DatasetNode(
            place, _with_graphs(dataset), replace(asked, encoding=asked.encoding.get(node.path) or {})
        )
    return nodes


def as_dataset(data: Dataset | DataArray) -> Dataset:
    if isinstance(data, Dataset):
        return _with_graphs(data)
    if not isinstance(data, DataArray):
        raise ArgumentTypeError(
            f"not a dataset: {type(data).__name__}; accepted: xarray.Dataset, xarray.DataArray, "
            "xarray.DataTree; store a plain array with xzarr3.create_array(store, data=...)"
        )
    if data.name is not None and data.name not in data.coords and data.name not in data.dims:
        return _with_graphs(data.to_dataset())
    # xarray.open_dataarray finds an array without a usable name under these names.
    dataset = data.to_dataset(name=DATAARRAY_VARIABLE)
    if data.name is not None:
        dataset.attrs[DATAARRAY_NAME] = data.name
    return _with_graphs(dataset)


def _with_graphs(dataset: Dataset) -> Dataset:
    """The dataset with dask arrays for those of the package ``dask-array``."""
    if "dask_array" not in sys.modules:
        return dataset
    from xzarr3.dask.expressions import is_expression, with_graph

    dataset = dataset.copy(deep=False)  # Its variables are others, which share their values.
    for variable in dataset.variables.values():
        if is_expression(variable._data):
            variable._data = with_graph(variable._data)
    return dataset


def check_group_path(path: str) -> None:
    """Refuse a path that no new group may have in any format."""
    if "\\" in path:
        raise InvalidKeyError(f"invalid name {path!r} of a group; accepted: names without '\\'")
    for part in path.split("/"):
        check_reserved(part)


def growing_dimensions(dataset: Dataset, asked: WriteOptions) -> frozenset[Hashable]:
    """The dimensions of a new dataset along which appends are expected.

    Raises
    ------
    ValueError
        If the dataset does not have ``append_dim``.
    """
    asked.check_growing(dataset.sizes)
    unlimited = dataset.encoding.get("unlimited_dims", ())
    found = {unlimited} if isinstance(unlimited, str) else set(unlimited or ())
    return frozenset((found | ({asked.append_dim} - {None})) & set(dataset.dims))


def plan_group(node: DatasetNode, format: Format) -> tuple[GroupMetadata, list[WrittenArray]]:
    """Plan a new group: its metadata, and its variables with encoded values and documents."""
    dataset = node.dataset
    growing = growing_dimensions(dataset, node.asked)
    check_new_path(node.path, format)
    for name in dataset.variables:
        check_name(name, format)
    variables, attributes = encoded_coordinates(dataset, node.asked.encoding)
    planned = plan_arrays(variables, node, format, growing)
    encoded = encode_attributes(attributes, path=node.path)
    return GroupMetadata(attributes=encoded, zarr_format=format.zarr_format), planned


def encoded_coordinates(
    dataset: Dataset, encoding: Mapping[Any, Mapping[str, Any]]
) -> tuple[dict[Any, Variable], dict[Any, Any]]:
    """The variables of a dataset, with the encodings given, and its attributes."""
    for name in encoding:
        if name not in dataset.variables:
            raise UnknownNameError(
                f"encoding for {name!r}, which is not a variable; {_of_variables(name, dataset)}"
            )
        if not isinstance(encoding[name], Mapping):
            raise ArgumentTypeError(
                f"encoding of variable {name!r} is {shorten(encoding[name])}; accepted: a dictionary, "
                "such as {'chunks': (1, 90, 180)}"
            )
    variables, attributes = conventions.encode_dataset_coordinates(dataset)
    for name, given in encoding.items():
        variables[name].encoding = dict(given)
    return dict(variables), dict(attributes)


def _of_variables(name: Any, dataset: Dataset) -> str:
    """The end of a message about an encoding whose key is not a variable."""
    if name in ENCODING_KEYS:
        first = next(iter(dataset.variables), "name")
        return f"pass encodings by variable, as in encoding={{{first!r}: {{{name!r}: ...}}}}"
    return one_of(name, dataset.variables)


def plan_arrays(
    variables: Mapping[Any, Variable], node: DatasetNode, format: Format, growing: Collection[Hashable]
) -> list[WrittenArray]:
    """Plan the new variables of a group; chunks leave room along ``growing`` dimensions."""
    planned = []
    for name, variable in variables.items():
        check_name(name, format)
        with naming(name, variable):
            planned.append(_plan_array(variable, name, node, format, growing))
    return planned


def stored_name(name: Any) -> str:
    """The name that a variable has in a store."""
    return UNNAMED if name is None else str(name)


_ADVICE = (  # Signs in messages of numpy and xarray, and what to do.
    ("time units", "accepted: units such as 'days since 2000-01-01'"),
    ("unable to infer dtype", "convert it with .astype(), for instance to str or float"),
)
_OF_PANDAS = (
    "of pandas' own types only nullable numbers and truth values are stored, such as Int64: convert the "
    "variable, with .astype(float) to numbers among which NaN marks what is absent, or with .astype(str)"
)


@contextmanager
def naming(name: Hashable, variable: Variable) -> Iterator[None]:
    """Context manager that adds a note with the variable to errors."""
    try:
        yield
    except (*FOREIGN_ERRORS, NotImplementedError) as error:
        told = _in_context(error, name, variable)
        told.add_note(f"raised for variable {name!r} of dtype {variable.dtype}")
        if told is error:
            raise
        raise told from error


def _in_context(error: Exception, name: Hashable, variable: Variable) -> Exception:
    """An error of numpy or xarray as one of this package, with the variable and what to do."""
    if isinstance(error, (Xzarr3Error, NotImplementedError)):
        return error
    advice = next((advice for sign, advice in _ADVICE if sign in str(error)), "")
    if not isinstance(variable.dtype, np.dtype):
        advice = _OF_PANDAS
    if not advice:
        advice = "correct its values or its encoding"
        advice += f", which is {shorten(variable.encoding)}" if variable.encoding else ""
    kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
    return kind(f"{error}; variable {name!r} cannot be encoded; {advice}")


def check_name(name: Any, format: Format) -> None:
    if name is None:
        return
    if not isinstance(name, str):
        raise ArgumentTypeError(f"invalid name {name!r} of a variable; accepted: a string or None")
    if not name.strip(".") or {"/", "\\", "\0"} & set(name):
        raise ArgumentError(
            f"invalid name {name!r} of a variable; accepted: text that is not empty, has no '/' and no "
            "'\\' and is not only periods; rename the variable with .rename()"
        )
    check_reserved(name)
    # The format reserves names that begin with "__", but xarray uses some.
    try:
        format.check_name(name.lstrip("_") or "_", name)
    except InvalidKeyError as error:
        raise ArgumentError(
            f"invalid name {name!r} of a variable: {error}; rename the variable with .rename()"
        ) from error


def check_reserved(name: str) -> None:
    for prefix in _RESERVED:
        if name.startswith(prefix):
            raise ArgumentError(
                f"invalid name {name!r} of a variable or group: names that begin with {prefix!r} are "
                "reserved; give it another name, for instance with .rename()"
            )


def _plan_array(
    variable: Variable, key: Hashable, group: DatasetNode, format: Format, growing: Collection[Hashable]
) -> WrittenArray:
    name = stored_name(key)
    node, explicit = node_prefix(group.path) + name, key in group.asked.encoding
    _check_dimensions(variable, name)
    variable = with_plain_labels(variable, name)
    if not explicit and _reads_no_marked_bytes(format):
        variable = _without_marked_bytes(variable)
    said = "_FillValue" in variable.encoding or "_FillValue" in variable.attrs
    encoded = encode_values(variable, name, explicit=explicit)
    settings = array_settings(encoded, name, format, explicit=explicit)
    keep_empty = _keeps_empty(settings.pop("write_empty_chunks", None), group.asked, name, explicit)
    attributes, fill_value = _attributes(encoded, node, explicit, format, said=said)
    make = partial(
        array_metadata,
        shape=encoded.shape,
        dtype=_data_type(
            variable.dtype if is_nullable(variable.dtype) else encoded.dtype, name, node, format
        ),
        dimension_names=_dimension_names(encoded, format),
        attributes=attributes,
        format=format,
    )
    if follows_version_2(format):
        make = partial(_with_mask, make)
        if fill_value is not None:
            settings["fill_value"] = fill_value
    with located(path=node):
        metadata = made_with_settings(make, settings, encoded, format, explicit=explicit, growing=growing)
    data = encoded.data if is_lazy(encoded.data) else np.asarray(encoded.data)
    return WrittenArray(node, metadata, keep_empty, data)


def _reads_no_marked_bytes(format: Format) -> bool:
    """Whether xarray's own engine reads no ``_FillValue`` of bytes in a format."""
    return not (follows_version_2(format) or isinstance(format, DraftFormat))


def _without_marked_bytes(variable: Variable) -> Variable:
    """``variable`` without a ``_FillValue`` of bytes in its encoding; missing bytes are refused then."""
    if not isinstance(variable.encoding.get("_FillValue"), bytes):
        return variable
    encoding = {key: value for key, value in variable.encoding.items() if key != "_FillValue"}
    return Variable(variable.dims, variable._data, variable.attrs, encoding, fastpath=True)


def _check_dimensions(variable: Variable, name: str) -> None:
    for dim in variable.dims:
        if dim is not None and not isinstance(dim, str):
            raise ArgumentTypeError(
                f"invalid name {dim!r} of a dimension of variable {name!r}; accepted: a string"
            )
    if any(np.isnan(length) for lengths in variable.chunks or () for length in lengths):
        raise ArgumentError(
            f"the blocks of variable {name!r} have unknown lengths, {shorten(variable.chunks)}; call "
            f"ds[{name!r}].data.compute_chunk_sizes(), which finds them in place"
        )


def _keeps_empty(own: bool | None, asked: WriteOptions, name: str, explicit: bool) -> bool:
    """Whether to store empty chunks; the setting of the call overrides that of the variable."""
    everywhere = asked.write_empty_chunks
    setting = f"variable {name!r}: write_empty_chunks"
    check_switches([setting], **{setting: own})
    if explicit and None not in (own, everywhere) and own != everywhere:
        raise ArgumentError(
            f"write_empty_chunks={everywhere} contradicts encoding['write_empty_chunks']={own} of variable "
            f"{name!r}"
        )
    return bool(own if everywhere is None else everywhere)


def _data_type(dtype: np.dtype[Any], name: str, node: str, format: Format) -> ZDType:
    try:
        if is_nullable(dtype):
            stored_type(dtype).to_json(format.zarr_format)
            return stored_type(dtype)
        if dtype.kind == "T" or strings.check_vlen_dtype(dtype) is str:  # type: ignore[no-untyped-call]
            return VariableLengthUTF8()
        return parse_dtype(dtype, zarr_format=format.zarr_format)
    except MetadataError as error:
        raise DataTypeValidationError(
            f"values of dtype {dtype} cannot be stored",
            path=node,
            field="data_type",
            found=error.found,
            accepted=error.accepted,
            advice="pass zarr_format=3, whose data type 'optional' holds them, or convert the variable with "
            ".astype(float), to numbers among which NaN marks what is absent"
            if is_nullable(dtype)
            else f"leave the variable out with .drop_vars([{name!r}])",
        ) from error


def _dimension_names(variable: Variable, format: Format) -> list[str] | None:
    names = [str(dim) for dim in variable.dims]
    return names if names or follows_version_2(format) else None  # As xarray does for no dimensions.


def _with_mask(make: Callable[..., ArrayMetadata], **settings: Any) -> ArrayMetadata:
    """The metadata of an array whose fill value marks missing values; null if none is given."""
    return replace(make(**settings), fill_is_null="fill_value" not in settings)


def _attributes(
    variable: Variable, node: str, explicit: bool, format: Format, *, said: bool
) -> tuple[dict[str, Any], Any]:
    """The attributes of an array, and its ``_FillValue`` if that is stored as the fill value instead.

    ``said`` tells that the variable had a ``_FillValue`` before its values were encoded.
    """
    attributes = dict(variable.attrs)
    fill_value = attributes.pop("_FillValue", None)
    is_nan = isinstance(fill_value, (float, np.floating)) and bool(np.isnan(fill_value))
    attributes = finite_marks(attributes, node, quiet=said and is_nan)
    encoded: dict[str, Any] = encode_attributes(attributes, path=node)
    if fill_value is None or follows_version_2(format):
        return encoded, fill_value
    if isinstance(fill_value, str):
        # xarray's own engine cannot open text with a _FillValue in this format; it masks missing_value alike.
        return {**encoded, "missing_value": str(fill_value)}, None
    try:
        if variable.dtype.kind == "S" and _reads_no_marked_bytes(format):
            raise ArgumentError(f"xarray's own engine cannot read a _FillValue of dtype {variable.dtype}")
        encoded["_FillValue"] = encode_fill_value(fill_value, variable.dtype)
    except ValueError as error:
        if explicit:
            raise MetadataError(
                str(error), path=node, field="attributes._FillValue", found=fill_value
            ) from error
    return encoded, None


def encode_attributes(attributes: Mapping[Any, Any], *, path: str) -> dict[str, JSON]:
    """Attributes as JSON; NaN and infinities become text, with a warning.

    Parameters
    ----------
    attributes : mapping
        Attributes of a variable or a dataset.
    path : str
        Path of their node, for messages.

    Raises
    ------
    MetadataError
        If JSON cannot represent a value: bytes, dates, complex numbers, other objects.

    Examples
    --------
    >>> import numpy as np
    >>> encode_attributes({"valid_range": np.array([0, 1], "i2"), "scale": np.float32(0.5)}, path="tas")
    {'valid_range': [0, 1], 'scale': 0.5}
    """
    try:
        return documents.plain_attributes(finite_attributes(attributes, path), path)
    except MetadataError as error:
        name = (error.field or "").removeprefix("attributes").lstrip(".").partition(".")[0].partition("[")[0]
        error.advice = f"convert it, or remove it with .attrs.pop({name or error.found!r})"
        raise
