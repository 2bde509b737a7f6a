"""Writes that can be taken up again: what a plan is, and what a killed one leaves.

All that such a write leaves lies below a name made of the fingerprint of its plan, so that the next call with
the same plan finds it; see :mod:`xzarr3.dask.journal` and :mod:`xzarr3.commit.replace`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xzarr3._types import Buffer
from xzarr3.commit.lease import Lease, lease_key
from xzarr3.commit.leftovers import now
from xzarr3.commit.length import clear_left, left_with
from xzarr3.errors import StoreCapabilityError, StoreError
from xzarr3.stores import Store, platform
from xzarr3.stores.folders import Folders
from xzarr3.stores.local import STAGED, TEMPORARY
from xzarr3.stores.platform import Folder

_MOVES, _ABOUT, _BEGUN = "moves", "about", "begun"
_NAME = re.compile(f"{re.escape(STAGED)}[0-9a-f]{{32}}", re.ASCII)
_LARGEST = 2**24  # Bytes of the list of moves.


@dataclass(frozen=True)
class Plan:
    """What is written, as far as it tells one write from another.

    Parameters
    ----------
    fingerprint : str
        Of everything that decides which bytes are stored where.
    documents : mapping of str to bytes
        The documents of the node by key; where these are, the write had come to its end.
    """

    fingerprint: str
    documents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def top(self) -> str:
        """What all keys begin with that the write leaves beside the values."""
        return f"{STAGED}{self.fingerprint}/"

    @property
    def journal(self) -> str:
        """What the keys of its journal begin with."""
        return f"{self.top}journal/"


def check_resumable(store: Store) -> None:
    """Refuse a store in which a write cannot be taken up again.

    Raises
    ------
    StoreCapabilityError
    """
    if store.publishes_at_close:
        lacks = "keeps nothing of a write that was cut off"
    elif not store.readable or not store.listable:
        lacks = "cannot be read and listed"
    elif not store.erasable:
        lacks = "cannot erase"
    else:
        return
    raise StoreCapabilityError(
        f"resume=True needs a journal beside the values, but {store} {lacks}; accepted: a directory, or "
        "another store that can be read, listed, written and erased; or resume=False"
    )


def _parsed(value: Buffer | None) -> dict[str, Any]:
    try:
        said = {} if value is None else json.loads(bytes(value))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


class Continuation:
    """A write to arrays that are there, which goes on where it was cut off if these are still the same.

    Parameters
    ----------
    store : Store
    path : str
        Path of the node that is written, for messages.
    plan : Plan
    keys : iterable of str
        Keys of the documents that stay as they are.
    grown : iterable of str
        Keys of the leases of arrays, which the write has from its beginning to its end.
    places : JSON
        Where values are written, as far as the plan does not tell.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        plan: Plan,
        keys: Iterable[str],
        grown: Iterable[str] = (),
        places: Any = None,
    ) -> None:
        self._store = store
        self._path = path
        self._plan = plan
        self._keys = sorted(keys)
        self._grown = sorted(grown)
        self._places = places
        self._stamp = ""
        self.lease = Lease(
            store,
            lease_key(plan.top),
            "write",
            plan=plan.fingerprint,
            beside=(f"{plan.top}{_BEGUN}", now),
        )
        """What keeps others from doing the same."""

    def noted(self) -> dict[str, Any]:
        """What an earlier write of this plan has noted; empty if there was none."""
        return _parsed(self._store.get(f"{self._plan.top}{_ABOUT}", (0, _LARGEST)))

    def begin(self) -> None:
        """Keep others from doing the same, and forget what was noted of arrays that others have changed.

        Raises
        ------
        NodeExistsError
            If the same write is still going on.
        """
        store, plan = self._store, self._plan
        self.lease.reserve(self._path)
        try:
            noted = self.noted() if store.exists(f"{plan.top}{_BEGUN}") else {}
            self._stamp = self._stamped()
            same = noted.get("stamp") == self._stamp and noted.get("places") == self._places
            for key in self._grown:
                same = left_with(store, key, plan.fingerprint) and same
            if not same:
                store.erase_prefix(plan.journal)
            if not self._grown:
                self.note()
            store.set(f"{plan.top}{_BEGUN}", now())
        except BaseException:
            self.lease.leave()
            raise

    def note(self, *, ending: bool = False) -> None:
        """Note what can be told of this write now.

        Parameters
        ----------
        ending : bool
            All values are written, and documents are about to tell of them.
        """
        said = {
            "path": self._path,
            "stamp": self._stamp,
            "places": self._places,
            "ending": ending,
        }
        self._store.set(f"{self._plan.top}{_ABOUT}", json.dumps(said).encode())

    def ending(self) -> None:
        """Note that documents are about to tell of all values."""
        if self._grown:
            self.note(ending=True)

    def _stamped(self) -> str:
        """What changes when somebody changes one of the documents, or replaces an array."""
        store = self._store
        versions = [(store.version(key), store.get_versioned(key)[1]) for key in self._keys]
        return hashlib.blake2b(repr(versions).encode(), digest_size=16).hexdigest()

    def check(self) -> None:
        """See to it that it is still this write that may go on.

        Raises
        ------
        ConflictError
        """
        self.lease.verify(self._path)

    def clear(self) -> None:
        """Take away what a write of this plan has left, which had come to its end."""
        for key in self._grown:
            clear_left(self._store, key, self._plan.fingerprint)

    def end(self) -> None:
        """All is written."""
        self._store.erase_prefix(self._plan.journal)
        self._store.erase(f"{self._plan.top}{_ABOUT}")
        self._store.erase(f"{self._plan.top}{_BEGUN}")
        self.lease.release()

    def leave(self, error: BaseException) -> None:
        """It ends in an error, and can be taken up again."""
        try:
            self.lease.leave()
        except StoreError as another:
            error.add_note(f"others may have to wait for minutes, as this write seems to go on: {another}")
        error.add_note(
            f"what was written to '/{self._path}' in {self._store} is in place: the same call with "
            "resume=True writes what is left"
        )

    @property
    def about(self) -> str:
        """The key of what is noted."""
        return f"{self._plan.top}{_ABOUT}"


