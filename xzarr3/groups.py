"""Groups: mappings of names and paths to arrays and groups.

A group finds nodes in its consolidated metadata or in the store, and changes its own attributes.
:mod:`xzarr3.nodes` reads and writes the documents. A group knows nothing of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping, Sequence, ValuesView
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from xzarr3.arrays import Array
from xzarr3.display.shown import Description
from xzarr3.dtypes import parse_dtype
from xzarr3.errors import (
    InvalidKeyError,
    MetadataError,
    NodeNotFoundError,
    NodeTypeError,
    StoreCapabilityError,
    StoreError,
    did_you_mean,
    printable,
    short_traceback,
)
from xzarr3.formats import Format, ZarrFormat, format_of, name_of, parse_format
from xzarr3.formats.base import Held, is_array, node_prefix
from xzarr3.grid import as_lengths
from xzarr3.model.metadata import ArrayMetadata, Consolidated, GroupMetadata, NodeMetadata
from xzarr3.names import absent_name
from xzarr3.new_array import ZERO, fill_like, filled, like, make_array, make_nodes
from xzarr3.nodes import seen
from xzarr3.nodes.consolidated import refresh_copies, write_consolidated
from xzarr3.nodes.documents import change_document, gone, with_attributes
from xzarr3.nodes.find import (
    DocumentView,
    children,
    depth_first,
    exists,
    load_below,
    parse_and_warn,
    read_metadata,
)
from xzarr3.nodes.freshness import read_below_steadily
from xzarr3.nodes.node import Node, ancestors, check_new_path, normal_path
from xzarr3.nodes.pickling import below_from_text, below_to_text, from_text, to_text
from xzarr3.options import Missing
from xzarr3.stores import Store

if TYPE_CHECKING:
    from xzarr3.io.chunk_cache import ChunkCache


def bind(
    store: Store,
    format: Format,
    path: str,
    meta: NodeMetadata,
    *,
    read_only: bool,
    consolidated: bool = True,
    missing: Missing = "fill",
    chunk_cache: ChunkCache | None = None,
    is_stored: bool = True,
) -> Array | Group:
    """The array or group for these metadata, which were read from its documents if it ``is_stored``."""
    node: Array | Group
    if isinstance(meta, ArrayMetadata):
        node = Array(store, path, meta, format=format, read_only=read_only, missing=missing)
        node._had_document = True
    else:
        node = Group(store, path, meta, format=format, read_only=read_only, use_consolidated=consolidated)
        node.missing = missing
    node.chunk_cache = chunk_cache
    placed_at = seen.placed_at(store, node._key, meta) if is_stored else None
    if placed_at is not None and isinstance(node, Group):
        node._placed_at = placed_at
        placed_at = node._opened_at and (placed_at or node._opened_at)
    if placed_at is not None:
        node._opened_at = placed_at
    return node


class Group(Node, Mapping[str, "Array | Group"]):
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

    __eq__ = object.__eq__  # A mapping would be equal if its values are, but each look makes new nodes.
    __hash__ = object.__hash__

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
        key = None if self._documents is None else format.keys(path).consolidated
        self._tag = None if key is None else seen.tag(store, key)
        self._placed_at = seen.replaced_at(store, self._key)
        """When the group was put in its place; 0 if its documents do not tell, None if they are not known."""
        self._opened_at = None if key is None else self._placed_at or seen.opened_now(store)
        """When the group was last replaced, or else opened; None if the documents below tell it."""
        self.missing: Missing = "fill"
        """What the arrays found in this group do about absent chunks; see :func:`xzarr3.open`."""
        self.chunk_cache: ChunkCache | None = None
        """Keeps decoded chunks of the arrays found in this group; see :func:`xzarr3.open`."""

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
        place = self.store, self.path, name_of(self.format)
        kept = [getattr(self, name) for name in _PICKLED]
        return _restore, (*place, text, below_to_text(self._documents), self.read_only, kept)

    # Finding nodes

    def _find(self, path: str) -> Array | Group | None:
        relative = normal_path(path)
        if not relative:
            return self
        if self._documents is not None:
            held = self._documents.get(relative)
            return None if held is None else self._bound(relative, held)
        from xzarr3.commit.under_way import settled

        full = node_prefix(self.path) + relative
        meta = read_metadata(self.store, self.format, full, consolidated=self.consolidated)
        if meta is None and settled(self.store, full):
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
            chunk_cache=self.chunk_cache,
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
        meta = parse_and_warn(self.format, held, path)
        if self._documents is None or not isinstance(meta, GroupMetadata):
            node = self._bind(path, meta)
            if isinstance(node, Array):
                node._known.held = held
                node._tag = self._tag or node._tag
                node._opened_at = node._opened_at if self._opened_at is None else self._opened_at
            return node
        below = Consolidated.of(self._documents).below(relative)
        node = self._bind(path, replace(meta, consolidated=below))
        if isinstance(node, Group):
            node._documents, node._tag, node._opened_at = below, self._tag, self._opened_at
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
        group.chunk_cache = self.chunk_cache
        group._documents = Consolidated.of(self._load_below())
        return group

    def _load_below(self, *, as_opened: bool = False, **how: Any) -> dict[str, Held | MetadataError]:
        """The documents of the nodes below, of one time if all are needed that were there at opening."""
        from xzarr3.commit.under_way import read_whole

        read = partial(load_below, self.store, self.format, self.path, absent=self._check_absent, **how)
        steadily = partial(read_below_steadily, self, read, as_opened=as_opened)
        return read_whole(self.store, self.path, steadily)

    def _check_absent(self, paths: Sequence[str]) -> None:
        from xzarr3.commit.under_way import check_not_under_way

        check_not_under_way(self.store, self.format, paths)

    @cached_property
    def _key(self) -> str:
        """Key of the document that makes this a group, or has copies of those below."""
        keys = self.format.keys(self.path)
        return keys.consolidated or keys.defining[-1]

    def _check_not_being_replaced(self) -> None:
        from xzarr3.commit.lease import check_complete

        check_complete(self.store, self.path, f"group '{self.name}'")

    def _held(
        self, max_depth: int | None = 0, leave_out: Collection[str] = (), *, as_opened: bool = False
    ) -> Iterator[tuple[str, Held | MetadataError]]:
        """Relative paths and documents of the nodes below, depth first."""
        found = self._documents
        if found is None:
            found = self._load_below(max_depth=max_depth, leave_out=leave_out, as_opened=as_opened)
        paths = found if max_depth is None else (path for path in found if path.count("/") <= max_depth)
        chosen = [path for path in paths if path not in leave_out]
        for path in chosen if max_depth == 0 else depth_first(chosen):
            yield path, found[path]

    @short_traceback
    def __getitem__(self, path: str) -> Array | Group:
        found = self._find(path)
        if found is None:
            from xzarr3.commit.lease import check_complete

            full = node_prefix(self.path) + normal_path(path)
            there = self._near(path) + check_complete(self.store, full, f"array or group '{path}'")
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
                with suppress(StoreError):  # Not all stores can list, and the group may be gone.
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
        there = not relative or exists(self.store, self.format, node_prefix(self.path) + relative)
        return there or (self.store.folder is not None and self._find(relative) is not None)

    def __iter__(self) -> Iterator[str]:
        if self._documents is not None:
            return iter([name for name in self._documents if "/" not in name])
        from xzarr3.commit.under_way import read_whole

        read = partial(children, self.store, self.format, self.path, self._check_absent)
        return iter(read_whole(self.store, self.path, partial(read_below_steadily, self, read)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    # Members

    @short_traceback
    def load(
        self, max_depth: int | None = 0, *, leave_out: Collection[str] = ()
    ) -> Iterator[tuple[str, Array | Group | MetadataError]]:
        """Relative paths and nodes below, read in batches; a node that cannot be read yields its error.

        Parameters
        ----------
        max_depth : int, optional
            How many levels below the first to go down; None for all.
        leave_out : collection of str
            Names directly below to skip; their documents are not read.

        Raises
        ------
        StoreCapabilityError
            If the store cannot list and the group has no consolidated metadata.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.create_group(xzarr3.MemoryStore())
        >>> _ = root.create_array("sst", shape=4, dtype="int16"), root.create_group("ice")
        >>> dict(root.load(leave_out=["ice"]))
        {'sst': <xzarr3.Array /sst shape=(4,) dtype=int16 chunks=(4,)>}
        """
        for path, held in self._held(max_depth, leave_out):
            yield path, self._node_or_error(path, held)

    def _node_or_error(self, path: str, held: Held | MetadataError) -> Array | Group | MetadataError:
        try:
            return self._bound(path, held)
        except MetadataError as error:
            return error

    def items(self) -> ItemsView[str, Array | Group]:
        """Names and nodes directly below, read in one batch."""
        return dict(self.members()).items()

    def values(self) -> ValuesView[Array | Group]:
        """The nodes directly below, read in one batch."""
        return dict(self.members()).values()

    @short_traceback
    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Names and nodes of the arrays directly below."""
        for name, held in self._held():
            if isinstance(held, MetadataError) or is_array(held):
                node = self._bound(name, held)
                if isinstance(node, Array):
                    yield name, node

    @short_traceback
    def groups(self) -> Iterator[tuple[str, Group]]:
        """Names and nodes of the groups directly below."""
        for name, held in self._held():
            if isinstance(held, MetadataError) or not is_array(held):
                node = self._bound(name, held)
                if not isinstance(node, Array):
                    yield name, node

    @short_traceback
    def members(self, max_depth: int | None = 0) -> Iterator[tuple[str, Array | Group]]:
        """Relative paths and nodes below, read level by level.

        Parameters
        ----------
        max_depth : int, optional
            How many levels below the first to go down; None for all.
        """
        for path, held in self._held(max_depth):
            yield path, self._bound(path, held)

    def array_keys(self) -> Iterator[str]:
        """Names of the arrays directly below.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> _ = root.create_array("sst", shape=4, dtype="int16"), root.create_group("ice")
        >>> list(root.array_keys()), list(root.group_keys()), root.nmembers()
        (['sst'], ['ice'], 2)
        """
        return self._names(of_arrays=True)

    def group_keys(self) -> Iterator[str]:
        """Names of the groups directly below.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> _ = root.create_array("ocean/sst", shape=4, dtype="int16"), root.create_array("t", data=[1, 2])
        >>> list(root.group_keys())
        ['ocean']
        """
        return self._names(of_arrays=False)

    def _names(self, *, of_arrays: bool) -> Iterator[str]:
        """Names of the arrays or groups directly below; what their documents say is not looked at."""
        for name, held in self._held():
            if isinstance(held, MetadataError):
                raise held
            if is_array(held) is of_arrays:
                yield name

    def array_values(self) -> Iterator[Array]:
        """The arrays directly below.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> _ = root.create_array("ocean/sst", shape=4, dtype="int16"), root.create_array("t", data=[1, 2])
        >>> [array.shape for array in root.array_values()]
        [(2,)]
        """
        return (array for _, array in self.arrays())

    def group_values(self) -> Iterator[Group]:
        """The groups directly below.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> _ = root.create_array("ocean/sst", shape=4, dtype="int16"), root.create_array("t", data=[1, 2])
        >>> [group.name for group in root.group_values()]
        ['/ocean']
        """
        return (group for _, group in self.groups())

    @short_traceback
    def get_array(self, path: str) -> Array:
        """The array at ``path``.

        Raises
        ------
        NodeNotFoundError
            If there is no node.
        NodeTypeError
            If it is a group.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> _ = root.create_array("ocean/sst", shape=4, dtype="int16"), root.create_array("t", data=[1, 2])
        >>> root.get_array("ocean/sst").shape
        (4,)
        """
        node = self[path]
        if not isinstance(node, Array):
            raise NodeTypeError(f"'{node.name}' of {self.store} is a group, not an array")
        return node

    @short_traceback
    def get_group(self, path: str) -> Group:
        """The group at ``path``.

        Raises
        ------
        NodeNotFoundError
            If there is no node.
        NodeTypeError
            If it is an array.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> _ = root.create_array("ocean/sst", shape=4, dtype="int16"), root.create_array("t", data=[1, 2])
        >>> list(root.get_group("ocean"))
        ['sst']
        """
        node = self[path]
        if isinstance(node, Array):
            raise NodeTypeError(f"'{node.name}' of {self.store} is an array, not a group")
        return node

    @short_traceback
    def nmembers(self, max_depth: int | None = 0) -> int:
        """Number of nodes below.

        Parameters
        ----------
        max_depth : int, optional
            How many levels below the first to go down; None for all.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> _ = root.create_array("ocean/sst", shape=4, dtype="int16"), root.create_array("t", data=[1, 2])
        >>> root.nmembers(), root.nmembers(max_depth=None)
        (2, 3)
        """
        return sum(1 for _ in self._held(max_depth))

    @property
    def info(self) -> Description:
        """A description of the group, one line for each property.

        Examples
        --------
        >>> import xzarr3
        >>> print(xzarr3.group(attributes={"title": "SST"}).info)
        name        /
        format      3
        members     0 arrays, 0 groups
        attributes  1
        read-only   False
        store       <MemoryStore, 1 keys>
        """
        from xzarr3.display.report import Page
        from xzarr3.display.units import counted

        try:
            held = [each for _, each in self._held()]
        except StoreCapabilityError:
            members = "unknown, as the store cannot list"
        else:
            arrays = [not isinstance(each, MetadataError) and is_array(each) for each in held]
            groups = counted(len(held) - sum(arrays), "group")
            members = f"{counted(sum(arrays), 'array')}, {groups}"
        facts = [
            ("name", self.name),
            ("format", f"{self.zarr_format}"),
            ("members", members),
            ("attributes", f"{len(self.attrs)}"),
            ("read-only", f"{self.read_only}"),
            ("store", f"{self.store}"),
        ]
        return Page("xzarr3.Group", heading=(self.name,), facts=facts).description()

    def _ipython_key_completions_(self) -> list[str]:
        """Names that IPython proposes after ``group["``: of the nodes directly below."""
        return list(self)

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
    def create_dataset(
        self, name: str, shape: Any = None, dtype: Any = None, data: Any = None, **options: Any
    ) -> Array:
        """Create an array below this group: :meth:`create_array` with the arguments of h5py and zarr 2.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().create_dataset("sst", (4, 6), "float32", chunks=2)
        <xzarr3.Array /sst shape=(4, 6) dtype=float32 chunks=(2, 2)>
        """
        return self.create_array(name, shape=shape, dtype=dtype, data=data, **options)

    @short_traceback
    def require_array(
        self, name: str, *, shape: Any, dtype: Any = None, exact: bool = False, **options: Any
    ) -> Array:
        """The array ``name`` below this group; created if it is absent.

        Parameters
        ----------
        name : str
        shape : tuple of int
            An existing array must have this shape.
        dtype : dtype, str or ZDType, optional
            By default ``float64``. Elements of an existing array must be of a type that this type can hold.
        exact : bool
            An existing array must have exactly this type.
        **options
            Further options of :func:`xzarr3.create_array` for a new array. An existing one stays as it is.

        Raises
        ------
        NodeTypeError
            If there is a group of this name, or an array of another shape or type. It is a TypeError.

        Examples
        --------
        >>> import xzarr3
        >>> root = xzarr3.group()
        >>> made = root.require_array("sst", shape=(4, 6), dtype="float32")
        >>> root.require_array("sst", shape=(4, 6), dtype="float64").dtype
        dtype('float32')
        """
        found = self.get(name)
        dtype = "float64" if dtype is None else dtype
        if found is None:
            return self.create_array(name, shape=shape, dtype=dtype, **options)
        if not isinstance(found, Array):
            raise NodeTypeError(f"'{found.name}' of {self.store} is a group, not an array")
        if found.shape != as_lengths(shape):
            raise NodeTypeError(
                f"array '{found.name}' of {self.store} has shape {found.shape}, not {as_lengths(shape)}"
            )
        wanted = parse_dtype(dtype, zarr_format=self.zarr_format).to_native_dtype()
        if found.dtype != wanted and (exact or not np.can_cast(found.dtype, wanted)):
            raise NodeTypeError(
                f"array '{found.name}' of {self.store} has data type {found.dtype}, not {wanted}"
            )
        return found

    def zeros(self, name: str, *, shape: Any, **options: Any) -> Array:
        """Create an array of zeros below this group; see :func:`xzarr3.zeros`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().zeros("ice", shape=2, dtype="int8")[:]
        array([0, 0], dtype=int8)
        """
        return self.create_array(name, **filled(shape, ZERO, options))

    def ones(self, name: str, *, shape: Any, **options: Any) -> Array:
        """Create an array of ones below this group; see :func:`xzarr3.ones`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().ones("ice", shape=2, dtype="int8")[:]
        array([1, 1], dtype=int8)
        """
        return self.create_array(name, **filled(shape, 1, options))

    def full(self, name: str, *, shape: Any, fill_value: object, **options: Any) -> Array:
        """Create an array of one value below this group; see :func:`xzarr3.full`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().full("ice", shape=2, fill_value=7)[:]
        array([7., 7.])
        """
        return self.create_array(name, **filled(shape, fill_value, options))

    def empty(self, name: str, *, shape: Any, **options: Any) -> Array:
        """Create an array without chunks below this group; see :func:`xzarr3.empty`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().empty("ice", shape=2, fill_value=-1)[:]
        array([-1., -1.])
        """
        return self.create_array(name, **filled(shape, options.pop("fill_value", None), options))

    def zeros_like(self, name: str, *, data: Any, **options: Any) -> Array:
        """Create an array of zeros like another one below this group; see :func:`xzarr3.zeros_like`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().zeros_like("ice", data=[1.5, 2.5])[:]
        array([0., 0.])
        """
        return self._like(name, data, ZERO, options)

    def ones_like(self, name: str, *, data: Any, **options: Any) -> Array:
        """Create an array of ones like another one below this group; see :func:`xzarr3.ones_like`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().ones_like("ice", data=[1.5, 2.5])[:]
        array([1., 1.])
        """
        return self._like(name, data, 1, options)

    def full_like(self, name: str, *, data: Any, fill_value: object = ..., **options: Any) -> Array:
        """Create an array of one value like another one below this group; see :func:`xzarr3.full_like`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().full_like("ice", data=[1.5, 2.5], fill_value=7)[:]
        array([7., 7.])
        """
        return self._like(name, data, fill_like(data) if fill_value is ... else fill_value, options)

    def empty_like(self, name: str, *, data: Any, **options: Any) -> Array:
        """Create an array without chunks like another one below this group; see :func:`xzarr3.empty_like`.

        Examples
        --------
        >>> import xzarr3
        >>> xzarr3.group().empty_like("ice", data=xzarr3.full(2, 9.0))[:]
        array([9., 9.])
        """
        return self._like(name, data, options.pop("fill_value", fill_like(data)), options)

    def _like(self, name: str, data: Any, fill_value: object, options: dict[str, Any]) -> Array:
        found = like(data, fill_value, options, self.zarr_format)
        found.pop("zarr_format", None)
        return self.create_array(name, **found)

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

        Its directory is renamed; no other program may store values in it meanwhile. In an Icechunk session,
        its values are copied, also virtual ones, and erased; a session of ``repo.rearrange_session`` needs no
        copy. Other stores refuse it: copy the node, then delete it.

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
        StoreCapabilityError
            If the node is no directory, and in no session.

        Examples
        --------
        >>> import tempfile, xzarr3
        >>> root = xzarr3.create_group(tempfile.mkdtemp())
        >>> _ = root.create_array("sst", shape=4, dtype="int16")
        >>> root.move("sst", "ocean/temperature")
        >>> root["ocean/temperature"]
        <xzarr3.Array /ocean/temperature shape=(4,) dtype=int16 chunks=(4,)>
        """
        from xzarr3.commit.move import move_node
        from xzarr3.commit.recover import settle

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
        from xzarr3.commit.recover import erase

        self._check_writable()
        erase(self.store, self.format, self._existing_path(name))

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
        metadata = replace(metadata, consolidated=below)
        group = Group(self.store, self.path, metadata, format=self.format, read_only=self.read_only)
        group.missing, group.chunk_cache = self.missing, self.chunk_cache
        return group

    def _change_attributes(self, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        self._check_writable()

        def changed(found: NodeMetadata) -> NodeMetadata:
            if not isinstance(found, GroupMetadata):
                raise gone(self.store, self.path)
            return with_attributes(found, change, self.path)

        key = self.format.keys(self.path).attributes(array=False)
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
    metadata = make_nodes(store, format, path, {}, attributes=attributes, overwrite=overwrite, look=look)
    return Group(store, path, metadata, format=format)


_PICKLED = ("consolidated", "missing", "_tag", "chunk_cache", "_opened_at")
"""What a pickled group has beside its place and its documents, as it was when it was opened."""


def _restore(
    store: Store,
    path: str,
    format: Format | ZarrFormat,
    text: bytes,
    below: bytes | Mapping[str, Held] | None,
    read_only: bool,
    kept: Sequence[Any],
) -> Group:
    format = format_of(format)
    meta = from_text(format, text, path)
    if not isinstance(meta, GroupMetadata):
        raise MetadataError("not the documents of a group", path=path)
    group = Group(store, path, meta, format=format, read_only=read_only)
    if below is not None:
        group._documents = below_from_text(below) if isinstance(below, bytes) else Consolidated.of(below)
    vars(group).update(zip(_PICKLED, kept, strict=True))
    return group
