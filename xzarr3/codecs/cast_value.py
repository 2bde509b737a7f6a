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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xzarr3._types import JSON, AnyArray
from xzarr3.codecs._casting import INTEGERS, NUMBERS, Fail, Rounding, cast
from xzarr3.codecs.base import ArrayArrayCodec, ChunkSpec
from xzarr3.dtypes import ZDType, parse_dtype
from xzarr3.errors import ChunkDecodeError, ChunkEncodeError, MetadataError, listed, located, shorten
from xzarr3.fields import parsed

_MAP = (
    "an object of 'encode' and 'decode', each an array of pairs of scalars: what is found and what it becomes"
)
_STEPS = {4: 2**2, 8: 2**12}
"""How far, in steps of a floating point number of this size in bytes, other codecs may move a fill value."""

Pair = tuple[JSON, JSON]


def _data_type(value: Any, field: str) -> ZDType:
    with located(field=field):
        return parse_dtype(value, zarr_format=3).in_native_order()


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
    data_type: ZDType = parsed(_data_type, "a data type, as 'data_type' of an array")  # noqa: RUF009
    rounding: Rounding = "nearest-even"
    out_of_range: Literal["clamp", "wrap"] | None = None
    scalar_map: tuple[tuple[Pair, ...], tuple[Pair, ...]] | None = parsed(
        lambda value, _: value, _MAP, default=None
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "data_type", _data_type(self.data_type, "configuration.data_type"))
        super().__post_init__()
        if self.scalar_map is not None:
            object.__setattr__(self, "scalar_map", self._pairs(self.scalar_map))
        if self.data_type.name not in NUMBERS:
            raise self.wrong("data_type", self.data_type.name, f"data types {listed(NUMBERS)}")
        if self.out_of_range == "wrap" and self.data_type.name not in INTEGERS:
            raise self.wrong(
                "out_of_range", "wrap", "'clamp', or no such field",
                f"'{self.data_type.name}' is not a data type of integers",
            )  # fmt: skip

    def configuration(self) -> dict[str, JSON]:
        given = super().configuration()
        if self.rounding == "nearest-even":
            del given["rounding"]
        if self.scalar_map is not None:
            both = zip(("encode", "decode"), self.scalar_map, strict=True)
            given["scalar_map"] = {way: [list(pair) for pair in pairs] for way, pairs in both if pairs}
        return given

    def _pairs(self, given: Any) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
        """The pairs for encoding and for decoding, from a document or from a user."""
        if isinstance(given, tuple):
            return given
        if not isinstance(given, Mapping) or not given.keys() <= {"encode", "decode"}:
            raise self.wrong("scalar_map", given, _MAP)
        both = []
        for way in ("encode", "decode"):
            pairs = given.get(way) or ()
            items = [*pairs.items()] if isinstance(pairs, Mapping) else pairs
            if not isinstance(items, (list, tuple)) or not all(
                isinstance(item, (list, tuple)) and len(item) == 2 for item in items
            ):
                raise self.wrong(f"scalar_map.{way}", pairs, _MAP)
            parsed_pairs = tuple((_plain(item[0]), _plain(item[1])) for item in items)
            if not all(type(scalar) in (int, float, str) for pair in parsed_pairs for scalar in pair):
                raise self.wrong(f"scalar_map.{way}", pairs, _MAP)
            both.append(parsed_pairs)
        return both[0], both[1]

    def resolve(self, spec: ChunkSpec) -> ChunkSpec:
        self.require_data_type(spec, NUMBERS)
        one = replace(spec, shape=())
        fill = self.encoded_fill_value(one)
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
        return _bound(self, spec.data_type)[0].cast(array, self)

    def decode(self, array: AnyArray, spec: ChunkSpec) -> AnyArray:
        return _bound(self, spec.data_type)[1].cast(array, self)


