"""Where a write puts its values until they take the place of what is there, and how they take it.

Three ways: renaming directories, copying keys in a store that cannot rename, and writing in place where there
is nothing to replace. In the first two, what is replaced exists somewhere until the new values are whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import MetadataError, NodeExistsError, StoreError, listed
from xzarr3.formats import v3
from xzarr3.metadata import ArrayMetadata
from xzarr3.nodes import chunks_among, document_key, node_prefix
from xzarr3.stores import LocalStore, Store
from xzarr3.stores.local import STAGED, TEMPORARY

_NEW, _OLD = "new", "old"
_ATTEMPTS = 10
_ABANDONED = 24 * 3600.0  # Seconds without a change after which a staging directory is nobody's any more.


def is_occupied(store: Store, path: str) -> bool:
    """Whether there is anything at ``path`` but the values of writes that are under way or were killed."""
    keys, prefixes = store.list_dir(node_prefix(path))
    return any(not found.startswith(STAGED) for found in keys | prefixes)


def check_no_foreign(store: Store, path: str) -> None:
    """See to it that all keys below ``path`` are part of a Zarr hierarchy, so that they may be replaced.

    Raises
    ------
    NodeExistsError
        Otherwise.
    """
    keys = {key for key in store.list_prefix(node_prefix(path)) if not key.startswith(STAGED)}
    documents = [key for key in keys if key.rpartition("/")[2] == v3.DOCUMENT]
    others = keys.difference(documents)
    foreign = others - chunks_among(store, documents, others) if others else others
    if foreign and isinstance(store, LocalStore):
        foreign = set(_without_orphans(store, path, foreign))
    if foreign:
        raise NodeExistsError(
            f"'/{path}' in {store} holds {len(foreign)} keys that are no part of a Zarr version 3 hierarchy, "
            f"{listed(sorted(foreign)[:5])}; nothing was written; accepted: another place, or removing them "
            "by hand"
        )


def _without_orphans(store: LocalStore, path: str, keys: Iterable[str]) -> Iterator[str]:
    """``keys`` without chunks of an array whose document was moved aside by a write that was killed."""
    prefix = node_prefix(path)
    arrays = []
    for folder in _staging_folders(store):
        try:
            with open(os.path.join(folder, _OLD, *path.split("/"), v3.DOCUMENT), "rb") as file:
                meta = v3.parse(v3.decode(file.read(), path), path)
        except (OSError, MetadataError):  # There is none, or none that tells which chunks are its own.
            continue
        if isinstance(meta, ArrayMetadata):
            arrays.append(meta)
    for key in keys:
        if not any(
            meta.chunk_key_encoding.coords(key[len(prefix) :], len(meta.shape)) is not None for meta in arrays
        ):
            yield key


def _staging_folders(store: LocalStore) -> list[str]:
    try:
        with os.scandir(store.root) as entries:
            return [
                entry.path
                for entry in entries
                if entry.name.startswith(STAGED) and entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []


class Staging(ABC):
    """The values of one write, from the first chunk until they are what is found at their place.

    ``store`` takes them, under the keys that they will have.
    """

    store: Store

    @abstractmethod
    def swap(self, path: str) -> None:
        """Put what was written in the place of what is at ``path``, which is kept."""

    @abstractmethod
    def put_back(self, path: str) -> None:
        """Undo :meth:`swap`, or as much of it as was done."""

    @abstractmethod
    def clean(self, path: str) -> None:
        """Remove what was replaced, once the new values are whole, and what killed writes left."""

    def close(self) -> None:  # noqa: B027 - most need not know
        """Take no more values: the write has failed, but some of its tasks may not have ended."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what was written, unless it or what it replaces is the only copy of something."""

    @abstractmethod
    def whereabouts(self) -> str:
        """Where old and new values lie, for the case that they could not be put back."""


def stage(store: Store, path: str, names: Iterable[str]) -> Staging:
    """The way to write nodes ``names`` below ``path`` that suits a store and what is there."""
    if isinstance(store, LocalStore):
        return _Folders(store)
    return _Keys(store) if is_occupied(store, path) else InPlace(store, path, names)


