"""The base classes of the three kinds of codecs, and the description of the chunks that they encode.

It also holds :class:`Configuration`, which reads and checks the configuration of a codec. It knows no codec
by name; the registry does.

Specification: Zarr v3 core, "Chunk encoding".
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer, Scalar
from xzarr3.dtypes import ZDType
from xzarr3.errors import ChunkDecodeError, MetadataError, UnknownExtensionError, did_you_mean, listed
from xzarr3.extensions import unknown_fields

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
    """A codec with its configuration; immutable, compared by value."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        """Make the codec that a metadata document describes.

        Raises
        ------
        MetadataError
            If a field is missing, unknown or has a wrong value.
        """

    def configuration(self) -> dict[str, JSON]:
        """The configuration as a metadata document holds it; empty if the codec has no parameters."""
        return {}

    def to_json(self) -> JSON:
        """The codec as a metadata document holds it."""
        configuration = self.configuration()
        return {"name": self.name, "configuration": configuration} if configuration else {"name": self.name}

    def evolve(self, spec: ChunkSpec) -> Self:
        """This codec with parameters that were left open filled in from the chunks it will encode."""
        return self


class ArrayArrayCodec(Codec):
    """A codec from arrays to arrays."""

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


class ArrayBytesCodec(Codec):
    """A codec from arrays to bytes."""

    def check(self, spec: ChunkSpec) -> None:
        """Refuse chunks that the codec cannot encode.

        Raises
        ------
        MetadataError
        """

    @abstractmethod
    def encoded_size(self, spec: ChunkSpec) -> int | None:
        """Size of every encoded chunk in bytes; None if the size varies."""

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
    """A codec from bytes to bytes."""

    decode_rate: ClassVar[int] = 500
    """About how many bytes are decoded in a microsecond; used to decide whether threads pay."""

    direct_from: ClassVar[int | None] = None
    """Decoded size in bytes from which :meth:`decode_into` is faster; None if it never is."""

    direct_many: ClassVar[bool] = True
    """Whether :meth:`decode_into` also pays when many chunks are read; if not, only for a single chunk."""

    @abstractmethod
    def encoded_size(self, size: int) -> int | None:
        """Encoded size of any ``size`` bytes; None if it depends on their content."""

    @abstractmethod
    def max_encoded_size(self, size: int) -> int:
        """Upper bound of the encoded size of ``size`` bytes."""

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

    def mismatch(self, stored: int, actual: int) -> ChunkDecodeError:
        """The error for data that have another checksum than the one stored with them."""
        kind = "CRC" if "crc" in self.name else "checksum"
        return ChunkDecodeError(
            f"{kind} mismatch: stored is {stored:#010x}, the data have {actual:#010x}", codec=self.name
        )


class Configuration:
    """Reads and checks the fields of a codec's configuration.

    Codecs of one's own use it, too: documents may come from anywhere, and a wrong field is a
    :class:`~xzarr3.errors.MetadataError` that names the codec, the field and what is accepted.

    Parameters
    ----------
    codec : str
        Name of the codec, for messages.
    fields : mapping
        The configuration from a metadata document.

    Examples
    --------
    >>> fields = Configuration("gzip", {"level": 5})
    >>> fields.integer("level", 0, 9)
    5
    >>> fields.finish()
    """

    def __init__(self, codec: str, fields: Mapping[str, JSON]) -> None:
        self._codec = codec
        self._left = dict(fields)
        self._known: list[str] = []

    def error(
        self, field: str, found: object, accepted: str | Iterable[str], reason: str = "not a valid value"
    ) -> MetadataError:
        """The error for a field with a wrong value."""
        found = list(found) if isinstance(found, tuple) else found  # shown as JSON has it
        return MetadataError(
            f"codec '{self._codec}': {reason}", field=f"configuration.{field}", found=found, accepted=accepted
        )

    def has(self, field: str, *, null: bool = False) -> bool:
        """Whether ``field`` is present; with ``null``, a null field is removed and counts as absent."""
        self._known.append(field)
        if null and self._left.get(field, ...) is None:
            del self._left[field]
        return field in self._left

    def take(self, field: str, accepted: str, default: JSON = ...) -> JSON:  # type: ignore[assignment]
        """Remove ``field`` and return its value; ``default``, if given, stands in for an absent field."""
        self._known.append(field)
        if field in self._left:
            return self._left.pop(field)
        if default is ...:  # type: ignore[comparison-overlap]
            raise MetadataError(
                f"codec '{self._codec}': missing field", field=f"configuration.{field}", accepted=accepted
            )
        return default

    def integer(self, field: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from ``low`` to ``high``."""
        accepted = f"an integer from {low} to {high}"
        value = self.take(field, accepted, ... if default is None else default)  # type: ignore[arg-type]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(field, value, accepted)
        return value

    def boolean(self, field: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self.take(field, "true or false", ... if default is None else default)  # type: ignore[arg-type]
        if not isinstance(value, bool):
            raise self.error(field, value, "true or false")
        return value

    def choice(self, field: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of the strings ``choices``."""
        value = self.take(field, listed(choices), ... if default is None else default)  # type: ignore[arg-type]
        if not isinstance(value, str) or value not in choices:
            raise self.error(field, value, choices)
        return value

    def integers(self, field: str, low: int) -> tuple[int, ...]:
        """An array of integers, each at least ``low``."""
        accepted = f"an array of integers of at least {low}"
        value = self.take(field, accepted)
        if not isinstance(value, list) or not all(type(item) is int and item >= low for item in value):
            raise self.error(field, value, accepted)
        return tuple(value)  # type: ignore[arg-type]

    def number(self, field: str) -> int | float:
        """A finite number that a double can hold."""
        value = self.take(field, "a finite number")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(field, value, "a finite number")
        try:
            finite = math.isfinite(value)
        except OverflowError as error:
            raise self.error(field, value, "a number that a double can hold") from error
        if not finite:
            raise self.error(field, value, "a finite number")
        return value

    def finish(self) -> None:
        """Refuse fields that were not read, unless they are marked ``"must_understand": false``."""
        try:
            unknown_fields(self._left, (), "no such field", within="configuration")
        except UnknownExtensionError as error:
            error.reason = f"codec '{self._codec}': {error.reason}"
            error.accepted = listed(dict.fromkeys(self._known)) or error.accepted
            error.advice = did_you_mean(str(error.field).rpartition(".")[2], self._known)
            raise


class _Parameter(NamedTuple):
    """How a codec reads and checks one field of its configuration."""

    read: Callable[..., Any]
    bounds: tuple[Any, ...]
    required: bool
    null: bool

    def value(self, given: Configuration, name: str) -> Any:
        """The value of the field ``name``, checked."""
        try:
            return self.read(given, name, *self.bounds)
        except MetadataError as error:
            if self.null:
                error.accepted = f"{error.accepted}, or null"
            raise


def parameter(
    read: Callable[..., Any],
    *bounds: Any,
    default: Any = MISSING,
    required: bool = False,
    null: bool = False,
) -> Any:
    """Declares a field of a :class:`ParameterCodec`; the configuration has a field of the same name.

    Parameters
    ----------
    read : function
        The method of :class:`Configuration` that reads and checks the value.
    *bounds
        Arguments of that method after the name of the field.
    default
        Value if none is given. If the default is None, the field may be None and is then left out of the
        written configuration.
    required : bool
        Whether a document must have the field even if there is a default.
    null : bool
        Whether a document may have null, which means the same as no field.
    """
    required = required or default is MISSING
    return dataclasses.field(
        default=default, metadata={"parameter": _Parameter(read, bounds, required, null)}
    )


class ParameterCodec(Codec):
    """A codec that is a dataclass: its fields, declared by :func:`parameter`, are its configuration.

    The declarations read and write the configuration. They also check the arguments of the constructor.
    """

    @classmethod
    @cache
    def _parameters(cls) -> tuple[tuple[str, _Parameter], ...]:
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # subclasses are dataclasses
        return tuple(
            (each.name, each.metadata["parameter"]) for each in fields if "parameter" in each.metadata
        )

    def __post_init__(self) -> None:
        for name, each in self._parameters():
            value = getattr(self, name)
            if value is not None or getattr(type(self), name, ...) is not None:
                each.value(Configuration(self.name, {name: value}), name)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        given = Configuration(cls.name, configuration)
        values = cls._read(given)
        given.finish()
        return cls(**values)

    @classmethod
    def _read(cls, given: Configuration) -> dict[str, Any]:
        """Read the known fields of a configuration as arguments of the constructor."""
        values = {}
        for name, each in cls._parameters():
            if each.required or given.has(name, null=each.null):
                value = each.value(given, name)
                values[name] = tuple(value) if isinstance(value, list) else value
        return values

    def configuration(self) -> dict[str, JSON]:
        values = {name: getattr(self, name) for name, _ in self._parameters()}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }
