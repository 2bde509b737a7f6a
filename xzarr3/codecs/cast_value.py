"""``cast_value``: casts numbers to another data type, by value.

Specification: zarr-extensions, "Cast_value codec". Names: ``cast_value``.
Example: ``{"name": "cast_value", "configuration": {"data_type": "uint8", "rounding": "towards-zero",
"out_of_range": "clamp", "scalar_map": {"encode": [["NaN", 0]], "decode": [[0, "NaN"]]}}}``.

Encoding applies the scalar map first, then rounding, then ``out_of_range``. Without ``out_of_range``, numbers
out of range are an error. Clamping to a type that has infinity gives infinity. Decoding does the same in the
other direction. An element is looked up in the scalar map by its bits. If no bits match, a zero matches a
zero of either sign and a NaN matches any NaN.

The fill value must decode to itself. Otherwise elements that were never written would change as soon as
another element of their chunk is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xzarr3._types import JSON, AnyArray
from xzarr3.codecs import _casting
from xzarr3.codecs._casting import NUMBERS, OUT_OF_RANGE, ROUNDINGS, Fail, Number
from xzarr3.codecs._fill import encoded_fill_value
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec, Configuration
from xzarr3.dtypes import ZDType, parse_dtype
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, listed, shorten

_MAP = (
    "an object of 'encode' and 'decode', each an array of pairs of scalars: what is found and what it becomes"
)
_STEPS = {4: 2**2, 8: 2**12}
"""How far, in steps of a floating point number of this size in bytes, other codecs may move a fill value."""

Pair = tuple[JSON, JSON]


@dataclass(frozen=True)
class CastValueCodec(ArrayArrayCodec):
    """Casts numbers to another data type.

    Parameters
    ----------
    data_type : ZDType, or anything that ``parse_dtype`` accepts
        The type of encoded elements.
    rounding : {"nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"}
        How to round numbers that the other type cannot hold.
    out_of_range : {None, "clamp", "wrap"}
        What happens to numbers beyond the range of the other type. None: an error. "clamp": the nearest
        number that the type holds. "wrap": the number modulo the range, for integers only.
    scalar_map : mapping, optional
        Has ``"encode"`` and ``"decode"``: each is pairs of a scalar and its replacement. Scalars are written
        like fill values of their data type in a metadata document.

    Examples
    --------
    >>> codec = CastValueCodec("uint8", scalar_map={"encode": [("NaN", 255)], "decode": [(255, "NaN")]})
    >>> codec.configuration()["scalar_map"]
    {'encode': [['NaN', 255]], 'decode': [[255, 'NaN']]}
    """

    name = "cast_value"
    data_type: ZDType
    rounding: str = "nearest-even"
    out_of_range: str | None = None
    scalar_map: tuple[tuple[Pair, ...], tuple[Pair, ...]] | None = None

    def __init__(
        self,
        data_type: Any,
        rounding: str = "nearest-even",
        out_of_range: str | None = None,
        scalar_map: Any = None,
    ) -> None:
        fields = Configuration(self.name, {"rounding": rounding, "out_of_range": out_of_range or "error"})
        try:
            parsed = parse_dtype(data_type, zarr_format=3).in_native_order()
        except MetadataError as error:
            error.at(field="configuration.data_type")
            raise
        object.__setattr__(self, "data_type", parsed)
        object.__setattr__(self, "rounding", fields.choice("rounding", ROUNDINGS))
        # Early revisions of the specification name the default "error".
        given = fields.choice("out_of_range", ("error", *OUT_OF_RANGE))
        object.__setattr__(self, "out_of_range", None if given == "error" else given)
        object.__setattr__(
            self, "scalar_map", None if scalar_map is None else _scalar_map(fields, scalar_map)
        )
        number = _casting.number_of(parsed)
        if number is None:
            raise fields.error(
                "data_type", parsed.name, f"data types {listed(NUMBERS)}", "not a data type of numbers"
            )
        if given == "wrap" and (number.has_nan or not number.is_integer):
            raise fields.error(
                "out_of_range",
                given,
                "'clamp', or no such field",
                f"'{parsed.name}' is not a data type of integers",
            )

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, JSON]) -> Self:
        fields = Configuration(cls.name, configuration)
        accepted = "a data type, as 'data_type' of an array"
        data_type = fields.take("data_type", accepted)
        if not isinstance(data_type, (str, dict)):
            raise fields.error("data_type", data_type, accepted)
        rounding = fields.choice("rounding", ROUNDINGS, default="nearest-even")
        out_of_range = fields.choice("out_of_range", ("error", *OUT_OF_RANGE), default="error")
        scalar_map = fields.take("scalar_map", _MAP, None)
        fields.finish()
        return cls(data_type, rounding, out_of_range, scalar_map)

    def configuration(self) -> dict[str, JSON]:
        given: dict[str, JSON] = {"data_type": self.data_type.to_json(3)}
        if self.rounding != "nearest-even":
            given["rounding"] = self.rounding
        if self.out_of_range is not None:
            given["out_of_range"] = self.out_of_range
        if self.scalar_map is not None:
            both = zip(("encode", "decode"), self.scalar_map, strict=True)
            given["scalar_map"] = {way: [list(pair) for pair in pairs] for way, pairs in both if pairs}
        return given

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        if _casting.number_of(spec.data_type) is None:
            raise MetadataError(
                f"codec '{self.name}' cannot cast data type '{spec.data_type.name}'",
                found=self.name,
                accepted=f"data types {listed(NUMBERS)}",
            )
        one = replace(spec, shape=())
        fill = encoded_fill_value(self, one)
        encoded = self.data_type.filled((), fill)
        try:
            decoded = self.decode(encoded, one)
        except ChunkDecodeError as error:
            raise self._lost_fill(spec, error.reason) from error
        if not _is_same(decoded, spec.data_type.filled((), spec.fill_value), spec):
            raise self._lost_fill(spec, f"it would be read as {shorten(decoded[()])}")
        return replace(spec, data_type=self.data_type, fill_value=fill)

    def _lost_fill(self, spec: ChunkSpec, reason: str) -> MetadataError:
        return MetadataError(
            f"codec '{self.name}': the fill value changes when it is encoded and decoded: {reason}",
            found=shorten(spec.fill_value),
            advice=f"choose a fill value that '{self.data_type.name}' holds, or add it to both lists of "
            "'scalar_map'",
        )

    def encode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return _bound(self, spec.data_type, repr(self.scalar_map))[0].cast(array, self)

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return _bound(self, spec.data_type, repr(self.scalar_map))[1].cast(array, self)


def _is_same(decoded: AnyArray, fill: AnyArray, spec: ChunkSpec) -> bool:
    """Whether a fill value decodes to itself, except for rounding errors of other codecs."""
    if decoded.tobytes() == fill.tobytes():
        return True
    number = _casting.number_of(spec.data_type)
    if number is None or number.is_integer:
        return False
    found, wanted = number.read(decoded), number.read(fill)
    if np.isnan(wanted) or not np.isfinite(wanted):
        return bool(np.isnan(wanted) and np.isnan(found))
    return bool(abs(found - wanted) <= _STEPS.get(spec.dtype.itemsize, 0) * np.spacing(abs(wanted)))


def _scalar_map(fields: Configuration, given: Any) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
    """The pairs for encoding and for decoding, from a document or from a user."""
    if not isinstance(given, Mapping) or not given.keys() <= {"encode", "decode"}:
        raise fields.error("scalar_map", given, _MAP)
    both = []
    for way in ("encode", "decode"):
        pairs = given.get(way)
        items = () if pairs is None else pairs.items() if isinstance(pairs, Mapping) else pairs
        if not isinstance(items, Iterable) or isinstance(items, (str, bytes)):
            raise fields.error(f"scalar_map.{way}", pairs, _MAP)
        parsed = []
        for item in items:
            if not isinstance(item, (list, tuple)) or len(item) != 2:
                raise fields.error(f"scalar_map.{way}", item, _MAP)
            parsed.append((_plain(item[0]), _plain(item[1])))
        if not all(type(scalar) in (int, float, str) for pair in parsed for scalar in pair):
            raise fields.error(f"scalar_map.{way}", pairs, _MAP)
        both.append(tuple(parsed))
    return both[0], both[1]


def _plain(scalar: Any) -> Any:
    """A scalar as JSON, with strings for NaN and infinity."""
    if isinstance(scalar, np.generic):
        scalar = scalar.item()
    if isinstance(scalar, float) and not np.isfinite(scalar):
        return "NaN" if np.isnan(scalar) else "Infinity" if scalar > 0 else "-Infinity"
    return scalar


@dataclass(frozen=True, eq=False)
class _Way:
    """The codec in one direction."""

    source: Number
    target: Number
    found: AnyArray
    becomes: AnyArray
    fail: Fail

    def cast(self, array: AnyArray, codec: CastValueCodec) -> AnyArray:
        """Cast an array from ``source`` to ``target``."""
        options = self.source, self.target, codec.rounding, codec.out_of_range, self.fail
        if not self.found.size:
            return _casting.cast(array, *options)
        given = np.asarray(array, dtype=self.source.dtype)
        values = np.ascontiguousarray(given).reshape(-1)
        at = self._looked_up(values)
        mapped = at >= 0
        if not mapped.any():
            return _casting.cast(given, *options)
        result = np.empty(values.shape, self.target.dtype)
        result[mapped] = self.becomes[at[mapped]]
        result[~mapped] = _casting.cast(values[~mapped], *options)
        return result.reshape(given.shape)

    def _looked_up(self, values: AnyArray) -> npt.NDArray[np.intp]:
        """For each element, the index of its pair in the map, or -1."""
        at = np.full(values.shape, -1, np.intp)
        unsigned = f"u{self.source.dtype.itemsize}"
        bits, keys = values.view(unsigned), self.found.view(unsigned)
        for number, key in enumerate(keys):
            at[bits == key] = number
        if not self.source.is_integer:
            numbers = self.source.read(values)
            for number, key in enumerate(self.source.read(self.found)):
                if np.isnan(key):
                    at[np.isnan(numbers) & (at < 0)] = number
                elif key == 0:
                    at[(numbers == 0) & (at < 0)] = number
        return at


@lru_cache(maxsize=128)
def _bound(codec: CastValueCodec, data_type: ZDType, said: str) -> tuple[_Way, _Way]:
    """The codec for encoding and for decoding elements of a data type.

    ``said`` is part of the cache key, because codecs with 0.0 and -0.0 in their scalar maps compare equal.
    """
    pairs = codec.scalar_map or ((), ())
    own = codec.data_type
    return (
        _way(codec, "encode", data_type, own, pairs[0], lambda why: ChunkEncodeError(why, codec=codec.name)),
        _way(codec, "decode", own, data_type, pairs[1], lambda why: ChunkDecodeError(why, codec=codec.name)),
    )


def _way(
    codec: CastValueCodec, way: str, source: ZDType, target: ZDType, pairs: tuple[Pair, ...], fail: Fail
) -> _Way:
    numbers = _casting.number_of(source), _casting.number_of(target)
    if numbers[0] is None or numbers[1] is None:
        raise TypeError(f"not numbers: '{source.name}', '{target.name}'")
    found = [_scalar(codec, way, source, pair[0]) for pair in pairs]
    becomes = [_scalar(codec, way, target, pair[1]) for pair in pairs]
    bits = [scalar.tobytes() for scalar in found]
    if len(set(bits)) != len(bits):
        raise Configuration(codec.name, {}).error(
            f"scalar_map.{way}", [list(pair) for pair in pairs], "each scalar once", "a scalar occurs twice"
        )
    return _Way(
        numbers[0],
        numbers[1],
        np.frombuffer(b"".join(bits), numbers[0].dtype),
        np.frombuffer(b"".join(scalar.tobytes() for scalar in becomes), numbers[1].dtype),
        fail,
    )


def _scalar(codec: CastValueCodec, way: str, data_type: ZDType, scalar: JSON) -> AnyArray:
    machine = data_type.in_native_order()
    number = _casting.number_of(data_type)
    if number is not None and number.is_integer and isinstance(scalar, float) and scalar.is_integer():
        scalar = int(scalar)
    try:
        return machine.filled((), machine.from_json_scalar(scalar, zarr_format=3))
    except MetadataError as error:
        raise Configuration(codec.name, {}).error(
            f"scalar_map.{way}", scalar, f"a scalar of data type '{data_type.name}'"
        ) from error
