"""Translates xarray's encodings to Zarr: attributes to JSON, values by the CF conventions, array settings.

``Variable.encoding`` and ``Variable.attrs`` become arguments of :func:`xzarr3.create_array`. Both are
checked: JSON cannot represent every attribute, and a setting that the user asked for must not be ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from xarray import Variable, conventions
from xarray.backends.common import ensure_dtype_not_object
from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder
from xarray.coding import strings, variables
from xarray.coding.common import VariableCoder, pop_to

from xzarr3._types import JSON, AnyArray
from xzarr3.arrays import Array
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.codecs.parsing import parse_codec, parse_codecs
from xzarr3.codecs.transpose import TransposeCodec
from xzarr3.dtypes import VariableLengthUTF8, ZDType
from xzarr3.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataTypeValidationError,
    MetadataError,
    listed,
    one_of,
    shorten,
)
from xzarr3.formats import Format, nonfinite_attributes
from xzarr3.formats.fill_value_attribute import fill_value_is_mask
from xzarr3.formats.v2 import ARRAY
from xzarr3.names import hints
from xzarr3.nodes.auto_chunks import auto_chunks

_T = TypeVar("_T")
_NAT = np.iinfo(np.int64).min
_TEXT = np.dtypes.StringDType()
_OBJECT_CODECS = ("vlen-utf8", "vlen-bytes", "json2")

# The coders that xarray applies to values for Zarr, in this order. Booleans stay booleans.
_CODERS: tuple[VariableCoder, ...] = getattr(conventions, "ZARR_CODERS", None) or (
    CFDatetimeCoder(),
    CFTimedeltaCoder(),
    variables.CFScaleOffsetCoder(),
    variables.CFMaskCoder(),
    variables.NativeEnumCoder(),
    variables.NonStringCoder(),
    variables.DefaultFillvalueCoder(),
)

_STORAGE_KEYS = (
    "chunks", "shards", "compressors", "filters", "serializer", "fill_value", "chunk_key_encoding",
    "write_empty_chunks", "order",
)  # fmt: skip
_VALUE_KEYS = (
    "dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "units", "calendar",
)  # fmt: skip
ENCODING_KEYS = (*_STORAGE_KEYS, *_VALUE_KEYS)
_DTYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bool", "str", "complex64", "complex128",
)  # fmt: skip
_IGNORED_KEYS = frozenset(("source", "original_shape", "preferred_chunks"))
_JSON_ACCEPTED = (
    "text, numbers, booleans, None, lists, dictionaries with text keys, "
    "and numpy scalars and arrays of text, booleans or numbers"
)


def encode_attributes(attributes: Mapping[Any, Any], *, path: str) -> dict[str, JSON]:
    """Attributes as JSON.

    At any depth, numpy scalars and arrays become numbers and lists, and tuples become lists. NaN and
    infinities become the text "NaN", "Infinity" and "-Infinity", with a warning.

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
    encoded: dict[str, JSON] = {}
    for key, value in nonfinite_attributes.finite_attributes(attributes, path).items():
        try:
            encoded[_json_key(key)] = _json(value)
        except ValueError as error:
            raise MetadataError(
                f"attribute {key!r} cannot be stored: {error}",
                path=path,
                field=f"attributes.{key}",
                found=value,
                accepted=_JSON_ACCEPTED,
                advice=f"convert it, or remove it with .attrs.pop({key!r})",
            ) from error
    return encoded


def _json(value: Any) -> JSON:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _json_text(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, (np.integer, np.bool_)) and value.dtype.kind in "iub":
        plain: int = value.item()
        return plain
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUTO":
        return _json(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, Mapping):
        return {_json_key(key): _json(item) for key, item in value.items()}
    found = f"arrays of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ValueError(f"JSON has no {found}")


def _json_key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"JSON has no keys of type {type(key).__name__}")
    return _json_text(key)


def _json_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it is not valid Unicode") from error
    return str(text)


def _check_dtype(variable: Variable, name: str) -> None:
    """Refuse a data type in the encoding that numpy does not know."""
    asked = variable.encoding.get("dtype")
    try:
        np.dtype(asked)
    except TypeError as error:
        raise ArgumentTypeError(
            f"unknown dtype in the encoding of variable {name!r}: {shorten(asked)}; {one_of(asked, _DTYPES)}"
        ) from error


