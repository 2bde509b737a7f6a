"""Names that a file system takes for one and the same, as those of macOS and Windows mostly do.

``T`` and ``t`` would share a directory there, and each array the chunks of the other one. Such names are
refused before anything is written. Nothing is asked of a file system as long as no two names are alike.
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
from xzarr3.stores.local.folders import TEMPORARY


@dataclass(frozen=True)
class Folding:
    """What a file system does not tell apart in names."""

    case: bool
    """``T`` and ``t``."""
    forms: bool
    """Letters that are composed, and those that are made of several characters."""

    def same(self, one: str, other: str) -> bool:
        """Whether two names are one."""
        return self._folded(one) == self._folded(other)

    def _folded(self, name: str) -> str:
        if self.forms:
            name = unicodedata.normalize("NFC", name)
        return name.casefold() if self.case else name


_folding: dict[str, Folding] = {}  # By root.


def check_names(store: Store, format: Format, path: str, below: Iterable[str] = ()) -> None:
    """Refuse nodes whose names a file system cannot tell from each other, or from what is there.

    Names are alike if they are equal in normal form C after case folding. They are refused in a directory
    whose file system folds names, which is tried once for a root.

    Parameters
    ----------
    store : Store
    format : Format
    path : str
        Path of the node that is written.
    below : iterable of str
        Paths of the nodes below it that are written with it, and replace all that is there.

    Raises
    ------
    NodeExistsError
        If two of them would be one, or one of them would be what has another name.
    """
    root = _root_of(store)
    if root is None:
        return
    seen: dict[tuple[str, str], str] = {}
    itself = set(_parts(format, [path]))
    for above, name in dict.fromkeys(_parts(format, [path, *below])):
        other = seen.setdefault((above, _folded(name)), name)
        folder = os.path.join(root, above)
        if other == name and (above, name) in itself and _may_be_there(folder, name):
            other = _called(folder, name)
        if other != name and _folding_of(root).same(name, other):
            where = f"directory '{above}'" if above else "the root"
            raise NodeExistsError(
                f"the file system of {store} takes '{name}' for '{other}' in {where}, so that both would be "
                "the same node; nothing was written; accepted: names that differ in more than case and "
                "composed letters, or another file system"
            )


def _root_of(store: Store | None) -> str | None:
    """The directory of a store that is one, or of the one that it wraps."""
    while store is not None and store.folder is None:
        store = getattr(store, "inner", None)
    return None if store is None else store.folder


def _parts(format: Format, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The names of nodes, and of their documents, in directories of the store, each with its directory."""
    for path in paths:
        for key in (*format.document_keys(path), *format.prefixes(path)):
            names = key.rstrip("/").split("/")
            yield from (("/".join(names[:at]), name) for at, name in enumerate(names) if name)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _may_be_there(folder: str, name: str) -> bool:
    """Whether there is something under a name that is like this one, which does not write anything."""
    alike = {
        name.swapcase(),
        name.casefold(),
        *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")),
    }
    return any(os.path.lexists(os.path.join(folder, each)) for each in alike - {name})


def _called(folder: str, name: str) -> str:
    """What something is called that has this name or one like it; the name itself if there is nothing."""
    try:
        there = os.listdir(folder)
    except OSError:  # It is not there, or not ours to read: the write that follows says so.
        return name
    alike = [each for each in there if _folded(each) == _folded(name)]
    return name if name in alike or not alike else alike[0]


def _folding_of(root: str) -> Folding:
    """What a file system takes for the same, as far as that can be tried."""
    if root not in _folding:
        folder = root
        while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
        begin = f"{TEMPORARY}{uuid.uuid4().hex}-"
        _folding[root] = Folding(
            case=_is_found(folder, f"{begin}a", f"{begin}A"),
            forms=_is_found(folder, f"{begin}\u00e9", f"{begin}e\u0301"),
        )
    return _folding[root]


def _is_found(folder: str, name: str, other: str) -> bool:
    """Make a file, and look for it under another name; it is gone afterwards."""
    place = os.path.join(folder, name)
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except (OSError, UnicodeError):  # Nothing can be written there, as the write that follows finds out.
        return False
    try:
        return os.path.lexists(os.path.join(folder, other))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
