"""Finds nodes in a store: their format, their documents, and the nodes below a group.

This module only reads. It knows nothing of chunks, leases and handles.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ChangedError, FallbackWarning, MetadataError, StoreCapabilityError, levels_to_caller
from xzarr3.formats import DRAFT, DraftFormat, Format, ZarrFormat, documents, parse_format
from xzarr3.formats.base import (
    MAX_NAMES,
    Document,
    Fetch,
    Held,
    fetched,
    fits,
    is_array,
    node_prefix,
    without_consolidated,
)
from xzarr3.formats.v2 import ARRAY, ATTRIBUTES, GROUP, V2
from xzarr3.formats.v2.names import OWN
from xzarr3.formats.v3 import DOCUMENT, V3
from xzarr3.model.metadata import GroupMetadata, NodeMetadata
from xzarr3.nodes.node import ancestors
from xzarr3.nodes.seen import note_all, note_date
from xzarr3.options import max_document_bytes
from xzarr3.parallel import parallel_map
from xzarr3.stores import Store
from xzarr3.stores.base import Names, versioned
from xzarr3.stores.values import ABSENT, OversizedError, cut

Absent: TypeAlias = Callable[[Sequence[str]], object]

_ATTEMPTS = 10  # To read the groups below a group as of one time: writers beside may each replace one.


class DocumentView(Store):
    """A read-only view of a store that reads each document once, many in one batch.

    Parameters
    ----------
    store : Store
    """

    reports = False

    def __init__(self, store: Store) -> None:
        super().__init__(
            read_only=store.read_only,
            operations=("get", "list") if store.listable else ("get",),
            browsable=store.traits.browsable,
            concurrency=store.concurrency,
            visible=store.traits.visible,
        )
        self._store = store
        self._found: dict[str, tuple[Buffer | None, object]] = {}
        self._listed: dict[str, tuple[set[str], set[str]]] = {}

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def identity(self) -> object:
        return self._store.identity

    def fetch(self, keys: Iterable[str]) -> None:
        """Read those keys that were not read before."""
        wanted = [key for key in dict.fromkeys(keys) if key not in self._found]
        limit = max_document_bytes()

        def read(key: str) -> tuple[Buffer | None, object]:
            try:
                value, version = versioned(self._store, key, limit=limit)
            except OversizedError as error:
                raise _oversized(key, error.size) from error
            note_date(self._store, key, value)
            return value, version

        found = parallel_map(read, wanted, self.concurrency)
        self._found.update(zip(wanted, found, strict=True))

    def found(self, key: str) -> tuple[Buffer | None, object]:
        """The value of a key, and its version."""
        self.fetch([key])
        return self._found[key]

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:  # type: ignore[override]
        value = self.found(key)[0]
        return value if value is None or byte_range is None else cut(value, byte_range)

    def forget(self, keys: Iterable[str]) -> None:
        """Read these keys again when they are asked for."""
        for key in keys:
            self._found.pop(key, None)

    def anew(self) -> DocumentView:
        """A view that has read nothing."""
        return DocumentView(self._store)

    def values(self, keys: Iterable[str]) -> list[Buffer | None]:
        """The values of several keys, read in one batch."""
        wanted = list(keys)
        self.fetch(wanted)
        return [self._found[key][0] for key in wanted]

    def list_dir(self, prefix: str) -> tuple[Names, Names]:
        if prefix not in self._listed:
            self._listed[prefix] = self._store.list_dir(prefix)
        return self._listed[prefix]

    def list(self, prefix: str = "") -> Iterable[str]:
        return self._store.list(prefix)

    @classmethod
    def around(cls, store: Store, path: str, *, listed: bool = False) -> DocumentView:
        """A look that has read all documents which tell what there is at a path and above it.

        With ``listed``, in a store with slow answers, one listing shows whether there is nothing at the path
        itself.
        """
        look = cls(store)
        own = [node_prefix(path) + DOCUMENT, *V2.keys(path).documents]
        above = [
            key
            for place in ancestors(path)
            for key in (node_prefix(place) + DOCUMENT, *V2.keys(place).defining)
        ]
        looks: list[Callable[[], object]] = [partial(look.fetch, above)]
        if listed and store.listable and store.concurrency > 1:
            looks.append(partial(look.list_dir, node_prefix(path)))
        parallel_map(lambda ask: ask(), looks, store.concurrency)
        if not any(look._listed.get(node_prefix(path), ("fetch",))):
            look._found.update((key, (None, ABSENT)) for key in own)
        look.fetch(own)
        return look


def read_documents(store: Store, keys: Sequence[str], path: str = "") -> list[Document | None]:
    """The JSON objects under several keys, read in one batch; None for absent keys."""
    values = document_values(store, keys)
    return [
        None if value is None else documents.decode(value, path, key.rpartition("/")[2])
        for key, value in zip(keys, values, strict=True)
    ]


def document_values(store: Store, keys: Sequence[str]) -> list[Buffer | None]:
    """The values of documents, read in one batch; None for absent keys.

    Those of a node of version 2 that was made or erased meanwhile are read once more.

    Raises
    ------
    MetadataError
        If a document is too large. It is not loaded into memory if the store can tell its size.
    """
    values = _values(store, keys)
    again = _half_there(dict(zip(keys, values, strict=True)))
    if not again:
        return values
    if isinstance(store, DocumentView):
        store.forget(again)
    found = dict(zip(again, _values(store, again), strict=True))
    return [found.get(key, value) for key, value in zip(keys, values, strict=True)]


def _half_there(values: Mapping[str, Buffer | None]) -> list[str]:
    """The keys of nodes of version 2 whose document is dated, as by this package, without attributes."""
    absent = [key.removesuffix(ATTRIBUTES) for key, value in values.items() if value is None]
    return [
        prefix + name
        for prefix in absent
        if prefix + ATTRIBUTES in values
        and any(documents.replaced_at(values.get(prefix + name)) is not None for name in (ARRAY, GROUP))
        for name in OWN
        if prefix + name in values
    ]


def _values(store: Store, keys: Sequence[str]) -> list[Buffer | None]:
    if isinstance(store, DocumentView):
        return store.values(keys)
    limit = max_document_bytes()

    def read(key: str) -> Buffer | None:
        try:
            return store.get(key, limit=limit)
        except OversizedError as error:
            raise _oversized(key, error.size) from error

    values = parallel_map(read, keys, store.concurrency)
    note_all(store, zip(keys, values, strict=True))
    return values


def _oversized(key: str, size: int) -> MetadataError:
    path, _, name = key.rpartition("/")
    return documents.oversized(size, path, name)


def fetcher(store: Store, path: str) -> Fetch:
    """A function that reads documents of a node for a format, each only once."""
    known: dict[str, Document | None] = {}

    def fetch(keys: Sequence[str]) -> list[Document | None]:
        wanted = [key for key in keys if key not in known]
        known.update(zip(wanted, read_documents(store, wanted, path), strict=True))
        return [known[key] for key in keys]

    return fetch


def read_held(store: Store, format: Format, path: str, *, consolidated: bool = True) -> Held | None:
    """The documents of a node, or None if it has none."""
    keys = format.keys(path).to_read(consolidated=consolidated)
    return held_of(format, path, dict(zip(keys, document_values(store, keys), strict=True)))


def read_metadata(
    store: Store, format: Format, path: str, *, consolidated: bool = True, again: bool = False
) -> NodeMetadata | None:
    """The metadata of a node, or None if there is no such node.

    With ``again``, warnings given before are not repeated.
    """
    held = read_held(store, format, path, consolidated=consolidated)
    if held is not None:
        return format.parse(held, path) if again else parse_and_warn(format, held, path)
    if _is_implied(store, format, path):
        return GroupMetadata(zarr_format=format.zarr_format)
    return None


def parse_and_warn(format: Format, held: Held, path: str) -> NodeMetadata:
    """The metadata of a node that is opened. Warns of an unknown data type that is read as its fallback."""
    metadata = format.parse(held, path)
    if isinstance(format, DraftFormat) and "data_type" in metadata.ignored:
        from xzarr3.formats.draft.arrays import fallback_warning

        warnings.warn(fallback_warning(metadata, path), FallbackWarning, stacklevel=levels_to_caller())
    return metadata


def _is_implied(store: Store, format: Format, path: str) -> bool:
    """Whether a group without a document is implied by nodes below it."""
    if format.implicit_groups and (store.listable or store.traits.browsable):
        with suppress(StoreCapabilityError):  # A web server that does not show this folder.
            return any(store.list_dir(format.keys(path).listing))
    return False


def exists(store: Store, format: Format, path: str) -> bool:
    """Whether there is a node."""
    if any(parallel_map(store.exists, format.keys(path).defining, store.concurrency)):
        return True
    return _is_implied(store, format, path)


def find_format(store: Store, path: str, zarr_format: ZarrFormat | None = None) -> Format | None:
    """The format of the node at a path, or None if there is no node of the wanted format.

    If a node is stored in both formats, version 3 comes before version 2.
    """
    if fits(V3, zarr_format):
        document = _entry_or_document(store, path)
        if document is not None and not _is_entry_point(document, path):
            return V3
    if fits(V2, zarr_format) and exists(store, V2, path):
        return V2
    draft = _draft(store) if fits(DRAFT, zarr_format) else None
    return draft if draft is not None and exists(store, draft, path) else None


def _draft(store: Store) -> DraftFormat | None:
    """The draft, as configured by the entry point of the hierarchy; None without an entry point."""
    return _draft_of(_entry_or_document(store, ""))


def _draft_of(entry: Document | None) -> DraftFormat | None:
    if entry is None or not _is_entry_point(entry, ""):
        return None
    return DraftFormat.from_entry_point(entry)


def _entry_or_document(store: Store, path: str) -> Document | None:
    return read_documents(store, [node_prefix(path) + DOCUMENT], path)[0]


def _is_entry_point(document: Document, path: str) -> bool:
    return not path and DraftFormat.is_entry_point(document)


def find_node(
    store: Store,
    path: str,
    zarr_format: ZarrFormat | None = None,
    *,
    use_consolidated: bool = True,
    alone: bool = False,
    together: bool = False,
) -> tuple[Format, NodeMetadata] | None:
    """The node at a path and its format, or None if there is no node of the wanted format.

    Parameters
    ----------
    store : Store
    path : str
    zarr_format : {3, 2, "3-draft"}, optional
    use_consolidated : bool
        Read consolidated metadata.
    alone : bool
        Also trust consolidated metadata about the group itself, so that one document is enough.
    together : bool
        Read the documents of all formats in one batch, instead of as few as possible.

    Raises
    ------
    MetadataError
        If the documents of the node are not valid.
    """
    get = fetcher(store, path)
    document = None
    if together:
        with suppress(MetadataError):  # raised again where the document is needed
            get((node_prefix(path) + DOCUMENT, *V2.keys(path).to_read(consolidated=use_consolidated)))
    if fits(V3, zarr_format):
        (document,) = get((node_prefix(path) + DOCUMENT,))
        if document is not None and not _is_entry_point(document, path):
            return V3, V3.parse(document if use_consolidated else without_consolidated(document), path)
    if document is not None and zarr_format is None:
        with suppress(MetadataError):  # raised again where the document is needed
            draft = _draft_of(document)
            get([*V2.keys(path).to_read(), *(() if draft is None else draft.keys(path).to_read())])
    if fits(V2, zarr_format):
        held = V2.fetch_consolidated(path, get) if alone and use_consolidated else None
        if held is None:
            held = fetched(V2, path, get, consolidated=use_consolidated)
        if held is not None:
            return V2, V2.parse(held, path)
    if fits(DRAFT, zarr_format):
        format = _draft_of(get((DOCUMENT,))[0])
        held = None if format is None else fetched(format, path, get)
        if format is not None and held is not None:
            return format, parse_and_warn(format, held, path)
        if format is not None and _is_implied(store, format, path):
            return format, GroupMetadata(zarr_format=format.zarr_format)
    return None


def find_consolidated(
    store: Store, zarr_format: ZarrFormat | None = None
) -> tuple[Format, GroupMetadata | None]:
    """The root, if it is a group with consolidated metadata; and its format, or the last format tried."""
    get = fetcher(store, "")
    if fits(V3, zarr_format):
        (document,) = get((DOCUMENT,))
        if document is not None or not fits(V2, zarr_format):
            is_node = document is not None and not _is_entry_point(document, "")
            return V3, _consolidated(V3.parse(document, "")) if is_node and document is not None else None
    held = V2.fetch_consolidated("", get) if fits(V2, zarr_format) else None
    return V2, None if held is None else _consolidated(V2.parse(held, ""))


def _consolidated(meta: NodeMetadata) -> GroupMetadata | None:
    return meta if isinstance(meta, GroupMetadata) and meta.consolidated is not None else None


def check_holds(store: Store, path: str, zarr_format: ZarrFormat | None) -> None:
    """Raise if the store does not hold a wanted format, as a session of Icechunk holds version 3 only."""
    if zarr_format not in (None, 3) and store.traits.visible == "at commit":
        raise StoreCapabilityError(
            f"cannot write '/{path}' to {store} in Zarr format {zarr_format}: Icechunk holds format 3 only; "
            "pass zarr_format=3, or leave it out"
        )


def format_for_new(store: Store, path: str, zarr_format: ZarrFormat | None) -> Format:
    """The format for a new node: the wanted one, or else that of existing nodes.

    Raises
    ------
    MetadataError
        If the groups above are stored in another format, which would hide them.
    StoreCapabilityError
        If the store does not hold the wanted format.
    """
    check_holds(store, path, zarr_format)
    if not isinstance(store, DocumentView):
        store = DocumentView.around(store, path)
    found = None
    for above in [*ancestors(path)][::-1]:
        found = find_format(store, above)
        if found is not None:
            break
    if found is None and path:
        found = _draft(store)
    if zarr_format is None:
        try:
            return found or find_format(store, path) or _draft(store) or V3
        except MetadataError:  # an unreadable node is replaced or stays aside
            return V3
    wanted = parse_format(zarr_format)
    if found is not None and not fits(found, wanted.zarr_format):
        raise MetadataError(
            f"the groups above it are stored in format {found.zarr_format}, so it must be too",
            path=path,
            field="zarr_format",
            found=zarr_format,
            accepted=f"{found.zarr_format!r}",
            advice="choose another path, or the format of the groups",
        )
    return found or wanted


def _list_group(store: Store, format: Format, path: str) -> tuple[set[str], set[str]]:
    """The keys and the prefixes directly below a group.

    Raises
    ------
    StoreCapabilityError
        If the store can neither list nor browse.
    """
    why: StoreCapabilityError | None = None
    if store.listable or store.traits.browsable:
        try:
            return store.list_dir(format.keys(path).listing)
        except StoreCapabilityError as error:
            why = error
    raise StoreCapabilityError(
        f"{store} cannot list, so the members of the group '/{path}' are unknown; consolidate the metadata "
        "of the group where its files can be written (xzarr3.consolidate_metadata(), or xzarr3 consolidate "
        "in a shell), or open nodes by path, as in open_array(store, path) and group[name]"
    ) from why


def children(store: Store, format: Format, path: str, absent: Absent = lambda paths: None) -> list[str]:
    """The names of the nodes directly below a group, from a listing.

    ``absent`` gets the paths at which something lies, but no node.

    Raises
    ------
    StoreCapabilityError
        If the store cannot list.
    """
    sure, possible = format.keys(path).child_names(*_list_group(store, format, path))
    prefix = node_prefix(path)
    names = sorted(sure | possible)
    asked = {name: format.keys(prefix + name).defining for name in names if name not in sure}
    keys = [key for each in asked.values() for key in each]
    there = {
        key
        for key, is_there in zip(keys, parallel_map(store.exists, keys, store.concurrency), strict=True)
        if is_there
    }
    found = [name for name in names if name in sure or not there.isdisjoint(asked[name])]
    absent([prefix + name for name in names if name not in found])
    return found


def load_below(
    store: Store,
    format: Format,
    path: str,
    *,
    max_depth: int | None = None,
    leave_out: Collection[str] = (),
    choose: Callable[[str, list[str], int], list[str]] | None = None,
    absent: Absent = lambda paths: None,
) -> dict[str, Held | MetadataError]:
    """The documents of the nodes below a group by relative path, or why they cannot be read.

    For each level, the groups are listed, then all documents are read in one batch.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        Path of the group.
    max_depth : int, optional
        How many levels below the first to go down; None for all.
    leave_out : collection of str
        Names directly below the group to skip.
    choose : callable, optional
        Gets the relative path of a group, the names below it and the number of groups on its level, and
        returns the names to read.
    absent : callable, optional
        Gets the paths at which something lies, but no node.

    Raises
    ------
    StoreCapabilityError
        If the store cannot list.
    ChangedError
        If writers keep replacing groups below.
    """
    for _ in range(_ATTEMPTS):
        found, groups = _load_below(store, format, path, max_depth, leave_out, choose, absent)
        # Nodes may lack below a group that was being replaced. Where answers are waited for, no one looks.
        if store.concurrency > 1:
            return found
        store = store.anew() if isinstance(store, DocumentView) else store
        if document_values(store, [*groups]) == [*groups.values()]:
            return found
    raise ChangedError(
        f"groups below '/{path}' of {store} were replaced, or their documents changed, each of the "
        f"{_ATTEMPTS} times that they were read; open it again when their writers have ended"
    )


def _load_below(
    store: Store,
    format: Format,
    path: str,
    max_depth: int | None,
    leave_out: Collection[str],
    choose: Callable[[str, list[str], int], list[str]] | None,
    absent: Absent,
) -> tuple[dict[str, Held | MetadataError], dict[str, Buffer | None]]:
    """What :func:`load_below` returns, and the documents by key of the groups below that were listed."""
    groups: dict[str, Buffer | None] = {}
    found: dict[str, Held | MetadataError] = {}
    level, depth, skipped = [path], 0, len(node_prefix(path))
    while level and (max_depth is None or depth <= max_depth):
        if level[0].count("/") >= MAX_NAMES:
            raise MetadataError(
                "too many groups within each other",
                path=level[0],
                accepted=f"paths of at most {MAX_NAMES} names",
            )
        listings = parallel_map(lambda above: _list_group(store, format, above), level, store.concurrency)
        wanted: dict[str, tuple[str, ...]] = {}
        for above, (keys, prefixes) in zip(level, listings, strict=True):
            sure, possible = format.keys(above).child_names(keys, prefixes)
            names = sorted(sure | possible)
            for name in names if choose is None else choose(above[skipped:], names, len(level)):
                if depth or name not in leave_out:
                    child = node_prefix(above) + name
                    # Pages of web servers may leave out names that begin with a dot.
                    listed = keys if store.listable else None
                    wanted[child] = format.keys(child).to_read(consolidated=False, listed=listed)
        asked = [key for keys in wanted.values() for key in keys]
        values = dict(zip(asked, document_values(store, asked), strict=True))
        level = []
        for child, own in wanted.items():
            held = _held(format, child, {key: values[key] for key in own})
            if held is None and format.implicit_groups:
                held = format.hold(GroupMetadata(zarr_format=format.zarr_format))
            if held is not None:
                found[child[skipped:]] = held
                if not isinstance(held, MetadataError) and not is_array(held):
                    level.append(child)
        absent([child for child in wanted if child[skipped:] not in found])
        depth += 1
        if max_depth is None or depth <= max_depth:
            groups.update((key, values[key]) for child in level for key in wanted[child])
    return found, groups


def held_of(format: Format, path: str, values: Mapping[str, Buffer | None]) -> Held | None:
    """The documents of a node, from all its values by key; None if they make no node."""
    found = {
        key: documents.decode(value, path, key.rpartition("/")[2])
        for key, value in values.items()
        if value is not None
    }
    return format.held(path, found)


def metadata_of(format: Format, path: str, values: Mapping[str, Buffer | None]) -> NodeMetadata | None:
    """The metadata of a node, without repeating warnings given before."""
    held = held_of(format, path, values)
    return None if held is None else format.parse(held, path)


def _held(format: Format, path: str, values: Mapping[str, Buffer | None]) -> Held | MetadataError | None:
    try:
        return held_of(format, path, values)
    except MetadataError as error:
        return error


def held_below(store: Store, format: Format, path: str) -> dict[str, Held]:
    """The documents of all nodes below a group, by relative path, from listings.

    Raises
    ------
    MetadataError
        If one of them is not a JSON object.
    """
    found = load_below(store, format, path)
    for held in found.values():
        if isinstance(held, MetadataError):
            raise held
    return {below: found[below] for below in depth_first(found)}


def depth_first(paths: Iterable[str]) -> Iterator[str]:
    """The paths in depth-first order; paths without all of their groups are left out.

    Examples
    --------
    >>> list(depth_first(["b", "a", "b/d", "b/c", "lost/e"]))
    ['b', 'b/d', 'b/c', 'a']
    """
    below: dict[str, list[str]] = {}
    for path in paths:
        below.setdefault(path.rpartition("/")[0], []).append(path)
    waiting = below.get("", [])[::-1]
    while waiting:
        path = waiting.pop()
        yield path
        waiting.extend(below.get(path, [])[::-1])
