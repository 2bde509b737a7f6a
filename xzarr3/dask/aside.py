"""Values that are put aside before they are written: an array for them, and what writes and reads it.

Blocks that would need too much memory while they wait for others lie in a temporary directory meanwhile. What
is made of arrays that the same call writes lies in the store of its target, where all workers of a cluster
find it, until nothing of what it was made of is needed any more: a block that is written may be what another
one is still to be made of, or what the same one is made of again when the worker that wrote it is lost.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import dask
import numpy as np

from xzarr3.array import Array
from xzarr3.commit.leftovers import now
from xzarr3.commit.renames import remove
from xzarr3.commit.stage import BEGUN, StagedKeys
from xzarr3.dask.ending import Gate
from xzarr3.dask.tasks import Cuts, Region, Rooms, Sink, rooms_of, write_tile
from xzarr3.dask.tiles import AxisTiles, block_edges, distinct
from xzarr3.nodes.array_settings import array_metadata
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.local.folders import STAGED


class Aside:
    """An array for values that are put aside; called with an error, it removes them.

    Each task that writes to it makes its directory if that is not there. A task that made it for the others
    would let blocks pile up in memory for as long as that takes. The array has no document, so there is
    nothing that they could get in each other's way about. What is in a temporary directory goes with this
    process at the latest.

    Parameters
    ----------
    target : Array
        Where the values are to go.
    written, read : sequence of AxisTiles
        The pieces that are written at a time, and those that are read.
    here : bool
        Whether a temporary directory of this machine will do.
    """

    def __init__(
        self, target: Array, written: Sequence[AxisTiles], read: Sequence[AxisTiles], *, here: bool
    ) -> None:
        self.pieces = list(written)
        self._is_temporary = here
        self._target, self._top = target.store, f"{STAGED}{uuid.uuid4().hex}"
        self._path: str | None = None
        if here:
            folder = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
            self._path = os.path.join(os.path.realpath(folder), f"xzarr3-write-{uuid.uuid4().hex}")
            _made.add((os.getpid(), self._path))
        elif self._target.folder is not None:
            self._path = os.path.join(self._target.folder, self._top)
        store: Store
        if self._path is None:
            store = StagedKeys(self._target, f"{self._top}/new/")
        else:
            store = LocalStore(self._path if here else os.path.join(self._path, "new"))
        metadata = array_metadata(
            shape=tuple(axis.size for axis in read),
            dtype=target.metadata.data_type,
            chunks=[
                np.diff(np.union1d(one.edges, other.edges)).tolist()
                for one, other in zip(written, read, strict=True)
            ],
            compressors=None,
        )
        # No chunk may be absent when it is read.
        self.array = Array(store, "", metadata, write_empty_chunks=True, missing="error")
        self.array.has_document = False

    def make(self) -> None:
        """Make a temporary directory that only this user can read, or note that the values are in use."""
        if self._path is None:
            # A recovery, or another write that clears what killed ones left, keeps them.
            self._target.set(f"{self._top}/{BEGUN}", now(staged=True))
        elif self._is_temporary:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(self._path, 0o700)

    def remove(self) -> None:
        """Remove all values; what tasks that are still running put into a directory goes with the process."""
        if self._path is None:
            self._target.erase_prefix(f"{self._top}/")
        elif self._is_temporary:
            shutil.rmtree(self._path, ignore_errors=True)
        elif os.path.isdir(self._path):
            remove(self._path)

    def __call__(self, error: BaseException) -> None:
        """Clean up after an error."""
        self.remove()

    def held(self, begun: Sequence[Any]) -> Aside:
        """The same, as it needs nothing else."""
        return self


def write_aside(aside: Aside, gate: Gate, region: Region, cuts: Cuts, *given: Any) -> Rooms:
    """Put a tile aside."""
    with gate.passing():
        aside.make()
        return write_tile(Sink(aside.array), region, cuts, *given)


def copy_tile(
    sink: Sink, aside: Aside, starts: tuple[int, ...], region: Region, cuts: Cuts, *after: object
) -> Rooms:
    """Write a tile as it was put aside."""
    there = tuple(
        slice(part.start - start, part.stop - start) for part, start in zip(region, starts, strict=True)
    )
    sink.write(region, aside.array.get(there, threads=1))
    return rooms_of(after)


_made: set[tuple[int, str]] = set()


@atexit.register
def _remove_left() -> None:
    for process, path in list(_made):
        if process == os.getpid():  # And not one that was forked off.
            shutil.rmtree(path, ignore_errors=True)


def aside_axes(
    blocks: Sequence[Sequence[int]], tiles: Sequence[AxisTiles], itemsize: int, limit: float
) -> tuple[list[AxisTiles], list[AxisTiles]]:
    """What is written aside in one piece, whole blocks, and what is read again in one, whole tiles.

    Both are as large as ``limit`` bytes permit, so that the pieces that lie aside are few.
    """
    write = [block_edges(along) for along in blocks]
    read = [axis.edges for axis in tiles]
    write = _enlarged(write, read, limit / itemsize)
    read = _enlarged(read, write, limit / itemsize)
    return [*map(AxisTiles, write, map(block_edges, blocks))], [*map(AxisTiles, read, write)]


def _enlarged(edges: Sequence[Any], others: Sequence[Any], most: float) -> list[Any]:
    """Pieces of several along those dimensions where the others are longest."""
    chosen = [distinct(along) for along in edges]
    while True:
        mean = [int(along[-1]) / (len(along) - 1) for along in chosen]
        open_ = [at for at, along in enumerate(chosen) if len(along) > 2]
        if not open_ or 2 * math.prod(mean) > most:
            return chosen
        at = max(open_, key=lambda at: int(others[at][-1]) / (len(others[at]) - 1) / mean[at])
        chosen[at] = np.append(chosen[at][:-1:2], chosen[at][-1])


def workers(kwargs: Any) -> int:
    """How many tasks run at a time on this machine."""
    number = kwargs.get("num_workers") or dask.config.get("num_workers", None)
    return int(number or os.cpu_count() or 1)
