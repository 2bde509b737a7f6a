"""Spilling: values are written to a temporary array first and copied to the target later.

Blocks that would take too much memory while they wait for others are spilled to a temporary directory. Values
that are computed from arrays that the same call overwrites are spilled to the store of the target, where all
workers of a cluster find them. Values of this kind are copied only after all of them are spilled: until then,
the old values of the target may be needed to compute another block, or to recompute one of a lost worker.
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

from xzarr3.arrays import Array
from xzarr3.commit.leftovers import now
from xzarr3.commit.renames import remove
from xzarr3.commit.stage import BEGUN, StagedKeys
from xzarr3.dask.ending import Gate
from xzarr3.dask.tasks import Attempts, Cuts, Region, Sink, attempts_of, write_tile
from xzarr3.dask.tiles import AxisTiles, block_edges, distinct
from xzarr3.nodes.array_settings import array_metadata
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.local.names import STAGED


class Spill:
    """A temporary array for spilled values. Calling it with an error removes them.

    Each task that writes to it makes the directory if it does not exist. If one task made it first, blocks
    would pile up in memory while the others wait for that task. The array has no document, so tasks cannot
    conflict over one. A temporary directory is removed when this process exits at the latest.

    Parameters
    ----------
    target : Array
        The array that the values are copied to later.
    written, read : sequence of AxisTiles
        The pieces that are written at a time, and those that are read.
    here : bool
        Use a temporary directory of this machine; otherwise the store of the target.
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
        # Every chunk is stored, so an absent one is an error.
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
        """Remove all values. A running task may fill a temporary directory again; it goes at exit."""
        if self._path is None:
            self._target.erase_prefix(f"{self._top}/")
        elif self._is_temporary:
            shutil.rmtree(self._path, ignore_errors=True)
        elif os.path.isdir(self._path):
            remove(self._path)

    def __call__(self, error: BaseException) -> None:
        """Remove all values after an error."""
        self.remove()

    def held(self, begun: Sequence[Any]) -> Spill:
        """Itself: it needs no results of other tasks."""
        return self


def write_spill(aside: Spill, gate: Gate, region: Region, cuts: Cuts, *given: Any) -> Attempts:
    """Spill a tile."""
    with gate.passing():
        aside.make()
        return write_tile(Sink(aside.array), region, cuts, *given)


def copy_tile(
    sink: Sink, aside: Spill, starts: tuple[int, ...], region: Region, cuts: Cuts, *after: object
) -> Attempts:
    """Copy a spilled tile to the target."""
    there = tuple(
        slice(part.start - start, part.stop - start) for part, start in zip(region, starts, strict=True)
    )
    sink.write(region, aside.array.get(there, threads=1))
    return attempts_of(after)


_made: set[tuple[int, str]] = set()


@atexit.register
def _remove_left() -> None:
    for process, path in list(_made):
        if process == os.getpid():  # not in a forked child
            shutil.rmtree(path, ignore_errors=True)


def spill_axes(
    blocks: Sequence[Sequence[int]], tiles: Sequence[AxisTiles], itemsize: int, limit: float
) -> tuple[list[AxisTiles], list[AxisTiles]]:
    """The pieces in which values are spilled, of whole blocks, and those read back, of whole tiles.

    Both are as large as ``limit`` bytes permit, so that there are few spilled chunks.
    """
    write = [block_edges(along) for along in blocks]
    read = [axis.edges for axis in tiles]
    write = _enlarged(write, read, limit / itemsize)
    read = _enlarged(read, write, limit / itemsize)
    return [*map(AxisTiles, write, map(block_edges, blocks))], [*map(AxisTiles, read, write)]


def _enlarged(edges: Sequence[Any], others: Sequence[Any], most: float) -> list[Any]:
    """Join pieces in pairs, first along the dimension where ``others`` are longest by comparison."""
    chosen = [distinct(along) for along in edges]
    while True:
        mean = [int(along[-1]) / (len(along) - 1) for along in chosen]
        open_ = [at for at, along in enumerate(chosen) if len(along) > 2]
        if not open_ or 2 * math.prod(mean) > most:
            return chosen
        at = max(open_, key=lambda at: int(others[at][-1]) / (len(others[at]) - 1) / mean[at])
        chosen[at] = np.append(chosen[at][:-1:2], chosen[at][-1])


def workers(kwargs: Any) -> int:
    """Number of tasks that run at a time on this machine."""
    number = kwargs.get("num_workers") or dask.config.get("num_workers", None)
    return int(number or os.cpu_count() or 1)
