"""Swaps keys in a store that cannot rename: staged under a prefix, then copied to their places.

The old documents leave first, the old chunks follow, the new chunks are copied within the store, and the new
documents come last. Takes no leases.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial

from xzarr3._types import Buffer, ByteRange
from xzarr3.commit.transaction import BEGUN, NEW, SWAP, Swap
from xzarr3.errors import StoreError, listed
from xzarr3.formats import Format
from xzarr3.nodes.consolidated import drop_from_consolidated, write_consolidated
from xzarr3.nodes.documents import store_documents
from xzarr3.nodes.erase import erase_stages, formats_in
from xzarr3.parallel import parallel_map
from xzarr3.stores import Scratch, Store, Traits
from xzarr3.stores.base import MOST_COPIED


def put_in_place(store: Store, format: Format, top: str, swap: Swap) -> None:
    """Erase the old node, copy the new values to their places, and store the documents last."""
    for each in formats_in(store, swap.path, format):  # first, so that no copy outlives its document
        drop_from_consolidated(store, each, swap.path)
    erase_stages(store, swap.away)
    _copy(store, f"{top}{NEW}/", swap)
    store_documents(store, format, swap.encoded(), last=swap.path, replaces=True)


def finish(store: Store, format: Format, top: str, swap: Swap) -> bool:
    """Finish the swap of a killed writer; returns whether it had begun and the new node is in place."""
    first = _first_away(store, format, swap)
    # the old node is whole, or the new one, and may have been changed since
    is_whole = bool(first) and all(parallel_map(store.exists, first, store.concurrency))
    own = [*format.keys(swap.path).defining, *(format.hierarchy_documents() if not swap.path else ())]
    own = [key for key in own if key in swap.documents.get(swap.path, {})]
    if not is_whole and not all(parallel_map(store.exists, own, store.concurrency)):
        put_in_place(store, format, top, swap)
    else:
        copied = format.keys(swap.path).consolidated
        if copied in swap.documents[swap.path] and not store.exists(str(copied)):
            write_consolidated(store, format, swap.path)
    return not is_whole


def _first_away(store: Store, format: Format, swap: Swap) -> list[str]:
    """The documents that leave first, but for consolidated metadata of their own, which left before."""
    formats = formats_in(store, swap.path, format)
    defining = {key for each in formats for key in each.keys(swap.path).defining}
    copied = {each.keys(swap.path).consolidated for each in formats} - defining
    stages = ([key for key in stage if key not in copied] for stage in swap.away)
    return next(filter(None, stages), [])


def _copy(store: Store, staged: str, swap: Swap) -> None:
    """Copy the staged values to their final keys, and check that all have arrived.

    The old values have left, so a final key that exists holds a new value.
    """
    missing = set(swap.come)
    for copy in (store.copy, partial(Store.copy, store)):  # by the service, then through this process
        try:
            parallel_map(
                lambda key, copy=copy: copy(staged + key, key),  # type: ignore[misc]
                sorted(missing),
                min(store.concurrency, MOST_COPIED),
            )
        except StoreError as error:
            raise _without(error, staged) from error.__cause__
        if missing:
            missing.difference_update(store.list_prefix(_common_prefix(missing)))
        if not missing:
            return
    asked = sorted(missing)  # listings may lag behind writes
    found = parallel_map(store.exists, asked, store.concurrency)
    lost = [key for key, is_there in zip(asked, found, strict=True) if not is_there]
    if lost:
        raise StoreError(
            f"cannot replace '/{swap.path}' in {store}: {len(lost)} values were not copied, "
            f"{listed(lost[:5])}"
        )


def _common_prefix(keys: set[str]) -> str:
    """The longest common prefix of all keys that is empty or ends with '/'."""
    first, last = min(keys), max(keys)
    at = 0
    while at < min(len(first), len(last)) and first[at] == last[at]:
        at += 1
    return first[: first.rfind("/", 0, at) + 1]


def remove_keys(store: Store, top: str) -> None:
    """Remove all that a write has staged, the list of what is left to do first and the note of it last."""
    store.erase(f"{top}{SWAP}")
    keys = set(store.list_prefix(top)) - {f"{top}{BEGUN}", f"{top}{SWAP}"}
    store.erase_values([*sorted(keys), f"{top}{BEGUN}"])


def _without(error: StoreError, prefix: str) -> StoreError:
    """The error, with a staging prefix removed from its message, so that keys have their final names."""
    error.args = tuple(
        argument.replace(prefix, "") if isinstance(argument, str) else argument for argument in error.args
    )
    return error


class StagedKeys(Store):
    """Stores values under a prefix; messages use the final keys.

    Parameters
    ----------
    store : Store
    prefix : str
    """

    reports = False

    def __init__(self, store: Store, prefix: str) -> None:
        super().__init__()
        able = {
            "get": store.readable,
            "put": store.writeable,
            "erase": store.erasable,
            "list": store.listable,
        }
        self.traits = Traits(
            read_only=store.read_only,
            operations=tuple(name for name, is_able in able.items() if is_able),
            concurrency=store.concurrency,
            request_bytes=store.traits.request_bytes,
            over_read=store.traits.over_read,
        )
        self._store = store
        self._prefix = prefix
        self._guard = threading.Lock()
        self._written: set[str] = set()
        self._alone = True  # no copy of this object exists that may have written values

    def __getstate__(self) -> dict[str, object]:
        self._alone = False
        return {**self.__dict__, "_guard": None, "_written": set()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._guard = threading.Lock()

    def __repr__(self) -> str:
        return repr(self._store)

    def written(self) -> set[str]:
        """The keys of all values that were stored and not erased, also by other processes.

        Raises
        ------
        StoreError
            If values that this process stored are gone, or not listed while other processes may have stored
            some as well.
        """
        there = set(self.list_prefix(""))
        with self._guard:
            lost = sorted(self._written - there)
        is_late = lost and self._alone and all(parallel_map(self.exists, lost, self.concurrency))
        if lost and not is_late:  # a listing may lag behind writes, and then those of others lack as well
            raise StoreError(
                f"cannot write to {self}: values that this write stored before are gone, because {len(lost)} "
                f"are not listed, {listed(lost[:3])}, and those of other processes may not be listed either; "
                "repeat the write"
            )
        return there.union(lost)

    def get(
        self,
        key: str,
        byte_range: ByteRange | None = None,
        *,
        into: Scratch | None = None,
        limit: int = sys.maxsize,
    ) -> Buffer | None:
        try:
            return self._store.get(self._prefix + key, byte_range, into=into, limit=limit)
        except StoreError as error:
            raise _without(error, self._prefix) from error.__cause__

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:  # type: ignore[override]
        try:
            self._store.put(self._prefix + key, pieces)
        except StoreError as error:
            raise _without(error, self._prefix) from error.__cause__
        with self._guard:
            self._written.add(key)

    def erase(self, *keys: str) -> None:
        with self._guard:
            self._written.difference_update(keys)
        try:
            self._store.erase_values([self._prefix + key for key in keys])
        except StoreError as error:
            raise _without(error, self._prefix) from error.__cause__

    def list(self, prefix: str = "") -> Iterator[str]:
        for key in self._store.list_prefix(self._prefix + prefix):
            yield key[len(self._prefix) :]