def encode_values(variable: Variable, name: str, *, explicit: bool = True, exact: bool = False) -> Variable:
    """Encode the values of a variable by the CF conventions, as xarray does for Zarr.

    Dates become numbers, packed variables integers, missing values ``_FillValue``. Dask arrays stay lazy.

    Parameters
    ----------
    variable : xarray.Variable
    name : str
    explicit : bool
        Whether its encoding was passed to ``to_zarr``. If not, a ``_FillValue`` that does not fit the data
        type is left out instead of refused.
    exact : bool
        Refuse fractions if unpacked integers are stored; otherwise fractions are rounded.

    Raises
    ------
    DataTypeValidationError
        If the integer type cannot represent all values; for a dask array when it is computed. If bytes end
        in a zero byte, which cannot be told from the padding to a fixed length.
    ValueError, TypeError, NotImplementedError
        From xarray, if it cannot encode the values.
    """
    conventions.ensure_not_multiindex(variable, name=name)
    _check_dtype(variable, name)
    if variable.dtype.kind == "T" and variable.dtype != _TEXT:
        variable = variable.astype(object)  # xarray handles missing text only among objects.
    becomes_text = variable.dtype.kind == "O" and getattr(variable.encoding.get("dtype"), "kind", "") == "T"
    if becomes_text and not {"_FillValue", "missing_value"} & set(variable.encoding):
        variable = _mapped(variable, _filled, object)
    encoded = unmasked = _with_fill_value(variable, name, explicit)
    with np.errstate(invalid="ignore", over="ignore"):  # Numbers outside the integer range are refused below.
        for coder in _CODERS:
            if isinstance(coder, variables.CFMaskCoder):
                unmasked = encoded
            encoded = coder.encode(encoded, name=name)
    encoded = _checked(encoded, unmasked, name, is_time=variable.dtype.kind in "mMO", exact=exact)
    for key in conventions.CF_RELATED_DATA:
        pop_to(encoded.encoding, encoded.attrs, key)
    encoded = ensure_dtype_not_object(encoded, name=name)
    if encoded.dtype.kind == "T":
        return encoded
    text_coder = strings.EncodedStringCoder(allows_unicode=True)  # type: ignore[no-untyped-call]
    fixed = strings.ensure_fixed_length_bytes(text_coder.encode(encoded, name=name))
    if encoded.dtype.kind == "O" and fixed.dtype.kind == "S":
        for value in np.asarray(encoded.data).flat:
            if value.endswith(b"\0"):
                raise DataTypeValidationError(
                    f"variable {name!r} has bytes that end in a zero byte, which would be lost",
                    found=value,
                    accepted="bytes of one length as numpy's void, or uint8 with one more dimension",
                )
    return fixed


def is_lazy(data: object) -> bool:
    """Whether values are in a dask array."""
    return hasattr(data, "__dask_graph__")


def _mapped(variable: Variable, change: Callable[..., AnyArray], dtype: Any, *others: Variable) -> Variable:
    """The variable with ``change`` applied to its values and those of ``others``; lazy if it is lazy."""
    data = variable.data
    if is_lazy(data):
        import dask.array as da

        meta = np.empty((0,) * variable.ndim, dtype)
        data = da.map_blocks(change, data, *(other.data for other in others), dtype=dtype, meta=meta)
    else:
        data = change(np.asarray(data), *(np.asarray(other.data) for other in others))
    return Variable(variable.dims, data, variable.attrs, variable.encoding, fastpath=True)


def _filled(values: AnyArray) -> AnyArray:
    """The values with missing text as empty text, as xarray stores it elsewhere."""
    return np.where(pd.isnull(values), "", values)


