"""Refuses names that a file system takes for the same, as most on macOS and Windows do.

There ``T`` and ``t`` would share a directory, and two arrays would share chunks. Such names are refused
before anything is written. The file system is only tried if two names are alike.
"""

from __future__ import annotations

import contextlib
import os
import unicodedata
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xzarr3.errors import NodeExistsError
from xzarr3.formats import Format
from xzarr3.stores import Store
from xzarr3.stores.local.names import LOCK


@dataclass(frozen=True)
class Folding:
    """The differences between names that a file system ignores."""

    case: bool
    """``T`` and ``t``."""
    forms: bool
    """Composed letters and those made of several characters."""

    def same(self, one: str, other: str) -> bool:
        """Whether the file system takes two names for the same."""
        return self._folded(one) == self._folded(other)

    def _folded(self, name: str) -> str:
        if self.forms:
            name = unicodedata.normalize("NFC", name)
        return name.casefold() if self.case else name


_folding: dict[str, Folding] = {}  # by root of the store


def check_names(store: Store, format: Format, path: str, below: Iterable[str] = ()) -> None:
    """Raise if a file system cannot tell names of new nodes apart, or a new name from an existing one.

    Names are alike if they are equal in normal form C after case folding. They are refused in a directory
    whose file system folds names. That is tried once for each root.

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
    root = root_of(store)
    if root is None:
        return
    seen: dict[tuple[str, str], str] = {}
    itself = set(_parts(format, [path]))
    for above, name in dict.fromkeys(_parts(format, [path, *below])):
        other = seen.setdefault((above, folded(name)), name)
        folder = os.path.join(root, above)
        if other == name and (above, name) in itself and _may_be_there(folder, name):
            other = _called(folder, name)
        if other != name and _folding_of(root).same(name, other):
            where = f"directory '{above}'" if above else "the root"
            raise NodeExistsError(
                f"the file system of {store} does not distinguish '{name}' from '{other}' in {where}, so "
                "both would be the same node; nothing was written; choose names that differ in more than "
                "case and composed letters, or another file system"
            )


def root_of(store: Store | None) -> str | None:
    """The directory of a store, or of the store that it wraps; None if there is none."""
    while store is not None and store.folder is None:
        store = getattr(store, "inner", None)
    return None if store is None else store.folder


def _parts(format: Format, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The names of nodes and documents, each with its directory, relative to the root."""
    for path in paths:
        for key in (*format.document_keys(path), *format.prefixes(path)):
            names = key.rstrip("/").split("/")
            yield from (("/".join(names[:at]), name) for at, name in enumerate(names) if name)


def folded(name: str) -> str:
    """The name in normal form C after case folding: equal for names that are alike."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _may_be_there(folder: str, name: str) -> bool:
    """Whether a name like this one exists; writes nothing."""
    alike = {
        name.swapcase(),
        name.casefold(),
        *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")),
    }
    return any(os.path.lexists(os.path.join(folder, each)) for each in alike - {name})


def _called(folder: str, name: str) -> str:
    """The existing name that equals this one or is like it; the name itself if there is none."""
    try:
        there = os.listdir(folder)
    except OSError:  # absent or unreadable: the write that follows raises
        return name
    alike = [each for each in there if folded(each) == folded(name)]
    return name if name in alike or not alike else alike[0]


def _folding_of(root: str) -> Folding:
    """The differences that the file system ignores, found by trying."""
    if root not in _folding:
        folder = root
        while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
        begin = f".{uuid.uuid4().hex}-"
        _folding[root] = Folding(
            case=_is_found(folder, f"{begin}a{LOCK}", f"{begin}A{LOCK}"),
            forms=_is_found(folder, f"{begin}\u00e9{LOCK}", f"{begin}e\u0301{LOCK}"),
        )
    return _folding[root]


def _is_found(folder: str, name: str, other: str) -> bool:
    """Create a file, look for it under another name, and remove it."""
    place = os.path.join(folder, name)
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except (OSError, UnicodeError):  # not writable: the write that follows raises
        return False
    try:
        return os.path.lexists(os.path.join(folder, other))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