def _is_same(decoded: AnyArray, fill: AnyArray, spec: ChunkSpec) -> bool:
    """Whether a fill value decodes to itself, except for rounding errors of other codecs."""
    if decoded.tobytes() == fill.tobytes():
        return True
    if spec.dtype.kind != "f":
        return False
    found, wanted = decoded.astype(np.float64), fill.astype(np.float64)
    if np.isnan(wanted) or not np.isfinite(wanted):
        return bool(np.isnan(wanted) and np.isnan(found))
    steps = _STEPS.get(spec.dtype.itemsize, 0) * np.spacing(np.abs(fill)).astype(np.float64)
    return bool(abs(found - wanted) <= steps)


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

    source: np.dtype[Any]
    target: np.dtype[Any]
    found: AnyArray
    becomes: AnyArray
    fail: Fail

    def cast(self, array: AnyArray, codec: CastValueCodec) -> AnyArray:
        """Cast an array from ``source`` to ``target``."""
        options = self.target, codec.rounding, codec.out_of_range, self.fail
        values = np.ascontiguousarray(array, dtype=self.source).reshape(-1)
        at = self._looked_up(values)
        if at is None:
            result = cast(values, *options)
        else:
            result = np.empty(values.shape, self.target)
            result[at >= 0] = self.becomes[at[at >= 0]]
            result[at < 0] = cast(values[at < 0], *options)
        return result.reshape(np.shape(array))

    def _looked_up(self, values: AnyArray) -> npt.NDArray[np.intp] | None:
        """For each element, the index of its pair in the map, or -1; None if there are no pairs."""
        if not self.found.size:
            return None
        at = np.full(values.shape, -1, np.intp)
        unsigned = f"u{self.source.itemsize}"
        bits, keys = values.view(unsigned), self.found.view(unsigned)
        for number, key in enumerate(keys):
            at[bits == key] = number
        if self.source.kind == "f":
            for number, key in enumerate(self.found):
                if np.isnan(key):
                    at[np.isnan(values) & (at < 0)] = number
                elif key == 0:
                    at[(values == 0) & (at < 0)] = number
        return at


@lru_cache(maxsize=128)
def _bound(codec: CastValueCodec, data_type: ZDType) -> tuple[_Way, _Way]:
    """The codec for encoding and for decoding elements of a data type."""
    pairs = codec.scalar_map or ((), ())
    own = codec.data_type
    return (
        _way(codec, "encode", data_type, own, pairs[0], lambda why: ChunkEncodeError(why, codec=codec.name)),
        _way(codec, "decode", own, data_type, pairs[1], lambda why: ChunkDecodeError(why, codec=codec.name)),
    )


def _way(
    codec: CastValueCodec, way: str, source: ZDType, target: ZDType, pairs: tuple[Pair, ...], fail: Fail
) -> _Way:
    found = [_scalar(codec, way, source, pair[0]) for pair in pairs]
    becomes = [_scalar(codec, way, target, pair[1]) for pair in pairs]
    if len({scalar.tobytes() for scalar in found}) != len(found):
        shown = [list(pair) for pair in pairs]
        raise codec.wrong(f"scalar_map.{way}", shown, "each scalar once", "a scalar occurs twice")
    dtypes = [each.in_native_order().to_native_dtype() for each in (source, target)]
    return _Way(dtypes[0], dtypes[1], np.array(found, dtypes[0]), np.array(becomes, dtypes[1]), fail)


def _scalar(codec: CastValueCodec, way: str, data_type: ZDType, scalar: JSON) -> AnyArray:
    machine = data_type.in_native_order()
    if data_type.name in INTEGERS and isinstance(scalar, float) and scalar.is_integer():
        scalar = int(scalar)
    try:
        return machine.filled((), machine.from_json_scalar(scalar, zarr_format=3))
    except MetadataError as error:
        accepted = f"a scalar of data type '{data_type.name}'"
        raise codec.wrong(f"scalar_map.{way}", scalar, accepted) from error