def _with_fill_value(variable: Variable, name: str, explicit: bool) -> Variable:
    """``variable``, after a check that its kind of numbers and its fill values fit the stored data type.

    A fill value that does not fit is refused if ``explicit``, else removed.
    """
    encoding = dict(variable.encoding)
    dtype = np.dtype(encoding.get("dtype", variable.dtype))
    if variable.dtype.kind == "c" and dtype.kind in "biuf":
        raise _other_kind(name, variable.dtype, dtype, "such as the .real and .imag parts")
    if dtype.kind not in "iu":
        return variable
    info = np.iinfo(dtype)
    signed, unsigned = np.iinfo(f"i{dtype.itemsize}"), np.iinfo(f"u{dtype.itemsize}")
    lowest, highest = int(info.min), int(info.max)
    if encoding.get("_Unsigned") is not None:
        lowest, highest = int(signed.min), int(unsigned.max)
    for key in ("_FillValue", "missing_value"):
        value = encoding.get(key)
        if not isinstance(value, (int, float, np.integer, np.floating)) or lowest <= value <= highest:
            continue
        if explicit and value == value:
            raise DataTypeValidationError(
                f"the {key} of variable {name!r} does not fit data type {dtype}",
                found=value.item() if isinstance(value, np.generic) else value,
                accepted=f"{lowest} to {highest}",
            )
        if not explicit:
            del encoding[key]
    if encoding.keys() == variable.encoding.keys():
        return variable
    return Variable(variable.dims, variable.data, variable.attrs, encoding, fastpath=True)


def _other_kind(name: str, found: np.dtype[Any], dtype: np.dtype[Any], fix: str) -> DataTypeValidationError:
    return DataTypeValidationError(
        f"values of variable {name!r} of dtype {found} cannot be stored as data type {dtype}",
        found=str(found),
        accepted=f"values of dtype {dtype}, {fix}",
    )


def _checked(
    encoded: Variable, unmasked: Variable, name: str, *, is_time: bool, exact: bool = False
) -> Variable:
    """``encoded``, checked now or when it is computed: no value is lost by the data type or ``_FillValue``.

    ``unmasked`` has the values before missing ones became ``_FillValue`` and all were cast to integers.
    """
    dtype, source = encoded.dtype, unmasked.dtype
    if exact and source.kind in "iuf" and dtype.kind == "b":
        raise _other_kind(name, source, dtype, "for instance by != 0")
    if dtype.kind == "f" and source.kind == "f" and dtype.itemsize < source.itemsize:
        return _mapped(encoded, partial(_finite, name), dtype, unmasked)
    # For encoded times in dask arrays, the announced data type may differ from the true one.
    lazy, attrs = is_lazy(encoded.data), encoded.attrs
    fill_value = attrs.get("_FillValue", attrs.get("missing_value"))
    sure = np.can_cast(source, dtype, "safe") and not (is_time and (lazy or fill_value is not None))
    if dtype.kind not in "iu" or source.kind not in "iuf" or sure:
        return encoded
    kind = {"true": "u", "false": "i"}.get(str(attrs.get("_Unsigned", "")).lower(), dtype.kind)
    info = np.iinfo(f"{kind}{dtype.itemsize}")
    if fill_value != fill_value:
        fill_value = None
    check = _Fits(
        name=name,
        dtype=dtype,
        lowest=int(info.min),
        highest=int(info.max),
        fill_value=None if fill_value is None else int(fill_value),
        scale=attrs.get("scale_factor"),
        offset=attrs.get("add_offset"),
        is_time=is_time,
        exact=exact,
    )
    return _mapped(encoded, check, dtype, unmasked)


def _finite(name: str, encoded: AnyArray, source: AnyArray) -> AnyArray:
    lost = np.isinf(encoded)
    if lost.any() and (lost := lost & np.isfinite(source)).any():
        info = np.finfo(encoded.dtype)
        raise DataTypeValidationError(
            f"value {source[lost][0]} of variable {name!r} does not fit data type {encoded.dtype}",
            found=source[lost][0].item(),
            accepted=f"{info.min} to {info.max}",
            advice="choose another dtype",
        )
    return encoded