def forget_settings(store: Store, tops: Iterable[str], path: str) -> None:
    """Forget what was noted of writes to arrays that are about to be replaced.

    Parameters
    ----------
    store : Store
    tops : iterable of str
        What the keys begin with that writes have left.
    path : str
        Path of the node that is replaced with all that is below it.
    """
    keys = [f"{top}{_ABOUT}" for top in tops]
    if not keys:
        return
    values = store.get_partial_values([(key, (0, _LARGEST)) for key in keys])
    for key, value in zip(keys, values, strict=True):
        if _is_at(_parsed(value).get("path"), path):
            store.erase(key)


def _is_at(said: object, path: str) -> bool:
    """Whether a path is that of a node or of what is below it."""
    return isinstance(said, str) and f"{said}/".startswith(f"{path}/" if path else "")


# What a killed process was just renaming in a directory


def note_moves(top: str, path: str, aside: str, moves: Iterable[tuple[str, str]], root: str) -> None:
    """Say what is about to be renamed, so that it can be undone.

    Parameters
    ----------
    top : str
        Directory of the write.
    path : str
        Path of the node that is written.
    aside : str
        Directory that gets what is replaced.
    moves : iterable of (str, str)
        Old and new names, in their order.
    root : str
        Directory of the store, in which they all are.

    Raises
    ------
    OSError
    """
    listed = []
    with Folders(root) as folders:
        for source, target in moves:
            names = [platform.relative(path, root) for path in (source, target)]
            info = folders.lstat(names[0])
            listed.append([*names, info.st_dev, info.st_ino])
    _note(top, {"path": path, "aside": os.path.basename(aside), "moves": listed})


