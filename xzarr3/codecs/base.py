"""The base classes of the three kinds of codecs, and the description of the chunks that they encode.

It knows no codec by name; the registry does.

Specification: Zarr v3 core, "Chunk encoding".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, Self, cast

import numpy as np

from xzarr3 import fields
from xzarr3._types import JSON, AnyArray, Buffer, Scalar
from xzarr3.dtypes import ZDType
from xzarr3.errors import (
    ChunkDecodeError,
    ChunkEncodeError,
    MetadataError,
    UnknownExtensionError,
    listed,
    shorten,
)

MAX_VARIABLE = 2**31 - 1
"""Largest encoded size, in bytes, of a chunk whose elements have no fixed size.

The shape of such a chunk sets no bound, and a few compressed bytes can decode to any number of bytes.
Blosc and LZ4 hold no more either.
"""


@dataclass(frozen=True)
class ChunkSpec:
    """Describes a chunk before or after a codec; the specification calls this the decoded representation.

    Parameters
    ----------
    shape : tuple of int
        Number of elements along each dimension.
    data_type : ZDType
        Type of the elements.
    fill_value : scalar
        Value of elements that were never written.

    Examples
    --------
    >>> import xzarr3
    >>> spec = xzarr3.codecs.ChunkSpec((4, 5), xzarr3.dtypes.Int16(), 0)
    >>> spec.dtype, spec.nbytes
    (dtype('int16'), 40)
    """

    shape: tuple[int, ...]
    data_type: ZDType
    fill_value: Scalar

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """The numpy dtype, in the byte order of this machine."""
        dtype: np.dtype[np.generic] = self.data_type.to_native_dtype()
        return dtype

    @cached_property
    def nbytes(self) -> int:
        """Size of the decoded chunk in bytes; for elements of no fixed size, that of the references alone."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def element_size(self) -> int:
        """Size of a stored element in bytes, for compressors that shuffle; 1 if it is not fixed."""
        return 1 if self.data_type.is_variable else self.dtype.itemsize


class Codec(ABC):
    """A codec with its configuration; immutable, compared by its name and configuration.

    A codec that is a frozen dataclass needs neither :meth:`from_configuration` nor :meth:`configuration`: its
    fields are the fields of the configuration, and their annotations say what a field accepts.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from typing import Annotated
    >>> from msgspec import Meta
    >>> @dataclass(frozen=True)
    ... class XorCodec(BytesBytesCodec):
    ...     name = "example.xor"
    ...     key: Annotated[int, Meta(ge=0, le=255)] = 1
    ...     def encode(self, data):
    ...         return bytes(octet ^ self.key for octet in bytes(data))
    ...     def decode(self, data, limit):
    ...         return self.encode(data)
    >>> XorCodec.from_configuration({"key": 7})
    XorCodec(key=7)
    """

    name: ClassVar[str]
    takes_optional: ClassVar[bool] = False
    """Whether the codec encodes elements of data type ``optional``."""
    _null_is_absence: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for method in ("__eq__", "__hash__"):  # dataclass() keeps these: 1, 1.0 and True differ here
            if method not in cls.__dict__:
                setattr(cls, method, getattr(Codec, method))

    def __post_init__(self) -> None:
        """Check the fields; called by the constructor of a dataclass."""
        fields.check(self, f"codec '{self.name}'")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._said == other._said

    def __hash__(self) -> int:
        return hash(self._said)

    @cached_property
    def _said(self) -> str:
        """Text that identifies the codec."""
        return repr((self.name, self.configuration()))

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        """Make the codec that a metadata document describes.

        Raises
        ------
        MetadataError
            If a field is missing, unknown or has a wrong value.
        """
        return cls(**fields.read(cls, configuration, f"codec '{cls.name}'", null=cls._null_is_absence))

    def configuration(self) -> dict[str, JSON]:
        """The configuration as a metadata document holds it; empty if the codec has no parameters."""
        values = [(field.name, getattr(self, field.name)) for field in fields.fields_of(type(self))]
        return {name: _as_json(value) for name, value in values if value is not None}

    def to_json(self) -> JSON:
        """The codec as a metadata document holds it."""
        configuration = self.configuration()
        return {"name": self.name, "configuration": configuration} if configuration else {"name": self.name}

    def evolve(self, spec: ChunkSpec) -> Self:
        """This codec with parameters that were left open filled in from the chunks it will encode."""
        return self

    def wrong(
        self, field: str, found: object, accepted: str | Collection[str], reason: str = "not a valid value"
    ) -> MetadataError:
        """The error for a parameter with a wrong value, or one that does not fit the chunks."""
        return fields.wrong(f"codec '{self.name}'", f"configuration.{field}", found, accepted, reason)

    def require_data_type(self, spec: ChunkSpec, names: Collection[str], accepted: str = "") -> None:
        """Refuse chunks whose data type is none of ``names``.

        Raises
        ------
        MetadataError
            It lists the names, or says what ``accepted`` says.
        """
        if spec.data_type.name not in names:
            raise self.refuses_data_type(spec, accepted or f"data types {listed(names)}")

    def optional_module(self, package: str, module: str) -> Any:
        """A module of an optional package, imported when the codec is checked or used.

        Raises
        ------
        UnknownExtensionError
            If it is not installed.
        """
        try:
            return import_module(module)
        except ImportError as error:
            raise UnknownExtensionError(
                f"codec '{self.name}' needs the package '{package}'",
                found=self.name,
                advice="install it with pip install 'xzarr3[codecs]'",
            ) from error

    def refuses_data_type(self, spec: ChunkSpec, accepted: str) -> MetadataError:
        """The error for a data type that the codec cannot encode."""
        return MetadataError(
            f"codec '{self.name}' cannot encode data type '{spec.data_type.name}'",
            found=spec.data_type.name,
            accepted=accepted,
        )


