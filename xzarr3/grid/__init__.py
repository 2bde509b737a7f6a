"""How an array is divided into chunks. Knows nothing of keys, codecs and stores.

:mod:`~xzarr3.grid.along` divides one dimension, :mod:`~xzarr3.grid.grids` an array, and
:mod:`~xzarr3.grid.given` makes the grid for the ``chunks`` that a user gives.
"""

from xzarr3.grid.along import Edges, Steps
from xzarr3.grid.given import as_lengths, grid_for
from xzarr3.grid.grids import GRIDS, ChunkLengths, Grid, RectilinearGrid, RegularGrid, parse_grid

__all__ = [
    "GRIDS",
    "ChunkLengths",
    "Edges",
    "Grid",
    "RectilinearGrid",
    "RegularGrid",
    "Steps",
    "as_lengths",
    "grid_for",
    "parse_grid",
]