def _note(top: str, said: Mapping[str, Any]) -> None:
    """Store a list in a directory that is none but that of the write: no link is followed."""
    with _within(top) as folder:
        fresh = f"{_MOVES}.new"
        with contextlib.suppress(FileNotFoundError):
            platform.unlink_at(folder, fresh)
        descriptor = platform.open_at(folder, fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(said, file)
        platform.replace_at(folder, fresh, _MOVES)


def _noted(top: str) -> Any:
    with _within(top) as folder:
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | platform.NO_FOLLOW
        descriptor = platform.open_at(folder, _MOVES, flags)
        with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            try:
                return json.loads(file.read(_LARGEST))
            except (ValueError, RecursionError):
                return None


@contextlib.contextmanager
def _within(top: str) -> Iterator[Folder]:
    """The open directory of a write, which is no link."""
    root, name = os.path.split(top)
    with Folders(root) as folders:
        yield folders.open(name)


def forget_moves(top: str) -> None:
    """What was renamed is to stay, or has been renamed back.

    Raises
    ------
    OSError
    """
    with contextlib.suppress(FileNotFoundError), _within(top) as folder:
        platform.unlink_at(folder, _MOVES)


def note_end(top: str, aside: str) -> None:
    """Say that what was renamed is to stay, and the rest to be removed.

    Raises
    ------
    OSError
    """
    _note(top, {"aside": os.path.basename(aside), "ended": True})


def forget_moves_at(top: str, path: str) -> None:
    """What another write had begun to rename is not to be undone, as all at the place was replaced since.

    Parameters
    ----------
    top : str
        Directory of that write.
    path : str
        Path of the node that was replaced with all that is below it.

    Raises
    ------
    OSError
    """
    with contextlib.suppress(FileNotFoundError):
        said = _noted(top)
        if isinstance(said, dict) and _is_at(said.get("path"), path):
            forget_moves(top)


def undo_moves(top: str, root: str) -> str | None:
    """Rename back what a killed process had renamed, if all of that is still what it was.

    Returns
    -------
    str or None
        If it had come to its end, the directory with what was replaced, which need not be there any more.

    Raises
    ------
    StoreError
        If it is not possible.
    """
    try:
        said = _noted(top)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read '{os.path.join(top, _MOVES)}': {error.strerror or error}") from error
    if isinstance(said, dict) and said.get("ended") is True and _is_top(said.get("aside")):
        return os.path.join(root, said["aside"])
    try:
        with Folders(root) as folders:
            for source, target, device, inode in reversed(_checked(said, os.path.basename(top))):
                _rename_back(folders, source, target, (device, inode))
        forget_moves(top)
    except OSError as error:
        raise StoreError(
            f"cannot undo what a killed write had begun in '{root}': {error.strerror or error}; accepted: "
            "renaming by hand what is in it, or a call without resume=True and with mode 'w'"
        ) from error
    return None


def _is_top(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _rename_back(folders: Folders, source: str, target: str, what: tuple[int, int]) -> None:
    """Rename what still is what it was; whoever has made the list names nothing outside of the store."""
    try:
        info = folders.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return
    if (info.st_dev, info.st_ino) != what:
        return
    above = os.path.dirname(source)
    try:
        folders.lstat(source)
    except FileNotFoundError:
        if folders.resolve(above) is None:
            folders.make(above)
        folders.rename(target, source)
        with contextlib.suppress(OSError):  # It is not empty, or the last one below the root.
            left = os.path.dirname(target)
            while left:
                folders.rmdir(left)
                left = os.path.dirname(left)


def _checked(said: Any, top: str) -> list[tuple[str, str, int, int]]:
    """The moves that are listed; none if one of them is none of a write."""
    if not isinstance(said, dict) or not isinstance(said.get("moves"), list):
        return []
    aside, found = said.get("aside"), []
    if not _is_top(aside):
        return []
    for move in said["moves"]:
        match move:
            case [str(source), str(target), int(device), int(inode)]:
                unit = target if source == f"{top}/new/{target}" else source
                if target not in (unit, f"{aside}/old/{unit}") or not _is_unit(unit):
                    return []
                found.append((source, target, device, inode))
            case _:
                return []
    return found


def _is_unit(path: str) -> bool:
    names = path.split("/")
    return not {"", ".", ".."} & set(names) and "\0" not in path and not path.startswith((STAGED, TEMPORARY))


def is_top(prefix: str) -> bool:
    """Whether keys that begin with this are those of one write, beside the values."""
    return prefix.endswith("/") and _is_top(prefix[:-1])
