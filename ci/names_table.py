"""The table of zarr-python's names and what they are here, made by comparing both packages.

    python ci/names_table.py    prints what is wrong: names without a place in the table, and others

The reasons are here and in :mod:`xzarr3.names`. The names are those of the installed zarr-python.
``notebooks/conf.py`` puts the table into the site.
"""

from __future__ import annotations

import sys

import zarr

import xzarr3
from xzarr3.names import facts

ABSENT = facts()["absent"]
OWNERS = {
    "module": (zarr, xzarr3),
    "Array": (zarr.zeros(1), xzarr3.zeros(1)),
    "Group": (zarr.group(), xzarr3.group()),
}
_SHOWN = {"__setitem__": "group[name] = values"}

DIFFERENT: dict[str, dict[str, str]] = {
    "module": {
        "config": "other options: `threads`, `memory_limit`, `missing`, `max_document_bytes`; codecs have "
        "registries of their own",
        "copy": "copies; zarr-python 3.4 does not implement it",
        "create_array": "`order` is how elements are stored, and `zarr_format` is by default that of the "
        "groups above; `chunks` and `shards` can be left open, or be a size such as `'2 MB'`",
        "empty_like": "keeps shards, as do the other `_like`; zarr-python makes a shard of each chunk",
        "load": "reads a group, too, as a dictionary of arrays",
        "open": '`mode` is `"r"` by default, so that nobody creates or changes data by mistyping a path; it '
        "opens what exists, and `create_array` and `create_group` create",
        "open_array": "as `open`",
        "open_group": '`mode` is `"r"` by default, as for `open`',
        "save": "does not replace a group without `overwrite=True`, so that no data are lost by mistake",
        "save_group": "as `save`",
        "tree": "takes a store as well, and shows all levels",
    },
    "Array": {
        "info": "the same facts in other words",
        "metadata": "the one model of all formats, not the document",
        "nchunks_initialized": "chunks of shards beyond the end do not count, so it is `nchunks` at most",
        "order": "how elements are stored; zarr-python tells their order in memory in version 3",
        "resize": "its argument is called `shape`",
        "store": "a store of xzarr3, whose methods wait for their results",
        "store_path": "a pair of `store` and `path`; its text names the store, not a URL",
    },
    "Group": {
        "__setitem__": "does not replace a group; zarr-python erases all that is below it",
        "info": "the same facts in other words, and the number of members",
        "members": "uses consolidated metadata for all levels or for none",
        "metadata": "the one model of all formats, not the document",
        "move": "moves; zarr-python 3.4 does not implement it",
        "store": "a store of xzarr3, whose methods wait for their results",
        "store_path": "a pair of `store` and `path`; its text names the store, not a URL",
        "tree": "shows all levels and nodes",
    },
}
"""Names of zarr-python 3.4 that have another meaning here, and which, in Markdown."""


def theirs(owner: str) -> list[str]:
    """The public names of zarr-python's module or class."""
    there = zarr.__all__ if owner == "module" else dir(OWNERS[owner][0])
    return sorted(name for name in there if not name.startswith("_"))


def same(owner: str) -> list[str]:
    """The names that exist in both packages and have the same meaning."""
    return [
        name for name in theirs(owner) if hasattr(OWNERS[owner][1], name) and name not in DIFFERENT[owner]
    ]


def problems() -> list[str]:
    """Names that are missing from the table, and rows of it that are not true."""
    found = []
    for owner, (there, here) in OWNERS.items():
        for name in theirs(owner):
            if not hasattr(here, name) and name not in ABSENT[owner]:
                found.append(f"{owner}: {name!r} of zarr-python is neither here nor in names.toml")
        for name in ABSENT[owner]:
            if hasattr(here, name):
                found.append(f"{owner}: {name!r} is in names.toml, and exists")
        for name in DIFFERENT[owner]:
            if not (hasattr(here, name) and hasattr(there, name)):
                found.append(f"{owner}: {name!r} is in DIFFERENT, and is not in both packages")
    return found


def table() -> str:
    """The names as a table of Markdown."""
    lines = ["| | zarr-python | xzarr3 |", "|---|---|---|"]
    for owner in OWNERS:
        lines.append(f"| {owner} | {', '.join(f'`{name}`' for name in same(owner))} | the same |")
    for kept in (DIFFERENT, ABSENT):
        for owner in OWNERS:
            for text in dict.fromkeys(kept[owner].values()):
                names = (_SHOWN.get(name, name) for name, each in kept[owner].items() if each == text)
                lines.append(f"| {owner} | {', '.join(f'`{name}`' for name in names)} | {text} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print what is wrong."""
    wrong = problems()
    print("\n".join(wrong) or "every name has a place")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
