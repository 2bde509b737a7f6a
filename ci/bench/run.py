"""One run of the bench: where it works, on what field, with which libraries, and what it keeps."""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from bare import Selection
from file_system import in_memory
from layouts import LAYOUTS, SEED, STEPS_PER_MIB, Float32Array, Layout, temperature
from peers import Library

EVERYTHING: Selection = (slice(None), slice(None), slice(None))
MANY_FILES = 100
"""From this number of files on, deleting them slows the making of the next ones on a disk."""
ROOM_TO_KEEP = 8 * 2**30
"""Bytes free on a disk as long as which what was written may stay until the end."""


@dataclass
class Bench:
    """One run: where it works, on what, with which libraries, and how often.

    Attributes
    ----------
    root : Path
        Directory for the stores that are read.
    written : Path
        Directory for those that are written in a timed round.
    libraries : list of Library
        The libraries compared.
    size_mib : int
        Size of the field in MiB.
    repeat : int
        Number of timed rounds of a case.
    only : str
        Part of "row: case" that a case must have to be measured; empty for all.
    compression : dict
        By layout, how many times smaller than the field its store is.
    """

    root: Path
    written: Path
    libraries: list[Library]
    size_mib: int
    repeat: int
    only: str = ""
    compression: dict[str, float] = field(default_factory=dict)

    def wants(self, row: str, case: str) -> bool:
        """Whether the case is to be measured."""
        return self.only.casefold() in f"{row}: {case}".casefold()

    @functools.cached_property
    def source(self) -> Float32Array:
        """The source array."""
        return temperature(self.size_mib * STEPS_PER_MIB)

    @functools.cached_property
    def layouts(self) -> list[Layout]:
        """The layouts, with chunks no longer than the array."""
        return [layout.fitted(self.source.shape) for layout in LAYOUTS]

    @functools.cached_property
    def in_memory(self) -> bool:
        """Whether what is written is held in memory."""
        return in_memory(self.written)

    @property
    def complete(self) -> list[Library]:
        """The libraries that do more than reading whole chunks."""
        return [library for library in self.libraries if not library.whole_chunks_only]

    @property
    def remote(self) -> list[Library]:
        """The libraries that read over HTTP."""
        return [library for library in self.complete if type(library).remote is not Library.remote]

    @property
    def reference(self) -> Library:
        """The library that writes what all read: zarr-python if it is there."""
        return next((library for library in self.libraries if library.engine == "zarr"), self.libraries[0])

    def other_than(self, library: Library) -> Library:
        """Return the library that reads what `library` wrote, to compare it with the source."""
        return next((other for other in reversed(self.complete) if other is not library), library)

    def store(self, layout: Layout) -> Path:
        """Return the path of the field in `layout`, which is written at the first call."""
        path = self.root / directory_name(layout.name)
        if layout.name not in self.compression:
            with self.reference.configured():
                self.reference.writer(path, self.source.shape, layout)(self.source)
            stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            self.compression[layout.name] = self.source.nbytes / stored
        return path

    def discard(self, path: Path, n_files: int) -> None:
        """Delete what was written at `path`, or leave it until the end of the run.

        A disk's file system may look long for places for new files right after many were deleted (ext4 skips
        what was freed in the last seconds), which would take more time than all that is measured here.
        """
        few = self.in_memory or n_files < MANY_FILES
        if few or shutil.disk_usage(self.written).free < ROOM_TO_KEEP:
            shutil.rmtree(path)


def directory_name(name: str) -> str:
    """Return `name` as the name of a directory."""
    return name.replace(",", "").replace(" ", "-")


def require_equal(found: object, expected: Float32Array, what: str) -> None:
    """Raise RuntimeError unless `found` has the shape and the values of `expected`."""
    if not np.array_equal(np.asarray(found), expected):
        raise RuntimeError(f"{what}: the values differ from those of the source")


def rng_of_round(round_number: int) -> np.random.Generator:
    """Return the random numbers of a round: every library is asked for the same selections."""
    return np.random.default_rng([SEED, round_number + 1])
