"""Creates arrays from dask arrays."""

from __future__ import annotations

import math

import dask.array as da

from xzarr3.arrays import Array
from xzarr3.commit.replace import Replacement
from xzarr3.dask.sources import reads_below
from xzarr3.dask.write import check_scheduler
from xzarr3.dask.write import store as store_blocks
from xzarr3.errors import ArgumentError, MetadataError
from xzarr3.formats import Format
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.documents import write_documents
from xzarr3.stores import Store


def block_lengths(source: da.Array, path: str) -> tuple[int, ...]:
    """The longest block along each dimension: the default chunk shape.

    Raises
    ------
    MetadataError
        If the lengths of blocks are not known.
    """
    if any(math.isnan(length) for length in source.shape):
        raise MetadataError(
            "the blocks of the data have unknown lengths", path=path, field="data", found=source.chunks,
            advice="call .compute_chunk_sizes(), which finds them in place",
        )  # fmt: skip
    return tuple(max(1, *lengths) for lengths in source.chunks)


def make_array_of_blocks(
    store: Store,
    format: Format,
    path: str,
    meta: ArrayMetadata,
    source: da.Array,
    *,
    write_empty_chunks: bool,
    overwrite: bool,
) -> Array:
    """Make an array and write a dask array to it, block by block.

    A node that is replaced stays in place until all blocks are stored, because they may be computed from it.
    After an error it is still there.
    """
    check_scheduler(store)
    if overwrite and store.transactional and any(reads_below([source], store, path)):
        raise ArgumentError(
            f"the values are computed from '/{path}' of {store}, which would be erased before they are read; "
            "load them first, or create another array"
        )
    place = Replacement(store, format, path, None, {path: meta}, overwrite=overwrite, how="overwrite=True")
    target = Array(place.store, path, meta, format=format, write_empty_chunks=write_empty_chunks)

    def write() -> None:
        write_documents(place.store, format, {path: meta}, last=path, replaces=place.replaces)

    place.begin()
    place.documents_first(write)
    with place.discarding():
        store_blocks(da.broadcast_to(source, meta.shape), target)
        place.documents_last(write)
    place.put({"": meta})
    return Array(store, path, meta, format=format, write_empty_chunks=write_empty_chunks)
