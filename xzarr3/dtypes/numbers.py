"""Numbers of numpy and ml_dtypes: one cast between their dtypes, and their forms in JSON.

Data types and codecs use these. Nothing here knows a data type.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from xzarr3._types import JSON, AnyArray, Scalar
from xzarr3.dtypes.specs import Spelling

_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")


def swapped(array: AnyArray) -> AnyArray:
    """An array of the same dtype, with the bytes of each element in reverse order."""
    return array.view(_plain(array.dtype)).byteswap().view(array.dtype)


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A dtype of numpy itself for the same bytes; dtypes of ml_dtypes do not always swap bytes correctly."""
    if dtype.names is not None and dtype.fields is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        layout = {
            "names": dtype.names,
            "formats": [_plain(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": dtype.itemsize,
        }
        return np.dtype(layout)  # type: ignore[call-overload, no-any-return]
    return np.dtype(f"u{dtype.itemsize}") if _is_small(dtype) else dtype


def _is_small(dtype: np.dtype[Any]) -> bool:
    return dtype.type.__module__ == "ml_dtypes"


def native_order(array: AnyArray) -> AnyArray:
    """Elements in the byte order of this machine. numpy's casts do not always convert it correctly."""
    if array.dtype.isnative:
        return array
    return swapped(array).view(array.dtype.newbyteorder("="))


def widened(array: AnyArray) -> AnyArray:
    """Convert arrays of ml_dtypes to numpy dtypes that hold all their values; return others unchanged."""
    if not _is_small(array.dtype):
        return array
    return native_order(array).astype(np.int8 if "int" in array.dtype.name else np.float32)


def converted(
    given: AnyArray, dtype: np.dtype[Any], limits: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[AnyArray, AnyArray]:
    """Numbers in another dtype, and which of them it cannot hold.

    Integers hold whole numbers. Floating point numbers of numpy hold every finite number that does not round
    to infinity; those of ml_dtypes hold integers only if these stay the same.

    Parameters
    ----------
    given : ndarray
        Truth values, integers, floating point or complex numbers of numpy.
    dtype : numpy.dtype
        A dtype of numbers of numpy or ml_dtypes.
    limits : pair of float
        Finite floating point numbers from the first on down, or from the second on up, cannot be held.

    Returns
    -------
    result, lost : ndarray
        The numbers, and truth values of the same shape.

    Examples
    --------
    >>> converted(np.array([1.0, 1.5, np.nan]), np.dtype("i2"))[1].tolist()
    [False, True, True]
    >>> converted(np.array([0.1, 1e39, np.inf]), np.dtype("f4"))[1].tolist()
    [False, True, False]
    """
    small = _is_small(dtype)
    with np.errstate(all="ignore"):
        if not small and np.can_cast(given.dtype, dtype, "safe"):
            return given.astype(dtype), np.zeros(given.shape, np.bool_)
        result = (
            given if dtype.kind == "c" else given.real
        )  # Without a warning; imaginary parts are lost below.
        # ml_dtypes makes its integers from few numpy dtypes only.
        result = (result.astype(np.int8) if small and "int" in dtype.name else result).astype(dtype)
        found = widened(result)
        if found.dtype.kind in "biu" or not (small or np.can_cast(given.dtype, dtype, "same_kind")):
            return result, np.asarray(found != given)
        lost = np.asarray(np.isfinite(given) != np.isfinite(found))
        lost |= np.isinf(given) & ~np.isinf(found)
        if given.dtype.kind == "c" and small:
            lost |= given.imag != 0
            given = given.real
        if small:
            lost |= np.isfinite(given) & ((given <= limits[0]) | (given >= limits[1]))
        if small and given.dtype.kind in "biu":
            bits = 8 * given.dtype.itemsize - (given.dtype.kind == "i")
            lost |= (found >= 2.0**bits) | (found.astype(given.dtype) != given)
    return result, lost


class FloatForm(NamedTuple):
    """What is to know of a dtype of floating point numbers to read and write its numbers.

    Parameters
    ----------
    dtype : numpy.dtype
        In the byte order of this machine.
    width : int
        Bits of a number; the bits above them in its bytes are 0.
    nan : int or None
        The bits that "NaN" means; None if there is no NaN.
    infinite : bool
        Whether there are infinities.
    """

    dtype: np.dtype[Any]
    width: int
    nan: int | None
    infinite: bool

    def of_bits(self, bits: int) -> Scalar:
        """The number with these bits."""
        return np.dtype(f"u{self.dtype.itemsize}").type(bits).view(self.dtype)  # type: ignore[no-any-return]

    @property
    def digits(self) -> int:
        """Number of hexadecimal digits of the bits."""
        return -(-self.width // 4)


@lru_cache(maxsize=16)
def form_of(dtype: np.dtype[Any]) -> FloatForm:
    """The form of a dtype of numpy. Its "NaN" is positive, with only the top bit of the mantissa set."""
    width, mantissa = 8 * dtype.itemsize, int(np.finfo(dtype).nmant)
    nan = ((1 << (width - mantissa)) - 1) << (mantissa - 1)
    return FloatForm(dtype.newbyteorder("="), width, nan & ((1 << (width - 1)) - 1), True)


def float_from_json(data: JSON, form: FloatForm, spelling: Spelling) -> Scalar:
    """Read a floating point number from a form that a format permits.

    Raises
    ------
    ValueError
        If ``data`` has another form, or is a number that a dtype of ml_dtypes lacks.
    """
    if isinstance(data, str):
        if data == "NaN" and form.nan is not None:
            return form.of_bits(form.nan)
        if data in ("-Infinity", "Infinity", spelling.infinity) and form.infinite:
            return form.dtype.type(-math.inf if data[0] == "-" else math.inf)  # type: ignore[no-any-return]
        if spelling.all_bits and (bits := _bits(data, form, spelling)) is not None:
            return form.of_bits(bits)
        if spelling.old_fills and not _is_small(form.dtype) and _NUMBER.fullmatch(data):
            data = float(data)
            if math.isinf(data):
                raise ValueError("the number is too large for a double")
    if not isinstance(data, (int, float)) or isinstance(data, bool):
        raise ValueError("neither a number nor a permitted string")
    if _is_small(form.dtype) and not math.isfinite(data):
        raise ValueError("not a finite number")
    try:
        with np.errstate(over="ignore"):
            number = form.dtype.type(float(data))
    except OverflowError as error:
        raise ValueError("the number is too large for a double") from error
    if spelling.digits and np.isinf(number) and math.isfinite(data):
        raise ValueError("beyond the numbers of the data type")
    return number  # type: ignore[no-any-return]


def _bits(text: str, form: FloatForm, spelling: Spelling) -> int | None:
    """The bits that text gives as digits; None if it is no such text."""
    most = 2 * form.dtype.itemsize  # a number of four bits may also be written as its byte
    if re.fullmatch(rf"0x[0-9a-fA-F]{{{form.digits},{most}}}", text):
        bits = int(text, 16)
        return bits if bits < 1 << form.width else None
    if spelling.digits and re.fullmatch(rf"0b[01]{{{form.width}}}", text):
        return int(text, 2)
    return None


def float_to_json(value: Any, form: FloatForm, spelling: Spelling) -> JSON:
    """The JSON form of a floating point number."""
    number = float(value)
    if math.isfinite(number):
        return number
    if math.isinf(number):
        return spelling.infinity if number > 0 else "-Infinity"
    bits = int(np.asarray(value, form.dtype).view(f"u{form.dtype.itemsize}"))
    if not spelling.all_bits or bits == form.nan:
        return "NaN"
    return f"0x{bits:0{form.digits}x}"


def from_digits(data: object, dtype: np.dtype[Any]) -> Scalar | None:
    """A scalar from the digits of all of its bits, the most significant first; None if there are others.

    The digits of a complex number are those of its real part, then those of its imaginary part.

    Examples
    --------
    >>> int(from_digits("0x8001", np.dtype("u2")))
    32769
    """
    match = re.fullmatch("0x([0-9a-fA-F]+)|0b([01]+)", data) if isinstance(data, str) else None
    if match is None:
        return None
    digits, base, per_byte = (match[1], 16, 2) if match[1] else (match[2], 2, 8)
    if len(digits) != per_byte * dtype.itemsize:
        return None
    octets = bytes(int(digits[at : at + per_byte], base) for at in range(0, len(digits), per_byte))
    scalar: Scalar = np.frombuffer(octets, dtype.newbyteorder(">")).astype(dtype.newbyteorder("="))[0]
    return scalar


def to_digits(scalar: Any, dtype: np.dtype[Any]) -> str:
    """The hexadecimal digits of all bits of a scalar, as :func:`from_digits` reads them."""
    return "0x" + np.asarray(scalar, dtype).astype(dtype.newbyteorder(">")).tobytes().hex()
