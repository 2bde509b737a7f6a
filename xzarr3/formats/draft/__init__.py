"""The format of the Zarr v3 draft of May 2022 (``"3-draft"``). Makes no requests to a store.

Specification: Zarr v3 core, editor's draft of 25 May 2022, in its state with ``chunk_memory_layout``: an
entry point ``zarr.json``, documents below ``meta/``, chunks below ``data/``, and groups that exist as soon as
a node below them exists. :mod:`xzarr3.formats.draft.arrays` describes the documents of arrays.

The specification asks readers to fail on undefined names in documents, and lets them ignore names that come
with a later minor version. So unknown names are refused if the entry point says 3.0. If it says 3.1 or later,
unknown names are ignored, and kept when a document is rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec

from xzarr3.codecs.base import ArrayBytesCodec
from xzarr3.dtypes import ZDType
from xzarr3.errors import MetadataError, UnknownExtensionError, located
from xzarr3.fields import Meta
from xzarr3.formats.base import Document, DocumentKey, Format, Keys, node_prefix, refusal
from xzarr3.model.chunk_keys import ChunkKeyEncoding, DraftChunkKeyEncoding
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata

ENTRY_POINT = "zarr.json"
URI = "https://purl.org/zarr/spec/core/3.0"

_SUFFIX = ".json"
_VERSION = re.compile(r"https?://purl\.org/zarr/spec/(?:protocol/)?core/([0-9]{1,9})\.([0-9]{1,9})")
_ENCODING = f'{{"type": "json", "metadata_key_suffix": "{_SUFFIX}"}}'


class _Entry(msgspec.Struct, frozen=True):
    zarr_format: str
    metadata_encoding: Annotated[Any, Meta(description=_ENCODING)]
    extensions: Annotated[list[Any], Meta(description="an array of extensions")]


class _Encoding(msgspec.Struct, frozen=True):
    type: Literal["json"]
    metadata_key_suffix: Any = _SUFFIX


class DraftKeys(Keys):
    """Keys in the draft: documents below ``meta/``, chunks below ``data/``."""

    __slots__ = ("suffix",)

    def __init__(self, path: str, suffix: str) -> None:
        super().__init__(path)
        self.suffix = suffix

    @property
    def documents(self) -> tuple[str, ...]:
        return self.of("array"), self.of("group")

    @property
    def array(self) -> str:
        return self.of("array")

    def attributes(self, *, array: bool) -> str:
        return self.of("array" if array else "group")

    @property
    def chunks(self) -> str:
        return f"data/{node_prefix(self.path)}"

    @property
    def prefixes(self) -> tuple[str, ...]:
        return self.listing, self.chunks

    @property
    def listing(self) -> str:
        return f"meta/{node_prefix(self.path)}"

    def of(self, kind: str) -> str:
        """The key of the document that makes the node an "array" or a "group"."""
        return f"meta/{self.path}{'.' * bool(self.path)}{kind}{self.suffix}"

    def child_names(self, keys: Iterable[str], prefixes: Iterable[str]) -> tuple[set[str], set[str]]:
        skipped = len(self.listing)
        endings = tuple(f".{kind}{self.suffix}" for kind in ("array", "group"))
        names = {key[skipped : -len(end)] for key in keys for end in endings if key.endswith(end)}
        names |= {prefix[skipped:-1] for prefix in prefixes}
        return {name for name in names if name.strip(".") and not name.startswith("__zarr")}, set()

    def to_read(self, *, consolidated: bool = True, listed: Collection[str] | None = None) -> tuple[str, ...]:
        return self.documents if listed is None else tuple(key for key in self.documents if key in listed)


@dataclass(frozen=True)
class DraftFormat(Format):
    """The draft of May 2022: separate documents and chunks, and one entry point for the whole hierarchy.

    Parameters
    ----------
    suffix : str
        End of the keys of documents.
    minor : int
        The minor version of the specification that the entry point names.
    entry_point : mapping, optional
        The entry point as it was read, if this module would write another one.

    Examples
    --------
    >>> DRAFT.keys("foo/baz").array, DRAFT.keys("").array
    ('meta/foo/baz.array.json', 'meta/array.json')
    >>> DRAFT.keys("foo/baz").chunks
    'data/foo/baz/'
    """

    zarr_format: ClassVar[Literal["3-draft"]] = "3-draft"
    implicit_groups: ClassVar[bool] = True
    chunk_key_encoding: ClassVar[ChunkKeyEncoding] = DraftChunkKeyEncoding()

    suffix: str = _SUFFIX
    minor: int = 0
    entry_point: Mapping[str, Any] | None = field(default=None, hash=False)

    # Entry point

    @staticmethod
    def is_entry_point(document: Mapping[str, Any]) -> bool:
        """Whether a document ``zarr.json`` is an entry point, and not a document of the released version 3.

        Examples
        --------
        >>> DraftFormat.is_entry_point({"zarr_format": URI, "metadata_encoding": {}, "extensions": []})
        True
        >>> DraftFormat.is_entry_point({"zarr_format": 3, "node_type": "group"})
        False
        """
        version = document.get("zarr_format")
        return (isinstance(version, str) and "://" in version) or (
            "metadata_encoding" in document and "node_type" not in document
        )

    @classmethod
    def from_entry_point(cls, document: Mapping[str, Any]) -> Self:
        """The format of the hierarchy that has this entry point.

        Raises
        ------
        MetadataError
            If it is not valid, or names another version.
        UnknownExtensionError
            If it needs an extension that must be understood, or documents in another encoding.

        Examples
        --------
        >>> encoding = {"type": "json", "metadata_key_suffix": ".txt"}
        >>> entry_point = {"zarr_format": URI, "metadata_encoding": encoding, "extensions": []}
        >>> DraftFormat.from_entry_point(entry_point).keys("sst").array
        'meta/sst.array.txt'
        """
        from xzarr3.formats.draft.json import check_extensions, read

        with located(path=""):
            minor = _minor_version(document.get("zarr_format", ...))
            if isinstance(document.get("metadata_encoding"), str):
                raise UnknownExtensionError(
                    "a hierarchy of the experimental version 3 of zarr-python 2, which is not read",
                    field="metadata_encoding", found=document["metadata_encoding"], accepted=_ENCODING,
                    advice="copy it to version 2 with zarr-python 2.18",
                )  # fmt: skip
            entry, _ = read(_Entry, document, lenient=minor > 0)
            suffix = _key_suffix(entry.metadata_encoding, lenient=minor > 0)
            check_extensions(entry.extensions, lenient=minor > 0)
        found = cls(suffix, minor)
        if dict(document) == found.hierarchy_documents()[ENTRY_POINT]:
            return found
        return cls(suffix, minor, dict(document))

    def hierarchy_documents(self) -> dict[str, Document]:
        if self.entry_point is not None:
            return {ENTRY_POINT: dict(self.entry_point)}
        encoding = {"type": "json", "metadata_key_suffix": self.suffix}
        return {ENTRY_POINT: {"zarr_format": URI, "metadata_encoding": encoding, "extensions": []}}

    def keys(self, path: str) -> DraftKeys:
        return DraftKeys(path, self.suffix)

    def place(self, key: str) -> DocumentKey | None:
        """The meaning of the key of a document; None for other keys.

        Examples
        --------
        >>> DRAFT.place("meta/foo/bar.group.json")
        DocumentKey(path='foo/bar', kind='group')
        >>> DRAFT.place("meta/array.json")
        DocumentKey(path='', kind='array')
        >>> DRAFT.place("data/foo/bar/c0/0") is None
        True
        """
        kinds: tuple[Literal["array", "group"], ...] = ("array", "group")
        for kind in kinds:
            if key == self.keys("").of(kind):
                return DocumentKey("", kind)
            prefix, ending = self.keys("").listing, f".{kind}{self.suffix}"
            path = key[len(prefix) : -len(ending)]
            names = path.split("/")
            if key.startswith(prefix) and key.endswith(ending) and all(name.strip(".") for name in names):
                return DocumentKey(path, kind)
        return None

    def usual_codecs(self, data_type: ZDType) -> tuple[ArrayBytesCodec, str]:
        return super().usual_codecs(data_type)[0], "gzip"  # The draft has no codec zstd.

    def held(self, path: str, found: Mapping[str, Document]) -> dict[str, Document] | None:
        for kind in ("array", "group"):
            if (key := self.keys(path).of(kind)) in found:
                return {kind: found[key]}
        return None

    def parse(self, held: Mapping[str, Document], path: str) -> NodeMetadata:
        from xzarr3.formats.draft.arrays import parse_array

        with located(path=path):
            if "array" not in held:
                return self._parse_group(held)
            return parse_array(held, lenient=self.minor > 0)

    def _parse_group(self, held: Mapping[str, Document]) -> GroupMetadata:
        from xzarr3.formats.draft.json import GroupDocument, read

        found, unknown = read(GroupDocument, held["group"], lenient=self.minor > 0)
        meta = GroupMetadata(attributes=found.attributes, zarr_format=self.zarr_format)
        return meta.read_from(held, unknown)

    def hold(self, meta: NodeMetadata, path: str = "") -> dict[str, Document]:
        from xzarr3.formats.draft.arrays import array_document

        refuse = partial(refusal, self.zarr_format, path=path)
        if not self.minor:  # a document of a later minor version may have fields that this one lacks
            for name, value in meta.ignored.items() if meta.source else ():
                if name not in ("extensions", "data_type"):
                    raise refuse(name, value, "the fields that the draft defines")
        if isinstance(meta, ArrayMetadata):
            return {"array": array_document(meta, refuse)}
        return {"group": {**(meta.source or {}).get("group", {}), "attributes": dict(meta.attributes)}}

    def documents(
        self, meta: NodeMetadata, path: str, consolidated: Mapping[str, Any] | None = None
    ) -> dict[str, Document]:
        return {self.keys(path).of(kind): document for kind, document in self.hold(meta, path).items()}


def _minor_version(uri: object) -> int:
    accepted = f"'{URI}', or another minor version"
    match = _VERSION.fullmatch(uri) if isinstance(uri, str) else None
    if match is None or match[1] != "3":
        raise MetadataError(
            "not a format that can be read", field="zarr_format", found=uri, accepted=accepted
        )
    return int(match[2])


def _key_suffix(encoding: object, *, lenient: bool) -> str:
    from xzarr3.formats.draft.json import read

    field = "metadata_encoding"
    if isinstance(encoding, dict) and ("extension" in encoding or encoding.get("type", "json") != "json"):
        raise UnknownExtensionError(
            "unknown encoding of documents", field=field, found=encoding, accepted=_ENCODING
        )
    found, _ = read(_Encoding, encoding, field, lenient=lenient)
    suffix = found.metadata_key_suffix
    if not isinstance(suffix, str) or not re.fullmatch("[0-9A-Za-z._-]{0,64}", suffix):
        raise MetadataError(
            "not a suffix of keys", field=f"{field}.metadata_key_suffix", found=suffix,
            accepted=f"'{_SUFFIX}', or other letters, digits, '.', '_' and '-'",
        )  # fmt: skip
    return suffix


DRAFT = DraftFormat()