@dataclass(frozen=True)
class _Fits:
    """The check that encoded values represent their source values, for one variable."""

    name: str
    dtype: np.dtype[Any]
    lowest: int
    highest: int
    fill_value: int | None
    scale: Any
    offset: Any
    is_time: bool
    exact: bool = False

    def __call__(self, encoded: AnyArray, source: AnyArray) -> AnyArray:
        """Check values; returns ``encoded`` in the stored integer type.

        Parameters
        ----------
        encoded, source : ndarray
            Values as they are stored, and as they were before rounding and before missing ones were replaced.
        """
        if encoded.size:
            self._check_range(source)
            self._check_missing(encoded, source)
            if self.exact and source.dtype.kind == "f" and not self.is_time and not self._is_packed:
                self._check_fractions(source)
        return encoded.astype(self.dtype, copy=False)

    def _check_range(self, source: AnyArray) -> None:
        if source.dtype.kind == "f":
            ends = [np.fmin.reduce(source, axis=None), np.fmax.reduce(source, axis=None)]
        elif self.is_time and source.dtype.kind == "i":
            times = source[source != _NAT]
            ends = [times.min(), times.max()] if times.size else []
        else:
            ends = [source.min(), source.max()]
        for value in ends:
            if value != value:
                continue
            if not np.isfinite(value) or not self.lowest <= int(np.rint(value)) <= self.highest:
                raise self._error(
                    f"value {self._shown(value)} does not fit data type {self.dtype}",
                    value,
                    f"{self._unpacked(self.lowest)} to {self._unpacked(self.highest)}, or another dtype"
                    + (", scale_factor or add_offset" if self._is_packed else ""),
                )

    def _check_missing(self, encoded: AnyArray, source: AnyArray) -> None:
        if source.dtype.kind == "f":
            missing = np.isnan(source)
        elif self.is_time:
            missing = source == _NAT
        else:
            return
        if self.fill_value is None:
            if missing.any() and not (self.is_time and self.dtype == np.int64):
                raise self._error(
                    f"a missing value cannot be stored as data type {self.dtype}",
                    source[missing][0],
                    "a _FillValue in the encoding, or a floating point dtype",
                )
        else:
            taken = (encoded == np.asarray(self.fill_value).astype(encoded.dtype)) & ~missing
            if not self._is_packed and not self.is_time:
                taken &= source != self.fill_value  # The user may have marked missing values with it.
            if taken.any():
                raise self._error(
                    f"value {self._shown(source[taken][0])} would be stored as the _FillValue "
                    f"{self.fill_value} and read as missing",
                    source[taken][0],
                    "a _FillValue that no value is stored as",
                )

    def _check_fractions(self, source: AnyArray) -> None:
        fractions = np.isfinite(source) & (source != np.rint(source))
        if fractions.any():
            value = source[fractions][0]
            raise self._error(f"value {value} does not fit data type {self.dtype}", value, "integers")

    @property
    def _is_packed(self) -> bool:
        return self.scale is not None or self.offset is not None

    def _unpacked(self, value: Any) -> Any:
        unpacked = value * (1 if self.scale is None else self.scale)
        return unpacked + (0 if self.offset is None else self.offset)

    def _shown(self, value: Any) -> str:
        return f"{self._unpacked(value)}" + (f" (packed {value})" if self._is_packed else "")

    def _error(self, reason: str, found: Any, accepted: str) -> DataTypeValidationError:
        return DataTypeValidationError(
            f"{reason}, which the encoding of variable {self.name!r} asks for",
            found=found.item() if isinstance(found, np.generic) else found,
            accepted=accepted,
            # If exact, the encoding is that of the store, so .drop_encoding() would not help.
            advice=None
            if self.exact
            else "call .drop_encoding() to ignore the encoding of the file it was read from",
        )


def stored_dtype(dtype: np.dtype[Any], format: Format) -> np.dtype[Any] | ZDType:
    """The data type to pass to :func:`xzarr3.create_array` for encoded values of ``dtype``."""
    if dtype.kind == "T" or strings.check_vlen_dtype(dtype) is str:  # type: ignore[no-untyped-call]
        return VariableLengthUTF8()
    if dtype.type is np.void and dtype.fields is None:
        return format.opaque_type.from_native_dtype(dtype)
    return dtype


