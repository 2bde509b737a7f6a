"""The interface of a format: the keys of the documents and chunks of a node, and the contents of documents.

A format is pure: it handles keys and JSON objects and never touches a store. It tells
:mod:`xzarr3.nodes.node` which documents to fetch or store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from xzarr3._types import JSON, Scalar
from xzarr3.codecs.base import ArrayArrayCodec, ArrayBytesCodec, Codec
from xzarr3.codecs.registry import default_serializer
from xzarr3.dtypes import ZarrFormat, ZDType
from xzarr3.errors import DataTypeValidationError, InvalidKeyError, MetadataError, foreign, located
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, NodeMetadata

Document: TypeAlias = dict[str, Any]
Held: TypeAlias = Any
"""The documents of one node, in a form that the format defines. Picklable, made of JSON."""

Fetch: TypeAlias = Callable[[Sequence[str]], Sequence[Document | None]]
"""Returns the documents of several keys at once, None for absent ones."""


MAX_NAMES = 256
"""Most names in the path of a node. Deeper paths are refused, to bound the work that a document can cause."""


class DocumentKey(NamedTuple):
    """The meaning of the key of a document.

    Parameters
    ----------
    path : str
        Path of the node.
    kind : {"array", "group", "node", "other"}
        Whether the document makes the node an array, a group or either of them, or is an additional one.
    """

    path: str
    kind: Literal["array", "group", "node", "other"]


class Keys(ABC):
    """The keys of a node in a store: of its documents and chunks, and of the nodes below it."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    one_document: ClassVar[bool] = True
    """Whether one document describes a node completely."""

    @property
    @abstractmethod
    def documents(self) -> tuple[str, ...]:
        """The keys of all documents; the documents that define the node come first."""

    @property
    def defining(self) -> tuple[str, ...]:
        """The keys of the documents that define the node, which exists if one of these keys exists."""
        return self.documents

    @property
    @abstractmethod
    def array(self) -> str:
        """The key of the document that makes the node an array."""

    @abstractmethod
    def attributes(self, *, array: bool) -> str:
        """The key of the document that holds the attributes of the node."""

    @property
    def consolidated(self) -> str | None:
        """The key of the document with the consolidated metadata of a group; None if the format has none."""
        return None

    @property
    def chunks(self) -> str:
        """Start of the keys of the chunks of an array."""
        return node_prefix(self.path)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes of all keys below the node, and of the chunks of an array."""
        return (node_prefix(self.path),)

    @property
    def listing(self) -> str:
        """The prefix to list to find the nodes directly below a group."""
        return node_prefix(self.path)

    @abstractmethod
    def child_names(self, keys: Iterable[str], prefixes: Iterable[str]) -> tuple[set[str], set[str]]:
        """The names of nodes directly below a group: the nodes that exist, and those that may exist.

        Parameters
        ----------
        keys, prefixes : iterable of str
            The keys and prefixes directly below :attr:`listing`.
        """

    def to_read(self, *, consolidated: bool = True, listed: Collection[str] | None = None) -> tuple[str, ...]:
        """The keys of the documents that describe the node completely.

        Parameters
        ----------
        consolidated : bool
            Include the key of consolidated metadata.
        listed : collection of str, optional
            The keys directly below :attr:`listing` of the parent group. They may show that some documents do
            not exist.
        """
        return self.documents


class Format(ABC):
    """One way to store a hierarchy. Instances are immutable, picklable and compare by value."""

    zarr_format: ClassVar[ZarrFormat]

    implicit_groups: ClassVar[bool] = False
    """Whether a group exists as soon as a node below it exists."""

    rectilinear_grids: ClassVar[bool] = False
    """Whether the chunks of an array may have several shapes."""

    chunk_key_encoding: ClassVar[ChunkKeyEncoding] = ChunkKeyEncoding()
    """The default chunk key encoding of new arrays."""

    filter_kinds: ClassVar[type[Codec] | tuple[type[Codec], ...]] = ArrayArrayCodec
    """The kinds of codecs that filters may be."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(type(self))

    # Keys

    @abstractmethod
    def keys(self, path: str) -> Keys:
        """The keys of a node."""

    @abstractmethod
    def place(self, key: str) -> DocumentKey | None:
        """The meaning of the key of a document; None for other keys."""

    def hierarchy_documents(self) -> dict[str, Document]:
        """The documents, by key, that a hierarchy must have before its first node."""
        return {}

    def check_name(self, name: str, path: str) -> None:
        """Refuse a name that a new node may not have.

        Raises
        ------
        InvalidKeyError
        """
        if not name.strip(".") or name.startswith("__") or name in self._taken_names:
            taken = "".join(f" and are not '{each}'" for each in self._taken_names)
            raise InvalidKeyError(
                f"not a name for a node: {name!r} in path {path!r}; accepted: names that have other "
                f"characters than periods and do not begin with '__'{taken}"
            )

    _taken_names: ClassVar[tuple[str, ...]] = ()

    # Documents

    @abstractmethod
    def held(self, path: str, found: Mapping[str, Document]) -> Held | None:
        """Select the documents of a node from those found, by key; None if there is no node."""

    @abstractmethod
    def parse(self, held: Held, path: str) -> NodeMetadata:
        """Parse the documents of a node.

        Raises
        ------
        MetadataError
            If they are not valid; the error names the field.
        UnknownExtensionError
            If they need an unknown extension.
        """

    @abstractmethod
    def hold(self, meta: NodeMetadata, path: str = "") -> Held:
        """The documents for ``meta``; :meth:`parse` turns them back into ``meta``.

        Raises
        ------
        MetadataError
            If the format cannot express ``meta``.
        """

    @abstractmethod
    def documents(
        self, meta: NodeMetadata, path: str, consolidated: Mapping[str, Held] | None = None
    ) -> dict[str, Document]:
        """The documents to store for a node, by key, in the order in which to store them.

        Parameters
        ----------
        meta : ArrayMetadata or GroupMetadata
        path : str
        consolidated : mapping of str to held documents, optional
            Content for consolidated metadata: the documents of all nodes below a group, by relative path.
        """

    def update_consolidated(
        self, document: Document, relative: str, meta: NodeMetadata | None
    ) -> Document | None:
        """A copy of consolidated metadata with a node replaced, or removed with all nodes below it.

        Parameters
        ----------
        document : dict
            The document at the key :attr:`Keys.consolidated` of a group; not changed.
        relative : str
            Path of the node relative to the group; empty for the group itself.
        meta : ArrayMetadata, GroupMetadata or None
            The new metadata of the node; None if it was removed.

        Returns
        -------
        dict or None
            None if there is nothing to change.
        """
        return None

    # New arrays

    def usual_codecs(self, data_type: ZDType) -> tuple[ArrayBytesCodec, str]:
        """The array-to-bytes codec of a new array, and the name of its compressor.

        Parameters
        ----------
        data_type : ZDType
            The data type as a user gave it, which may have a byte order.
        """
        return default_serializer(data_type), "zstd"

    def adopt(self, meta: ArrayMetadata) -> ArrayMetadata:
        """The metadata of an array of another format in the terms of this one.

        Text stored as JSON, and elements of a fixed length stored as ones of any length, get the usual
        array-to-bytes codec of their data type.
        """
        data_type = meta.data_type.in_native_order()
        fill: Any = meta.fill_value
        if data_type != meta.data_type:
            fill = data_type.cast_array(np.asarray(fill, meta.data_type.to_native_dtype()))[()]
        odd = {"numcodecs.json2"} if data_type.is_variable else {"vlen-utf8", "vlen-bytes"}
        usual = default_serializer(data_type)
        return replace(
            meta,
            data_type=data_type,
            fill_value=fill,
            codecs=tuple(usual if codec.name in odd else codec for codec in meta.codecs),
            chunk_key_encoding=self.chunk_key_encoding,
            zarr_format=self.zarr_format,
            origin=None,
            fill_is_null=False,
        )


