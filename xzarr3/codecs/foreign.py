"""Codecs that other packages have registered with numcodecs or zarr-python, as codecs of this package.

A document names a codec, never a module: only a class that an installed package has registered is used, in
the registry of the library or by an entry point. Classes of numcodecs and zarr-python themselves are not
taken from there: this package has those that it supports, and others run what they read (``pickle``). What a
registered codec does with damaged chunks, and how much memory it takes, is up to its package.

zarr-python is imported only for codecs that are registered with it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Coroutine, Mapping
from functools import cached_property
from importlib import metadata
from typing import Any, Self

import numpy as np

from xzarr3._types import JSON, AnyArray, Buffer
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, ChunkSpec, Codec
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import FOREIGN_ERRORS, ChunkDecodeError, MetadataError, foreign, told_by

PREFIX = "numcodecs."
_ENTRIES_OF_NUMCODECS, _ENTRIES_OF_ZARR = "numcodecs.codecs", "zarr.codecs"
_HEADERS = 2**16  # bytes that a format of images may need beside the values


def codec_of(name: str, configuration: Mapping[str, JSON]) -> Codec | None:
    """The registered codec of a name of version 3; None if no package has registered one.

    Raises
    ------
    MetadataError
        If the package cannot be imported, or does not accept the configuration.
    """
    if name.startswith(PREFIX):
        return numcodec(name.removeprefix(PREFIX), configuration)
    cls = _class_of_zarr(name)
    if cls is None:
        return None
    import zarr.abc.codec as kinds

    for kind, own in (
        (kinds.ArrayArrayCodec, _ZarrFilter),
        (kinds.ArrayBytesCodec, _ZarrSerializer),
        (kinds.BytesBytesCodec, _ZarrCompressor),
    ):
        if issubclass(cls, kind):
            return own(name, configuration)
    raise MetadataError(f"codec '{name}' of {cls.__module__} is of no known kind", found=cls)


def numcodec(id: str, configuration: Mapping[str, JSON]) -> NumcodecsCompressor | None:
    """The codec that is registered with numcodecs under an id; None if there is none."""
    from numcodecs.registry import codec_registry, entries

    cls: Any = codec_registry.get(id)
    if cls is None and id in entries:
        cls = _imported(f"{PREFIX}{id}", entries[id])
    is_known = cls is not None and _is_foreign(cls)
    return NumcodecsCompressor(PREFIX + id, configuration) if is_known else None


def registered() -> list[str]:
    """The names of all codecs that other packages have registered."""
    from numcodecs.registry import codec_registry, entries

    names = [*(name for name, cls in codec_registry.items() if _is_foreign(cls)), *entries]
    found = {PREFIX + name for name in names}
    found.update(point.name for point in metadata.entry_points(group=_ENTRIES_OF_ZARR))
    registry = sys.modules.get("zarr.registry")
    if registry is not None:  # Version 3.1 has another name for it.
        held = ("_codec_registries", "__codec_registries")
        known: Any = next((vars(registry)[name] for name in held if hasattr(registry, name)), {})
        found.update(name for name, classes in known.items() if any(map(_is_foreign, classes.values())))
    return sorted(found)


def _class_of_zarr(name: str) -> Any:
    points = list(metadata.entry_points(group=_ENTRIES_OF_ZARR, name=name))
    if points:
        _imported(name, points[0])
    elif "zarr.registry" not in sys.modules:
        return None
    from zarr.registry import get_codec_class

    try:
        cls = get_codec_class(name)
    except (KeyError, ValueError):  # the error for an unknown codec was the one, and is the other
        return None
    return cls if _is_foreign(cls) else None


def _imported(name: str, point: Any) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise MetadataError(f"codec '{name}' cannot be imported from {point.value}: {error}") from error


def _is_foreign(cls: Any) -> bool:
    return str(getattr(cls, "__module__", "")).partition(".")[0] not in ("numcodecs", "zarr")


class _Foreign(Codec):
    """A codec of another package, known by its name and configuration."""

    def __init__(self, name: str, configuration: Mapping[str, JSON]) -> None:
        self.name = name  # type: ignore[misc]  # of the class elsewhere
        self._configuration = copy.deepcopy(dict(configuration))
        what = f"codec '{name}': not a valid configuration"
        with foreign(what, field="configuration", found=configuration):
            self._codec = self._made()

    def _made(self) -> Any:
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self._configuration)

    def __repr__(self) -> str:
        return repr(self._codec)

    def configuration(self) -> dict[str, JSON]:
        return copy.deepcopy(self._configuration)


class OfNumcodecs(_Foreign):
    """A codec of the registry of numcodecs, whose documents name it with the prefix ``numcodecs.``."""

    def _made(self) -> Any:
        from numcodecs import get_codec

        return get_codec({"id": self.name.removeprefix(PREFIX), **self._configuration})

    def to_json(self) -> JSON:
        return {"name": self.name, "configuration": self.configuration()}


class NumcodecsCompressor(OfNumcodecs, BytesBytesCodec):
    """A codec of the registry of numcodecs, which gets bytes."""

    def encode(self, data: Buffer) -> Buffer:
        return _octets(self._codec.encode(data)).data

    def decode(self, data: Buffer, limit: int) -> Buffer:
        found = _octets(self._codec.decode(data))
        if found.size > limit:
            raise self.too_large(limit, found.size)
        return found.data

    def of_arrays(self, endian: str | None = None) -> NumcodecsSerializer:
        """The codec that gets arrays, as codecs of images need them, with elements in a byte order."""
        return NumcodecsSerializer(self.name, self._configuration, endian)


class _Serializer(_Foreign, ArrayBytesCodec):
    def check(self, spec: ChunkSpec) -> None:
        if spec.data_type.is_variable:
            raise self.refuses_data_type(spec, "data types whose elements have a fixed size")

    def max_encoded_size(self, spec: ChunkSpec) -> int:
        return 2 * spec.nbytes + _HEADERS

    def _array(self, found: Any, spec: ChunkSpec, dtype: np.dtype[Any]) -> AnyArray:
        octets = _octets(found)
        if octets.size != spec.nbytes:
            raise ChunkDecodeError(
                f"decodes to {octets.size} bytes; {spec.nbytes} bytes expected", codec=self.name
            )
        return octets.view(dtype).reshape(spec.shape).astype(spec.dtype, copy=False)


class NumcodecsSerializer(OfNumcodecs, _Serializer):
    """A codec of the registry of numcodecs, which gets arrays."""

    def __init__(self, name: str, configuration: Mapping[str, JSON], endian: str | None = None) -> None:
        self.endian = endian
        super().__init__(name, configuration)

    @cached_property
    def _said(self) -> str:
        return repr((self.name, self._configuration, self.endian))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self._configuration, self.endian)

    def _stored(self, spec: ChunkSpec) -> np.dtype[Any]:
        return spec.dtype.newbyteorder(">" if self.endian == "big" else "<")

    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        return _octets(self._codec.encode(np.ascontiguousarray(array, self._stored(spec)))).data

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        return self._array(self._codec.decode(data), spec, self._stored(spec))


def _octets(found: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of what a codec returned: an array, or an object with the buffer protocol."""
    values = found if isinstance(found, np.ndarray) else np.frombuffer(found, np.uint8)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


