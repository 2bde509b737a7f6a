"""What arrays and groups say of themselves: ``info``, ``tree()``, reprs, and HTML for notebooks.

Collects the facts; :mod:`xzarr3.display` turns them into text and HTML. Arrays are described from their
metadata. Only :func:`outline` reads from a store, and only a limited number of documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from xzarr3.display import html, text
from xzarr3.display.picture import picture
from xzarr3.display.report import Page
from xzarr3.display.shown import Description
from xzarr3.display.units import counted, ratio, share, size
from xzarr3.dtypes import Optional
from xzarr3.errors import MetadataError, Xzarr3Error, printable, shorten
from xzarr3.grid import Edges
from xzarr3.io.stored_units import FEW
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.find import depth_first

if TYPE_CHECKING:
    from xzarr3.arrays import Array
    from xzarr3.groups import Group

_FEW_RUNS = 64  # Most runs of chunks of one length that a description lists.
_LONGEST_NAME = 100  # Characters


# Arrays


def describe_array(array: Array) -> Description:
    """``array.info``, and what a notebook shows of the array."""
    return Page(
        "xzarr3.Array",
        facts=_array_facts(array),
        heading=(array.name, f"{_dims(array)} {_type(array)}"),
        picture=partial(picture, array.metadata),
        attributes=array.metadata.attributes,
    ).description()


def array_line(array: Array) -> str:
    """The array in one line."""
    dtype = _type(array) if array.is_optional else array.dtype
    line = f"<xzarr3.Array {printable(array.name)} shape={array.shape} dtype={dtype}"
    if array.shards is None:
        return f"{line} chunks={units_text(array)}>"
    return f"{line} chunks={array.chunks} shards={units_text(array)}>"


def _type(array: Array) -> str:
    """The name of the data type."""
    data_type = array.zdtype
    return f"optional {data_type.inner.name}" if isinstance(data_type, Optional) else data_type.name


def _array_facts(array: Array) -> list[tuple[str, str]]:
    units, is_sharded = units_text(array), array.shards is not None
    stored, fill = _stored_text(array), array.fill_value
    return [
        ("name", array.name),
        ("format", f"{array.zarr_format}"),
        ("shape", f"{array.shape}"),
        ("data type", _type(array)),
        ("dimensions", f"{array.dimension_names}"),
        ("chunks", shorten(array.chunks) if is_sharded else units),
        *([("shards", units)] if is_sharded else []),
        ("fill value", f"{fill}" if array.dtype.kind in "biufcmM" else shorten(fill, _LONGEST_NAME)),
        ("codecs", ", ".join(map(_codec, array._codecs))),
        ("size", _sizes(array)),
        ("store", f"{array.store}"),
        *([("stored", stored)] if stored else []),
    ]


def _sizes(array: Array) -> str:
    """Bytes of the elements: of all, of a stored unit, and of a chunk in a shard."""
    grid, shard, itemsize = array.metadata.chunk_grid, array.metadata.chain.shard, array.dtype.itemsize
    number = counted(array.nshards, "chunk" if shard is None else "shard")
    if array.zdtype.is_variable:
        return f"varies, in {number}"
    most = "" if grid.is_regular else "up to "
    each = size(math.prod(grid.largest) * itemsize)
    inner = "" if shard is None else f", chunks of {size(math.prod(shard.grid.largest) * itemsize)}"
    return f"{size(array.nbytes)} in {number} of {most}{each}{inner}"


def units_text(array: Array) -> str:
    """The shape of the stored units; if very many differ, the runs of equal lengths."""
    grid = array.metadata.chunk_grid
    if grid.is_regular or sum(grid.counts(array.shape)) <= FEW:
        return shorten(array.write_chunks)
    axes = (Edges(axis.runs[:_FEW_RUNS]) if isinstance(axis, Edges) else axis for axis in grid.axes)
    return shorten([axis.to_json() for axis in axes])


def _stored_text(array: Array) -> str:
    """How much was stored when it was last counted; empty if nobody has counted."""
    stored, total = array._stored, array.nshards
    if stored is None:
        return ""
    what = "chunk" if array.shards is None else "shard"
    times = f", ratio {ratio(array.nbytes, stored.nbytes)}" if stored.nbytes else ""
    there = f"{stored.number:,} of {counted(total, what)} ({share(stored.number, total)})"
    return f"{size(stored.nbytes)} in {there}{times}, when counted"


def _dims(array: Array) -> str:
    names = array.dimension_names or (None,) * array.ndim
    along = (
        str(length) if name is None else f"{text.cut(name, _LONGEST_NAME)}: {length}"
        for name, length in zip(names, array.shape, strict=True)
    )
    return f"({', '.join(along)})"


def _codec(codec: Any) -> str:
    configuration = ", ".join(f"{name}={value}" for name, value in (codec.configuration() or {}).items())
    return f"{codec.name}({configuration})" if configuration else str(codec.name)


# Groups

_MOST_NODES = 400  # That are shown of a hierarchy,
_MOST_EACH, _FEWEST_EACH = 100, 3  # and of one group, if there are any left.
_DEEPEST = 20  # Levels
_MOST_LINES = 60  # Of text, where HTML is shown beside it.


class Limit:
    """Chooses the nodes of a hierarchy to show: not too many in all, and not too many of one group."""

    def __init__(self) -> None:
        self._left = _MOST_NODES
        self.left_out: Counter[str] = Counter()
        """By group, how many of its nodes are not chosen."""

    def __call__(self, above: str, names: list[str], groups: int) -> list[str]:
        """The chosen ones of the names directly below a group, which is one of ``groups`` on its level."""
        share = max(_FEWEST_EACH, self._left // groups)
        is_deep = above.count("/") >= _DEEPEST - 2
        number = 0 if is_deep else min(len(names), _MOST_EACH, self._left, share)
        self._left -= number
        if number < len(names):
            self.left_out[above] += len(names) - number
        return names[:number]


_Node: TypeAlias = "Array | Group | MetadataError"


def describe_group(group: Group) -> Description:
    """What a notebook shows of a group: a limited number of the nodes below it."""
    limit = Limit()
    try:
        nodes = _few(group, limit)
    except (Xzarr3Error, OSError) as error:
        remark = f"its nodes cannot be read: {error}"
        told = f"{group!r}\n{printable(remark)}"
        return Description(told, lambda: _group_box(group, html.note(remark)))
    lines = [repr(group), *_tree_text(nodes)]
    left = len(lines) - 1 - _MOST_LINES
    more = sum(limit.left_out.values()) + max(left, 0)
    if more:
        lines = [*lines[: 1 + _MOST_LINES], f"    and {more:,} more, not shown"]
    return Description("\n".join(lines), lambda: _group_html(group, nodes, limit.left_out))


def describe_tree(group: Group, nodes: Mapping[str, _Node]) -> Description:
    """``group.tree()``: all nodes as text, and a limited number as HTML."""
    found = "\n".join([printable(group.name), *_tree_text(nodes)])

    def shown() -> str:
        limit = Limit()
        few = {path: nodes[path] for path in limited(nodes, limit)}
        return _group_html(group, few, limit.left_out)

    return Description(found, shown)


def _few(group: Group, limit: Limit) -> dict[str, _Node]:
    """Some of the nodes below a group, depth first; of those in a store no others are read."""
    held: Mapping[str, Any]
    if group._documents is None:
        held = group._load_below(choose=limit)
    else:
        held = {path: group._documents[path] for path in limited(group._documents, limit)}
    return {path: group._node_or_error(path, held[path]) for path in depth_first(held)}


def _is_array(node: _Node) -> TypeGuard[Array]:
    return not isinstance(node, MetadataError) and isinstance(node.metadata, ArrayMetadata)


def _is_group(node: _Node) -> bool:
    return not (isinstance(node, MetadataError) or _is_array(node))


def limited(paths: Iterable[str], limit: Limit) -> Iterator[str]:
    """The paths to show, groups before what is below them; each level before the next one."""
    below: dict[str, list[str]] = {}
    for path in paths:
        above, _, name = path.rpartition("/")
        below.setdefault(above, []).append(name)
    level = [""]
    while level:
        level = [
            f"{above}/{name}" if above else name
            for above in level
            for name in (limit(above, below[above], len(level)) if above in below else ())
        ]
        yield from level


def tree_lines(nodes: Mapping[str, _Node]) -> Iterator[tuple[str, str, str]]:
    """Guides, name and detail of each node, depth first, safe to print."""
    last: dict[str, str] = {}
    for path in nodes:
        last[path.rpartition("/")[0]] = path
    for path, node in nodes.items():
        parts = path.split("/")
        above = ["/".join(parts[: at + 1]) for at in range(len(parts))]
        ends = [last[each.rpartition("/")[0]] == each for each in above]
        guides = "".join("    " if end else "│   " for end in ends[:-1])
        name = printable(parts[-1]) + ("/" if _is_group(node) else "")
        yield guides + ("└── " if ends[-1] else "├── "), name, printable(node_detail(node))


def _tree_text(nodes: Mapping[str, _Node]) -> Iterator[str]:
    return (f"{guides}{name} {detail}".rstrip() for guides, name, detail in tree_lines(nodes))


def node_detail(node: _Node) -> str:
    """What is told of a node beside its name."""
    if isinstance(node, MetadataError):
        return f"cannot be read: {node}"
    return f"{_dims(node)} {_type(node)}" if _is_array(node) else ""


def _group_html(group: Group, nodes: Mapping[str, _Node], left_out: Mapping[str, int]) -> str:
    groups = {path for path, node in nodes.items() if _is_group(node)}
    numbers = Counter(path.rpartition("/")[0] for path in nodes)

    def label(path: str, node: _Node) -> str:
        name, detail = html.code(path.rpartition("/")[2]), node_detail(node)
        if path in groups:
            detail = f"({numbers[path] + left_out.get(path, 0):,})"
        elif _is_array(node) and not node.zdtype.is_variable:
            detail += f", {size(node.nbytes)}"
        return f"{name} {html.dim(detail)}" if detail else name

    labels = {path: label(path, node) for path, node in nodes.items()}
    return _group_box(group, html.tree(labels, groups, left_out))


def _group_box(group: Group, nodes: str) -> str:
    facts = [("format", f"Zarr {group.zarr_format}"), ("store", f"{group.store}")]
    if group.consolidated:
        facts.append(("metadata", "consolidated"))
    attributes = group.metadata.attributes
    page = Page(
        "xzarr3.Group", heading=(group.name,), facts=facts, picture=lambda: nodes, attributes=attributes
    )
    return page.html()
