"""What follows from another shape of an array: its metadata, and which chunks leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from xzarr3.codecs.base import Codec
from xzarr3.grid import Grid
from xzarr3.io.stored_units import are_few, stored_units
from xzarr3.model.metadata import ArrayMetadata

if TYPE_CHECKING:
    from xzarr3.arrays import Array
    from xzarr3.codecs.sharding import ShardingCodec
    from xzarr3.codecs.transpose import TransposeCodec


def resized(stored: ArrayMetadata, shape: tuple[int, ...]) -> ArrayMetadata:
    """The metadata with another shape.

    Raises
    ------
    MetadataError
        If the codecs cannot encode the chunks that a rectilinear grid gets.
    """
    grid = stored.chunk_grid.resized(shape, inner_shape(stored.codecs, len(shape)))
    result = replace(stored, shape=shape, chunk_grid=grid)
    if grid is not stored.chunk_grid:
        result.check_codecs()
    return result


def erase_beyond(array: Array, old: tuple[int, ...], grid: Grid, *, may_list: bool = False) -> None:
    """Erase chunks inside the shape ``old``, which ``grid`` divides, and outside the present shape.

    With ``may_list``, skips a region if the store cannot list and there are too many units to ask for each.
    """
    for axis, new in enumerate(array.shape):
        if new >= old[axis]:
            continue
        # Along earlier axes, everything outside the shape is erased already.
        region = tuple(
            slice(new, old[axis])
            if at == axis
            else slice(min(array.shape[at], old[at]) if at < axis else old[at])
            for at in range(array.ndim)
        )
        if may_list and not array.engine.store.listable and not are_few(region, old, grid):
            continue
        beyond = []
        for coords in stored_units(array, region, old, grid):
            start = grid.axes[axis].start(coords[axis])
            if start >= new:
                beyond.append(array.engine.key(coords))
            else:
                lengths = grid.chunk_shape_at(coords)
                inner = tuple(slice(new - start if at == axis else 0, n, 1) for at, n in enumerate(lengths))
                array.engine.clear(coords, inner, keep_empty=array._keeps_empty)
        if beyond:
            array.engine.store.erase_values(beyond)


def inner_shape(codecs: Iterable[Codec], ndim: int) -> tuple[int, ...] | None:
    """Shape of the inner chunks that a sharding codec makes, in the order of the array's dimensions.

    None if there are no inner chunks, or if they have other dimensions than the array.
    """
    order = list(range(ndim))
    for codec in codecs:
        if codec.name == "transpose":
            order = [order[axis] for axis in cast("TransposeCodec", codec).order]
        elif codec.name in ("reshape", "numcodecs.packbits"):
            return None
        elif codec.name == "sharding_indexed":
            lengths = cast("ShardingCodec", codec).chunk_shape
            return tuple(lengths[order.index(axis)] for axis in range(ndim))
    return None