def is_array(held: Held) -> bool:
    """Whether the documents of a node are those of an array, in any format."""
    if "node_type" in held:
        return bool(held["node_type"] == "array")
    return ".zarray" in held or "array" in held


def without_consolidated(held: Held) -> Held:
    """The documents of a node without consolidated metadata, which may be invalid."""
    return {name: each for name, each in held.items() if name not in ("consolidated_metadata", ".zmetadata")}


def fits(format: Format, zarr_format: ZarrFormat | None) -> bool:
    """Whether a format is the one that a user asks for; None asks for any format."""
    return zarr_format in (None, format.zarr_format)


def fetched(format: Format, path: str, get: Fetch, *, consolidated: bool = True) -> Held | None:
    """Fetch the documents of a node with one call of ``get``; None if there is no node."""
    keys = format.keys(path).to_read(consolidated=consolidated)
    found = zip(keys, get(keys), strict=True)
    return format.held(path, {key: document for key, document in found if document is not None})


def refusal(
    zarr_format: ZarrFormat, field: str, found: object, accepted: str, path: str = ""
) -> MetadataError:
    """The error for metadata that a format cannot express; the caller sets the path of a root."""
    text = f"Zarr format {zarr_format} cannot express this"
    return MetadataError(text, path=path or None, field=field, found=found, accepted=accepted)


