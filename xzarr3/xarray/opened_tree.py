"""Trees of datasets as they are opened, put together without the copies that ``DataTree.from_dict`` makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xarray import Coordinates, Dataset, DataTree

_MAKES_INDEXES = "_maybe_create_default_indexes"
"""What xarray calls for each node of a tree that a backend has opened."""


def tree_of(datasets: Mapping[str, Dataset], name: str | None = None) -> DataTree:
    """A tree of datasets, of which those above each are among them.

    Parameters
    ----------
    datasets : mapping of str to Dataset
        By path; that of the root is ``/`` or ``.``.
    name : str, optional

    Raises
    ------
    ValueError
        If a dataset does not go with what it inherits.

    Examples
    --------
    >>> tree_of({"/": Dataset(), "/a": Dataset(), "/a/b": Dataset()}).groups
    ('/', '/a', '/a/b')
    """
    nodes: dict[str, DataTree] = {}
    below: dict[str, dict[str, DataTree]] = {}
    for path, dataset in datasets.items():
        place = path.strip("/") if path != "." else ""
        above, _, own = place.rpartition("/")
        nodes[place] = DataTree(dataset, name=own or name)
        if place:
            below.setdefault(above, {})[own] = nodes[place]
    for place in sorted(below, key=lambda each: (each.count("/"), bool(each))):  # From the top down.
        nodes[place].children = below[place]
    return nodes[""]


def opened_tree(datasets: Mapping[str, Dataset]) -> DataTree:
    """A tree for xarray to make indexes of, which does that without copies; else as :func:`tree_of`."""
    tree = tree_of(datasets)
    tree.__class__ = _Opened
    return tree


class _Opened(DataTree):  # type: ignore[no-untyped-call]
    """The root of a tree without indexes, of which xarray makes one that has them.

    If xarray was told not to, it looks at ``encoding`` and hands this tree on, which is then a plain one.
    """

    __slots__ = ()

    @property
    def encoding(self) -> dict[Any, Any]:
        """Encodings of the dataset, as any tree has them."""
        self.__class__ = DataTree  # type: ignore[assignment]
        return self.encoding

    @encoding.setter
    def encoding(self, value: Mapping[Any, Any]) -> None:
        self.__class__ = DataTree  # type: ignore[assignment]
        self.encoding = dict(value)

    def map_over_datasets(self, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What ``func`` makes of each dataset, as a tree; this one, with indexes, if ``func`` makes these."""
        if args or options or getattr(func, "__name__", None) != _MAKES_INDEXES:
            return super().map_over_datasets(func, *args, **options)
        self.__class__ = DataTree  # type: ignore[assignment]
        indexed = [
            (path, node)
            for path, node in self.subtree_with_keys
            if any(var.dims == (name,) for name, var in node.variables.items())
        ]
        for path, node in indexed:  # From the top down.
            try:
                made = _with_indexes(node.to_dataset(inherit=False))
            except Exception as error:
                error.add_note(f"Raised whilst mapping function over node(s) with path {path!r}")
                raise
            node.dataset = made
        return self


def _with_indexes(dataset: Dataset) -> Dataset:
    """A dataset that has no indexes with those of its own coordinates.

    Nothing is to be aligned nor merged for that, as ``assign_coords`` would try.
    """
    own = {name: var for name, var in dataset.coords.variables.items() if var.dims == (name,)}
    coords = Coordinates(own)
    return dataset._replace(
        variables={**dataset._variables, **coords.variables},
        coord_names=dataset._coord_names | set(own),
        indexes=dict(coords.xindexes),
    )
