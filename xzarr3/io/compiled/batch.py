"""Turns the plan of a read into a batch for compiled code: flat arrays, without an object for each chunk."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.io.compiled.read import Boxes
from xzarr3.io.projection import AxisProjection


def boxes_of(parts: Sequence[Sequence[AxisProjection]], strides: Sequence[int], out: AnyArray) -> Boxes:
    """The boxes of all combinations of parts.

    Parameters
    ----------
    parts : sequence of sequence of AxisProjection
        For each dimension, the parts of the selection, which are slices.
    strides : sequence of int
        Bytes from one element of a decoded chunk to the next, for each dimension.
    out : ndarray
        The result.
    """
    rows = np.array(
        [
            (part.coord, part.inner.start * inside, part.outer.start * outside, part.outer.stop - part.outer.start)
            for along, inside, outside in zip(parts, strides, out.strides, strict=True)
            for part in along
        ],
        np.int64,
    ).reshape(-1, 4)
    number = np.array([len(along) for along in parts], np.int64)
    return Boxes(
        np.cumsum(number) - number,
        number,
        *map(np.ascontiguousarray, rows.T),
        np.array([along[0].inner.step * inside for along, inside in zip(parts, strides, strict=True)], np.int64),
        np.array(out.strides, np.int64),
    )