class NumcodecsCodec(Codec):
    """A codec of numcodecs; its parameters have the same names as in numcodecs."""

    _null_is_absence = True

    def to_json(self) -> JSON:
        # zarr-python requires a configuration even if it is empty.
        return {"name": self.name, "configuration": self.configuration()}


class ArrayArrayCodec(Codec):
    """A codec from arrays to arrays.

    Examples
    --------
    >>> import xzarr3
    >>> isinstance(xzarr3.codecs.TransposeCodec((1, 0)), xzarr3.codecs.ArrayArrayCodec)
    True
    """

    @abstractmethod
    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        """The description of the encoded chunk.

        Raises
        ------
        MetadataError
            If the codec cannot encode chunks that ``spec`` describes.
        """

    @abstractmethod
    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        """Encode a chunk that ``spec`` describes."""

    @abstractmethod
    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        """Decode to a chunk that ``spec`` describes."""

    def encoded_fill_value(self, spec: ChunkSpec) -> Scalar:
        """The fill value of encoded chunks, of a codec that encodes each element independently.

        A shard after the codec needs it for missing inner chunks.

        Raises
        ------
        MetadataError
            If the codec cannot encode the fill value.
        """
        fill = spec.data_type.filled((), spec.fill_value)
        try:
            return cast("Scalar", np.asarray(self.encode(fill, replace(spec, shape=())))[()])
        except ChunkEncodeError as error:
            raise MetadataError(
                f"codec '{self.name}' cannot encode the fill value: {error.reason}",
                found=shorten(spec.fill_value),
                advice="choose another fill value",
            ) from error


class ArrayBytesCodec(Codec):
    """A codec from arrays to bytes.

    Examples
    --------
    >>> import xzarr3
    >>> isinstance(xzarr3.codecs.BytesCodec(), xzarr3.codecs.ArrayBytesCodec)
    True
    """

    def check(self, spec: ChunkSpec) -> None:
        """Refuse chunks that the codec cannot encode.

        Raises
        ------
        MetadataError
        """

    def encoded_size(self, spec: ChunkSpec) -> int | None:
        """Size of every encoded chunk in bytes; None if the size varies."""
        return None

    @abstractmethod
    def max_encoded_size(self, spec: ChunkSpec) -> int:
        """Upper bound in bytes of the size of an encoded chunk."""

    @abstractmethod
    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        """Encode a chunk that ``spec`` describes."""

    @abstractmethod
    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        """Decode to a chunk that ``spec`` describes; the result may share memory with ``data``."""


class BytesBytesCodec(Codec):
    """A codec from bytes to bytes.

    Examples
    --------
    >>> import xzarr3
    >>> codec = xzarr3.codecs.ZstdCodec()
    >>> isinstance(codec, xzarr3.codecs.BytesBytesCodec), bytes(codec.decode(codec.encode(b'abc'), limit=3))
    (True, b'abc')
    """

    decode_rate: ClassVar[int] = 500
    """About how many bytes are decoded in a microsecond; used to decide whether threads pay."""

    direct_from: ClassVar[int | None] = None
    """Decoded size in bytes from which :meth:`decode_into` is faster; None if it never is."""

    direct_many: ClassVar[bool] = True
    """Whether :meth:`decode_into` also pays when many chunks are read; if not, only for a single chunk."""

    def encoded_size(self, size: int) -> int | None:
        """Encoded size of any ``size`` bytes; None if it depends on their content."""
        return None

    def max_encoded_size(self, size: int) -> int:
        """Upper bound of the encoded size of ``size`` bytes; the default is that of a compressor."""
        exact = self.encoded_size(size)
        return size + size // 8 + 1024 if exact is None else exact

    def of_arrays(self, endian: str | None = None) -> Codec:
        """The codec for a place where it gets arrays; itself if it always gets bytes."""
        return self

    @abstractmethod
    def encode(self, data: Buffer) -> Buffer:
        """Encode bytes."""

    @abstractmethod
    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Decode bytes to at most ``limit`` bytes.

        Raises
        ------
        ChunkDecodeError
            If the bytes are corrupt, truncated or decode to more than ``limit`` bytes.
        """

    def decode_into(self, data: Buffer, out: memoryview) -> bool:
        """Decode directly into ``out`` if possible; ``out`` has exactly the expected size.

        Returns
        -------
        bool
            Whether ``out`` now holds the result. If False, the content of ``out`` is undefined.
        """
        return False

    def too_large(self, limit: int, claimed: int | None = None) -> ChunkDecodeError:
        """The error for bytes that decode to more than ``limit`` bytes."""
        size = f"{claimed} bytes" if claimed is not None else "more"
        return ChunkDecodeError(f"decodes to {size}; at most {limit} bytes expected", codec=self.name)


_PLAIN = frozenset((int, bool, str, float))


def _as_json(value: Any) -> JSON:
    """A value of a field as JSON: codecs and data types within it, and tuples as lists."""
    if type(value) in _PLAIN:  # A look at a class is slow, and opening a dataset asks for each variable.
        return value  # type: ignore[no-any-return]
    if isinstance(value, (tuple, list)):
        return [_as_json(each) for each in value]
    if isinstance(value, Codec):
        return value.to_json()
    return value.to_json(3) if isinstance(value, ZDType) else value  # type: ignore[no-any-return]