class _StagedFolder(LocalStore):
    """The directory that takes values, called in messages what it will be."""

    def __init__(self, root: str, shown: str) -> None:
        super().__init__(root)
        self._shown = shown
        self._closed = False

    def __repr__(self) -> str:
        return self._shown

    def __reduce__(self) -> tuple[object, ...]:
        return _StagedFolder, (self.root, self._shown)

    def set(self, key: str, value: Buffer) -> None:
        # Dask's threads finish what they are at when another one has failed.
        if self._closed:
            raise StoreError(f"cannot write key '{key}' of {self}: the write has failed and was given up")
        super().set(key, value)
        if self._closed:
            _remove(os.path.dirname(self.root))

    def close(self) -> None:
        """Take no more values."""
        self._closed = True


class _Folders(Staging):
    """Directories that are renamed: the old ones aside, then the new ones to their places."""

    def __init__(self, store: LocalStore) -> None:
        self._target = store
        self._top = os.path.join(store.root, f"{STAGED}{uuid.uuid4().hex}")
        self._staged = self.store = _StagedFolder(os.path.join(self._top, _NEW), repr(store))
        self._moves: list[tuple[str, str]] = []

    def _within(self, part: str, path: str) -> str:
        return os.path.join(self._top, part, *path.split("/")) if path else os.path.join(self._top, part)

    def swap(self, path: str) -> None:
        root = self._target.root
        place, new, old = os.path.join(root, path), self._within(_NEW, path), self._within(_OLD, path)
        if os.path.lexists(os.path.join(self._top, _OLD)):
            raise StoreError(
                f"cannot replace '/{path}' in {self._target}: an earlier attempt was not undone, "
                f"its data are in {self.whereabouts()}; accepted: a new call"
            )
        try:
            if path:
                self._target.check_inside(os.path.dirname(place), path)
                aside = [(place, old)] if os.path.lexists(place) else []
                ahead = [(new, place)]
            else:
                # The document of the group leaves first and comes last, so that no reader sees it with
                # arrays that are not its own.
                names = _visible_names(root)
                aside = [(os.path.join(root, name), os.path.join(old, name)) for name in names]
                ahead = [
                    (os.path.join(new, name), os.path.join(root, name)) for name in _visible_names(new)[::-1]
                ]
            for _, target in aside[:1] + ahead[:1]:
                os.makedirs(os.path.dirname(target), exist_ok=True)
            for move in aside + ahead:
                self._moves.append(move)
                os.rename(*move)
        except OSError as error:
            raise StoreError(
                f"cannot replace '/{path}' in {self._target}: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        self._staged.close()

    def put_back(self, path: str) -> None:
        failed = True  # The last move may be one that failed, and only that one.
        while self._moves:
            source, target = self._moves[-1]
            if os.path.lexists(target) and not (failed and os.path.lexists(source)):
                _move_back(target, source)
            self._moves.pop()
            failed = False
        folder = os.path.dirname(os.path.join(self._within(_OLD, path), ""))
        with contextlib.suppress(OSError):  # It is not there or not empty; that is for discard to see.
            while folder != self._top:
                if os.path.isdir(folder):
                    os.rmdir(folder)
                folder = os.path.dirname(folder)
        if path:
            self._target.prune(os.path.dirname(os.path.join(self._target.root, path)))

    def clean(self, path: str) -> None:
        self._moves.clear()
        _remove(self._top)
        for folder in _staging_folders(self._target):
            if _is_abandoned(folder) and _only_old_at(folder, path):
                _remove(folder)

    def discard(self) -> None:
        old = os.path.join(self._top, _OLD)
        if os.path.lexists(old):
            raise StoreError(f"'{old}' may hold what was replaced")
        _remove(self._top)

    def whereabouts(self) -> str:
        return f"'{os.path.join(self._top, _OLD)}' and '{os.path.join(self._top, _NEW)}'"


def _move_back(target: str, source: str) -> None:
    if os.path.lexists(source):
        raise StoreError(f"'{target}' cannot be moved back, because there is '{source}'")
    os.rename(target, source)


def _remove(folder: str) -> None:
    failure: OSError | None = None
    for _ in range(_ATTEMPTS):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if not os.path.lexists(folder):
                return
            failure = error
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                break  # Otherwise somebody else put something there, or took it away, just now.
        else:
            return
    raise StoreError(f"cannot remove '{folder}': {failure}") from failure


def _visible_names(folder: str) -> list[str]:
    """What is in a directory but temporary and staged values, the document of a node first."""
    names = [name for name in os.listdir(folder) if not name.startswith((TEMPORARY, STAGED))]
    return sorted(names, key=lambda name: (name != v3.DOCUMENT, name))


def _is_abandoned(folder: str) -> bool:
    """Whether nothing has changed anywhere below a directory for a long time."""
    limit = time.time() - _ABANDONED
    for below, _, _ in os.walk(folder):
        try:
            info = os.lstat(below)
        except FileNotFoundError:
            return False  # Somebody is at work here.
        if not stat.S_ISDIR(info.st_mode) or info.st_mtime > limit:
            return False
    return True


def _only_old_at(folder: str, path: str) -> bool:
    """Whether a staging directory holds no replaced values but such as lay at or below ``path``."""
    old = os.path.join(folder, _OLD)
    allowed = os.path.join(old, path, "") if path else os.path.join(old, "")
    for below, folders, files in os.walk(old):
        links = [name for name in folders if os.path.islink(os.path.join(below, name))]
        if not all(os.path.join(below, name, "").startswith(allowed) for name in (*files, *links)):
            return False
    return True


class _StagedKeys(Store):
    """Keys below a prefix, called in messages what they will be."""

    def __init__(self, store: Store, prefix: str) -> None:
        super().__init__(read_only=store.read_only)
        self._store = store
        self._prefix = prefix

    def __repr__(self) -> str:
        return repr(self._store)

    def _renamed(self, error: StoreError) -> StoreError:
        error.args = tuple(
            argument.replace(self._prefix, "") if isinstance(argument, str) else argument
            for argument in error.args
        )
        return error

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        try:
            return self._store.get(self._prefix + key, byte_range)
        except StoreError as error:
            raise self._renamed(error) from error.__cause__

    def set(self, key: str, value: Buffer) -> None:
        try:
            self._store.set(self._prefix + key, value)
        except StoreError as error:
            raise self._renamed(error) from error.__cause__

    def erase(self, key: str) -> None:
        try:
            self._store.erase(self._prefix + key)
        except StoreError as error:
            raise self._renamed(error) from error.__cause__

    def list_prefix(self, prefix: str) -> Iterator[str]:
        for key in self._store.list_prefix(self._prefix + prefix):
            yield key[len(self._prefix) :]


class _Keys(Staging):
    """Keys that are copied: old values aside before they are erased, then new ones to their places."""

    def __init__(self, store: Store) -> None:
        self._target = store
        self._top = f"{STAGED}{uuid.uuid4().hex}/"
        self.store = _StagedKeys(store, f"{self._top}{_NEW}/")
        self._aside = _StagedKeys(store, f"{self._top}{_OLD}/")
        self._erasing = False

    def _at(self, path: str) -> list[str]:
        """The keys at ``path``, documents from the top down first."""
        keys = (key for key in self._target.list_prefix(node_prefix(path)) if not key.startswith(STAGED))
        return sorted(keys, key=_rank)

    def swap(self, path: str) -> None:
        old = self._at(path)
        _copy(old, self._target, self._aside)
        self._erasing = True
        self._target.erase_values(old)
        _copy(sorted(self.store.list_prefix(""), key=_rank, reverse=True), self.store, self._target)

    def put_back(self, path: str) -> None:
        if not self._erasing:
            return
        self._target.erase_values(self._at(path))
        _copy(sorted(self._aside.list_prefix(""), key=_rank, reverse=True), self._aside, self._target)
        self._erasing = False

    def clean(self, path: str) -> None:
        self._erasing = False
        self._target.erase_prefix(self._top)

    def discard(self) -> None:
        if not self._erasing:
            self._target.erase_prefix(self._top)

    def whereabouts(self) -> str:
        return f"keys of {self._target} that begin with '{self._top}{_OLD}/' and '{self._top}{_NEW}/'"


def _rank(key: str) -> tuple[bool, int, str]:
    return key.rpartition("/")[2] != v3.DOCUMENT, key.count("/"), key


def _copy(keys: Iterable[str], source: Store, target: Store) -> None:
    for key in keys:
        value = source.get(key)
        if value is not None:
            target.set(key, value)


class InPlace(Staging):
    """For where nothing is to be replaced and moving would be copying: the last document makes it seen."""

    def __init__(self, store: Store, path: str, names: Iterable[str]) -> None:
        self.store = store
        self._path = path
        self._names = list(names)
        self._whole = False

    def swap(self, path: str) -> None:
        self._whole = True

    def put_back(self, path: str) -> None:
        self._whole = False

    def clean(self, path: str) -> None:
        """There is nothing else."""

    def discard(self) -> None:
        if not self._whole:
            self.store.erase(document_key(self._path))
            for name in self._names:
                self.store.erase_prefix(f"{node_prefix(self._path)}{name}/")

    def whereabouts(self) -> str:
        return f"'/{self._path}' of {self.store}"
