"""How large chunks are when the user leaves that open."""

from __future__ import annotations

import math

from xzarr3.grid import Grid

_AUTO_CHUNK = 4 * 2**20  # bytes of a chunk whose shape the user leaves open


def auto_chunks(shape: tuple[int, ...], itemsize: int, limit: int = _AUTO_CHUNK) -> tuple[int, ...]:
    """A chunk shape of at most ``limit`` bytes: the longest dimension is halved until it fits.

    Examples
    --------
    >>> auto_chunks((8760, 721, 1440), 4)
    (69, 91, 90)
    """
    chunks = [max(1, length) for length in shape]
    while math.prod(chunks) * itemsize > limit and max(chunks) > 1:
        longest = chunks.index(max(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    return tuple(chunks)


def divided(lengths: tuple[int, ...], units: Grid) -> tuple[int, ...]:
    """The largest chunk lengths, each at most ``lengths``, that divide all shards evenly."""
    divided = []
    for length, axis in zip(lengths, units.axes, strict=True):
        unit = math.gcd(*axis.distinct)
        divided.append(next(n for n in range(min(length, unit), 0, -1) if unit % n == 0))
    return tuple(divided)
