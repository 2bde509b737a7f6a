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