def array_settings(
    variable: Variable, name: str, format: Format, *, explicit: bool, growing: Collection[Hashable] = ()
) -> dict[str, Any]:
    """Arguments for :func:`xzarr3.create_array` from the encoding of a variable.

    Parameters
    ----------
    variable : xarray.Variable
        With encoded values; the settings are in its ``encoding``.
    name : str
        Its name, for messages.
    format : Format
        The format to store it in.
    explicit : bool
        Whether the encoding was passed to ``to_zarr``. If so, settings that do not fit are refused. If not,
        the variable kept them from the file that it was read from, and those that do not fit are left out.
    growing : collection of str
        Dimensions along which appends are expected; default chunks leave room along them.

    Returns
    -------
    dict
        Some of ``chunks``, ``shards``, ``compressors``, ``filters``, ``serializer``, ``fill_value``,
        ``chunk_key_encoding``, ``order`` and ``write_empty_chunks``.

    Raises
    ------
    ValueError
        If an explicit encoding has unknown keys, or values that do not fit.
    TypeError
        If chunks or shards are not integers.
    """
    encoding = {key: value for key, value in variable.encoding.items() if key not in _IGNORED_KEYS}
    if encoding.get("_FillValue", ...) is None:
        del encoding["_FillValue"]
    if format.configures_as_numcodecs and "compressor" in encoding:
        if explicit and "compressors" in encoding:
            raise ArgumentError(
                f"encoding of variable {name!r} has 'compressor' and 'compressors'; give one of them"
            )
        encoding.setdefault("compressors", encoding.pop("compressor"))
    known = [key for key in _STORAGE_KEYS if not (format.fill_value_is_mask and key == "fill_value")]
    unknown = [key for key in encoding if key not in known]
    if unknown and explicit:
        hint = hints(unknown)
        if "fill_value" in unknown:
            hint += "; in format 2 the fill value is the '_FillValue'"
        unused = [key for key in unknown if key in _VALUE_KEYS]
        if unused:
            hint += f"; {listed(unused)} cannot be applied to values of dtype {variable.dtype}"
        raise ArgumentError(
            f"unexpected encoding parameters for variable {name!r}: {unknown!r}{hint}; "
            f"{one_of(unknown[0], (*known, *_VALUE_KEYS))}"
        )
    settings = {key: encoding[key] for key in known if key in encoding}
    # Kept from an array of version 3; version 2 has no such settings.
    if format.configures_as_numcodecs and not explicit:
        for key in ("shards", "serializer"):
            settings.pop(key, None)
    settings.update(_grid(variable, settings, name, explicit, growing))
    if format.configures_as_numcodecs or not explicit:
        settings.update(_pipeline(settings, format))
    if not explicit and "serializer" in settings and _is_usual(settings["serializer"]):
        del settings["serializer"]
    if settings.get("fill_value") is None or not (explicit or _holds(variable.dtype, settings["fill_value"])):
        settings.pop("fill_value", None)
        settings.update(_usual_fill_value(variable.dtype, format))
    for key in ("write_empty_chunks", "order"):
        if settings.get(key, ...) is None:
            del settings[key]
    return settings


def _usual_fill_value(dtype: np.dtype[Any], format: Format) -> dict[str, Any]:
    """The default fill value of a data type, if it is not the one of :func:`xzarr3.create_array`: NaN."""
    return {"fill_value": np.nan} if dtype.kind == "f" and not fill_value_is_mask(format) else {}


def kept_codecs(array: Array) -> dict[str, Any]:
    """The codecs of an opened array, in the form in which variables keep them in their ``encoding``.

    Parameters
    ----------
    array : Array

    Returns
    -------
    dict
        ``compressors`` and ``filters``, tuples of JSON objects. In version 2 these are the configurations
        in the document, without the codec of strings and objects, which follows from the data type.
    """
    meta = array.metadata
    if not array.format.configures_as_numcodecs:
        return {
            "compressors": tuple([codec.to_json() for codec in array.compressors]),
            "filters": tuple([codec.to_json() for codec in array.filters]),
        }
    words: Mapping[str, Any]
    if all(isinstance(codec, _WITHOUT_FILTERS) for codec in meta.codecs):
        encoded = _configurations(meta.codecs, meta.data_type)
        usual = {"compressor": encoded[-1] if encoded else None, "filters": encoded[:-1]}
        words = {**usual, **getattr(meta.ignored, "spelled", {})}  # The document's own spelling comes first.
    else:
        words = array.format.hold(meta, array.path)[ARRAY]
    compressor, filters = words["compressor"], words["filters"] or ()
    return {
        "compressors": () if compressor is None else (KeptCodec(compressor),),
        "filters": tuple([KeptCodec(config) for config in filters if config["id"] not in _OBJECT_CODECS]),
    }


