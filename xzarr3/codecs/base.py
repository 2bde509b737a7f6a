"""What a codec is: the three kinds, and the description of the chunk each one works on.

Specification: Zarr v3 core, "Chunk encoding".
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer, Scalar
from xzarr3.dtypes import ZDType
from xzarr3.errors import ChunkDecodeError, MetadataError, UnknownExtensionError, listed
from xzarr3.extensions import unknown_fields

MAX_VARIABLE = 2**31 - 1
"""Bytes that an encoded chunk may take whose elements have no fixed size, so that its shape sets no bound.

Blosc and LZ4 hold no more either. A bound there must be: a few compressed bytes can stand for any number.
"""


@dataclass(frozen=True)
class ChunkSpec:
    """A chunk before or after a codec: the decoded representation of the specification.

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
        """Size of the decoded chunk in bytes; of elements of no fixed size without what they refer to."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def element_size(self) -> int:
        """Size of a stored element in bytes, by which compressors regroup them; 1 if it is not fixed."""
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
            If the configuration lacks a field, has one too many or a wrong value.
        """

    def configuration(self) -> dict[str, JSON]:
        """The configuration as a metadata document has it; empty if there is nothing to configure."""
        return {}

    def to_json(self) -> JSON:
        """The codec as a metadata document has it."""
        configuration = self.configuration()
        return {"name": self.name, "configuration": configuration} if configuration else {"name": self.name}

    def evolve(self, spec: ChunkSpec) -> Self:
        """This codec, with what its configuration leaves open taken from the chunks it will encode."""
        return self


class ArrayArrayCodec(Codec):
    """A codec from arrays to arrays."""

    @abstractmethod
    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        """The chunk after encoding.

        Raises
        ------
        MetadataError
            If the codec cannot encode such chunks.
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
        """Size of an encoded chunk in bytes, if it is the same for all."""

    @abstractmethod
    def max_encoded_size(self, spec: ChunkSpec) -> int:
        """A size in bytes that no encoded chunk exceeds."""

    @abstractmethod
    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        """Encode a chunk that ``spec`` describes."""

    @abstractmethod
    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        """Decode to a chunk that ``spec`` describes; the result may share memory with ``data``."""


class BytesBytesCodec(Codec):
    """A codec from bytes to bytes."""

    decode_rate: ClassVar[int] = 500
    """About how many bytes are decoded in a microsecond, which tells whether threads are worth it."""

    direct_from: ClassVar[int | None] = None
    """Decoded size in bytes from which :meth:`decode_into` pays; None if it never does."""

    direct_many: ClassVar[bool] = True
    """Whether it pays for one chunk after the other, too, or costs too many calls."""

    @abstractmethod
    def encoded_size(self, size: int) -> int | None:
        """Size in bytes to which ``size`` bytes are encoded, if it does not depend on them."""

    @abstractmethod
    def max_encoded_size(self, size: int) -> int:
        """A size in bytes that ``size`` encoded bytes do not exceed."""

    @abstractmethod
    def encode(self, data: Buffer) -> Buffer:
        """Encode bytes."""

    @abstractmethod
    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Decode bytes to at most ``limit`` bytes.

        Raises
        ------
        ChunkDecodeError
            If the bytes are corrupt, truncated or stand for more than ``limit`` bytes.
        """

    def decode_into(self, data: Buffer, out: memoryview) -> bool:
        """Decode straight into ``out``, which has just the size wanted, if that is possible.

        Returns
        -------
        bool
            Whether ``out`` now holds the result; if not, nothing is known of its content.
        """
        return False

    def too_large(self, limit: int, claimed: int | None = None) -> ChunkDecodeError:
        """The error for bytes that stand for more than they may."""
        size = f"{claimed} bytes" if claimed is not None else "more"
        return ChunkDecodeError(f"decodes to {size}, at most {limit} bytes expected", codec=self.name)


class Configuration:
    """Reads the fields of a codec's configuration, each with a check.

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

    def error(
        self, field: str, found: object, accepted: str, reason: str = "not a valid value"
    ) -> MetadataError:
        """The error for a field with a wrong value."""
        found = list(found) if isinstance(found, tuple) else found  # As the document has it.
        return MetadataError(
            f"codec '{self._codec}': {reason}", field=f"configuration.{field}", found=found, accepted=accepted
        )

    def has(self, field: str, *, null: bool = False) -> bool:
        """Whether ``field`` is there; with ``null``, a null is taken away and counts as absence."""
        if null and self._left.get(field, ...) is None:
            del self._left[field]
        return field in self._left

    def take(self, field: str, accepted: str, default: JSON = ...) -> JSON:  # type: ignore[assignment]
        """The value of ``field``, or ``default`` if that is given and the field is absent."""
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
            raise self.error(field, value, listed(choices))
        return value

    def integers(self, field: str, low: int) -> tuple[int, ...]:
        """An array of integers, each at least ``low``."""
        accepted = f"an array of integers of at least {low}"
        value = self.take(field, accepted)
        if not isinstance(value, list) or not all(type(item) is int and item >= low for item in value):
            raise self.error(field, value, accepted)
        return tuple(value)  # type: ignore[arg-type]

    def number(self, field: str) -> int | float:
        """A number that a double can hold, and not NaN or infinite."""
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
        """Refuse fields that nobody took, unless they say that they need not be understood."""
        try:
            unknown_fields(self._left, (), "no such field", within="configuration")
        except UnknownExtensionError as error:
            error.reason = f"codec '{self._codec}': {error.reason}"
            raise


@dataclass(frozen=True)
class _Parameter:
    """How a field of a codec is read from a configuration and checked."""

    read: Callable[..., Any]
    bounds: tuple[Any, ...]
    required: bool
    null: bool

    def value(self, given: Configuration, name: str) -> Any:
        """The value of the field ``name``, if it is a valid one."""
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
    """A field of a :class:`ParameterCodec`, which a configuration has under the same name.

    Parameters
    ----------
    read : function
        The method of :class:`Configuration` that reads and checks the value.
    *bounds
        What that method takes behind the name of the field.
    default
        What the field is if nobody says. A field with the default None may stay None, and a configuration
        is then written without it.
    required : bool
        Whether a document must have the field although there is a default.
    null : bool
        Whether null in a document means that the field is left out.
    """
    required = required or default is MISSING
    return dataclasses.field(
        default=default, metadata={"parameter": _Parameter(read, bounds, required, null)}
    )


class ParameterCodec(Codec):
    """A codec that is a dataclass whose fields, made by :func:`parameter`, are its configuration.

    A configuration is read and written by those declarations, and they check what a constructor is given.
    """

    @classmethod
    def _parameters(cls) -> Iterator[tuple[str, _Parameter]]:
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]  # Subclasses are dataclasses.
            if "parameter" in each.metadata:
                yield each.name, each.metadata["parameter"]

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
        """The arguments of the constructor that a configuration has; takes the fields it knows."""
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
