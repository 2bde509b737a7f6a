"""Writing xarray's trees of datasets: a group for each node, all of them planned before the first byte.

New groups are a :class:`~xzarr3.xarray.writer.Creation`, which is put in its place as a whole. In modes that
write to what is there, groups that are there are :class:`~xzarr3.xarray.appending.Changes`, and those
that are not are creations beside them. Either way dask computes the values of all nodes at once.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from xarray import Dataset, DataTree

from xzarr3.concurrency import spread
from xzarr3.errors import ReadOnlyError, listed
from xzarr3.formats import ZarrFormat
from xzarr3.formats.base import node_prefix
from xzarr3.group import Group
from xzarr3.stores import Store
from xzarr3.xarray.appending import Changes
from xzarr3.xarray.changing import ChangedGroup, plan_group_changes
from xzarr3.xarray.planning import (
    PlannedGroup,
    check_group_path,
    format_to_write,
    growing_dimensions,
    plan_group,
    to_be_consolidated,
)
from xzarr3.xarray.writer import Creation, Write

Encodings = Mapping[Any, Mapping[str, Any]]


def datasets_of(
    tree: DataTree, encoding: Mapping[str, Encodings], *, write_inherited_coords: bool
) -> dict[str, tuple[Dataset, Encodings]]:
    """The dataset of each node with the encodings for it, by path relative to the tree, from the top down.

    Parameters
    ----------
    tree : DataTree
        May be a part of another one. Its uppermost node then gets what it inherits.
    encoding : mapping
        Encodings of variables by path of the node, as ``tree.groups`` has it.
    write_inherited_coords : bool
        Give all nodes what they inherit, and not only what is theirs.

    Raises
    ------
    ValueError
        If ``encoding`` has a path that is no node of the tree.
    """
    unknown = set(encoding) - set(tree.groups)
    if unknown:
        raise ValueError(
            f"unexpected encoding group name(s) provided: {unknown}; accepted: {listed(tree.groups)}"
        )
    return {
        "" if node is tree else relative: (
            node.to_dataset(inherit=write_inherited_coords or node is tree),
            encoding.get(node.path) or {},
        )
        for relative, node in tree.subtree_with_keys
    }


def plan_tree(
    tree: DataTree,
    store: Store,
    path: str,
    mode: str,
    encoding: Mapping[str, Encodings],
    *,
    consolidated: bool | None,
    append_dim: Hashable | None,
    region: Any,
    write_empty_chunks: bool | None,
    write_inherited_coords: bool,
    zarr_format: ZarrFormat | None,
    widen_units: bool,
    resume: bool = False,
    in_place: bool = False,
) -> Write:
    """What writes a tree below the group at ``path``; see :func:`xzarr3.to_zarr` for the rest.

    Raises
    ------
    ValueError, TypeError, StoreError
        As that does, with a note that says which group it is about.
    """
    datasets = datasets_of(tree, encoding, write_inherited_coords=write_inherited_coords)
    places = {relative: f"{node_prefix(path)}{relative}".rstrip("/") for relative in datasets}
    for place in places.values():
        check_group_path(place)
    if isinstance(region, Mapping):
        dims = {dim for dataset, _ in datasets.values() for dim in dataset.dims}
        unknown = [dim for dim in region if dim not in dims]
        if unknown:
            raise ValueError(f"dimensions {listed(unknown)} in ``region`` are those of no node of the tree")
    along = {relative: append_dim in dataset.dims for relative, (dataset, _) in datasets.items()}
    if append_dim is not None and not any(along.values()):
        raise ValueError(f"append_dim={append_dim!r} is no dimension of any node of the tree")

    changed: dict[str, ChangedGroup] = {}
    new: dict[str, dict[str, PlannedGroup]] = {}  # By the uppermost of them, and by path relative to that.
    if mode not in ("w", "w-"):
        if store.read_only:
            raise ReadOnlyError(f"cannot write to {store}, which is read-only")

        def planned_changes(relative: str) -> ChangedGroup | None:
            dataset, encodings = datasets[relative]
            with _naming(places[relative]):
                return plan_group_changes(
                    dataset,
                    store,
                    places[relative],
                    mode,
                    encodings,
                    consolidated=consolidated,
                    append_dim=append_dim if along[relative] else None,
                    region=_region_of(dataset, region),
                    write_empty_chunks=write_empty_chunks,
                    zarr_format=zarr_format,
                    widen_units=widen_units,
                )

        absent: set[str] = set()
        for _, level in groupby(datasets, lambda relative: relative.count("/") + bool(relative)):
            # Below a group that is not there, there are none.
            there = [relative for relative in level if _above(relative, absent) is None]
            found = dict(zip(there, spread(planned_changes, there, store.concurrency), strict=True))
            changed.update((relative, each) for relative, each in found.items() if each is not None)
            absent.update(relative for relative, each in found.items() if each is None)
    format = changed[""].group.format if changed else format_to_write(store, path, zarr_format)
    for relative, (dataset, encodings) in datasets.items():
        if relative in changed:
            continue
        with _naming(places[relative]):
            growing = growing_dimensions(dataset, append_dim if along[relative] else None)
            planned = plan_group(
                dataset, format, places[relative], encodings, write_empty_chunks, growing=growing
            )
        top = _above(relative, new)
        if top is None:
            new[relative] = {"": planned}
        else:
            new[top][relative[len(node_prefix(top)) :]] = planned
    if not changed:
        overwrite = mode == "w"
        return Creation(
            store, format, path, new[""], consolidated, overwrite=overwrite, resume=resume, in_place=in_place
        )
    wanted = mode != "r+" and to_be_consolidated(consolidated, store, format, path)
    changes = Changes(store, format, [*changed.values()], wanted, write_empty_chunks=write_empty_chunks)
    if not new:
        return changes
    creations = [
        Creation(store, format, places[top], groups, False, overwrite=False) for top, groups in new.items()
    ]
    return _Several([*creations, changes])


def _region_of(dataset: Dataset, region: Any) -> Any:
    """What of a region goes for one node: nothing, if it has no variables."""
    if not isinstance(region, Mapping):
        return region
    if not dataset.variables:
        return None
    return {dim: part for dim, part in region.items() if dim in dataset.dims} or region


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Say in errors of a ``with`` statement which group they are about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised for the group '/{place}'")
        raise


def _above(path: str, paths: Container[str]) -> str | None:
    """The uppermost group among ``paths`` that is the one at ``path`` or above it."""
    names = path.split("/") if path else []
    for depth in range(len(names) + 1):
        above = "/".join(names[:depth])
        if above in paths:
            return above
    return None


class _Several:
    """Several writes as one; that of which it is the group comes last."""

    def __init__(self, writes: Sequence[Write]) -> None:
        self._writes = list(writes)
        self.jobs = [job for write in writes for job in write.jobs]

    def begin(self) -> list[Any]:
        begun: list[Any] = []
        try:
            for write in self._writes:
                begun.append(write.begin())
        except BaseException as error:
            self._discard(begun, 0, error)
            raise
        return begun

    def finish(self, begun: list[Any]) -> None:
        for at, (write, own) in enumerate(zip(self._writes, begun, strict=True)):
            try:
                write.finish(own)
            except BaseException as error:
                self._discard(begun, at + 1, error)
                raise

    def discard(self, begun: list[Any], error: BaseException) -> None:
        self._discard(begun, 0, error)

    def _discard(self, begun: list[Any], first: int, error: BaseException) -> None:
        for write, own in list(zip(self._writes, begun, strict=False))[first:]:
            write.discard(own, error)

    def group(self) -> Group:
        return self._writes[-1].group()
