"""Swaps keys in a store that cannot rename: staged under a prefix, then copied to their places.

The old documents leave first, the old chunks follow, the new chunks are copied within the store, and the new
documents come last. Takes no leases.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from xzarr3._types import Buffer
from xzarr3.commit.transaction import BEGUN, NEW, SWAP, Swap
from xzarr3.errors import StoreError, listed
from xzarr3.formats import Format
from xzarr3.nodes.consolidated import drop_from_consolidated, write_consolidated
from xzarr3.nodes.documents import store_documents
from xzarr3.nodes.erase import erase_stages, formats_in
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store, Traits
from xzarr3.stores.base import MOST_COPIED


def put_in_place(store: Store, format: Format, top: str, swap: Swap) -> None:
    """Erase the old node, copy the new values to their places, and store the documents last."""
    for each in formats_in(store, swap.path, format):  # first, so that no copy outlives its document
        drop_from_consolidated(store, each, swap.path)
    erase_stages(store, swap.away)
    _copy(store, format, f"{top}{NEW}/", swap)
    store_documents(store, format, swap.encoded(), last=swap.path, replaces=True)


def finish(store: Store, format: Format, top: str, swap: Swap) -> bool:
    """Finish the swap of a killed writer; returns whether it had begun and the new node is in place."""

    def defining(each: Format) -> set[str]:
        hierarchy = () if swap.path else each.hierarchy_documents()
        return {*each.keys(swap.path).defining, *hierarchy}

    every = set().union(*map(defining, formats_in(store, swap.path, format)))
    first = next(filter(None, (every.intersection(keys) for keys in swap.away)), set())
    own, copied = swap.documents.get(swap.path, {}), format.keys(swap.path).consolidated
    for keys in (first, defining(format).intersection(own)):
        # the old node is whole, or the new one, and may have been changed since
        if keys and all(parallel_map(store.exists, keys, store.concurrency)):
            if copied in own and not store.exists(str(copied)):
                write_consolidated(store, format, swap.path)
            return False
    put_in_place(store, format, top, swap)
    return True


def _copy(store: Store, format: Format, staged: str, swap: Swap) -> None:
    """Copy the staged values to their final keys, and check that all have arrived.

    The old values have left, so a final key that exists holds a new value.
    """
    missing = swap.come
    for copy in (store.copy, partial(Store.copy, store)):  # by the service, then through this process
        if not missing:
            return
        with _without(staged):
            number = min(store.concurrency, MOST_COPIED)
            parallel_map(lambda key, copy=copy: copy(staged + key, key), missing, number)  # type: ignore[misc]
        there = itertools.chain(*map(store.list_prefix, format.keys(swap.path).prefixes))
        asked = sorted(set(missing).difference(there))
        found = parallel_map(store.exists, asked, store.concurrency)  # listings may lag behind writes
        missing = [key for key, is_there in zip(asked, found, strict=True) if not is_there]
    if missing:
        raise StoreError(
            f"cannot replace '/{swap.path}' in {store}: {len(missing)} values were not copied, "
            f"{listed(missing[:5])}"
        )


def remove_keys(store: Store, top: str) -> None:
    """Remove all that a write has staged, the list of what is left to do first and the note of it last."""
    store.erase(f"{top}{SWAP}")
    keys = set(store.list_prefix(top)) - {f"{top}{BEGUN}", f"{top}{SWAP}"}
    store.erase_values([*sorted(keys), f"{top}{BEGUN}"])


@contextlib.contextmanager
def _without(prefix: str) -> Iterator[None]:
    """Remove a staging prefix from the messages of errors, so that keys have their final names."""
    try:
        yield
    except StoreError as error:
        error.args = tuple(each.replace(prefix, "") if isinstance(each, str) else each for each in error.args)
        raise


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
        self.traits = Traits(
            read_only=store.read_only,
            operations=tuple(filter(store._can, store.traits.operations)),
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

    def get(self, key: str, *how: Any, **more: Any) -> Buffer | None:
        with _without(self._prefix):
            return self._store.get(self._prefix + key, *how, **more)

    def put(self, key: str, pieces: Sequence[Buffer]) -> None:  # type: ignore[override]
        with _without(self._prefix):
            self._store.put(self._prefix + key, pieces)
        with self._guard:
            self._written.add(key)

    def erase(self, *keys: str) -> None:
        with self._guard:
            self._written.difference_update(keys)
        with _without(self._prefix):
            self._store.erase_values([self._prefix + key for key in keys])

    def list(self, prefix: str = "") -> Iterator[str]:
        for key in self._store.list_prefix(self._prefix + prefix):
            yield key[len(self._prefix) :]
