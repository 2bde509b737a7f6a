"""The codecs of numcodecs for text and objects, which version 2 of the format uses.

``json2`` stores elements that are any JSON values. A chunk is a JSON array of the elements, then numpy's
name for the dtype, then the shape. The elements are nested as deep as the chunk has dimensions.

``categorize`` stores strings from a list of labels as small integers. The integer is the position of the
label, counted from 1; 0 is the empty string. numcodecs also stores strings without a label as 0 and so loses
them. This package refuses such strings.

``base64`` stores bytes as text in base64.

Specification: the documentation of numcodecs, "JSON", "Categorize", "Base64"; RFC 4648, section 4.
Names: ``numcodecs.json2``, in version 2 ``json2``; ``categorize`` and ``base64``, in version 2 alone.
Example: ``{"id": "categorize", "labels": ["land", "sea"], "dtype": "<U4", "astype": "|u1"}``.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import (
    MAX_VARIABLE,
    ArrayBytesCodec,
    BytesBytesCodec,
    ChunkSpec,
    Configuration,
    parameter,
)
from xzarr3.codecs.numcodecs.base import NumcodecsCodec
from xzarr3.codecs.numcodecs.filters import TypedFilter
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, listed

_ENCODINGS = ("utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1", "utf-16", "utf-32")
_SEPARATORS = "a comma and a colon, each with spaces around it"
_COMMA, _COLON = re.compile(r"\s{0,8},\s{0,8}"), re.compile(r"\s{0,8}:\s{0,8}")
_LABELS = "an array of strings"
_OBJECTS = "|O"


@dataclass(frozen=True)
class Json2Codec(NumcodecsCodec, ArrayBytesCodec):
    """Elements as JSON; the parameters are those of ``numcodecs.JSON`` and of Python's ``json`` module.

    Parameters
    ----------
    encoding : str
        Encoding of the text.
    skipkeys, ensure_ascii, check_circular, allow_nan, sort_keys : bool
    indent : int, optional
    separators : tuple of str
        Between elements, and between keys and values.
    strict : bool
        Whether control characters in strings are refused.
    """

    name = "numcodecs.json2"
    encoding: str = parameter(Configuration.take, listed(_ENCODINGS), default="utf-8")
    skipkeys: bool = parameter(Configuration.boolean, default=False)
    ensure_ascii: bool = parameter(Configuration.boolean, default=True)
    check_circular: bool = parameter(Configuration.boolean, default=True)
    allow_nan: bool = parameter(Configuration.boolean, default=True)
    indent: int | None = parameter(Configuration.integer, 0, 64, default=None, null=True)
    separators: tuple[str, str] = parameter(Configuration.take, _SEPARATORS, default=(",", ":"), null=True)
    sort_keys: bool = parameter(Configuration.boolean, default=True)
    strict: bool = parameter(Configuration.boolean, default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        fields, separators = Configuration(self.name, {}), self.separators
        if not isinstance(self.encoding, str) or self.encoding.lower() not in _ENCODINGS:
            raise fields.error("encoding", self.encoding, listed(_ENCODINGS))
        if (
            not isinstance(separators, tuple)
            or len(separators) != 2
            or not all(isinstance(each, str) for each in separators)
            or not (_COMMA.fullmatch(separators[0]) and _COLON.fullmatch(separators[1]))
        ):
            raise fields.error("separators", separators, _SEPARATORS)

    @classmethod
    def _read(cls, given: Configuration) -> dict[str, Any]:
        values = super()._read(given)
        # With an indent, the default separators have spaces, as in numcodecs.
        default = {} if values.get("indent") is None else {"separators": (", ", ": ")}
        return default | values

    def configuration(self) -> dict[str, JSON]:
        given = super().configuration()
        return {name: given.get(name) for name, _ in self._parameters()}

    def check(self, spec: ChunkSpec) -> None:
        if spec.data_type.name not in ("json2", "string"):
            raise MetadataError(
                f"codec '{self.name}' cannot hold data type '{spec.data_type.name}'",
                found=self.name,
                accepted="data type 'json2' or 'string'",
            )

    def encoded_size(self, spec: ChunkSpec) -> None:
        return None

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return MAX_VARIABLE

    @cached_property
    def _encoder(self) -> json.JSONEncoder:
        return json.JSONEncoder(
            skipkeys=self.skipkeys,
            ensure_ascii=self.ensure_ascii,
            check_circular=self.check_circular,
            allow_nan=self.allow_nan,
            indent=self.indent,
            separators=self.separators,
            sort_keys=self.sort_keys,
        )

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        objects = array.astype(object, copy=False)
        try:
            text = self._encoder.encode([*np.atleast_1d(objects).tolist(), "|O", list(array.shape)])
            data = text.encode(self.encoding)
        except (TypeError, ValueError, RecursionError) as error:
            raise ChunkEncodeError(f"an element is not JSON: {error}", codec=self.name) from error
        if len(data) > MAX_VARIABLE:
            raise ChunkEncodeError(
                f"the chunk takes {len(data)} bytes; at most {MAX_VARIABLE} are possible", codec=self.name
            )
        return data

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        try:
            items = json.loads(str(data, self.encoding), strict=self.strict)
        except (ValueError, RecursionError) as error:
            raise ChunkDecodeError(f"not valid JSON: {error}", codec=self.name) from error
        if not isinstance(items, list) or len(items) < 2 or not isinstance(items[-2], str):
            raise ChunkDecodeError(
                "expected an array of the elements, the dtype and the shape", codec=self.name
            )
        shape = items[-1]
        if not isinstance(shape, list) or shape != list(spec.shape):
            raise ChunkDecodeError(f"found elements of shape {shape}, expected {spec.shape}", codec=self.name)
        level = items[:-2]
        lengths = list(spec.shape) or [1]
        for deeper in range(len(lengths)):
            if deeper:
                if not all(isinstance(item, list) for item in level):
                    raise self._uneven(spec)
                level = [inner for outer in level for inner in outer]
            if len(level) != math.prod(lengths[: deeper + 1]):
                raise self._uneven(spec)
        if spec.dtype.kind != "O" and not all(isinstance(item, str) for item in level):
            raise ChunkDecodeError("an element is not a string", codec=self.name)
        array = np.fromiter(level, dtype=object, count=len(level)).reshape(spec.shape)
        try:
            return array.astype(spec.dtype, copy=False)
        except (TypeError, ValueError) as error:  # strings with half of a surrogate pair
            raise ChunkDecodeError(f"an element is not valid: {error}", codec=self.name) from error

    def _uneven(self, spec: ChunkSpec) -> ChunkDecodeError:
        return ChunkDecodeError(f"the elements are not of shape {spec.shape}", codec=self.name)


@dataclass(frozen=True)
class CategorizeCodec(TypedFilter):
    """Stores strings as the positions of their labels.

    Parameters
    ----------
    dtype : str
        numpy's name for the dtype of the strings: ``|O`` for any length, or one such as ``<U4``.
    astype : str
        numpy's name for the dtype of the integers.
    labels : tuple of str
        If a label occurs twice, the last position is stored.

    Examples
    --------
    >>> import numpy as np
    >>> from xzarr3.codecs import ChunkSpec
    >>> from xzarr3.dtypes import parse_dtype
    >>> spec = ChunkSpec((3,), parse_dtype("<U4"), "")
    >>> CategorizeCodec("<U4", "|u1", ("land", "sea")).encode(np.array(["sea", "", "land"]), spec)
    array([2, 0, 1], dtype=uint8)
    """

    name = "numcodecs.categorize"
    only_in_version_2 = True
    _kinds: ClassVar[str] = "UO"
    dtype: str | None = None
    astype: str | None = "|u1"
    labels: tuple[str, ...] = parameter(Configuration.take, _LABELS, default=(), required=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.labels, tuple) or not all(isinstance(label, str) for label in self.labels):
            raise Configuration(self.name, {}).error("labels", self.labels, _LABELS)

    @classmethod
    def _read(cls, given: Configuration) -> dict[str, Any]:
        values = super()._read(given)
        if "dtype" not in values:
            given.take("dtype", "a dtype of text, as in '<U4', or '|O'")
        return values

    def _parsed(self, field: str, value: JSON) -> np.dtype[Any]:
        kinds, example = (self._kinds, "<U4") if field == self.decoded_field else ("iu", "|u1")
        return self._parsed_as(field, value, kinds, example)

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {label: code for code, label in enumerate(self.labels, start=1)} | {"": 0}

    @cached_property
    def _coder(self) -> Any:
        raise NotImplementedError("encodes and decodes itself")

    def _output(self, spec: ChunkSpec) -> np.dtype[Any]:
        wanted = _OBJECTS if spec.data_type.name == "string" else spec.dtype.newbyteorder("<").str
        if self._swapped or self.dtype is None or np.dtype(self.dtype) != np.dtype(wanted):
            raise Configuration(self.name, {}).error(
                "dtype", self.dtype, f"'{wanted}' in the byte order of the array",
                f"not the dtype of data type '{spec.data_type.name}'",
            )  # fmt: skip
        return self._encoded_dtype

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        if spec.data_type.name not in ("string", "fixed_length_utf32"):
            raise MetadataError(
                f"codec '{self.name}' cannot encode data type '{spec.data_type.name}'",
                found=self.name,
                accepted="data type 'string' or 'fixed_length_utf32'",
            )
        data_type = parse_dtype(self._output(spec))
        return replace(spec, data_type=data_type, fill_value=data_type.default_scalar())

    def _encoded(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        items = np.ascontiguousarray(array).reshape(-1).tolist()
        codes = self._codes
        try:
            places = [codes[item] for item in items]
            return np.array(places, self._encoded_dtype)
        except KeyError as error:
            raise ChunkEncodeError(
                f"{error.args[0]!r} is none of the {len(self.labels)} labels", codec=self.name
            ) from error
        except OverflowError as error:
            raise ChunkEncodeError(
                f"'{self.astype}' cannot hold the number of a label: {error}", codec=self.name
            ) from error

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        codes, places, number = np.unique(array, return_inverse=True, return_counts=True)
        if codes.size and not 0 <= codes[0] <= codes[-1] <= len(self.labels):
            raise ChunkDecodeError(
                f"found codes from {codes[0]} to {codes[-1]}, expected at most {len(self.labels)}",
                codec=self.name,
            )
        words = [self.labels[code - 1] if code else "" for code in codes.tolist()]
        lengths = [len(word) for word in words]
        if spec.data_type.is_variable:
            # A chunk may repeat a long label many times, so the total length needs a limit.
            total = sum(n * length for n, length in zip(number.tolist(), lengths, strict=True))
            if total > MAX_VARIABLE:
                raise ChunkDecodeError(
                    f"decodes to {total} characters; at most {MAX_VARIABLE} are possible", codec=self.name
                )
        elif max(lengths, default=0) > spec.dtype.itemsize // 4:
            raise ChunkDecodeError(
                f"found a label of {max(lengths)} characters, expected '{spec.dtype}'", codec=self.name
            )
        try:
            return np.array(words, spec.dtype)[places].reshape(spec.shape)
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise ChunkDecodeError(f"a label is not valid text: {error}", codec=self.name) from error


@dataclass(frozen=True)
class Base64Codec(NumcodecsCodec, BytesBytesCodec):
    """Stores bytes as base64: four characters for every three bytes.

    Examples
    --------
    >>> bytes(Base64Codec().encode(b"zarr"))
    b'emFycg=='
    """

    name = "numcodecs.base64"
    only_in_version_2 = True

    def encoded_size(self, size: int) -> int:
        return 4 * -(-size // 3)

    def max_encoded_size(self, size: int) -> int:
        return self.encoded_size(size)

    def encode(self, data: Buffer) -> Buffer:
        return binascii.b2a_base64(data, newline=False)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        if len(data) > self.encoded_size(limit):
            raise self.too_large(limit)
        try:
            value = binascii.a2b_base64(data, strict_mode=True)
        except binascii.Error as error:
            raise ChunkDecodeError(f"not valid base64: {error}", codec=self.name) from error
        if len(value) > limit:
            raise self.too_large(limit, len(value))
        return value
