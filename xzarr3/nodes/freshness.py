"""Checks whether an open node is still the stored one, and whether the values of an array have changed.

What is below a group is read as of one time: :func:`read_below_steadily`. Readers and writers of an array
check that the stored document is the one with which the array was opened, or describes the same array:
:func:`read_steadily`, :func:`check_current` and :func:`check_to_write`. A write looks again before it stores
a unit, :func:`confirm`, and a copy once it has read all, :func:`check_read`. Dask names tasks by
:func:`token`, which changes with the documents and with what this process writes. What this process has seen
and changed is kept in :mod:`xzarr3.nodes.seen`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from xzarr3._types import Buffer
from xzarr3.errors import ChangedError, StoreError, Xzarr3Error
from xzarr3.extensions import json_key
from xzarr3.formats import documents
from xzarr3.formats.base import Held
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata
from xzarr3.nodes import seen
from xzarr3.nodes.coding import coding, recoded
from xzarr3.nodes.documents import gone
from xzarr3.nodes.find import document_values, metadata_of, read_held
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store, versioned
from xzarr3.stores.values import ABSENT

if TYPE_CHECKING:
    from xzarr3.arrays import Array
    from xzarr3.groups import Group

Below = TypeVar("Below")
_ATTEMPTS = 3  # attempts to read one version of a node that is being changed


def read_steadily(array: Array, read: Callable[[], int], number: int, *, leaves: bool = False) -> int:
    """Read stored units, after a check that they are of the array that was opened.

    If the store tells versions without a request, all units belong to one version of the array, or an error
    is raised. A writer that replaces an array erases its document first and stores the new one last, and no
    two documents are equal. So all units read belong to one version if the document after the read equals the
    document at any time before it. If it has changed, everything is read again: the change may have been an
    attribute, or the length.

    In a store in memory that does not tell changes, the documents are read after the values. Where each look
    takes a request, the documents that define how values are decoded are read beside the values, once in
    :data:`xzarr3.nodes.seen.RECENT` seconds for all handles, and after a read that found no value for a unit.
    So new values are not decoded by old documents, and erased values are not taken for fill values. While an
    array is being replaced there, a read may give old and new values.

    Parameters
    ----------
    read : callable
        Reads, and returns how many units were absent.
    number : int
        Number of units it reads.
    leaves : bool
        As :meth:`xzarr3.io.executor.Engine.read` has it.

    Raises
    ------
    ChangedError
        If the array was removed or replaced since it was opened, or other writers kept changing its document.
    IncompleteWriteError
        If the array is being replaced.
    """
    if not array.has_document:
        return read()
    _check_known(array)
    for _ in range(_ATTEMPTS):
        if number > 1 or array._known.version is None:
            version = array.store.versions([array._key])[0]
            if version is None:
                if array.store.traits.tells_changes:
                    raise _vanished(array)
                return _read_and_look(array, read, leaves)
            array._check_current(version)
        before = array._known.version
        try:
            missing = read()
        except Xzarr3Error as error:  # a replaced array may be unreadable: report the change instead
            check_read(array, error)
            raise
        version = array.store.versions([array._key])[0]
        if version is None:
            raise _vanished(array)
        if version != before:
            array._check_current(version)
        if array._is_decoded:
            _check_coding(array, version)
            if array._bounded is not None:
                _check_coding(array._bounded)
        if version == before:
            return missing
    raise ChangedError(
        f"array '{array.name}' of {array.store} was replaced, or its document changed, each of the "
        f"{_ATTEMPTS} times that it was read; read it again when its writers have ended"
    )


def read_below_steadily(group: Group, read: Callable[[], Below], *, as_opened: bool = False) -> Below:
    """What ``read`` finds below a group: all of before a writer replaced the group, or all of after.

    Where answers are waited for, what is below any group is only read twice if there is nothing.

    Parameters
    ----------
    group : Group
    read : callable
    as_opened : bool
        Only what is below the group that was opened, whose attributes this handle has.

    Raises
    ------
    ChangedError
        If another group is there than the one that was opened.
    IncompleteWriteError
        If the group is being replaced.
    StoreError
        If it has been erased.
    """
    if group.store.concurrency > 1 and not as_opened and (found := read()):
        return found
    opened_at = group._opened_at or group._placed_at or None  # It may be 0, if it is not known.
    for _ in range(1 if as_opened else _ATTEMPTS):
        before = opened_at if as_opened else _placed_now(group)
        found, after = read(), _placed_now(group)
        if as_opened and after is not None and before is not None and after > before:
            raise ChangedError(
                f"group '{group.name}' of {group.store} was replaced since it was opened; open it again"
            )
        if after is not None and (as_opened or after == before):
            return found
    group._check_not_being_replaced()
    own = group.format.keys(group.path).documents
    if not group.format.implicit_groups and not any(map(group.store.exists, own)):
        raise gone(group.store, group.path)
    return read()


def _placed_now(group: Group) -> float | None:
    """When the stored group was put in its place, by its document; 0 if unknown, None without a document."""
    value = group.store.get(group.format.keys(group.path).defining[-1])
    return None if value is None else documents.replaced_at(value) or 0


def _read_and_look(array: Array, read: Callable[[], int], leaves: bool) -> int:
    """Read values, and look at the documents: afterwards, or in other threads if answers are waited for."""
    if answers_at_once(array.store):
        try:
            return read()
        finally:  # A replaced array may be unreadable: report the change instead.
            for each in _decoded_like(array):
                _look_if_changed(each)
    missing = _read_beside_looks(read, [*filter(_needs_look, _decoded_like(array))], leaves)
    if missing:  # They may have been erased just now.
        _look(array)
    return missing


def _read_beside_looks(read: Callable[[], int], due: Sequence[Array], leaves: bool) -> int:
    """Read values while looking at the documents of ``due`` arrays in other threads."""
    if not due:
        return read()

    def tried(work: Callable[[], object]) -> object:
        try:
            return work()
        except Xzarr3Error as error:
            return error

    works: list[Callable[[], object]] = [read, *(partial(_look, array) for array in due)]
    found = parallel_map(tried, works, 1 + len(due), leaves=leaves)
    for outcome in (*found[1:], found[0]):  # a replaced array may be unreadable: report the change first
        if isinstance(outcome, Xzarr3Error):
            raise outcome
    return cast("int", found[0])


def _decoded_like(array: Array) -> tuple[Array, ...]:
    """The arrays whose documents define how values are decoded, this one first."""
    return (array,) if array._bounded is None else (array, array._bounded)


def _document_keys(array: Array) -> list[str]:
    """The keys of the documents that say how values are stored and decoded, the defining one first."""
    return list(dict.fromkeys((array._key, array.format.keys(array.path).attributes(array=True))))


def _needs_look(array: Array) -> bool:
    """Whether the documents must be read again; a recent look by another handle is checked instead."""
    found = seen.last(array.store, array.path)
    if found is None or found.time < array._known_at:
        return time.monotonic() - array._known_at >= seen.RECENT
    if found.tells:
        _check_seen(array, cast("NodeMetadata", found.metadata))
    return not found.tells


def _look(array: Array, stored: Sequence[Buffer | None] | None = None) -> None:
    """Read the documents that define how values are decoded, unless they are given, and compare them."""
    found = look(array, stored).metadata
    if found is None:
        raise _vanished(array)
    _check_seen(array, found)


def _look_if_changed(array: Array) -> None:
    """As :func:`_look`, unless the documents are those that this handle has compared last."""
    stored = document_values(array.store, _document_keys(array))
    if stored != array._compared:
        _look(array, stored)
        array._compared = stored


def look(array: Array, stored: Sequence[Buffer | None] | None = None, *, to_write: bool = False) -> seen.Seen:
    """Read the documents of an array and remember what they say; ``to_write`` bypasses caches."""
    now, keys = time.monotonic(), _document_keys(array)
    if to_write:
        stored = parallel_map(lambda key: versioned(array.store, key)[0], keys, array.store.concurrency)
        seen.note_all(array.store, zip(keys, stored, strict=True))
    elif stored is None:
        stored = document_values(array.store, keys)
    values = dict(zip(keys, stored, strict=True))
    found = None if stored[0] is None else metadata_of(array.format, array.path, values)
    return seen.remember(array.store, array.path, found, now)


def _check_seen(array: Array, metadata: NodeMetadata) -> None:
    found = same(array, metadata)
    how = recoded(found, array.metadata) if array._is_decoded else None
    if how is not None:
        raise _decoded_otherwise(array, how)
    check_place(array, seen.placed_at(array.store, array._key, metadata))
    array._check_shape(found)


def check_to_write(array: Array) -> bool:
    """Raise before a write to a replaced array; returns whether it is being created, without a document."""
    found = seen.last(array.store, array.path)
    if found is None or not (found.is_new and found.is_recent):
        found = look(array, to_write=True)
    if found.metadata is not None:
        _check_seen(array, found.metadata)
    elif array._had_document:
        raise _vanished(array)
    return found.metadata is None


def check_current(array: Array, version: object | None = None) -> None:
    """Raise if the array was replaced since it was opened, if the store can tell without a request.

    ``version`` is the version of its document, if the caller has it already.
    """
    known = array._known
    _check_known(array)
    version = array.store.versions([array._key])[0] if version is None else version
    if version is None or version == known.version:
        return
    coding_version = _coding_version(array, version)
    held = read_held(array.store, array.format, array.path, consolidated=False)
    known.replaced_at = None if held is None else documents.placed_at(held)
    opened, known.held = known.held, None
    if held is None or opened is None or json_key(held) != json_key(opened):  # == takes -0.0 for 0.0
        found = _same_as(array, held)
        known.recoded = recoded(found, array.metadata)
        _check_known(array)
        array._check_shape(found)
    known.version, known.coding_version = version, coding_version
    _check_known(array)


def _check_known(array: Array) -> None:
    """Raise if the array was replaced by the stored documents that were compared with its own."""
    if array._is_decoded and array._known.recoded is not None:
        _check_coding(array)  # Attributes may have been set back.
    check_place(array, array._known.replaced_at)


def confirming(array: Array) -> tuple[Callable[[], None], bool]:
    """Raise before a write to a replaced array; returns what raises if it has left its place since.

    Also returns whether the array is being created, so that nobody else writes to it. Where a look at the
    document takes as long as storing a unit, there is only the look before the write.
    """
    store, known = array.store, array._known
    if store.traits.tells_changes or store.versions([array._key])[0] is not None:
        if known.version is None:
            array._check_current()
        else:
            confirm(array)
        if known.version is None and array._had_document and not store.exists(array._key):
            raise _vanished(array)
        if array._is_decoded:
            _check_coding(array)
        return partial(confirm, array), known.version is None
    if not answers_at_once(store):
        return lambda: None, array._check_to_write()
    before = versioned(store, array._key)[1]
    if before == ABSENT:
        array._check_not_being_replaced()
    is_new = array._check_to_write()

    def look_again() -> None:
        version = versioned(store, array._key)[1]
        if version != before:
            if version == ABSENT:
                raise _vanished(array)
            array._check_to_write()

    return look_again, is_new


def answers_at_once(store: Store) -> bool:
    """Whether a look at a document costs next to nothing, where the store does not tell changes itself."""
    traits = store.traits
    return not traits.tells_changes and traits.concurrency <= 1 and traits.conditional != "threads"


def confirm(array: Array) -> None:
    """Raise if an array that :func:`check_current` has passed has left its place since."""
    known = array._known
    if known.version is None:
        return
    version = array.store.versions([array._key])[0]
    if version is None and array.store.get(array._key) is None:  # Else it could not be looked at just now.
        raise _vanished(array)
    if version == known.version:
        _check_known(array)
    else:
        check_current(array, version)


def check_read(array: Array, cause: Xzarr3Error | None = None) -> None:
    """Raise if an array was replaced while its stored units were read one by one."""
    if not array.has_document:
        return
    version = array.store.versions([array._key])[0]
    if version is not None:
        check_current(array, version)
        if array._is_decoded:
            _check_coding(array, version)
    elif array.store.traits.tells_changes:
        raise _vanished(array) from cause
    else:
        _look(array)


def _coding_version(array: Array, version: object) -> object:
    """A version of the documents that define how values are decoded, from that of the array's document."""
    attributes = array.format.keys(array.path).attributes(array=True)
    return version if attributes == array._key else (version, array.store.versions([attributes])[0])


