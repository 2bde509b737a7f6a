"""What a format is: which keys hold the documents and chunks of a node, and what the documents say.

A format is pure: it deals in keys and JSON objects and never touches a store. What has to be fetched or
stored is told to :mod:`xzarr3.nodes.node`, which does it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from xzarr3._types import JSON, Scalar
from xzarr3.codecs.base import Codec
from xzarr3.dtypes import RawBits, RawBytes, ZarrFormat, ZDType
from xzarr3.dtypes.base import FOREIGN_ERRORS
from xzarr3.errors import DataTypeValidationError, InvalidKeyError, MetadataError
from xzarr3.model.chunk_keys import ChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, Consolidated, GroupMetadata, NodeMetadata

Document: TypeAlias = dict[str, Any]
Held: TypeAlias = Any
"""The documents of one node, in the form in which a format keeps them together. Picklable, made of JSON."""

Fetch: TypeAlias = Callable[[Sequence[str]], Sequence[Document | None]]
"""Gives the documents of several keys at once, None for those that are not there."""


MAX_NAMES = 256
"""Names in the path of a node. Deeper ones are refused, so that no document makes us walk for ever."""


@dataclass(frozen=True)
class Place:
    """What a key that is no chunk's stands for.

    Parameters
    ----------
    path : str
        Path of the node.
    kind : {"array", "group", "node", "other"}
        The document that makes it an array or a group, or either, or one that comes with it.
    """

    path: str
    kind: Literal["array", "group", "node", "other"]


class Format(ABC):
    """One way to store a hierarchy. Instances are immutable, picklable and compare by value."""

    zarr_format: ClassVar[ZarrFormat]

    implicit_groups: ClassVar[bool] = False
    """Whether a group is there as soon as there is a node below it."""

    one_document: ClassVar[bool] = True
    """Whether one document says all about a node."""

    chunk_key_encoding: ClassVar[ChunkKeyEncoding] = ChunkKeyEncoding()
    """How the keys of chunks are spelled in arrays of this format, unless something else is asked for."""

    default_compressor: ClassVar[str] = "zstd"
    """The compressor of new arrays."""

    byte_order_in_data_type: ClassVar[bool] = False
    """Whether the data type says the byte order of stored elements, and not the codec ``bytes``."""

    configures_as_numcodecs: ClassVar[bool] = False
    """Whether codecs are those of numcodecs, one ``compressor`` and ``filters`` that may be ones of bytes."""

    fill_value_may_be_null: ClassVar[bool] = False
    """Whether an array can say that it has no fill value."""

    conventions_in_attributes: ClassVar[bool] = False
    """Whether tools keep in attributes what the format cannot say, as xarray does with dimension names."""

    unordered_serializers: ClassVar[tuple[str, ...]] = ()
    """Codecs from arrays to bytes whose chunks are always in C order."""

    opaque_type: ClassVar[type[RawBits | RawBytes]] = RawBits
    """The data type for bytes that mean nothing to Zarr."""

    is_draft: ClassVar[bool] = False
    """Whether the format is none that other tools still read."""

    @property
    def writable(self) -> bool:
        """Whether documents of this form are written; some are only read."""
        return True

    @property
    def fill_value_is_mask(self) -> bool:
        """Whether the fill value of an array is its ``_FillValue``, as xarray has it in all but version 3."""
        return not self.writable

    def answers_to(self, zarr_format: ZarrFormat | None) -> bool:
        """Whether this is a format that a user means who asks for ``zarr_format``; None asks for any."""
        return zarr_format in (None, self.zarr_format)

    def codecs_elsewhere(self, meta: ArrayMetadata) -> tuple[Codec, ...]:
        """The codecs of an array of this format, for its chunks in another format."""
        return meta.codecs

    # Keys

    @abstractmethod
    def document_keys(self, path: str) -> tuple[str, ...]:
        """The keys of all documents that belong to a node, those first that make it one."""

    @abstractmethod
    def defining_keys(self, path: str) -> tuple[str, ...]:
        """The keys of which one is there if there is a node."""

    @abstractmethod
    def array_key(self, path: str) -> str:
        """The key of the document that makes an array of a node."""

    @abstractmethod
    def attributes_key(self, path: str, *, array: bool) -> str:
        """The key of the document that holds the attributes of a node."""

    @abstractmethod
    def chunk_prefix(self, path: str) -> str:
        """What the keys of the chunks of an array begin with."""

    @abstractmethod
    def place(self, key: str) -> Place | None:
        """What a key stands for that is one of a document; None for others."""

    @abstractmethod
    def prefixes(self, path: str) -> tuple[str, ...]:
        """The prefixes of all keys that belong to what is below a node, and of the chunks of an array."""

    @abstractmethod
    def listing_prefix(self, path: str) -> str:
        """The prefix to list to find the nodes directly below a group."""

    @abstractmethod
    def child_names(
        self, keys: Iterable[str], prefixes: Iterable[str], path: str
    ) -> tuple[set[str], set[str]]:
        """The names of nodes directly below a group: those that are there, and those that may be.

        Parameters
        ----------
        keys, prefixes : iterable of str
            What is directly below :meth:`listing_prefix`.
        path : str
            Path of the group.
        """

    def hierarchy_documents(self) -> dict[str, Document]:
        """Documents by key that a hierarchy must have before its first node."""
        return {}

    def check_name(self, name: str, path: str) -> None:
        """Refuse a name that no new node may have.

        Raises
        ------
        InvalidKeyError
        """
        if not name.strip(".") or name.startswith("__") or name in self._taken_names:
            taken = "".join(f" and are not '{each}'" for each in self._taken_names)
            raise InvalidKeyError(
                f"no name for a node: {name!r} in path {path!r}; accepted: names that are not only periods, "
                f"do not begin with '__'{taken}"
            )

    _taken_names: ClassVar[tuple[str, ...]] = ()

    # Documents

    @abstractmethod
    def reading_keys(
        self, path: str, *, consolidated: bool = True, listed: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """The keys of the documents that say all about a node.

        Parameters
        ----------
        path : str
        consolidated : bool
            Also of consolidated metadata.
        listed : collection of str, optional
            The keys directly below :meth:`listing_prefix` of the group above, which may tell that some
            documents are not there.
        """

    @abstractmethod
    def held(self, path: str, found: Mapping[str, Document]) -> Held | None:
        """The documents of a node out of those that were found, by key; None if there is no node."""

    def fetch(self, path: str, get: Fetch, *, consolidated: bool = True) -> Held | None:
        """The documents of a node, with one call of ``get``; None if there is no node."""
        keys = self.reading_keys(path, consolidated=consolidated)
        return self.held(path, _present(keys, get(keys)))

    def fetch_consolidated(self, path: str, get: Fetch) -> Held | None:
        """The documents of a group, if one document holds them with those of all nodes below; else None.

        A format that has consolidated metadata in the document of the group itself need not look for them.
        """
        return None

    @abstractmethod
    def is_array(self, held: Held) -> bool:
        """Whether documents that were fetched are those of an array."""

    @abstractmethod
    def parse(self, held: Held, path: str) -> NodeMetadata:
        """What documents say.

        Raises
        ------
        MetadataError
            If they are not valid; the error names the field.
        UnknownExtensionError
            If they ask for an extension that is not known here.
        """

    def parse_again(self, held: Held, path: str) -> NodeMetadata:
        """What :meth:`parse` gives, without the warnings that it gave the first time."""
        return self.parse(held, path)

    @abstractmethod
    def hold(self, meta: NodeMetadata, path: str = "") -> Held:
        """The documents that say what ``meta`` says, so that :meth:`parse` gives it back.

        Raises
        ------
        MetadataError
            If the format has no words for it.
        """

    @abstractmethod
    def documents(
        self, meta: NodeMetadata, path: str, consolidated: Mapping[str, Held] | None = None
    ) -> dict[str, Document]:
        """The documents to store for a node, by key, in the order in which they are to be stored.

        Parameters
        ----------
        meta : ArrayMetadata or GroupMetadata
        path : str
        consolidated : mapping of str to held documents, optional
            Those of all nodes below a group, by relative path, to be held in its consolidated metadata.
        """

    # Consolidated metadata

    def consolidated_key(self, path: str) -> str | None:
        """The key of what holds the documents of all nodes below a group, if the format has such a thing."""
        return None

    def without_consolidated(self, held: Held) -> Held:
        """The documents of a node without consolidated metadata, which need not even be valid."""
        return held

    def update_consolidated(
        self, document: Document, relative: str, meta: NodeMetadata | None
    ) -> Document | None:
        """A consolidated document in which a node was replaced, or removed with all below it.

        Parameters
        ----------
        document : dict
            What the :meth:`consolidated_key` of a group holds; not changed.
        relative : str
            Path of the node relative to the group; empty for the group itself.
        meta : ArrayMetadata, GroupMetadata or None
            What is there now.

        Returns
        -------
        dict or None
            None if there is nothing to change.
        """
        return None

    def consolidated_below(self, consolidated: Mapping[str, Held], relative: str) -> Mapping[str, Held]:
        """The part of consolidated metadata that is below a group."""
        return Consolidated.of(consolidated).below(relative)

    # Words of a format for what users ask for

    def refuse(self, path: str, field: str, found: object, accepted: str) -> MetadataError:
        """The error for what a format cannot say."""
        return MetadataError(
            f"Zarr format {self.zarr_format} cannot say this",
            path=path or None,  # Whoever asks for it knows the path of a root.
            field=field,
            found=found,
            accepted=accepted,
        )


def _present(keys: Sequence[str], found: Sequence[Document | None]) -> dict[str, Document]:
    return {key: document for key, document in zip(keys, found, strict=True) if document is not None}


def node_prefix(path: str) -> str:
    """What the paths of nodes below a node begin with.

    Examples
    --------
    >>> node_prefix("ocean"), node_prefix("")
    ('ocean/', '')
    """
    return f"{path}/" if path else ""


LENGTHS = "an array of integers"


def lengths_of(value: object, field: str) -> tuple[int, ...]:
    """The integers that a field of a document holds.

    Raises
    ------
    MetadataError
    """
    if not isinstance(value, list):
        raise MetadataError("not a valid value", field=field, found=value, accepted=LENGTHS)
    for at, length in enumerate(value):
        if type(length) is not int:
            raise MetadataError("not a length", field=f"{field}[{at}]", found=length, accepted="an integer")
    return tuple(value)


def chunk_shape_of(value: object, shape: tuple[int, ...], field: str) -> tuple[int, ...]:
    """The shape of the chunks of an array of this shape, which a field of a document holds.

    Raises
    ------
    MetadataError
    """
    lengths = lengths_of(value, field)
    if len(lengths) != len(shape):
        raise MetadataError(
            f"the array has {len(shape)} dimensions", field=field, found=list(lengths),
            accepted=f"{len(shape)} integers",
        )  # fmt: skip
    for at, (length, size) in enumerate(zip(lengths, shape, strict=True)):
        # Some writers give chunks no length along a dimension that has none. There are no such chunks yet.
        if not (1 <= length < 2**63 or (length == 0 and size == 0)):
            raise MetadataError(
                "not a length of a chunk", field=f"{field}[{at}]", found=length,
                accepted="an integer from 1 to 2^63 - 1",
            )  # fmt: skip
    return tuple(max(length, 1) for length in lengths)


def check_path_below(path: str, field: str) -> None:
    """Refuse what consolidated metadata give as the path of a node below a group and is none.

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
    """The fill value of a document, whose data type may be anybody's class.

    Raises
    ------
    DataTypeValidationError
        If the format does not permit ``value`` for the data type.
    """
    try:
        scalar: Scalar = data_type.from_json_scalar(value, zarr_format=zarr_format)
        return scalar
    except MetadataError as error:
        error.at(field="fill_value")
        raise
    except FOREIGN_ERRORS as error:
        raise DataTypeValidationError(
            f"fill value not permitted for data type '{data_type.name}': {error}",
            field="fill_value",
            found=value,
        ) from error
    except MemoryError as error:
        raise DataTypeValidationError(
            f"no memory for one element of data type '{data_type.name}'", field="fill_value"
        ) from error


__all__ = [
    "LENGTHS",
    "MAX_NAMES",
    "ArrayMetadata",
    "Document",
    "Fetch",
    "Format",
    "GroupMetadata",
    "Held",
    "NodeMetadata",
    "Place",
    "ZarrFormat",
    "check_path_below",
    "chunk_shape_of",
    "fill_value_from_json",
    "lengths_of",
    "node_prefix",
]