class KeptCodec(dict[str, Any]):
    """The configuration of a version 2 codec in the encoding of a variable.

    xarray's own engine accepts it, too. In format 2 that needs objects that can encode, so this class can. In
    format 3 that asks for a ``name``, which version 2 codecs lack, so this class raises a TypeError.

    Parameters
    ----------
    configuration : mapping
        The configuration in a document of version 2.
    """

    codec_id = ""  # zarr-python looks for this attribute in the class.

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        super().__init__(deepcopy(dict(configuration)))
        self.codec_id = str(configuration["id"])

    def __reduce__(self) -> Any:
        return KeptCodec, (dict(self),)

    def __missing__(self, key: str) -> Any:
        if key != "name":
            raise KeyError(key)
        raise TypeError(
            f"the encoding holds {dict(self)}, a codec of Zarr format 2, which xarray's own engine cannot "
            "write in format 3; use zarr_format=2, call .drop_encoding() first, or use xzarr3.to_zarr()"
        )

    def _codec(self) -> Any:
        import numcodecs

        return numcodecs.get_codec(dict(self))

    def encode(self, buf: Any) -> Any:
        """Encode a buffer with the numcodecs codec."""
        return self._codec().encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a buffer with the numcodecs codec."""
        return self._codec().decode(buf, out)

    def get_config(self) -> dict[str, Any]:
        """The complete configuration from numcodecs, including defaults that the document leaves out."""
        return dict(self._codec().get_config())

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> KeptCodec:
        """The codec with a configuration; numcodecs calls this."""
        return cls(config)


_WITHOUT_FILTERS = (ArrayBytesCodec, BytesBytesCodec, TransposeCodec)


@lru_cache(maxsize=128)
def _configurations(codecs: tuple[Codec, ...], data_type: ZDType) -> list[dict[str, JSON]]:
    """The numcodecs configurations of the bytes-to-bytes codecs."""
    from xzarr3.codecs.numcodecs import to_numcodecs

    spec = ChunkSpec((), data_type, data_type.default_scalar())
    return [to_numcodecs(codec, spec) for codec in codecs if isinstance(codec, BytesBytesCodec)]


def _pipeline(settings: Mapping[str, Any], format: Format) -> dict[str, Any]:
    """Filters and compressors, sorted by kind of codec.

    In version 2, filters may also contain bytes-to-bytes codecs, which are moved to the compressors, and the
    codec that turns strings into bytes, which is left out.
    """
    filters, compressors = settings.get("filters", "auto"), settings.get("compressors", "auto")
    if is_auto(filters):
        return {}
    try:
        codecs = parse_codecs(filters, Codec)
        if all(isinstance(codec, ArrayArrayCodec) for codec in codecs):
            return {}
        others = parse_codecs(
            format.default_compressor if is_auto(compressors) else compressors, BytesBytesCodec
        )
    except MetadataError:
        return {}  # Creating the array raises the error, or leaves them out.
    in_bytes = [codec for codec in codecs if isinstance(codec, BytesBytesCodec)]
    return {
        "filters": [codec for codec in codecs if isinstance(codec, ArrayArrayCodec)],
        "compressors": [*in_bytes, *others],
    }


def is_auto(value: object) -> bool:
    """Whether a setting is ``"auto"``."""
    return isinstance(value, str) and value == "auto"


def make_from_kept(
    make: Callable[..., _T], settings: Mapping[str, Any], dtype: np.dtype[Any], format: Format
) -> _T:
    """Call ``make`` with the settings that a variable kept, without those that no longer fit.

    Parameters
    ----------
    make : callable
        Takes settings as keywords and raises an error if they do not fit.
    settings : mapping
    dtype : numpy.dtype
        Data type of the encoded values.
    format : Format
        The format to store them in.

    Raises
    ------
    ValueError, TypeError
        The first error of ``make``, if it fails even without settings.
    """
    first: Exception | None = None
    for left in _fewer(settings):
        try:
            return make(**{**_usual_fill_value(dtype, format), **left})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            first = first or error
    raise first or ValueError("there is nothing to try")


def _fewer(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Selections of settings to try: all, all but one, all but the codecs, none."""
    yield dict(settings)
    for without in (*((key,) for key in settings), ("filters", "serializer", "compressors"), tuple(settings)):
        yield {key: value for key, value in settings.items() if key not in without}