def _check_coding(array: Array, version: object | None = None) -> None:
    """Raise if values are now decoded in another way, if the store can tell without a request.

    ``version`` is the version of its document, if the caller has it already.
    """
    known = array._known
    version = array.store.versions([array._key])[0] if version is None else version
    if version is None:
        return
    version = _coding_version(array, version)
    if version != known.coding_version:
        held = read_held(array.store, array.format, array.path, consolidated=False)
        known.recoded = recoded(_same_as(array, held), array.metadata)
        known.coding_version = version
    if known.recoded is not None:
        raise _decoded_otherwise(array, known.recoded)


def _decoded_otherwise(array: Array, how: str) -> ChangedError:
    return ChangedError(
        f"array '{array.name}' of {array.store} was replaced since it was opened, and the values stored now "
        f"would be decoded wrongly: {how}; open it again, with consolidated=False if consolidated metadata "
        "are out of date"
    )


def check_shape(array: Array, found: ArrayMetadata) -> None:
    """Raise if the array was made shorter since it was opened."""
    if any(now < then for now, then in zip(found.shape, array.shape, strict=True)):
        raise StoreError(
            f"array '{array.name}' of {array.store} has shape {found.shape} now and had {array.shape} when "
            "it was opened; open it again"
        )


def note_place(array: Array) -> None:
    """Note that the array that was just put in its place is the one of this handle."""
    array._had_document = True
    array._opened_at = max(array._opened_at, seen.replaced_at(array.store, array._key) or 0)


