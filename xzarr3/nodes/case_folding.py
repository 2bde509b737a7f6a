"""Refuses names that a file system takes for the same, as most on macOS and Windows do.

There ``T`` and ``t`` would share a directory, and two arrays would share chunks. Such names are refused
before anything is written. The file system is only tried if two names are alike.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from contextlib import suppress

from xzarr3.errors import NodeExistsError
from xzarr3.formats import Format
from xzarr3.stores import Store
from xzarr3.stores.local.names import LOCK


def check_names(store: Store, format: Format, path: str, below: Iterable[str] = ()) -> None:
    """Raise if a file system cannot tell names of new nodes apart, or a new name from an existing one.

    Names are alike if they are equal in normal form C after case folding.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        Path of the node that is written.
    below : iterable of str
        Paths of nodes below that are written with it, in place of all existing nodes there.

    Raises
    ------
    NodeExistsError
        If two new names would be the same, or a new name would be that of an existing node with another name.
    """
    holder: Store | None = store
    while holder is not None and holder.folder is None:
        holder = getattr(holder, "inner", None)
    if holder is None or holder.folder is None:
        return
    seen: dict[str, str] = {}
    for number, each in enumerate((path, *below)):
        for prefix in format.keys(each).prefixes:
            names = prefix.rstrip("/").split("/")
            for above, name in ((names[:at], name) for at, name in enumerate(names) if name):
                folder = os.path.join(holder.folder, *above)
                other = seen.setdefault(_folded(os.path.join(folder, name)), name)
                if number == 0 and other == name:
                    other = _there(folder, name)
                if other != name and _folds(holder.folder):
                    where = f"directory '{'/'.join(above)}'" if above else "the root"
                    raise NodeExistsError(
                        f"the file system of {store} does not distinguish '{name}' from '{other}' in "
                        f"{where}, so both would be the same node; nothing was written; choose names that "
                        "differ in more than case and composed letters, or another file system"
                    )


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _there(folder: str, name: str) -> str:
    """The entry of a folder that is like a name and is not the name; else the name itself."""
    other_forms = {name.swapcase(), name.casefold(), unicodedata.normalize("NFC", name)}
    if any(os.path.lexists(os.path.join(folder, each)) for each in other_forms - {name}):
        entries = os.listdir(folder)
        if name not in entries:
            return next((each for each in entries if _folded(each) == _folded(name)), name)
    return name


def _folds(folder: str) -> bool:
    """Whether the file system of a folder ignores the case of names, found with a temporary file."""
    import tempfile

    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    with suppress(OSError), tempfile.NamedTemporaryFile(prefix=".a", suffix=LOCK, dir=folder) as made:
        return os.path.lexists(os.path.join(folder, os.path.basename(made.name).swapcase()))
    return False  # It cannot be written to, so the write that follows raises.