def _grid(
    variable: Variable,
    settings: Mapping[str, Any],
    name: str,
    explicit: bool,
    growing: Collection[Hashable],
) -> dict[str, Any]:
    """The shapes of chunks and shards: from the settings, else from the dask array, else automatic."""
    given: dict[str, tuple[Any, ...] | None] = {}
    for key in ("chunks", "shards"):
        try:
            given[key] = _lengths(settings.get(key), key, variable.ndim, name)
        except TypeError:
            if explicit:
                raise
            given[key] = None
    for key, lengths in given.items():
        if lengths is None or len(lengths) == variable.ndim:
            continue
        if explicit:
            raise ArgumentError(
                f"encoding[{key!r}] of variable {name!r} has {len(lengths)} lengths, "
                f"the variable {variable.ndim} dimensions {variable.dims}: {lengths}; give one for each"
            )
        given[key] = None
    chunks, shards = given["chunks"], given["shards"]
    if not explicit:
        # Chunks of several lengths are an extension that not all readers support, so only if asked for.
        if chunks is not None and not all(isinstance(lengths, int) for lengths in chunks):
            chunks = None
        if shards is not None and not (chunks and _divides(chunks, shards)):
            shards = None
    if chunks is None and variable.chunks is not None:
        blocks = tuple(max(1, *sizes) for sizes in variable.chunks)
        if shards is None or _divides(blocks, shards):
            chunks = blocks
    if given["chunks"] is None and shards is None and any(dim in growing for dim in variable.dims):
        chunks = _with_room(variable, chunks, growing)
    return {"chunks": "auto" if chunks is None else chunks, "shards": shards}


_ROOM = 2**20  # Bytes of a chunk that is lengthened along growing dimensions, and its most elements there.
_LONGEST_ROOM = 4096


def _with_room(
    variable: Variable, chunks: tuple[int, ...] | None, growing: Collection[Hashable]
) -> tuple[int, ...]:
    """Chunks that are lengthened along growing dimensions which they cover as a single chunk."""
    itemsize = variable.dtype.itemsize
    lengths = list(auto_chunks(variable.shape, itemsize) if chunks is None else chunks)
    for axis, dim in enumerate(variable.dims):
        if dim in growing and lengths[axis] >= variable.shape[axis]:
            others = math.prod(lengths) // lengths[axis] * itemsize
            lengths[axis] = max(lengths[axis], min(_LONGEST_ROOM, _ROOM // max(others, 1)))
    return tuple(lengths)


def _divides(chunks: tuple[Any, ...], shards: tuple[Any, ...]) -> bool:
    return all(
        isinstance(chunk, int) and isinstance(shard, int) and chunk > 0 and shard % chunk == 0
        for chunk, shard in zip(chunks, shards, strict=True)
    )


def _lengths(value: Any, key: str, ndim: int, name: str) -> tuple[Any, ...] | None:
    """The length of chunks or shards along each dimension; for chunks, it may be a tuple of lengths."""
    if value is None or is_auto(value):
        return None
    if isinstance(value, (int, np.integer)):
        value = (value,) * ndim
    integers = (int, np.integer)
    if isinstance(value, (list, tuple)) and all(isinstance(item, integers) for item in value):
        return tuple(int(item) for item in value)
    nested = (list, tuple) if key == "chunks" else ()
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(item, integers)
        or (isinstance(item, nested) and all(isinstance(length, integers) for length in item))
        for item in value
    ):
        raise ArgumentTypeError(
            f"encoding[{key!r}] of variable {name!r} must be an integer, a tuple of integers"
            + (" and of tuples of them" if nested else "")
            + f", 'auto' or None; found {value!r}"
        )
    return tuple(
        int(item) if isinstance(item, integers) else tuple(int(length) for length in item) for item in value
    )


def _is_usual(serializer: Any) -> bool:
    """Whether the serializer is the default one: ``bytes``, not big-endian."""
    try:
        codec = parse_codec(serializer)
    except MetadataError:
        return False
    return codec.name == "bytes" and codec.configuration().get("endian") != "big"


def _holds(dtype: np.dtype[Any], fill_value: Any) -> bool:
    if dtype.kind not in "biufc":
        return True
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            value = np.asarray(fill_value)
            cast = value.astype(dtype)
            if dtype.kind in "fc":
                return bool(np.isfinite(cast) == np.isfinite(value))
    except (TypeError, ValueError, OverflowError):
        return False
    return bool(np.all(cast == fill_value))
