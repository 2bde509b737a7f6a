"""Repositories of Icechunk: reads what a branch, a tag or a snapshot holds, and writes a new commit.

A repository is recognized by the module of its class, so that Icechunk is imported only by a program that has
made one. :class:`~xzarr3.stores.foreign.IcechunkStore` reads and writes the sessions that this module starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

from xzarr3 import errors
from xzarr3.parallel import undisturbed
from xzarr3.stores.base import Store
from xzarr3.stores.foreign import IcechunkStore, said, store_of

Result = TypeVar("Result")

VERSIONS: Final = ("branch", "tag", "snapshot")
"""Options that say what to read."""

_UNKNOWN: Final = ("RefNotFoundError", "SnapshotNotFoundError", "InvalidInputError")
_CONFLICTS: Final = ("ConflictError", "RebaseFailedError")
_MOST_NAMED: Final = 5
_PLAN: Final = "xzarr3_plan"  # In the metadata of the commits of a write that can be resumed.


def reading(repository: Any, options: Mapping[str, Any]) -> Store:
    """The store that reads a repository: the newest commit of branch ``main`` by default.

    Parameters
    ----------
    repository : icechunk.Repository
    options : mapping
        At most one of ``branch``, ``tag`` and ``snapshot``.

    Raises
    ------
    StoreOptionError
        If several are given, or another option.
    StoreError
        If the repository has no such branch, tag or snapshot.
    """
    unknown = sorted(options.keys() - {*VERSIONS})
    if unknown or len(options) > 1:
        raise errors.StoreOptionError(
            f"{errors.listed([*options])} given for an Icechunk repository; accepted: one of "
            f"{errors.listed(VERSIONS)}; credentials belong to its storage"
        )
    kind, name = next(iter(options.items()), ("branch", "main"))
    asked = {"snapshot_id" if kind == "snapshot" else kind: name}
    session = _started(repository, kind, name, lambda: repository.readonly_session(**asked))
    return cast("IcechunkStore", store_of(session))


def _started(repository: Any, kind: str, name: object, start: Callable[[], Result]) -> Result:
    """What ``start`` returns; an error that says which names there are, if a name is unknown."""
    try:
        return start()
    except Exception as error:
        if type(error).__name__ not in _UNKNOWN:
            raise errors.StoreError(
                f"cannot start a session of the Icechunk repository at {kind} {name!r}: {said(error)}"
            ) from error
        branches, tags = sorted(repository.list_branches()), sorted(repository.list_tags())
        raise errors.StoreError(
            f"the Icechunk repository has no {kind} {name!r}; accepted: branches "
            f"{errors.some(branches, name)}, to read also tags {errors.some(tags, name)} and snapshots, as "
            "repository.ancestry(branch=...) lists them"
        ) from error


class RepositoryCommit:
    """One commit to a branch: :attr:`store` takes the changes, :meth:`commit` makes them visible.

    Nothing is visible before, and nothing has to be undone after an error. A write that can be resumed is
    made on a branch of its own: :meth:`stage`.

    Parameters
    ----------
    repository : icechunk.Repository
    branch : str

    Raises
    ------
    StoreError
        If there is no such branch.
    """

    def __init__(self, repository: Any, branch: str = "main") -> None:
        self._repository, self._branch = repository, branch
        self._session = _started(repository, "branch", branch, lambda: repository.writable_session(branch))
        self._base = self._session.snapshot_id
        self._stage, self._plan = "", ""
        self.store = cast("IcechunkStore", store_of(self._session))

    def stage(self, path: str, plan: str) -> bool:
        """Write to a branch of its own, which an interrupted write of this plan may have left.

        :meth:`save` commits to that branch what is stored. :meth:`commit` makes it the branch that was asked
        for, with one commit more than before.

        Parameters
        ----------
        path : str
            Path of the node that is written.
        plan : str
            The fingerprint of the write.

        Returns
        -------
        bool
            Whether the branch holds documents and values of an interrupted write of the plan.

        Raises
        ------
        StoreCapabilityError
            If the repository is of version 1, which cannot put one commit in the place of another.
        """
        if str(self._repository.spec_version) == "SpecVersion.v1":
            raise errors.StoreCapabilityError(
                "resume=True needs an Icechunk repository of version 2, and this one is of version 1; "
                "upgrade it with icechunk.upgrade_icechunk_repository(repository), or leave resume out"
            )
        repository = self._repository
        # One for each branch and path.
        name = f"unfinished/{quote(self._branch, safe='')}/{path}".rstrip("/")
        self._stage, self._plan = name, plan
        with self._explained(f"branch {name!r}"):
            left = (
                next(iter(repository.ancestry(branch=name))) if name in repository.list_branches() else None
            )
            goes_on = left is not None and (left.metadata.get(_PLAN), left.parent_id) == (plan, self._base)
            if left is not None and left.id != self._base and not goes_on:
                warnings.warn(
                    f"branch {name!r} of the Icechunk repository holds an unfinished write that this call "
                    "does not continue: its data or encoding differ, dask has given its arrays other names, "
                    f"or branch {self._branch!r} has other commits since; the branch is removed, and all is "
                    "written",
                    stacklevel=errors.levels_to_caller(),
                )
                repository.delete_branch(name)
                left = None
            if left is None:
                repository.create_branch(name, self._base)
            self._begin()
        return goes_on

    def _begin(self) -> None:
        self._session = self._repository.writable_session(self._stage)
        self.store.go_on(self._session)

    def save(self) -> None:
        """Commit to the branch of the write what was stored since the last time."""
        with self._explained(f"branch {self._stage!r}"):
            undisturbed(lambda: self._saved("xzarr3.to_zarr, not complete"))
            self._begin()

    def _saved(self, message: str) -> str:
        """Commit to the branch of the write, in place of what was committed there before."""
        is_first = self._session.snapshot_id == self._base
        call = self._session.commit if is_first else self._session.amend
        return str(call(message, metadata={_PLAN: self._plan}, allow_empty=True))

    def commit(self, message: str) -> Store:
        """Commit what was stored, if anything was; returns the store of the snapshot.

        Commits of others since this one began stay, unless both changed the same chunk or document.

        Raises
        ------
        ConflictError
            If another commit changed the same.
        StoreError
            If the repository cannot be written.
        """
        snapshot = self._session.snapshot_id
        with self._explained(f"branch {self._branch!r}"):
            if self._stage:
                snapshot = undisturbed(lambda: self._moved(message))
            elif self._session.has_uncommitted_changes:
                from icechunk import ConflictDetector

                solver = ConflictDetector()
                snapshot = undisturbed(lambda: self._session.commit(message, rebase_with=solver))
        return reading(self._repository, {"snapshot": snapshot})

    def _moved(self, message: str) -> str:
        """Make the branch that was asked for that of the write; returns the snapshot."""
        snapshot = self._saved(message)
        self._repository.reset_branch(self._branch, snapshot, from_snapshot_id=self._base)
        self._repository.delete_branch(self._stage)
        return snapshot

    @contextmanager
    def _explained(self, where: str) -> Iterator[None]:
        where = f"{where} of the Icechunk repository"
        try:
            yield
        except Exception as error:
            if type(error).__name__ not in _CONFLICTS:
                raise errors.StoreError(
                    f"cannot commit to {where}: {said(error)}; look with repository.ancestry(branch=...) "
                    "whether it happened, and repeat the call if it did not"
                ) from error
            there = _named(getattr(error, "conflicts", None) or ())
            raise errors.ConflictError(
                f"another commit to {where} came first, since snapshot "
                f"{self._session.snapshot_id}{there}; that commit is whole, and nothing of this write is in "
                "the branch; repeat the call"
            ) from error


def _named(conflicts: Any) -> str:
    """What two commits both changed."""
    said = []
    for each in conflicts:
        chunks = [tuple(index) for index in each.conflicted_chunks or ()]
        which = f" of chunks {errors.some(chunks)}" if chunks else ""
        said.append(f"{each.path}: {str(each.conflict_type).lower()}{which}")
    more = f", and {len(said) - _MOST_NAMED} more" if len(said) > _MOST_NAMED else ""
    return f", and both changed {', '.join(said[:_MOST_NAMED])}{more}" if said else ""
