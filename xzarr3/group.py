"""Groups: nodes that hold arrays and other groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from xzarr3.array import Array
from xzarr3.creation import make_array
from xzarr3.errors import InvalidKeyError, MetadataError, NodeNotFoundError, NodeTypeError, StoreError
from xzarr3.formats import Format, documents, parse_format
from xzarr3.formats.base import Held, node_prefix
from xzarr3.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes import (
    Node,
    check_new_path,
    children,
    document_lock,
    erase_node,
    exists,
    held_below,
    make_groups_above,
    make_room,
    normal_path,
    read_metadata,
    write_node,
)
from xzarr3.stores import Store


def bind(
    store: Store,
    format: Format,
    path: str,
    meta: NodeMetadata,
    *,
    read_only: bool,
    consolidated: bool = True,
) -> Array | Group:
    """The array or group that metadata describe."""
    if isinstance(meta, ArrayMetadata):
        return Array(store, path, meta, format=format, read_only=read_only)
    return Group(store, path, meta, format=format, read_only=read_only, use_consolidated=consolidated)


class Group(Node, Mapping[str, "Array | Group"]):
    """A group in a store: a mapping of names, and of paths such as ``"ocean/sst"``, to nodes.

    Groups are made by :func:`xzarr3.open_group`, :func:`xzarr3.create_group` and other groups.

    Parameters
    ----------
    store : Store
    path : str
        Path of the group in its hierarchy, without a leading ``/``; empty for the root.
    metadata : GroupMetadata
    format : Format, optional
        How the hierarchy is stored; by default what the metadata say.
    read_only : bool
        Refuse every write.
    use_consolidated : bool
        Find the nodes below in the consolidated metadata, if there are any, and not in the store. A group
        that can be written always looks into the store, where each node is as it was last written.

    Examples
    --------
    >>> import xzarr3
    >>> root = xzarr3.create_group(xzarr3.MemoryStore())
    >>> _ = root.create_array("ocean/sst", shape=(4, 6), dtype="float32")
    >>> list(root), root["ocean/sst"]
    (['ocean'], <xzarr3.Array /ocean/sst shape=(4, 6) dtype=float32>)
    """

    def __init__(
        self,
        store: Store,
        path: str,
        metadata: GroupMetadata,
        *,
        format: Format | None = None,
        read_only: bool = False,
        use_consolidated: bool = True,
    ) -> None:
        format = parse_format(metadata.zarr_format) if format is None else format
        super().__init__(store, path, format, read_only=read_only)
        self.consolidated = use_consolidated and metadata.consolidated is not None
        self._documents = metadata.consolidated if self.consolidated and self.read_only else None
        self.metadata: GroupMetadata = replace(metadata, consolidated=None)

    def __repr__(self) -> str:
        return f"<xzarr3.Group {self.name} of {self.store}>"

    def __reduce__(self) -> tuple[object, ...]:
        held = self.format.hold(self.metadata, self.path)
        return _restore, (
            self.store, self.path, self.format, held, self._documents, self.consolidated, self.read_only,
        )  # fmt: skip

    # Finding nodes

    def _find(self, path: str) -> Array | Group | None:
        relative = normal_path(path)
        if not relative:
            return self
        full = node_prefix(self.path) + relative
        if self._documents is None:
            meta = read_metadata(self.store, self.format, full)
        else:
            held = self._documents.get(relative)
            meta = None if held is None else self.format.parse(held, full)
            if isinstance(meta, GroupMetadata):
                below = self.format.consolidated_below(self._documents, relative)
                meta = replace(meta, consolidated=below)
        if meta is None:
            return None
        return bind(
            self.store, self.format, full, meta, read_only=self.read_only, consolidated=self.consolidated
        )

    def __getitem__(self, path: str) -> Array | Group:
        found = self._find(path)
        if found is None:
            raise NodeNotFoundError(
                f"no array or group '{path}' in {self!r}; there are: {', '.join(self) or 'none'}"
            )
        return found

    def get(self, path: str, default: Any = None) -> Any:
        """The node at ``path``, or ``default`` if there is none."""
        found = self._find(path)
        return default if found is None else found

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        relative = normal_path(path)
        if self._documents is not None:
            return not relative or relative in self._documents
        return not relative or exists(self.store, self.format, node_prefix(self.path) + relative)

    def __iter__(self) -> Iterator[str]:
        if self._documents is not None:
            return iter([name for name in self._documents if "/" not in name])
        return iter(children(self.store, self.format, self.path))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Names and nodes of the arrays directly below."""
        return ((name, node) for name, node in self.items() if isinstance(node, Array))

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Names and nodes of the groups directly below."""
        return ((name, node) for name, node in self.items() if isinstance(node, Group))

    def members(self, max_depth: int | None = 0) -> Iterator[tuple[str, Array | Group]]:
        """Relative paths and nodes of what is below.

        Parameters
        ----------
        max_depth : int, optional
            How many levels below the first to go down; None for all.
        """
        for name, node in self.items():
            yield name, node
            if isinstance(node, Group) and (max_depth is None or max_depth > 0):
                for path, inner in node.members(None if max_depth is None else max_depth - 1):
                    yield f"{name}/{path}", inner

    def tree(self) -> str:
        """The names, shapes and types of all nodes below, a line for each; or why one cannot be read."""
        return "\n".join([self.name, *self._branches("    ")])

    def _branches(self, indent: str) -> Iterator[str]:
        for name in self:
            try:
                node = self[name]
            except MetadataError as error:
                yield f"{indent}{name} cannot be read: {error}"
                continue
            yield f"{indent}{name}" + (f" {node.shape} {node.dtype}" if isinstance(node, Array) else "")
            if isinstance(node, Group):
                yield from node._branches(f"{indent}    ")

    # Changing nodes

    def create_array(self, name: str, **options: Any) -> Array:
        """Make an array below this group; takes what :func:`xzarr3.create_array` takes."""
        self._check_writable()
        return make_array(self.store, self.format, self._new_path(name), **options)

    def create_group(
        self, name: str, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
    ) -> Group:
        """Make a group below this group."""
        self._check_writable()
        return make_group(
            self.store, self.format, self._new_path(name), attributes=attributes, overwrite=overwrite
        )

    def require_group(self, name: str) -> Group:
        """The group ``name`` below this group, made if it is not there.

        Raises
        ------
        NodeTypeError
            If there is an array of this name.
        """
        found = self._find(name)
        if found is None:
            return self.create_group(name)
        if isinstance(found, Array):
            raise NodeTypeError(f"'{found.name}' of {self.store} is an array, not a group")
        return found

    def __delitem__(self, name: str) -> None:
        self._check_writable()
        relative = normal_path(name)
        if not relative:
            raise InvalidKeyError(f"{self!r} cannot be deleted through itself; accepted: a path below it")
        if name not in self:
            raise NodeNotFoundError(f"no array or group '{name}' in {self!r}")
        erase_node(self.store, node_prefix(self.path) + relative, self.format)

    def _new_path(self, name: str) -> str:
        relative = check_new_path(name, self.format)
        return check_new_path(node_prefix(self.path) + relative, self.format)

    def consolidate(self) -> Group:
        """Write the documents of all nodes below into that of this group which is made for them.

        Returns
        -------
        Group
            This group, opened from what was written.

        Raises
        ------
        MetadataError
            If the format has no consolidated metadata.
        """
        self._check_writable()
        if self.format.consolidated_key(self.path) is None:
            raise self.format.refuse(
                self.path, "consolidated_metadata", "consolidate()", "listing the store, or format 3 or 2"
            )
        with document_lock:
            metadata = replace(self._stored(), consolidated=None)
            below = held_below(self.store, self.format, self.path)
            write_node(self.store, self.format, self.path, metadata, below)
        self.metadata = metadata
        return Group(
            self.store,
            self.path,
            replace(metadata, consolidated=below),
            format=self.format,
            read_only=self.read_only,
        )

    def _stored(self) -> GroupMetadata:
        """What the stored document says now."""
        found = read_metadata(self.store, self.format, self.path)
        if not isinstance(found, GroupMetadata):
            raise StoreError(
                f"group '{self.name}' of {self.store} was removed or replaced since it was opened"
            )
        return found

    def _change_attributes(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        self._check_writable()
        with document_lock:
            stored = self._stored()
            attributes = documents.plain_attributes(
                change(dict(stored.attributes)), self.path, stored=stored.attributes
            )
            metadata = replace(stored, attributes=attributes, consolidated=None)
            write_node(self.store, self.format, self.path, metadata, stored.consolidated)
        self.metadata = metadata


def make_group(
    store: Store,
    format: Format,
    path: str,
    *,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Group:
    """Make a group at a path that was checked, and the groups above it."""
    meta = GroupMetadata(
        attributes=documents.plain_attributes({} if attributes is None else attributes, path),
        zarr_format=format.zarr_format,
    )
    with document_lock:
        make_room(store, path, overwrite=overwrite, for_group_of=format)
        make_groups_above(store, format, path)
        write_node(store, format, path, meta)
    return Group(store, path, meta, format=format)


def _restore(
    store: Store,
    path: str,
    format: Format,
    held: Held,
    below: Mapping[str, Held] | None,
    consolidated: bool,
    read_only: bool,
) -> Group:
    meta = format.parse_again(held, path)
    if not isinstance(meta, GroupMetadata):
        raise TypeError(f"not the documents of a group: '{path}'")
    meta = replace(meta, consolidated=below)
    group = Group(store, path, meta, format=format, read_only=read_only)
    group.consolidated = consolidated  # One that could be written looked into the store, and still does.
    return group
