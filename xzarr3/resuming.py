"""What a killed process was just renaming in a directory, so that it can be undone."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xzarr3.commit.resume import is_at as _is_at
from xzarr3.errors import StoreError
from xzarr3.stores import platform
from xzarr3.stores.folders import Folders
from xzarr3.stores.local import STAGED, TEMPORARY
from xzarr3.stores.platform import Folder

_MOVES = "moves"
_NAME = re.compile(f"{re.escape(STAGED)}[0-9a-f]{{32}}", re.ASCII)
_LARGEST = 2**24  # Bytes of the list of moves.


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
