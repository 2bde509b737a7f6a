"""Resizes arrays and appends to them, one writer at a time.

Each change runs under the lease of the array (:mod:`xzarr3.commit.length`). An append stores its chunks
before the document with the new shape; a resize that shrinks erases chunks after it. Reading and writing
chunks is left to the array's engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy.typing as npt

from xzarr3._types import AnyArray, Buffer
from xzarr3.codecs.base import Codec
from xzarr3.commit.lease import LeaseLostError
from xzarr3.commit.length import Length, turn
from xzarr3.errors import ChangedError, OutcomeUnknownError, SelectionError, StoreError
from xzarr3.grid import Grid, as_lengths
from xzarr3.io.selection import basic_selection
from xzarr3.io.stored_units import are_few, stored_units
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.nodes.consolidated import refresh_copies
from xzarr3.nodes.find import document_values, metadata_of
from xzarr3.nodes.freshness import same

if TYPE_CHECKING:
    from xzarr3.arrays import Array
    from xzarr3.codecs.sharding import ShardingCodec
    from xzarr3.codecs.transpose import TransposeCodec


def resize(array: Array, shape: int | tuple[int, ...]) -> None:
    """Change the shape; see :meth:`xzarr3.Array.resize`."""
    array._check_writable()
    try:
        new = as_lengths(shape)
    except TypeError as error:
        raise SelectionError(f"not a shape: {shape!r}; accepted: {array.ndim} integers") from error
    if len(new) != array.ndim or any(length < 0 for length in new):
        raise SelectionError(
            f"array '{array.name}' of shape {array.shape} cannot be resized to {new}; pass "
            f"{array.ndim} lengths of at least 0"
        )
    _with_lease(array, partial(_resize, array, new))


def append(array: Array, data: npt.ArrayLike, axis: int) -> None:
    """Add data at the end of an axis; see :meth:`xzarr3.Array.append`."""
    array._check_writable()
    values = array._cast(data, array.metadata.data_type)
    if not -array.ndim <= axis < array.ndim:
        raise SelectionError(
            f"axis {axis} is out of bounds for array '{array.name}' of {array.ndim} dimensions; accepted: "
            f"{-array.ndim} to {array.ndim - 1}"
        )
    _with_lease(array, partial(_append, array, values, axis % array.ndim))


def _with_any(shape: tuple[int, ...], axis: int) -> str:
    """A shape with any length along an axis, as for ``(n, 20)``."""
    lengths = ["n" if at == axis else str(length) for at, length in enumerate(shape)]
    return f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"


def _with_lease(array: Array, change: Callable[[Length], None]) -> None:
    """Run ``change`` under the lease of the array; if the lease is lost, run it again."""
    deadline = time.monotonic() + array.store.traits.conflict_deadline
    prefix = array.format.chunk_prefix(array.path) if array.path else ""
    with turn(array.store, array._key):
        while True:
            try:
                with Length(array.store, prefix, array._key, deadline) as length:
                    change(length)
                break
            except LeaseLostError:
                if time.monotonic() >= deadline:
                    raise
    refresh_copies(array.store, array.format, array.path)


def _resize(array: Array, shape: tuple[int, ...], length: Length) -> None:
    stored = at_first(array, length)
    after = resized(stored, shape)
    if array.store.traits.visible == "at commit":
        _resize_at_once(array, stored, after, length)
        return
    old = array._over(length, stored)
    # A cut-off write or append may have left chunks where the array is about to grow.
    erase_beyond(old, tuple(map(max, shape, stored.shape)), after.chunk_grid, may_list=True)
    shrinks = any(now < then for now, then in zip(shape, stored.shape, strict=True))

    def change(found: NodeMetadata) -> NodeMetadata:
        return resized(same(array, found, stored.shape), shape)

    array._change_document(array._key, change, length=length)
    if shrinks:
        # If the lease was lost, its new holder may have appended already. Chunks left past the end are erased
        # when the array grows.
        with suppress(LeaseLostError):
            erase_beyond(array._over(length, after), stored.shape, after.chunk_grid)


def _resize_at_once(array: Array, stored: ArrayMetadata, after: ArrayMetadata, length: Length) -> None:
    """Resize in a transaction, which erases chunks only within the shape that the document has."""
    largest = tuple(map(max, stored.shape, after.shape))
    _say_shape(array, stored.shape, largest, length)
    if largest != stored.shape:  # Chunks that were beyond the end when the array shrank may still be there.
        erase_beyond(array._over(length, stored), largest, resized(stored, largest).chunk_grid, may_list=True)
    erase_beyond(array._over(length, after), largest, resized(stored, largest).chunk_grid, may_list=True)
    _say_shape(array, largest, after.shape, length)


def _say_shape(array: Array, old: tuple[int, ...], new: tuple[int, ...], length: Length) -> None:
    """Change the shape in the document."""
    if old != new:
        array._change_document(array._key, lambda found: resized(same(array, found, old), new), length=length)


def _append(array: Array, values: AnyArray, axis: int, length: Length) -> None:
    stored = at_first(array, length)
    old = stored.shape
    fits = values.ndim == array.ndim and all(
        at == axis or values.shape[at] == old[at] for at in range(array.ndim)
    )
    if not fits:
        raise SelectionError(
            f"cannot append values of shape {values.shape} to array '{array.name}' of shape {old} along "
            f"axis {axis}; give values of shape {_with_any(old, axis)}"
        )
    shape = tuple(n + values.shape[at] if at == axis else n for at, n in enumerate(old))
    grown = array._over(length, resized(stored, shape))
    is_first = array.store.traits.visible == "at commit"
    if is_first:
        _say_shape(array, old, shape, length)
    try:
        region = (slice(None),) * axis + (slice(old[axis], None),)
        grown._write(basic_selection(region, shape), values)
        if not is_first:
            _say_shape(array, old, shape, length)
    except (LeaseLostError, OutcomeUnknownError, ChangedError):
        raise  # the rows past the end may belong to another writer
    except BaseException as error:
        try:
            erase_beyond(array._over(length, stored), shape, grown.metadata.chunk_grid)
            if is_first:
                _say_shape(array, shape, old, length)
        except StoreError as another:
            error.add_note(f"what was written behind the array could not be erased: {another}")
        raise


def at_first(array: Array, length: Length) -> ArrayMetadata:
    """The metadata as they were when the lease was taken."""
    values: dict[str, Buffer | None] = {array._key: length.document}
    if not array.format.one_document:
        keys = array.format.reading_keys(array.path, consolidated=False)
        others = [key for key in keys if key != array._key]
        values.update(zip(others, document_values(array.store, others), strict=True))
    return same(array, metadata_of(array.format, array.path, values))


def resized(stored: ArrayMetadata, shape: tuple[int, ...]) -> ArrayMetadata:
    """The metadata with another shape."""
    grid = stored.chunk_grid.resized(shape, _inner_shape(stored.codecs, len(shape)))
    return replace(stored, shape=shape, chunk_grid=grid)


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


def _inner_shape(codecs: Iterable[Codec], ndim: int) -> tuple[int, ...] | None:
    """Shape of the inner chunks that a sharding codec makes, in the order of the array's dimensions."""
    order = list(range(ndim))
    for codec in codecs:
        if codec.name == "transpose":
            order = [order[axis] for axis in cast("TransposeCodec", codec).order]
        elif codec.name == "sharding_indexed":
            lengths = cast("ShardingCodec", codec).chunk_shape
            return tuple(lengths[order.index(axis)] for axis in range(ndim))
    return None
