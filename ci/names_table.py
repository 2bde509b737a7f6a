"""The table of zarr-python's names and what they are here, made by comparing both packages.

    python ci/names_table.py    prints what is wrong: names without a place in the table, and others

The reasons are in names_table.toml and :mod:`xzarr3.names`. The names are those of the installed zarr-python.
``notebooks/conf.py`` puts the table into the site.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import zarr

import xzarr3
from xzarr3.names import facts

ABSENT: dict[str, dict[str, str]] = facts()["absent"]
DIFFERENT: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
OWNERS = {
    "module": (zarr, xzarr3),
    "Array": (zarr.zeros(1), xzarr3.zeros(1)),
    "Group": (zarr.group(), xzarr3.group()),
}
_SHOWN = {"__setitem__": "group[name] = values"}


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
        absent, different = ABSENT[owner], DIFFERENT[owner]
        missing = [name for name in theirs(owner) if not hasattr(here, name) and name not in absent]
        found += [f"{owner}: {name!r} of zarr-python is neither here nor in names.toml" for name in missing]
        found += [f"{owner}: {name!r} is in names.toml, and exists" for name in absent if hasattr(here, name)]
        alone = [name for name in different if not (hasattr(here, name) and hasattr(there, name))]
        found += [f"{owner}: {name!r} is in names_table.toml, and is not in both packages" for name in alone]
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


if __name__ == "__main__":
    wrong = problems()
    print("\n".join(wrong) or "every name has a place")
    sys.exit(bool(wrong))