def node_prefix(path: str) -> str:
    """Start of the paths of all nodes below a node.

    Examples
    --------
    >>> node_prefix("ocean"), node_prefix("")
    ('ocean/', '')
    """
    return f"{path}/" if path else ""


def chunk_shape_of(lengths: list[int], shape: tuple[int, ...], field: str) -> tuple[int, ...]:
    """The chunk shape in a field of a document, checked against the shape of the array.

    Raises
    ------
    MetadataError
    """
    if len(lengths) != len(shape):
        raise MetadataError(
            f"the array has {len(shape)} dimensions", field=field, found=lengths,
            accepted=f"{len(shape)} integers",
        )  # fmt: skip
    for at, (length, size) in enumerate(zip(lengths, shape, strict=True)):
        # Some writers give chunks length 0 along a dimension of length 0. Such an array has no chunks yet.
        if not (1 <= length < 2**63 or (length == 0 and size == 0)):
            raise MetadataError(
                "not a length of a chunk", field=f"{field}[{at}]", found=length,
                accepted="an integer from 1 to 2^63 - 1",
            )  # fmt: skip
    return tuple(max(length, 1) for length in lengths)


def check_path_below(path: str, field: str) -> None:
    """Refuse an invalid path of a node in consolidated metadata.

    Raises
    ------
    MetadataError
    """
    names = path.split("/")
    if any(name in ("", ".", "..") for name in names) or len(names) > MAX_NAMES:
        raise MetadataError(
            "not a path of a node", field=field, found=path,
            accepted=f"at most {MAX_NAMES} names separated by single '/', none of them empty, '.' or '..'",
        )  # fmt: skip


def fill_value_from_json(data_type: ZDType, value: JSON, zarr_format: ZarrFormat) -> Scalar:
    """The fill value of a document. The data type may be a class of another package.

    Raises
    ------
    DataTypeValidationError
        If the format does not permit ``value`` for the data type.
    """
    what = f"fill value not permitted for data type '{data_type.name}'"
    try:
        with located(field="fill_value"), foreign(what, DataTypeValidationError, found=value):
            scalar: Scalar = data_type.from_json_scalar(value, zarr_format=zarr_format)
            return scalar
    except MemoryError as error:
        raise DataTypeValidationError(
            f"no memory for one element of data type '{data_type.name}'", field="fill_value"
        ) from error