def check_place(array: Array, replaced_at: float | None) -> None:
    """Raise if the array was replaced since it was opened, though by one that is stored in the same way."""
    if replaced_at is not None and replaced_at > array._opened_at:
        raise ChangedError(
            f"array '{array.name}' of {array.store} was replaced since it was opened, or its first elements "
            "were dropped, or others were put before them, so that an index may mean another element; "
            "open it again"
        )


def _vanished(array: Array) -> Xzarr3Error:
    array.store.get(array._key, (0, 1))  # Raises for a document that this user may not read.
    more = array._check_not_being_replaced()
    return ChangedError(
        f"array '{array.name}' of {array.store} vanished: the document that it was opened from "
        f"is gone{more}; open it again once it has been written"
    )


def stored_metadata(array: Array) -> ArrayMetadata:
    """The stored metadata, which another handle may have changed.

    Raises
    ------
    ChangedError
        If the document is gone, or describes an array that is stored in another way.
    """
    return _same_as(array, read_held(array.store, array.format, array.path, consolidated=False))


def _same_as(array: Array, held: Held | None) -> ArrayMetadata:
    return same(array, None if held is None else array.format.parse(held, array.path))


def same(array: Array, found: NodeMetadata | None) -> ArrayMetadata:
    """Raise if metadata are no longer of this array."""
    if not isinstance(found, ArrayMetadata) or not found.stores_as(array.metadata):
        raise ChangedError(
            f"array '{array.name}' of {array.store} was removed or replaced since it was opened; open it "
            "again"
        )
    return found


def note_values(array: Array) -> None:
    """Note that this process changes values, for dask's names."""
    seen.note_values(array.store, array.path)


def token(array: Array) -> object:
    """The token by which dask names an array.

    It changes with the documents, and with what this process writes once it has named the array. It is the
    same in every process that has not written since.
    """
    version = array.store.versions([array._key])[0]
    stamps = array._tag if version is None else repr(version), seen.named(array.store, array.path)
    place = array.store.identity, array.store.told_apart
    options: list[str] = [] if array.missing == "fill" else [array.missing]
    if array._bounded is not None:
        options.append(repr(coding(array._bounded.metadata)))
    return ("xzarr3.Array", place, array.path, array._known.text, stamps, *options)
