"""Checks documents: against the specification, and against their consolidated copies.

Finds the nodes that the other checks look at. Reads documents only, each once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from xzarr3.checks.report import Findings
from xzarr3.conventions.fill_value_attribute import follows_version_2
from xzarr3.differences.documents import compare_documents
from xzarr3.display.text import brief
from xzarr3.errors import MetadataError, UnknownExtensionError, shorten
from xzarr3.formats import Format
from xzarr3.formats.base import Held, is_array, node_prefix, without_consolidated
from xzarr3.formats.v2 import DIMENSIONS, V2
from xzarr3.formats.v3 import V3
from xzarr3.groups import bind
from xzarr3.model.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from xzarr3.nodes.find import DocumentView, find_format, load_below, read_held
from xzarr3.nodes.node import ancestors
from xzarr3.stores import Store


@dataclass
class Scope:
    """The nodes that are checked.

    Parameters
    ----------
    store : Store
    view : DocumentView
        Has read the documents.
    path : str
    format : Format
    is_listed : bool
        Whether the nodes come from listings, not from consolidated metadata.
    """

    store: Store
    view: DocumentView
    path: str
    format: Format
    is_listed: bool
    held: dict[str, Held] = field(default_factory=dict)
    """The documents of each node, by path, without consolidated copies."""
    arrays: dict[str, ArrayMetadata] = field(default_factory=dict)
    groups: dict[str, GroupMetadata] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    """Paths of nodes whose documents cannot be parsed."""

    def nodes(self) -> set[str]:
        """The paths of all nodes."""
        return {*self.held, *self.unreadable}


def find_nodes(store: Store, path: str, findings: Findings) -> Scope | None:
    """Find and parse the documents of a node and of all nodes below it; None if there is no node."""
    view = DocumentView.around(store, path)
    format = _format_at(view, path, findings)
    if format is None:
        return None
    scope = Scope(store, view, path, format, store.listable)
    found: dict[str, Held | MetadataError | None] = {}
    try:
        found[path] = read_held(view, format, path)
        if found[path] is None and format.implicit_groups:
            found[path] = format.hold(GroupMetadata(zarr_format=format.zarr_format))
    except MetadataError as error:
        found[path] = error
    own = found[path]
    if isinstance(own, MetadataError) or own is None or not is_array(own):
        found |= _below(scope, own, findings)
    for each, held in found.items():
        if held is not None:
            _parse(scope, each, held, findings)
    return scope


def _format_at(view: DocumentView, path: str, findings: Findings) -> Format | None:
    """The format of a node. A document that cannot be parsed counts as well."""
    try:
        return find_format(view, path)
    except MetadataError as error:
        del error  # reported when the document itself is read
    return V3 if view.exists(node_prefix(path) + "zarr.json") else V2


def _below(scope: Scope, own: object, findings: Findings) -> dict[str, Any]:
    """The documents of the nodes below the top, by path."""
    prefix = node_prefix(scope.path)
    if scope.is_listed:
        try:
            below = load_below(scope.view, scope.format, scope.path)
        except MetadataError as error:  # nested too deeply
            findings.add("document-invalid", scope.path, "", str(error))
            below = {}
        return {prefix + relative: held for relative, held in below.items()}
    meta = _parsed(scope.format, scope.path, own)
    if not isinstance(meta, GroupMetadata) or meta.consolidated is None:
        return {}
    return {prefix + relative: held for relative, held in meta.consolidated.items()}


def _parsed(format: Format, path: str, held: object) -> NodeMetadata | None:
    try:
        return None if held is None or isinstance(held, MetadataError) else format.parse(held, path)
    except MetadataError:  # reported elsewhere
        return None


def _parse(scope: Scope, path: str, held: Held | MetadataError, findings: Findings) -> None:
    """Parse the documents of a node and note what is wrong with them."""
    format = scope.format
    try:
        if isinstance(held, MetadataError):
            raise held
        held = without_consolidated(held)
        meta = format.parse(held, path)
    except MetadataError as error:
        scope.unreadable.add(path)
        code = "extension-unknown" if isinstance(error, UnknownExtensionError) else "document-invalid"
        findings.add(code, path, _blamed(scope, path, held, error), str(error))
        return
    scope.held[path] = held
    if isinstance(meta, ArrayMetadata):
        scope.arrays[path] = meta
        _check_dimension_names(path, meta, format, findings)
    else:
        scope.groups[path] = meta
    _check_literals(scope, path, findings)


def _blamed(scope: Scope, path: str, held: object, error: MetadataError) -> str:
    """The key of the document that an error is about."""
    keys = scope.format.keys(path).documents
    named = [key for key in keys if error.field and key.endswith(f"/{error.field}".lstrip("/"))]
    there = [key for key in keys if scope.view.exists(key)]
    return (named or there or list(keys))[0]


def _check_dimension_names(path: str, meta: ArrayMetadata, format: Format, findings: Findings) -> None:
    """Note an attribute that does not name the dimensions, as it should in version 2."""
    if follows_version_2(format) and DIMENSIONS in meta.attributes and meta.dimension_names is None:
        findings.add(
            "dimension-names-invalid", path, format.keys(path).attributes(array=True),
            f"attribute '{DIMENSIONS}' of an array of {len(meta.shape)} dimensions is "
            f"{shorten(meta.attributes[DIMENSIONS])}",
        )  # fmt: skip


def _check_literals(scope: Scope, path: str, findings: Findings) -> None:
    """Note documents with NaN or infinities, which JSON lacks."""
    for key in scope.format.keys(path).to_read(consolidated=False):
        value = scope.view._found.get(key, (None, None))[0]
        if value is None:
            continue
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            meaning = "has NaN or Infinity, which JSON lacks; libraries in JavaScript cannot read it"
            findings.add("document-literals", path, key, meaning)


# Consolidated copies


def check_copies(scope: Scope, findings: Findings) -> None:
    """Compare documents with their copies in the groups at and above them."""
    for holder in [*ancestors(scope.path), *scope.groups, *(scope.unreadable & {scope.path})]:
        key = scope.format.keys(holder).consolidated
        if key is None or not _may_hold(scope, holder, key):
            continue
        try:
            held = read_held(scope.view, scope.format, holder)
            if held is None or is_array(held):
                continue
            meta = scope.format.parse(held, holder)
        except MetadataError as error:
            if holder not in scope.unreadable:
                findings.add("consolidated-invalid", holder, key, str(error))
            continue
        if isinstance(meta, GroupMetadata) and meta.consolidated is not None and scope.is_listed:
            _compare(scope, holder, key, meta.consolidated, findings)


def _may_hold(scope: Scope, holder: str, key: str) -> bool:
    """Whether there may be copies, so that a request for them is worth it."""
    if key in scope.view._found or not scope.is_listed:
        return True
    return key in scope.view.list_dir(scope.format.keys(holder).listing)[0]


def _compare(scope: Scope, holder: str, key: str, copies: Mapping[str, Held], findings: Findings) -> None:
    prefix = node_prefix(holder)
    inside = node_prefix(scope.path)
    copied = {prefix + relative: held for relative, held in copies.items()}
    known = scope.nodes()
    for path, held in copied.items():
        if path != scope.path and not path.startswith(inside):
            continue
        if path not in known:
            findings.add("consolidated-stale", holder, key, f"has a copy of '/{path}', which does not exist")
            continue
        copy, own = without_consolidated(held), scope.held.get(path)
        what = None if own is None else _difference(scope, path, copy, own)
        if what is not None:
            meaning = f"the copy of '/{path}' differs from its document{what}"
            findings.add("consolidated-differs", holder, key, meaning)
    for path in scope.held:
        if path != holder and path.startswith(prefix) and path not in copied:
            findings.add("consolidated-lacks", holder, key, f"has no copy of '/{path}'")


def _difference(scope: Scope, path: str, copy: Held, own: Held) -> str | None:
    """What a copy of a document says otherwise; None if both mean the same."""
    if _text(copy) == _text(own):
        return None
    made = partial(bind, scope.store, scope.format, path, read_only=True, consolidated=False)
    try:
        nodes = [made(scope.format.parse(held, path)) for held in (copy, own)]
    except MetadataError as error:
        return f", and cannot be read: {error}"
    first = next(compare_documents("", *nodes), None)
    if first is None:
        return None
    return f" in '{first.field}': {brief(first.a)} in the copy, {brief(first.b)} in the document"


def _text(held: Held) -> str:
    return json.dumps(held, sort_keys=True, default=repr)
