"""The pickled form of arrays, and what handles unpickled in one process share.

A dask task carries the array that it reads or writes. So arrays arrive at a worker by the thousands, on its
event loop. The pickled form is small: the store, the path, and the documents as JSON. The documents are
parsed only when the array is used, as that may import a codec, and once for all handles on the same array.

Handles share what does not change: the store, the metadata, the codecs bound to chunks, and the check that
the stored document agrees with them. Resizing one handle, or changing how it reads, affects no other handle.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from xzarr3.errors import MetadataError
from xzarr3.formats import Format, ZarrFormat, documents, format_of, name_of
from xzarr3.formats.base import Held
from xzarr3.io.executor import Engine
from xzarr3.model.metadata import ArrayMetadata, Consolidated, NodeMetadata
from xzarr3.model.storage_transformers import transformed
from xzarr3.nodes.node import Node
from xzarr3.options import Missing
from xzarr3.stores import Store
from xzarr3.stores.interned import interned
from xzarr3.stores.locks import fork_safe

if TYPE_CHECKING:
    from xzarr3.arrays import Array
    from xzarr3.io.chunk_cache import ChunkCache

_MOST_PARSED = 512
_LARGE = 2**16  # bytes of documents; larger ones are not cached
_MOST_BELOW = 8  # groups whose consolidated metadata are cached
_LARGE_BELOW = 2**20


class Known:
    """What all handles with the same metadata share.

    Parameters
    ----------
    store : Store
    path : str
    format : Format
    metadata : ArrayMetadata, optional
        The parsed documents, if they were parsed already.
    text : bytes, optional
        The documents as JSON, if they were not parsed.
    """

    __slots__ = (
        "__weakref__",
        "_engine",
        "_metadata",
        "_text",
        "coding_version",
        "format",
        "held",
        "path",
        "recoded",
        "replaced_at",
        "store",
        "version",
    )

    def __init__(
        self,
        store: Store,
        path: str,
        format: Format,
        metadata: ArrayMetadata | None = None,
        text: bytes | None = None,
    ) -> None:
        self.store = store
        self.path = path
        self.format = format
        self._metadata = metadata
        self._text = text
        self._engine: Engine | None = None
        self.version: object | None = None
        """Version of the stored document that was found to agree with the metadata."""
        self.coding_version: object | None = None
        """Versions of the stored documents to which ``recoded`` refers."""
        self.recoded: str | None = None
        """How the stored documents decode values differently; None if they do not."""
        self.replaced_at: float | None = None
        """When the array was replaced, by the stored document of this version."""
        self.held: Held | None = None
        """The parsed documents, until they were compared with the stored ones."""

    @property
    def text(self) -> bytes:
        """The documents as JSON."""
        if self._text is None:
            self._text = _text_of(self.format, self.metadata, self.path)
        return self._text

    @property
    def metadata(self) -> ArrayMetadata:
        """The parsed documents.

        Raises
        ------
        MetadataError
            If they name something unknown to this process, such as a codec that is not installed.
        """
        if self._metadata is None:
            found = from_text(self.format, self.text, self.path)
            if not isinstance(found, ArrayMetadata):
                raise MetadataError("not the documents of an array", path=self.path)
            with _lock:  # another thread may have been faster
                self._metadata = self._metadata or found
        return self._metadata

    @property
    def engine(self) -> Engine:
        """Reads and writes the stored units."""
        if self._engine is None:
            prefix, metadata = self.format.keys(self.path).chunks, self.metadata
            store = transformed(self.store, prefix, metadata, metadata.storage_transformers)
            engine = Engine(store, prefix, metadata)
            with _lock:
                self._engine = self._engine or engine
        return self._engine


_lock = fork_safe(threading.Lock())
_known: WeakValueDictionary[object, Known] = WeakValueDictionary()


def known(store: Store, path: str, format: Format, text: bytes) -> Known:
    """The shared state for an array whose documents are ``text``; the text is not parsed."""
    key = id(store), path, format, text  # the store lives as long as the shared state of its arrays
    found = _known.get(key)
    if found is None:
        made = Known(store, path, format, text=text)
        with _lock:
            found = _known.setdefault(key, made)
    if len(text) <= _LARGE:
        interned.keep_beside(store, key, found)
    return found


def state_of(array: Array) -> tuple[object, ...]:
    """The pickled form of an array."""
    special: tuple[object, ...] = ()
    if (
        array._tag or array._is_decoded or not array.has_document or array.chunk_cache
        or not array._had_document
    ):  # fmt: skip
        special = (
            array._tag, array._is_decoded, array._bounded, array.has_document, array.chunk_cache,
            array._had_document,
        )  # fmt: skip
    return (
        array.store, array.path, name_of(array.format), array._known.text,
        array.read_only, array.write_empty_chunks, array.missing,
        None if _is_for_a_name() else array._opened_at, *special,
    )  # fmt: skip


def _is_for_a_name() -> bool:
    """Whether dask pickles for the token of a name, which does not depend on when an array was opened."""
    lock = getattr(sys.modules.get("dask.tokenize"), "tokenize_lock", None)
    return lock is not None and lock._is_owned()


def restore(
    array: Array,
    store: Store,
    path: str,
    format: Format | ZarrFormat,
    text: bytes,
    read_only: bool,
    write_empty_chunks: bool,
    missing: Missing,
    opened_at: float | None = None,
    tag: str | None = None,
    is_decoded: bool = False,
    bounded: Array | None = None,
    has_document: bool = True,
    chunk_cache: ChunkCache | None = None,
    had_document: bool = True,
) -> None:
    """Initialise a new handle from what :func:`state_of` returned."""
    Node.__init__(array, store, path, format_of(format), read_only=read_only)
    array._known = known(store, path, array.format, text)
    array._known_at = -math.inf  # the age of the pickled documents is unknown
    array.write_empty_chunks = write_empty_chunks
    array.missing = missing
    array._opened_at = math.inf if opened_at is None else opened_at
    array._tag, array._is_decoded, array._bounded = tag, is_decoded, bounded
    array.has_document, array._had_document = has_document, had_document
    array.chunk_cache = chunk_cache


def to_text(format: Format, metadata: NodeMetadata, path: str) -> bytes:
    """The documents of a node as JSON; equal documents give equal bytes."""
    return documents.encode(format.hold(metadata, path), path, compact=True)


_text_of = lru_cache(64)(to_text)  # Arrays of one variable mostly have the same metadata.


def from_text(format: Format, text: bytes, path: str) -> NodeMetadata:
    """The metadata in the documents of a node."""
    parse = _parsed if len(text) <= _LARGE else _parsed.__wrapped__
    return parse(format, text, path)


def below_to_text(below: Mapping[str, Held] | None) -> bytes | Mapping[str, Held] | None:
    """The documents of the nodes below a group as JSON; unchanged if some cannot be read."""
    if below is None or any(isinstance(held, MetadataError) for held in below.values()):
        return below
    return documents.encode(below, compact=True)


def below_from_text(text: bytes) -> Consolidated:
    """The documents of the nodes below a group; equal pickled forms share one object."""
    parse = _parsed_below if len(text) <= _LARGE_BELOW else _parsed_below.__wrapped__
    return parse(text)


@lru_cache(maxsize=_MOST_BELOW)
def _parsed_below(text: bytes) -> Consolidated:
    return Consolidated(documents.decode(text))


@lru_cache(maxsize=_MOST_PARSED)
def _parsed(format: Format, text: bytes, path: str) -> NodeMetadata:
    return format.parse(documents.decode(text, path), path)
