"""What is stored of a write that can be resumed: a unit that exists is done.

Stores put a unit in place as a whole or not at all. A fingerprint of the plan tells whose units these are.
Units that hold only the fill value are not stored, so they are computed again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from xzarr3.arrays import Array
from xzarr3.dask.slicing import all_blocks
from xzarr3.dask.tiles import Regions
from xzarr3.formats import Format
from xzarr3.io.stored_units import stored_units
from xzarr3.model.metadata import ArrayMetadata

_VERSION = 3

Tile = tuple[int, ...]


class WrittenArray(NamedTuple):
    """An array that a plan makes, and its values."""

    path: str
    metadata: ArrayMetadata
    write_empty_chunks: bool
    values: Any


def fingerprint(format: Format, path: str, arrays: Iterable[WrittenArray]) -> str:
    """The fingerprint of a plan: a digest of everything that decides which bytes are stored where.

    Attributes and values that are not in dask arrays do not count, because every call writes them again.

    Parameters
    ----------
    format : Format
    path : str
        Path of the node that is written.
    arrays : iterable of WrittenArray
    """
    said: list[Any] = [_VERSION, format.zarr_format, path]
    for each in arrays:
        layout = format.documents(replace(each.metadata, attributes={}), each.path)
        known: list[Any] = []
        if hasattr(each.values, "__dask_graph__"):
            blocks = [repr(all_blocks([*map(int, along)])) for along in each.values.chunks]
            known = [each.values.name, *blocks]
        said.append([each.path, layout, each.write_empty_chunks, known])
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def done_tiles(target: Array, regions: Regions) -> set[Tile]:
    """The tiles whose stored units all exist.

    Parameters
    ----------
    target : Array
    regions : Regions
        The region of each tile.
    """
    there = set(stored_units(target))
    axes = target.metadata.chunk_grid.axes
    found = set()
    for tile in itertools.product(*map(range, regions.numblocks)):
        units = itertools.product(
            *(
                range(axis.index(part.start), axis.index(part.stop - 1) + 1) if part.stop > part.start else ()
                for axis, part in zip(axes, regions[tile], strict=True)
            )
        )
        if all(unit in there for unit in units):
            found.add(tile)
    return found
