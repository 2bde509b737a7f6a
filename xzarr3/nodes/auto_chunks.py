"""How large chunks and shards are when the user leaves that open."""

from __future__ import annotations

import math
from collections.abc import Iterator

from xzarr3.grid import Grid

AUTO_CHUNK = 4 * 2**20
"""Most bytes of a chunk whose shape the user leaves open, in an array without shards."""
AUTO_INNER_CHUNK = 2**20
"""Most bytes of such a chunk in a shard: it can be small, as many chunks share one stored value."""
AUTO_SHARD = 64 * 2**20
"""Most bytes of a shard whose shape the user leaves open."""
_LEAST_INNER = 2**12  # Bytes below which a shard is not divided.
_IN_A_SHARD = 16  # Chunks of a small shard, about.
_LARGEST_FACTOR = 2**16  # Larger prime factors of a shard length are not looked for.


def auto_chunks(shape: tuple[int, ...], itemsize: int, limit: int = AUTO_CHUNK) -> tuple[int, ...]:
    """A chunk shape of at most ``limit`` bytes: the longest dimension is halved until it fits.

    Examples
    --------
    >>> auto_chunks((8760, 721, 1440), 4)
    (69, 91, 90)
    """
    chunks = [max(1, length) for length in shape]
    while math.prod(chunks) * itemsize > limit and max(chunks, default=1) > 1:
        longest = chunks.index(max(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def chunks_in_shards(shards: Grid, itemsize: int, limit: int | None = None) -> tuple[int, ...]:
    """A chunk shape of at most ``limit`` bytes that divides all shards evenly.

    Without a limit, chunks take a sixteenth of a shard, and from 4 KiB to 1 MiB.

    Examples
    --------
    >>> from xzarr3.grid import RegularGrid
    >>> chunks_in_shards(RegularGrid((365, 721, 1440)), 4)
    (73, 103, 15)
    """
    chunks = [math.gcd(*axis.distinct) for axis in shards.axes]
    if limit is None:
        limit = math.prod(chunks) * itemsize // _IN_A_SHARD
        limit = max(_LEAST_INNER, min(limit, AUTO_INNER_CHUNK))
    while math.prod(chunks) * itemsize > limit and max(chunks, default=1) > 1:
        # Divide where most elements are left, so that no dimension becomes much shorter than the others.
        parts = [length // _least_factor(length) if length > 1 else 0 for length in chunks]
        longest = parts.index(max(parts))
        chunks[longest] = parts[longest]
    return tuple(chunks)


def _least_factor(number: int) -> int:
    """The least prime factor; the number itself if all its factors are large."""
    factors = range(2, min(math.isqrt(number), _LARGEST_FACTOR) + 1)
    return next((factor for factor in factors if number % factor == 0), number)


def auto_shards(
    shape: tuple[int, ...], chunks: tuple[int, ...], itemsize: int, limit: int = AUTO_SHARD
) -> tuple[int, ...]:
    """A shard shape of at most ``limit`` bytes, if a chunk is not larger; the chunks divide it evenly.

    Examples
    --------
    >>> auto_shards((8760, 721, 1440), (24, 103, 90), 4)
    (96, 412, 360)
    """
    counts = [max(1, -(-size // chunk)) for size, chunk in zip(shape, chunks, strict=True)]
    numbers = [1] * len(chunks)
    nbytes = math.prod(chunks) * itemsize
    for at in _in_turn(numbers, counts):
        more = min(2 * numbers[at], counts[at])
        if nbytes // numbers[at] * more > limit:
            break
        nbytes = nbytes // numbers[at] * more
        numbers[at] = more
    return tuple(chunk * number for chunk, number in zip(chunks, numbers, strict=True))


def _in_turn(numbers: list[int], counts: list[int]) -> Iterator[int]:
    """The dimension along which a shard has the fewest chunks and can have more, again and again."""
    while any(number < count for number, count in zip(numbers, counts, strict=True)):
        growing = [at for at, count in enumerate(counts) if numbers[at] < count]
        yield min(growing, key=numbers.__getitem__)
