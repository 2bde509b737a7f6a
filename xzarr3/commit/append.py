"""Changes the length of arrays: appends, to one array or to several together, and resizes.

Each change runs under the lease of its array (:mod:`xzarr3.commit.length`). An append stores values past the
end first, where no reader looks, and the documents with the new shapes last; after an error it takes both
back. A store that commits by itself gets the shapes first, as its commit makes everything visible together.
A resize that shrinks erases chunks after the document has changed. Reading and writing chunks is left to the
arrays' engines.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy.typing as npt

from xzarr3._types import AnyArray, Buffer
from xzarr3.commit.lease import Lease, LeaseLostError, release_together
from xzarr3.commit.length import Length, turn
from xzarr3.display.units import counted
from xzarr3.errors import (
    ChangedError,
    MetadataError,
    OutcomeUnknownError,
    SelectionError,
    StoreError,
    located,
)
from xzarr3.formats import Format
from xzarr3.grid import as_lengths
from xzarr3.io.selection import basic_selection
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.nodes.consolidated import refresh_copies
from xzarr3.nodes.documents import DocumentChange, change_document
from xzarr3.nodes.find import document_values, metadata_of
from xzarr3.nodes.freshness import check_place, same, stored_metadata
from xzarr3.nodes.resize import erase_beyond, resized
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.base import update
from xzarr3.stores.values import Unchanged

if TYPE_CHECKING:
    from xzarr3.arrays import Array


@dataclass(frozen=True, eq=False)
class _Growing:
    """An array that grows, with its metadata before and after."""

    array: Array
    before: ArrayMetadata
    after: ArrayMetadata


class Append:
    """Grows arrays of one store together: values go past their ends first, then all get new shapes; or none.

    :meth:`reserve` the lengths, :meth:`begin`, say what :meth:`grow`, store values through the stores of the
    lengths, :meth:`publish`, and :meth:`release`. After an error in between, :meth:`discard`.

    Parameters
    ----------
    store : Store
    format : Format
    """

    def __init__(self, store: Store, format: Format) -> None:
        self._store, self._format = store, format
        self.lengths: dict[str, Length] = {}
        """The lengths that only this writer may change, by path of their arrays."""
        self._held: dict[str, Length] = {}
        self._growing: list[_Growing] = []
        self.shapes_come_first = store.traits.visible == "at commit"
        """Whether the store takes shapes before values, as all become visible at its commit."""

    def reserve(self, array: Array) -> Length:
        """Name an array whose length no other writer may change from :meth:`begin` on."""
        return self.lengths.setdefault(array.path, length_of(array))

    def begin(self, patience: float) -> None:
        """Take the leases of all lengths.

        The first is taken alone, so that of two writers that want the same arrays only one gets any.

        Parameters
        ----------
        patience : float
            How many seconds to wait for a living holder of a lease.

        Raises
        ------
        ConflictError
            If other writers hold a lease for longer.
        ChangedError
            If an array is gone.
        """

        def take(path: str) -> None:
            self.lengths[path].deadline = time.monotonic() + patience
            self._held[path] = self.lengths[path].__enter__()

        wanted = sorted(self.lengths)
        for paths in (wanted[:1], wanted[1:]):
            parallel_map(take, paths, self._store.concurrency)

    def grow(self, array: Array, before: ArrayMetadata, after: ArrayMetadata) -> None:
        """Say what an array grows to: what lies past its end is of this writer from now on.

        Parameters
        ----------
        array : Array
        before : ArrayMetadata
            The metadata that were stored when the lease was taken.
        after : ArrayMetadata
        """
        self._growing.append(_Growing(array, before, after))

    def verify(self) -> None:
        """Ask the store whether the leases of the arrays that do not grow still hold.

        Raises
        ------
        LeaseLostError
            If one was lost.
        """
        growing = {each.array.path for each in self._growing}
        others = [length for path, length in self._held.items() if path not in growing]
        parallel_map(Length.verify, others, self._store.concurrency)

    def holds(self) -> bool:
        """Ask the store whether all leases still hold."""
        leases = [length.lease for length in self._held.values() if length.is_exclusive]
        return all(parallel_map(Lease.holds, leases, self._store.concurrency))

    def publish(self) -> dict[str, NodeMetadata]:
        """Store the new shapes of all arrays, or none.

        Returns
        -------
        dict of str to metadata
            The metadata stored now, by path.

        Raises
        ------
        LeaseLostError
            If another writer has changed a length.
        OutcomeUnknownError
            If it is unknown whether a shape was stored.
        """
        done: dict[str, NodeMetadata] = {}

        def store(each: _Growing) -> Exception | None:
            try:
                done[each.array.path] = self._store_shape(each)
            except Exception as error:  # noqa: BLE001 - raised below
                return error
            return None

        try:
            outcomes = parallel_map(store, self._growing, self._store.concurrency)
        except BaseException as interruption:  # any of the documents may have changed already
            self._take_back(self._growing, interruption)
            raise
        failed = [error for error in outcomes if error is not None]
        if failed:
            self._take_back([each for each in self._growing if each.array.path in done], failed[0])
            raise failed[0]
        return done

    def _store_shape(self, each: _Growing) -> NodeMetadata:
        array, length = each.array, self._held[each.array.path]

        def changed(found: NodeMetadata) -> NodeMetadata:
            return resized(_of_shape(array, found, each.before.shape), each.after.shape)

        return change_document(
            self._store, self._format, array.path, array._key, changed, commit=length.commit
        )

    def _take_back(self, growing: list[_Growing], error: BaseException) -> None:
        """Give arrays that have grown, or may have, their old shapes back, after ``error``."""
        for each in growing:
            old, new = each.before.shape, each.after.shape
            try:
                self._shrink(each)
            except ChangedError:
                continue  # Another node has taken its place.
            except (StoreError, MetadataError) as another:
                error.add_note(
                    f"'{each.array.name}' may have shape {new}, and could not be set back to {old}: "
                    f"{another}; open it again, and call .resize({old}) on it"
                )

    def _shrink(self, each: _Growing) -> None:
        """Give an array its old shape back, if it has grown and no other writer has changed it since."""
        array, old, length = each.array, each.before.shape, self.lengths[each.array.path]

        def changed(found: NodeMetadata) -> NodeMetadata:
            if isinstance(found, ArrayMetadata) and found.shape == old:
                return found
            return resized(_of_shape(array, found, each.after.shape), old)

        def commit(change: DocumentChange, _: object) -> None:
            def changed_here(stored: Buffer | None) -> Sequence[Buffer] | Unchanged:
                if length.is_of_another(stored):
                    raise ChangedError(f"array '{array.name}' of {array.store} was replaced")
                return change(stored)

            update(self._store, array._key, changed_here)

        change_document(self._store, self._format, array.path, array._key, changed, commit=commit)

    def release(self) -> None:
        """Release the leases, after all is stored."""
        lengths, self._held, self._growing = list(self._held.values()), {}, []
        if len(lengths) > 1:
            with suppress(StoreError):  # a lease that is still held raises its error below
                release_together([length.lease for length in lengths if length.is_exclusive])
        parallel_map(lambda each: each.__exit__(None, None, None), lengths, self._store.concurrency)

    def discard(self, error: BaseException) -> None:
        """Erase what was stored past the ends before ``error``, and release the leases.

        Tasks of this process store no more then; those in other processes once the leases are released.
        """
        held, self._held = self._held, {}
        growing, self._growing = self._growing, []
        if not isinstance(error, OutcomeUnknownError):
            for each in growing:
                self._erase_past_end(each, held[each.array.path], error)
        if self.shapes_come_first:
            self._take_back(growing, error)
        for length in held.values():
            length.__exit__(type(error), error, None)

    def _erase_past_end(self, each: _Growing, length: Length, error: BaseException) -> None:
        there = each.after if self.shapes_come_first else each.before
        try:
            if stored_metadata(each.array).shape == there.shape:
                erase_beyond(each.array._over(length, each.before), each.after.shape, each.after.chunk_grid)
        except (LeaseLostError, ChangedError):
            return  # the lease was lost: its new holder owns the values past the end
        except (StoreError, MetadataError) as another:
            error.add_note(f"what was written past the end of the array could not be erased: {another}")


def length_of(array: Array) -> Length:
    """The right to change the length of an array, not taken yet."""
    prefix = array.format.keys(array.path).chunks if array.path else ""
    return Length(array.store, prefix, array._key, array.path)


def at_first(array: Array, length: Length) -> ArrayMetadata:
    """The metadata as they were when the lease was taken."""
    values: dict[str, Buffer | None] = {array._key: length.document}
    if not array.format.keys("").one_document:
        keys = array.format.keys(array.path).to_read(consolidated=False)
        others = [key for key in keys if key != array._key]
        values.update(zip(others, document_values(array.store, others), strict=True))
    return same(array, metadata_of(array.format, array.path, values))


def _of_shape(array: Array, found: NodeMetadata, shape: tuple[int, ...]) -> ArrayMetadata:
    """The stored metadata, if they are still of this array and of this shape."""
    stored = same(array, found)
    if stored.shape != shape:  # changed by a writer that takes no lease
        raise LeaseLostError(
            f"array '{array.name}' of {array.store} got shape {stored.shape} while its shape {shape} was "
            "being changed; let one writer change it at a time"
        )
    return stored


def _in_turn(array: Array, change: Callable[[float], None]) -> None:
    """Run ``change`` with the deadline for its lease; if the lease is lost, run it again."""
    deadline = time.monotonic() + array.store.traits.conflict_deadline
    with located(path=array.path), turn(array.store, array._key):
        while True:
            try:
                change(deadline)
                break
            except LeaseLostError:
                if time.monotonic() >= deadline:
                    raise


# Appends to one array


def append(array: Array, data: npt.ArrayLike, axis: int) -> None:
    """Add data at the end of an axis; see :meth:`xzarr3.Array.append`."""
    array._check_writable()
    values = array._cast(data, array.metadata.data_type)
    try:
        place = range(array.ndim)[operator.index(axis)]
    except (IndexError, TypeError) as error:
        raise SelectionError(
            f"axis {axis!r} is out of bounds for array '{array.name}' of {array.ndim} dimensions; accepted: "
            f"{-array.ndim} to {array.ndim - 1}"
        ) from error
    _in_turn(array, partial(_append, array, values, place))
    refresh_copies(array.store, array.format, array.path)


def _append(array: Array, values: AnyArray, axis: int, deadline: float) -> None:
    writing = Append(array.store, array.format)
    length = writing.reserve(array)
    try:
        writing.begin(deadline - time.monotonic())
        before = at_first(array, length)
        shape = _appended(array, values, axis, before.shape)
        after = resized(before, shape)
        writing.grow(array, before, after)
        stored = writing.publish() if writing.shapes_come_first else {}
        region = (slice(None),) * axis + (slice(before.shape[axis], None),)
        array._over(length, after)._write(basic_selection(region, shape), values)
        if not writing.shapes_come_first:
            stored = writing.publish()
    except BaseException as error:
        writing.discard(error)
        raise
    writing.release()
    array._adopt(stored[array.path])


def _appended(array: Array, values: AnyArray, axis: int, old: tuple[int, ...]) -> tuple[int, ...]:
    """The shape after values are added along an axis to a shape ``old``; raises if they do not fit."""
    if values.ndim != len(old) or any(
        at != axis and values.shape[at] != length for at, length in enumerate(old)
    ):
        raise SelectionError(
            f"cannot append values of shape {values.shape} to array '{array.name}' of shape {old} along "
            f"axis {axis}; give values of shape {_with_any(old, axis)}"
        )
    return tuple(length + values.shape[at] if at == axis else length for at, length in enumerate(old))


def _with_any(shape: tuple[int, ...], axis: int) -> str:
    """A shape with any length along an axis, as for ``(n, 20)``."""
    lengths = ["n" if at == axis else str(length) for at, length in enumerate(shape)]
    return f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"


# Resizes


def resize(array: Array, shape: int | tuple[int, ...]) -> None:
    """Change the shape; see :meth:`xzarr3.Array.resize`."""
    array._check_writable()
    try:
        new = as_lengths(shape)
    except TypeError as error:
        raise SelectionError(f"not a shape: {shape!r}; accepted: an integer for each dimension") from error
    if len(new) != array.ndim or any(length < 0 for length in new):
        raise SelectionError(
            f"array '{array.name}' of shape {array.shape} cannot be resized to {new}; pass "
            f"{counted(array.ndim, 'length')} of at least 0"
        )
    _in_turn(array, partial(_resize, array, new))


def _resize(array: Array, shape: tuple[int, ...], deadline: float) -> None:
    length = length_of(array)
    length.deadline = deadline
    with length:
        stored = at_first(array, length)
        check_place(array, length.placed_at)  # The shape is meant for that array.
        _check_known_ends(array, stored.shape, shape)
        after = resized(stored, shape)
        if array.store.traits.visible == "at commit":
            _resize_at_once(array, stored, after, length)
            refresh_copies(array.store, array.format, array.path)
            return
        # A cut-off write or append may have left chunks where the array is about to grow.
        largest = tuple(map(max, shape, stored.shape))
        erase_beyond(array._over(length, stored), largest, after.chunk_grid, may_list=True)
        _say_shape(array, stored.shape, shape, length)
        # First, as who reads with an old copy would find fill values for what is erased.
        refresh_copies(array.store, array.format, array.path)
        if any(now < then for now, then in zip(shape, stored.shape, strict=True)):
            # If the lease was lost, its new holder may have appended already. Chunks left past the end are
            # erased when the array grows.
            with suppress(LeaseLostError):
                erase_beyond(array._over(length, after), stored.shape, after.chunk_grid)


def _check_known_ends(array: Array, now: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Raise if a shape that is no shorter than that of this handle would cut off what others appended."""
    if any(known <= length < found for known, length, found in zip(array.shape, new, now, strict=True)):
        raise ChangedError(
            f"array '{array.name}' of {array.store} has shape {now} now and had {array.shape} when it was "
            f"opened, so the shape {new} would cut off elements that were appended since; open it again"
        )


def _resize_at_once(array: Array, stored: ArrayMetadata, after: ArrayMetadata, length: Length) -> None:
    """Resize in a transaction, which erases chunks only within the shape that the document has."""
    largest = tuple(map(max, stored.shape, after.shape))
    grid = resized(stored, largest).chunk_grid
    if largest != stored.shape:  # Chunks that were beyond the end when the array shrank may still be there.
        _say_shape(array, stored.shape, largest, length)
        erase_beyond(array._over(length, stored), largest, grid, may_list=True)
    erase_beyond(array._over(length, after), largest, grid, may_list=True)
    if largest != after.shape:
        _say_shape(array, largest, after.shape, length)


def _say_shape(array: Array, old: tuple[int, ...], new: tuple[int, ...], length: Length) -> None:
    """Change the shape in the document."""
    array._change_document(
        array._key, lambda found: resized(_of_shape(array, found, old), new), commit=length.commit
    )
