"""What a copy will be: its nodes and their documents, translated and checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from xzarr3.arrays import Array
from xzarr3.commit.lease import Lease
from xzarr3.commit.places import Place
from xzarr3.commit.transaction import NewNode
from xzarr3.copying.documents import translated
from xzarr3.copying.location import is_within, location
from xzarr3.copying.settings import Settings, settings_of
from xzarr3.errors import MetadataError, NodeExistsError
from xzarr3.formats import Format, ZarrFormat, parse_format
from xzarr3.formats.base import node_prefix
from xzarr3.groups import Group, bind
from xzarr3.joined.array import JoinedArray
from xzarr3.joined.group import JoinedGroup
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes.consolidated import check_consolidates, copies_to_follow, write_consolidated
from xzarr3.nodes.find import (
    DocumentView,
    check_holds,
    depth_first,
    find_format,
    format_for_new,
    read_metadata,
)
from xzarr3.nodes.freshness import read_below_steadily
from xzarr3.nodes.node import check_new_path, normal_path
from xzarr3.parallel import parallel_map
from xzarr3.readable import ReadableArray
from xzarr3.stores import Store
from xzarr3.walk import Walk

Source: TypeAlias = ReadableArray | Group | JoinedGroup
"""What is copied."""

Encoding: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Plan:
    """A copy whose documents are all translated and checked.

    Parameters
    ----------
    nodes : mapping of str to array or group
        The source, by path relative to the copied node.
    store : Store
    path : str
    format : Format
    metadata : mapping of str to metadata
        The nodes of the copy, by relative path.
    consolidated : bool
    """

    nodes: Mapping[str, Source]
    store: Store
    path: str
    format: Format
    metadata: Mapping[str, ArrayMetadata | GroupMetadata]
    consolidated: bool

    def path_of(self, below: str) -> str:
        """Path in the target of a node with this relative path."""
        return node_prefix(self.path) + below if below else self.path

    @property
    def arrays(self) -> dict[str, ArrayMetadata]:
        """The arrays of the copy, by path in the target."""
        found = self.metadata.items()
        return {self.path_of(below): each for below, each in found if isinstance(each, ArrayMetadata)}

    def arrays_in(self, store: Store) -> dict[str, Array]:
        """The arrays of the copy in a store that takes them under their final keys, by relative path."""
        return {
            below: Array(store, self.path_of(below), meta, format=self.format)
            for below, meta in self.metadata.items()
            if isinstance(meta, ArrayMetadata)
        }

    def new(self, *, consolidate: bool = False) -> NewNode:
        """The copy with its documents; ``consolidate`` as :class:`NewNode` has it."""
        nodes = {self.path_of(below): meta for below, meta in self.metadata.items()}
        return NewNode.of(self.format, self.path, nodes, consolidate=consolidate)

    @property
    def is_there(self) -> bool:
        """Whether the target has all documents of the copy, which are stored after the values."""

        def is_same(item: tuple[str, NodeMetadata]) -> bool:
            path = self.path_of(item[0])
            found = read_metadata(self.store, self.format, path, consolidated=False, again=True)
            if isinstance(found, GroupMetadata):
                found = replace(found, consolidated=None)
            wanted = self.format.documents(item[1], path)
            return found is not None and self.format.documents(found, path) == wanted

        return all(parallel_map(is_same, self.metadata.items(), self.store.concurrency))

    @property
    def lease(self) -> Lease:
        """The lease of the place."""
        return Place.of(self.store, self.format, self.path).lease()

    def opened(self) -> Array | Group:
        """The copy, once it is in its place; its consolidated metadata are made if it is to have any."""
        top, has_any = self.metadata[""], self.format.keys(self.path).consolidated is not None
        if self.consolidated and has_any and isinstance(top, GroupMetadata):
            order = [below for below in self.metadata if below]
            with copies_to_follow(self.path):
                top, held = write_consolidated(self.store, self.format, self.path, order)
            top = replace(top, consolidated=held)
        return bind(self.store, self.format, self.path, top, read_only=False, is_stored=False)


def planned(
    node: Source,
    store: Store,
    path: str,
    zarr_format: ZarrFormat | None,
    settings: Settings,
    encoding: Encoding | None,
    consolidated: bool | None,
) -> Plan:
    """Plan a copy; raises if it cannot be made."""
    path = normal_path(path)
    format = _format(node, store, path, zarr_format)
    check_new_path(path, format)
    nodes = nodes_below(node)
    for each in nodes.values():
        _check_apart(each, store, path)
    is_held = isinstance(node, JoinedGroup) or (isinstance(node, Group) and node.consolidated)
    held = is_held and store.traits.visible != "at commit"
    if consolidated is not None:
        held = consolidated
    if held:
        check_consolidates(store)
    nodes = {below: _watched(each) for below, each in nodes.items()}
    own = settings_of(nodes, settings, encoding)
    metadata = {below: translated(each, format, own.get(below)) for below, each in nodes.items()}
    plan = Plan(nodes, store, path, format, metadata, held)
    for below in nodes:
        check_new_path(plan.path_of(below), format)
    return plan


def _format(node: Source, store: Store, path: str, zarr_format: ZarrFormat | None) -> Format:
    """The format of a copy: the given one, or that of the groups above it, or that of the source."""
    wanted = None if zarr_format is None else parse_format(zarr_format)
    look = DocumentView.around(store, path)
    format = format_for_new(look, path, zarr_format)
    if wanted is None and not path and find_format(look, "") is None:
        check_holds(store, path, node.format.zarr_format)
        return parse_format(node.format.zarr_format)
    return format


def nodes_below(node: Source) -> dict[str, Source]:
    """A node and all nodes below it, by relative path.

    Raises
    ------
    MetadataError
        If a node cannot be reached because a group above it has no document.
    """
    nodes: dict[str, Source] = {"": node}
    if isinstance(node, JoinedGroup):
        nodes.update(node)
    if not isinstance(node, Group):
        return nodes
    if not node.store.listable:
        nodes.update(node.members(max_depth=None))
        return nodes
    # Consolidated metadata may be out of date, so the store is read.
    options: Any = {"read_only": node.read_only, "consolidated": False, "is_stored": False}
    plain = bind(node.store, node.format, node.path, node.metadata, **options)
    plain = cast("Group", plain)
    plain._placed_at = node._opened_at or node._placed_at
    below = read_below_steadily(plain, lambda: dict(plain.members(max_depth=None)), as_opened=True)
    held = [name for name in node.copies or () if name in below]  # The order of the variables in xarray.
    nodes.update((name, below[name]) for name in depth_first(dict.fromkeys([*held, *below])))
    known = {node.path, *(node_prefix(node.path) + below for below in nodes)}
    for entry in Walk(node.store, node.format, node.path, ()).entries():
        place = entry.place
        if place is not None and place.kind != "other" and place.path not in known:
            raise MetadataError(
                f"'{node.name}' cannot be reached: a group above it has no document",
                path=place.path, advice="create the groups above it with create_group()",
            )  # fmt: skip
    return nodes


def _watched(node: Source) -> Source:
    """The node; of an array, each read checks that its attributes are still those that the copy gets."""
    if isinstance(node, JoinedArray):
        sources = [replace(each, array=cast("ReadableArray", _watched(each.array))) for each in node.sources]
        return JoinedArray(sources, node.joint, node.metadata, (node.unit_grid, node.chunk_grid))
    if isinstance(node, Array):
        node = copy(node)
        node._is_decoded = True
    return node


def _check_apart(node: Source, store: Store, path: str) -> None:
    """Raise if source and target overlap."""
    if isinstance(node, JoinedArray):
        for source in node.sources:
            _check_apart(source.array, store, path)
        return
    one, other = location(node.store, node.path), location(store, path)
    if is_within(one, other) or is_within(other, one):
        raise NodeExistsError(
            f"'{node.name}' of {node.store} cannot be copied to '/{path}' of {store}: one of the two "
            "contains the other; choose another path, or another store"
        )