class _OfZarr(_Foreign):
    """A codec of zarr-python's registry; its coroutines run to their end within each call."""

    def _made(self) -> Any:
        from zarr.registry import get_codec_class

        return get_codec_class(self.name).from_dict(
            {"name": self.name, "configuration": self.configuration()}
        )

    def _spec(self, spec: ChunkSpec) -> Any:
        from zarr.core.array_spec import ArrayConfig, ArraySpec
        from zarr.core.buffer import default_buffer_prototype
        from zarr.dtype import parse_dtype as zarr_dtype

        dtype = zarr_dtype(spec.dtype, zarr_format=3)
        return ArraySpec(
            spec.shape, dtype, spec.fill_value, ArrayConfig.from_dict({}), default_buffer_prototype()
        )

    def _bound(self, spec: ChunkSpec) -> tuple[Any, Any]:
        theirs = self._spec(spec)
        return self._codec.evolve_from_array_spec(theirs), theirs

    def _coded(self, method: str, spec: ChunkSpec, given: Any) -> Any:
        """What ``encode`` or ``decode`` of the codec returns for one chunk, in one of their buffers."""
        codec, theirs = self._bound(spec)
        prototype = theirs.prototype
        made = (
            prototype.nd_buffer.from_numpy_array(given)
            if isinstance(given, np.ndarray)
            else prototype.buffer.from_bytes(bytes(given))
        )
        direct = getattr(codec, f"_{method}_sync", None)
        if direct is not None and getattr(codec, "_sync_capable", True):
            return direct(made, theirs)
        (found,) = _awaited(getattr(codec, method)([(made, theirs)]))
        return found


def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine; also where an event loop runs, as in notebooks."""
    import asyncio  # late: it takes milliseconds
    from concurrent.futures import ThreadPoolExecutor

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


class _ZarrFilter(_OfZarr, ArrayArrayCodec):
    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        try:
            codec, theirs = self._bound(spec)
            found = codec.resolve_metadata(theirs)
            dtype = found.dtype.to_native_dtype()
        except FOREIGN_ERRORS as error:
            raise self.refuses_data_type(spec, f"what its package accepts: {told_by(error)}") from error
        return ChunkSpec(
            tuple(found.shape), parse_dtype(dtype.newbyteorder("=")), dtype.type(found.fill_value)
        )

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return np.asarray(self._coded("encode", spec, array).as_numpy_array())

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        found = np.asarray(self._coded("decode", spec, array).as_numpy_array())
        return found.reshape(spec.shape).astype(spec.dtype, copy=False)


class _ZarrSerializer(_OfZarr, _Serializer):
    def encode(self, array: AnyArray, spec: ChunkSpec) -> Buffer:
        return bytes(self._coded("encode", spec, np.ascontiguousarray(array)).to_bytes())

    def decode(self, data: Buffer, spec: ChunkSpec) -> AnyArray:
        return self._array(self._coded("decode", spec, data).as_numpy_array(), spec, spec.dtype)


class _ZarrCompressor(_OfZarr, BytesBytesCodec):
    _chunk: ChunkSpec | None = None
    """The chunks whose bytes are encoded, which some codecs want to know."""

    def evolve(self, spec: ChunkSpec) -> Self:
        evolved = copy.copy(self)
        evolved._chunk = spec
        return evolved

    def _of(self, data: Buffer) -> ChunkSpec:
        size = memoryview(data).nbytes
        return self._chunk or ChunkSpec((size,), parse_dtype("uint8"), np.uint8(0))

    def encode(self, data: Buffer) -> Buffer:
        return bytes(self._coded("encode", self._of(data), data).to_bytes())

    def decode(self, data: Buffer, limit: int) -> Buffer:
        found = bytes(self._coded("decode", self._of(data), data).to_bytes())
        if len(found) > limit:
            raise self.too_large(limit, len(found))
        return found
