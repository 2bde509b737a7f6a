"""A copy by way of a temporary array, where memory is too small to read each chunk of the source once.

Maps that become series are the common case: a tile of all times has few places, so that maps would be read
again for each tile. The temporary array has chunks that lie within few tiles of either side. So each value is
read, written, read and written. The temporary array lies in the store of the target, beside the copy.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from xzarr3.arrays import Array
from xzarr3.commit.keys import StagedKeys
from xzarr3.commit.staged import BEGUN, now
from xzarr3.copying.tiles import tiles_for
from xzarr3.copying.values import ArrayCopy, Means, Tiling, element_bytes
from xzarr3.errors import MetadataError
from xzarr3.grid import RegularGrid
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.array_settings import array_metadata
from xzarr3.readable import ReadableArray
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.local.names import STAGED

_OFTEN = 2  # Reads of each chunk of the source, on average, above which a temporary array pays.


def chunks_between(copy: ArrayCopy, means: Means) -> tuple[int, ...] | None:
    """Chunks of a temporary array for a copy; None if the copy does better without one.

    Examples
    --------
    Between 1000 maps and series, in 400 kB of memory:

    >>> import xzarr3
    >>> maps = xzarr3.zeros((1000, 90, 180), chunks=(1, 90, 180), dtype="f4")
    >>> series = xzarr3.zeros((1000, 90, 180), chunks=(1000, 2, 2), dtype="f4")
    >>> chunks_between(ArrayCopy(maps, series), Means(1, 400_000))
    (3, 2, 4)
    """
    source, target = copy.source, copy.target
    if copy.moves_bytes or copy.absent is not None or not target.size:
        return None
    direct = Tiling.of(source, target, means)
    fewest = Tiling.fewest(source)
    if direct.reads <= _OFTEN * fewest:
        return None
    room = means.memory.limit // 2 // element_bytes(target)  # The rest is for what threads hold besides.
    written = Tiling.of(source, target, means.half()).tiles.lengths
    read = tiles_for(source.chunk_grid, RegularGrid(written), source.shape, room).lengths
    return tuple(map(min, written, read))


def can_keep(store: Store, array: ReadableArray) -> bool:
    """Whether a store can keep a temporary array of the data type of ``array``."""
    if store.traits.visible != "at once":
        return False
    try:
        array_metadata(shape=(), dtype=array.metadata.data_type)
    except MetadataError:  # Only another format has this data type.
        return False
    return store.readable and store.listable and store.erasable


@contextmanager
def temporary(copy: ArrayCopy, chunks: tuple[int, ...], store: Store, top: str | None) -> Iterator[ArrayCopy]:
    """The copy to a temporary array, which is removed at the end.

    It stays if the copy fails and can be resumed, which ``top``, the prefix of all that it stores beside its
    place, tells.
    """
    prefix = f"{STAGED}{uuid.uuid4().hex}/" if top is None else top
    if top is None:
        # Another write that clears what killed ones left keeps it.
        store.set(f"{prefix}{BEGUN}", now(staged=True))
    name = hashlib.blake2b(f"{copy.target.path} {chunks}".encode(), digest_size=8).hexdigest()
    values = f"{prefix}between-{name}/"
    place: Store = StagedKeys(store, values)
    if isinstance(store, LocalStore):
        # Files are read one by one, in less memory than values of other stores.
        place = LocalStore(os.path.join(store.root, values), **store._options())
    array = Array(place, "", _metadata(copy.source, chunks), write_empty_chunks=True)
    array.has_document = False
    try:
        yield replace(copy, target=array, share=0.5)
    except BaseException:
        if top is None:
            store.erase_prefix(prefix)
        raise
    store.erase_prefix(values if top is not None else prefix)


def _metadata(source: ReadableArray, chunks: tuple[int, ...]) -> ArrayMetadata:
    """The metadata of a temporary array, in which absent chunks mean what they mean in the source."""
    meta = array_metadata(
        shape=source.shape,
        dtype=source.metadata.data_type,
        chunks=chunks,
        fill_value=source.metadata.fill_value,
    )
    return replace(meta, fill_is_null=source.metadata.fill_is_null)
