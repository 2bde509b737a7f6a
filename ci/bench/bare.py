"""A bare loop of file read, decoder and placement, on as many threads as there are CPUs.

It checks nothing and reads chunks whole, whatever is wanted of them. It tells how much of a time is the work
itself, and so what a reader in Python that calls the same decoders can reach at all.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import isal.isal_zlib
import numcodecs.blosc
import numcodecs.zstd
import numpy as np
import numpy.typing as npt
import zstandard

Selection: TypeAlias = tuple[slice | int | npt.NDArray[np.int64], ...]
Coords: TypeAlias = tuple[int, ...]

Decoded: TypeAlias = bytes | bytearray | memoryview

_GZIP_WINDOW = 31
_LARGE = 2**19
"""From this size on, in bytes, zstd decodes faster into memory at hand than with a context at hand."""


def cpu_count() -> int:
    """Return the number of CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Scratch(threading.local):
    """Memory that a thread uses again for each chunk: fresh memory would cost more than a fast decoder."""

    def __init__(self) -> None:
        self.stored = memoryview(bytearray())
        self.decoded = bytearray()
        self.zstd = zstandard.ZstdDecompressor()

    def load(self, descriptor: int, offset: int, size: int) -> memoryview:
        """Read a range of a file."""
        if len(self.stored) < size:
            self.stored = memoryview(bytearray(size))
        data = self.stored[:size]
        os.preadv(descriptor, [data], offset)
        return data

    def decode(self, compressor: str | None, data: memoryview, size: int) -> Decoded:
        """Decode a chunk of `size` bytes by the way that is fastest for its size."""
        if compressor is None:
            return data
        if compressor == "gzip":
            return isal.isal_zlib.decompress(data, _GZIP_WINDOW)
        if compressor == "zstd" and size < _LARGE:
            return self.zstd.decompress(data)
        if len(self.decoded) != size:
            self.decoded = bytearray(size)
        codec = numcodecs.zstd if compressor == "zstd" else numcodecs.blosc
        codec.decompress(data, self.decoded)
        return self.decoded


class BareArray:
    """A float32 array of the bench, opened for reading; it has no missing chunks.

    Parameters
    ----------
    path : Path
        Directory of the array.
    """

    def __init__(self, path: Path) -> None:
        document = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
        codecs = document["codecs"]
        self._base = str(path / "c")
        self._shape: tuple[int, ...] = tuple(document["shape"])
        self._stored: tuple[int, ...] = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
        self._chunks = self._stored
        self._sharded = codecs[0]["name"] == "sharding_indexed"
        if self._sharded:
            self._chunks = tuple(codecs[0]["configuration"]["chunk_shape"])
            codecs = codecs[0]["configuration"]["codecs"]
        self._compressor: str | None = codecs[1]["name"] if len(codecs) > 1 else None
        self._nbytes = 4 * int(np.prod(self._chunks))
        self._scratch = _Scratch()

    def __getitem__(self, selection: Selection) -> npt.NDArray[np.float32]:
        bounds = [
            s.indices(n)[:2] if isinstance(s, slice) else (s, s + 1)
            for s, n in zip(selection, self._shape, strict=True)
        ]
        out = np.empty([stop - start for start, stop in bounds], np.float32)
        ranges = [range(a // c, -(-b // c)) for (a, b), c in zip(bounds, self._chunks, strict=True)]
        coords = list(itertools.product(*ranges))
        origin = [start for start, _ in bounds]
        if self._sharded:
            self._read_shards(coords, out, origin)
        else:
            self._in_threads(coords, lambda part: self._read_files(part, out, origin))
        result: npt.NDArray[np.float32] = out[
            tuple(slice(None) if isinstance(s, slice) else 0 for s in selection)
        ]
        return result

    @staticmethod
    def _in_threads(coords: list[Coords], work: Callable[[list[Coords]], None]) -> None:
        """Call `work` with equal parts of `coords`, each in a thread of its own, the last in this one."""
        size = -(-len(coords) // cpu_count())
        parts = [coords[at : at + size] for at in range(0, len(coords), size)]
        threads = [threading.Thread(target=work, args=(part,)) for part in parts[:-1]]
        for thread in threads:
            thread.start()
        work(parts[-1])
        for thread in threads:
            thread.join()

    def _read_files(self, coords: list[Coords], out: npt.NDArray[np.float32], origin: Sequence[int]) -> None:
        for at in coords:
            descriptor = os.open(f"{self._base}/{'/'.join(map(str, at))}", os.O_RDONLY)
            data = self._scratch.load(descriptor, 0, os.fstat(descriptor).st_size)
            os.close(descriptor)
            self._place(data, at, out, origin)

    def _read_shards(self, coords: list[Coords], out: npt.NDArray[np.float32], origin: Sequence[int]) -> None:
        counts = [s // c for s, c in zip(self._stored, self._chunks, strict=True)]
        shards: dict[Coords, tuple[int, npt.NDArray[np.uint64]]] = {}

        def work(part: list[Coords]) -> None:
            for at in part:
                descriptor, index = shards[tuple(i // n for i, n in zip(at, counts, strict=True))]
                offset, size = index[tuple(i % n for i, n in zip(at, counts, strict=True))].tolist()
                self._place(self._scratch.load(descriptor, offset, size), at, out, origin)

        try:
            for shard in {tuple(i // n for i, n in zip(at, counts, strict=True)) for at in coords}:
                descriptor = os.open(f"{self._base}/{'/'.join(map(str, shard))}", os.O_RDONLY)
                size = 16 * int(np.prod(counts))
                stored = os.pread(descriptor, size, os.fstat(descriptor).st_size - size - 4)
                shards[shard] = descriptor, np.frombuffer(stored, "<u8").reshape(*counts, 2)
            self._in_threads(coords, work)
        finally:
            for descriptor, _ in shards.values():
                os.close(descriptor)

    def _place(
        self, data: memoryview, at: Coords, out: npt.NDArray[np.float32], origin: Sequence[int]
    ) -> None:
        decoded = self._scratch.decode(self._compressor, data, self._nbytes)
        chunk = np.frombuffer(decoded, "<f4").reshape(self._chunks)
        starts = [i * c - o for i, c, o in zip(at, self._chunks, origin, strict=True)]
        if all(0 <= a <= n - c for a, c, n in zip(starts, self._chunks, out.shape, strict=True)):
            out[tuple(slice(a, a + c) for a, c in zip(starts, self._chunks, strict=True))] = chunk
            return
        ends = [min(a + c, n) for a, c, n in zip(starts, self._chunks, out.shape, strict=True)]
        firsts = [max(a, 0) for a in starts]
        out[tuple(map(slice, firsts, ends))] = chunk[
            tuple(slice(f - a, e - a) for f, e, a in zip(firsts, ends, starts, strict=True))
        ]
