"""Groups: mappings of names and paths to arrays and groups.

A group finds nodes in its consolidated metadata or in the store, and changes its own attributes.
:mod:`xzarr3.nodes` reads and writes the documents. A group knows nothing of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn, cast

from xzarr3.arrays import Array
from xzarr3.display.shown import Description
from xzarr3.errors import (
    InvalidKeyError,
    MetadataError,
    NodeNotFoundError,
    NodeTypeError,
    StoreCapabilityError,
    did_you_mean,
    printable,
    short_traceback,
)
from xzarr3.formats import Format, ZarrFormat, documents, format_of, name_of, parse_format
from xzarr3.formats.base import Held, node_prefix
from xzarr3.group_arrays import GroupArrays
from xzarr3.model.metadata import ArrayMetadata, Consolidated, GroupMetadata, NodeMetadata
from xzarr3.names import absent_name
from xzarr3.new_array import make_array
from xzarr3.nodes.consolidated import refresh_copies, write_consolidated
from xzarr3.nodes.create import make_node
from xzarr3.nodes.documents import change_document, gone, with_attributes
from xzarr3.nodes.find import DocumentView, children, depth_first, exists, load_below, read_metadata
from xzarr3.nodes.node import ancestors, check_new_path, normal_path
from xzarr3.nodes.pickling import below_from_text, below_to_text, from_text, to_text
from xzarr3.options import Missing
from xzarr3.stores import Store


def bind(
    store: Store,
    format: Format,
    path: str,
    meta: NodeMetadata,
    *,
    read_only: bool,
    consolidated: bool = True,
    missing: Missing = "fill",
) -> Array | Group:
    """The array or group for these metadata."""
    if isinstance(meta, ArrayMetadata):
        return Array(store, path, meta, format=format, read_only=read_only, missing=missing)
    group = Group(store, path, meta, format=format, read_only=read_only, use_consolidated=consolidated)
    group.missing = missing
    return group


class Group(GroupArrays):
    """A group in a store: a mapping of names, and of paths such as ``"ocean/sst"``, to nodes.

    Groups come from :func:`xzarr3.open_group`, :func:`xzarr3.create_group` and other groups.

    Parameters
    ----------
    store : Store
    path : str
        Path of the group in its hierarchy, without a leading ``/``; empty for the root.
    metadata : GroupMetadata
    format : Format, optional
        Format of the hierarchy; by default the one that the metadata name.
    read_only : bool
        Refuse every write.
    use_consolidated : bool
        Find nodes in the consolidated metadata, if there are any, instead of in the store. A writable group
        always reads the store, so it finds each node as last written.

    Examples
    --------
    >>> import xzarr3
    >>> root = xzarr3.create_group(xzarr3.MemoryStore())
    >>> _ = root.create_array("ocean/sst", shape=(4, 6), dtype="float32")
    >>> list(root), root["ocean/sst"]
    (['ocean'], <xzarr3.Array /ocean/sst shape=(4, 6) dtype=float32 chunks=(4, 6)>)
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
        self.copies = metadata.consolidated if self.consolidated else None
        """Consolidated metadata as they were when the group was opened; they may be out of date."""
        self._documents = self.copies if self.read_only else None
        self.metadata: GroupMetadata = replace(metadata, consolidated=None)
        key = None if self._documents is None else format.consolidated_key(path)
        self._tag = None if key is None else store.tag(key)
        self.missing: Missing = "fill"
        """What the arrays found in this group do about absent chunks; see :func:`xzarr3.open`."""

    def __getattr__(self, name: str) -> NoReturn:
        hint = ""
        if not name.startswith("_"):
            near = did_you_mean(name, dir(type(self))) or f"a node is an item, as in group[{name!r}]"
            hint = absent_name("Group", name) or f"; {near}"
        raise AttributeError(f"'Group' object has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<xzarr3.Group {printable(self.name)} of {self.store}>"

    def __reduce__(self) -> tuple[object, ...]:
        text = to_text(self.format, self.metadata, self.path)
        return _restore, (
            self.store, self.path, name_of(self.format), text, below_to_text(self._documents),
            self.consolidated, self.read_only, self.missing, self._tag,
        )  # fmt: skip

    # Finding nodes

    def _find(self, path: str) -> Array | Group | None:
        relative = normal_path(path)
        if not relative:
            return self
        if self._documents is not None:
            held = self._documents.get(relative)
            return None if held is None else self._bound(relative, held)
        full = node_prefix(self.path) + relative
        meta = read_metadata(self.store, self.format, full, consolidated=self.consolidated)
        return None if meta is None else self._bind(full, meta)

    def _bind(self, path: str, meta: NodeMetadata) -> Array | Group:
        return bind(
            self.store,
            self.format,
            path,
            meta,
            read_only=self.read_only,
            consolidated=self.consolidated,
            missing=self.missing,
        )

    def _bound(self, relative: str, held: Held | MetadataError) -> Array | Group:
        """The node with these documents.

        Raises
        ------
        MetadataError
            If the documents are not valid.
        """
        if isinstance(held, MetadataError):
            raise held
        path = node_prefix(self.path) + relative
        meta = self.format.parse(held, path)
        if self._documents is None or not isinstance(meta, GroupMetadata):
            node = self._bind(path, meta)
            if isinstance(node, Array):
                node._known.held = held
                node._tag = self._tag or node._tag
            return node
        below = self.format.consolidated_below(self._documents, relative)
        node = self._bind(path, replace(meta, consolidated=below))
        if isinstance(node, Group):
            node._documents, node._tag = below, self._tag
        return node

    @short_traceback
    def loaded(self) -> Group:
        """This group with the documents of all nodes below, read now and kept.

        Reads level by level: one listing for each group and one batch of documents for each level. The loaded
        group does not see later changes. A read-only group with consolidated metadata is loaded already and
        returns itself.

        Raises
        ------
        StoreCapabilityError
            If the store cannot list.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.create_group(xzarr3.MemoryStore())
        >>> _ = root.create_array("ocean/sst", shape=4, dtype="int16")
        >>> root.loaded()["ocean"]["sst"]
        <xzarr3.Array /ocean/sst shape=(4,) dtype=int16 chunks=(4,)>
        """
        if self._documents is not None:
            return self
        group = Group(self.store, self.path, self.metadata, format=self.format, read_only=self.read_only)
        group.consolidated, group.missing = self.consolidated, self.missing
        group._documents = Consolidated.of(load_below(self.store, self.format, self.path))
        return group

    def _held(
        self, max_depth: int | None = 0, leave_out: Collection[str] = ()
    ) -> Iterator[tuple[str, Held | MetadataError]]:
        """Relative paths and documents of the nodes below, depth first."""
        found = self._documents
        if found is None:
            found = load_below(self.store, self.format, self.path, max_depth=max_depth, leave_out=leave_out)
        paths = found if max_depth is None else (path for path in found if path.count("/") <= max_depth)
        for path in depth_first(path for path in paths if path not in leave_out):
            yield path, found[path]

    @short_traceback
    def __getitem__(self, path: str) -> Array | Group:
        found = self._find(path)
        if found is None:
            from xzarr3.commit.lease import check_complete
            from xzarr3.commit.recover import settle

            there = self._near(path)
            full = node_prefix(self.path) + normal_path(path)
            if settle(self.store, full):
                meta = read_metadata(self.store, self.format, full, consolidated=self.consolidated)
                if meta is not None:
                    return self._bind(full, meta)
            there += check_complete(self.store, full, f"array or group '{path}'")
            found = self._find(path)  # it may have appeared before its lease was read
            if found is None:
                raise NodeNotFoundError(f"no array or group '{path}' in {self!r}{there}")
        return found

    def _near(self, path: str) -> str:
        """The nearest group above a missing node, and the nearest name in it."""
        from xzarr3.nodes.absent import among

        full = node_prefix(self.path) + normal_path(path)
        for above in [*ancestors(normal_path(path))][::-1]:
            node = self._find(above)
            if isinstance(node, Array):
                return f"; {among(full, node.path, (), is_array=True)}"
            if node is not None:
                with suppress(StoreCapabilityError):  # Not all stores can list.
                    return f"; {among(full, node.path, node)}"
        return ""

    @short_traceback
    def get(self, path: str, default: Any = None) -> Any:
        """The node at ``path``, or ``default`` if there is none."""
        found = self._find(path)
        return default if found is None else found

    @short_traceback
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

    def tree(self) -> Description:
        """A line for each node below: name, dimensions and data type, or the error if it cannot be read.

        The text has all nodes. A notebook shows a tree that folds, with the first nodes of each group.
        """
        from xzarr3.describe import describe_tree

        return describe_tree(self, dict(self.load(max_depth=None)))

    def _describe(self) -> Description:
        from xzarr3.describe import describe_group

        return describe_group(self)

    # Changing nodes

    @short_traceback
    def create_array(self, name: str, **options: Any) -> Array:
        """Create an array below this group; takes the options of :func:`xzarr3.create_array`."""
        self._check_writable()
        return make_array(self.store, self.format, self._new_path(name), **options)

    @short_traceback
    def __setitem__(self, name: str, values: Any) -> None:
        """Store values as an array with default settings, in place of the array of this name.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> root["sst"] = [280.5, 281.5]
        >>> root["sst"][:]
        array([280.5, 281.5])
        """
        self._check_writable()
        found = self._find(name)
        if isinstance(found, Group):
            raise NodeTypeError(
                f"'{found.name}' of {self.store} is a group, which an array would replace with all that is "
                f"below it; delete it first, or choose another name"
            )
        self.create_array(name, data=values, overwrite=found is not None)

    @short_traceback
    def move(self, source: str, dest: str) -> None:
        """Move a node below this group, with all nodes below it, to another path below this group.

        In a directory it is renamed. Elsewhere its values are copied within the store, then the old ones are
        erased: after a crash it is at the old path or at both. No other program may write to it meanwhile.

        Parameters
        ----------
        source, dest : str
            The old path and the new one, below this group. Groups above the new path are created.

        Raises
        ------
        NodeNotFoundError
            If there is no node at ``source``.
        NodeExistsError
            If something is at ``dest``, or one of the two paths lies within the other.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> _ = root.create_array("sst", shape=4, dtype="int16")
        >>> root.move("sst", "ocean/temperature")
        >>> root["ocean/temperature"]
        <xzarr3.Array /ocean/temperature shape=(4,) dtype=int16 chunks=(4,)>
        """
        from xzarr3.commit.recover import settle
        from xzarr3.nodes.move import move_node

        self._check_writable()
        full, to = self._existing_path(source), self._new_path(dest)
        settle(self.store, to)
        move_node(self.store, self.format, full, to)

    @short_traceback
    def create_group(
        self, name: str, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
    ) -> Group:
        """Create a group below this group."""
        self._check_writable()
        return make_group(
            self.store, self.format, self._new_path(name), attributes=attributes, overwrite=overwrite
        )

    @short_traceback
    def require_group(self, name: str) -> Group:
        """The group ``name`` below this group; created if it is absent.

        Raises
        ------
        NodeTypeError
            If there is an array of this name.
        """
        found = self._find(name)
        if found is None:
            return self.create_group(name)
        if isinstance(found, Array):
            raise NodeTypeError(
                f"'{found.name}' of {self.store} is an array, not a group; choose another name"
            )
        return found

    @short_traceback
    def require_groups(self, *names: str) -> tuple[Group, ...]:
        """The groups of these names below this group; created if they are absent.

        Examples
        --------
        >>> import xzarr3
        >>> [group.name for group in xzarr3.group().require_groups("ocean", "ice")]
        ['/ocean', '/ice']
        """
        return tuple(self.require_group(name) for name in names)

    @short_traceback
    def __delitem__(self, name: str) -> None:
        from xzarr3.nodes.erase import erase_node

        self._check_writable()
        erase_node(self.store, self._existing_path(name), self.format)

    def _existing_path(self, name: str) -> str:
        """The path in the hierarchy of a node below this group, which will leave it.

        Raises
        ------
        NodeNotFoundError
            If there is none.
        InvalidKeyError
            If it is this group itself.
        """
        from xzarr3.commit.recover import settle

        relative = normal_path(name)
        if not relative:
            raise InvalidKeyError(f"{self!r} cannot delete or move itself; give a path below it")
        full = node_prefix(self.path) + relative
        settle(self.store, full)  # an unfinished swap completed later would bring the node back
        if name not in self:
            raise NodeNotFoundError(f"no array or group '{name}' in {self!r}{self._near(name)}")
        return full

    def _new_path(self, name: str) -> str:
        relative = check_new_path(name, self.format)
        return check_new_path(node_prefix(self.path) + relative, self.format)

    @short_traceback
    def consolidate(self) -> Group:
        """Copy the documents of all nodes below into this group's consolidated metadata.

        Nodes stay in the order of the consolidated metadata that are there; new ones come last.

        Returns
        -------
        Group
            This group, opened from the new consolidated metadata.

        Raises
        ------
        MetadataError
            If the format has no consolidated metadata.
        """
        self._check_writable()
        metadata, below = write_consolidated(self.store, self.format, self.path, self.copies or ())
        self.metadata = metadata
        group = Group(
            self.store,
            self.path,
            replace(metadata, consolidated=below),
            format=self.format,
            read_only=self.read_only,
        )
        group.missing = self.missing
        return group

    def _change_attributes(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        self._check_writable()

        def changed(found: NodeMetadata) -> NodeMetadata:
            if not isinstance(found, GroupMetadata):
                raise gone(self.store, self.path)
            return with_attributes(found, change, self.path)

        key = self.format.attributes_key(self.path, array=False)
        metadata = change_document(self.store, self.format, self.path, key, changed)
        self.metadata = replace(cast("GroupMetadata", metadata), consolidated=None)
        refresh_copies(self.store, self.format, self.path)


def make_group(
    store: Store,
    format: Format,
    path: str,
    *,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    look: DocumentView | None = None,
) -> Group:
    """Create a group, and the groups above it; the caller has checked the path."""
    from xzarr3.commit.recover import settle

    meta = GroupMetadata(
        attributes=documents.plain_attributes({} if attributes is None else attributes, path),
        zarr_format=format.zarr_format,
    )
    if settle(store, path):
        look = None
    make_node(store, format, path, meta, overwrite=overwrite, look=look)
    return Group(store, path, meta, format=format)


def _restore(
    store: Store,
    path: str,
    format: Format | ZarrFormat,
    text: bytes,
    below: bytes | Mapping[str, Held] | None,
    consolidated: bool,
    read_only: bool,
    missing: Missing,
    tag: str | None,
) -> Group:
    format = format_of(format)
    meta = from_text(format, text, path)
    if not isinstance(meta, GroupMetadata):
        raise MetadataError("not the documents of a group", path=path)
    group = Group(store, path, meta, format=format, read_only=read_only)
    if below is not None:
        group._documents = below_from_text(below) if isinstance(below, bytes) else Consolidated.of(below)
    group.consolidated = consolidated  # a group pickled as writable had read the store, and still does
    group.missing, group._tag = missing, tag
    return group
