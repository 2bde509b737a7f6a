"""The members of a group: arrays and groups, by kind and by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING

from xzarr3.arrays import Array
from xzarr3.display.shown import Description
from xzarr3.errors import MetadataError, NodeTypeError, StoreCapabilityError, short_traceback
from xzarr3.formats.base import Held
from xzarr3.nodes.node import Node

if TYPE_CHECKING:
    from xzarr3.groups import Group


class GroupMembers(Node, Mapping[str, "Array | Group"]):
    """The part of :class:`xzarr3.Group` that lists what is in it."""

    @abstractmethod
    def _held(
        self, max_depth: int | None = 0, leave_out: Collection[str] = ()
    ) -> Iterator[tuple[str, Held | MetadataError]]:
        """Relative paths and documents of the nodes below, depth first."""

    @abstractmethod
    def _bound(self, relative: str, held: Held | MetadataError) -> Array | Group:
        """The node with these documents."""

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
        return _Items(self)

    def values(self) -> ValuesView[Array | Group]:
        """The nodes directly below, read in one batch."""
        return _Values(self)

    @short_traceback
    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Names and nodes of the arrays directly below."""
        for name, held in self._held():
            if isinstance(held, MetadataError) or self.format.is_array(held):
                node = self._bound(name, held)
                if isinstance(node, Array):
                    yield name, node

    @short_traceback
    def groups(self) -> Iterator[tuple[str, Group]]:
        """Names and nodes of the groups directly below."""
        for name, held in self._held():
            if isinstance(held, MetadataError) or not self.format.is_array(held):
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
            if self.format.is_array(held) is of_arrays:
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
        from xzarr3.display import html, text

        try:
            held = [each for _, each in self._held()]
        except StoreCapabilityError:
            members = "unknown, as the store cannot list"
        else:
            arrays = [not isinstance(each, MetadataError) and self.format.is_array(each) for each in held]
            members = f"{sum(arrays)} arrays, {len(held) - sum(arrays)} groups"
        rows = [
            ("name", self.name),
            ("format", f"{self.zarr_format}"),
            ("members", members),
            ("attributes", f"{len(self.attrs)}"),
            ("read-only", f"{self.read_only}"),
            ("store", f"{self.store}"),
        ]
        title = html.title("xzarr3.Group", self.name)
        return Description(text.rows(rows), lambda: html.box(title, html.facts(rows)))

    def _ipython_key_completions_(self) -> list[str]:
        """Names that IPython proposes after ``group["``: of the nodes directly below."""
        return list(self)


class _Items(ItemsView[str, "Array | Group"]):
    """Items of a group, read in one batch."""

    _mapping: Group
    _number: int | None = None

    def __iter__(self) -> Iterator[tuple[str, Array | Group]]:
        group = self._mapping
        held = list(group._held())
        self._number = len(held)
        return ((name, group._bound(name, each)) for name, each in held)

    def __len__(self) -> int:
        # list() asks for the length right after the items: keep the count, so the nodes are not read again.
        number, self._number = self._number, None
        return len(self._mapping) if number is None else number


class _Values(ValuesView["Array | Group"]):
    """Values of a group, read in one batch."""

    _mapping: Group
    _items: _Items | None = None

    def __iter__(self) -> Iterator[Array | Group]:
        self._items = _Items(self._mapping)
        return (node for _, node in iter(self._items))

    def __len__(self) -> int:
        return len(self._mapping if self._items is None else self._items)
