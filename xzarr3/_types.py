"""Names for the types that several modules speak of."""

from __future__ import annotations

from typing import Any, TypeAlias, Union

import numpy as np
import numpy.typing as npt

JSON: TypeAlias = Union[bool, int, float, str, "list[JSON]", "dict[str, JSON]", None]
"""What a document can hold."""
Buffer: TypeAlias = bytes | bytearray | memoryview
AnyArray: TypeAlias = npt.NDArray[Any]
Scalar: TypeAlias = np.generic
ByteRange: TypeAlias = tuple[int, int | None]
"""The first byte and the length of a part of a value, which may reach to its end."""
Part: TypeAlias = ByteRange | None
"""A part of a value; None for all of it."""
Found: TypeAlias = Buffer | None
"""What was read; None if there is no value."""
