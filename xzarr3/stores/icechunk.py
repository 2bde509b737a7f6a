"""Repositories of Icechunk: reads what a branch, a tag or a snapshot holds, and writes a new commit.

A repository is recognized by the module of its class, so that Icechunk is imported only by a program that has
made one. :class:`~xzarr3.stores.foreign.IcechunkStore` reads and writes the sessions that this module starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

from xzarr3 import errors
from xzarr3.parallel import undisturbed
from xzarr3.stores.base import Store
from xzarr3.stores.foreign import IcechunkStore, store_of

Result = TypeVar("Result")

VERSIONS: Final = ("branch", "tag", "snapshot")
"""Options that say what to read."""

_UNKNOWN: Final = ("RefNotFoundError", "SnapshotNotFoundError", "InvalidInputError")
_CONFLICTS: Final = ("ConflictError", "RebaseFailedError")
_MOST_NAMED: Final = 5


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
    return _opened(_started(repository, kind, name, lambda: repository.readonly_session(**asked)))


def _opened(session: Any) -> IcechunkStore:
    return cast("IcechunkStore", store_of(session))


def _started(repository: Any, kind: str, name: object, start: Callable[[], Result]) -> Result:
    """What ``start`` returns; an error that says which names there are, if a name is unknown."""
    try:
        return start()
    except Exception as error:
        if type(error).__name__ not in _UNKNOWN:
            raise errors.StoreError(
                f"cannot start a session of the Icechunk repository at {kind} {name!r}: {_said(error)}"
            ) from error
        known = {
            each: sorted(getattr(repository, f"list_{each}{'es' if each == 'branch' else 's'}")())
            for each in ("branch", "tag")
        }
        other = next((each for each in known if name in known[each]), None)
        advice = "list snapshots with repository.ancestry(branch=...)"
        if other is not None:
            advice = f"it is a {other}, which only reading takes" if other == "tag" else f"pass {other}="
        elif kind in known:
            advice = errors.one_of(str(name), known[kind])
        raise errors.StoreError(f"the Icechunk repository has no {kind} {name!r}; {advice}") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


class RepositoryCommit:
    """One commit to a branch: :attr:`store` takes the changes, :meth:`commit` makes them visible.

    Nothing is visible before, and nothing has to be undone after an error.

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
        self.store = _opened(self._session)

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
        if self._session.has_uncommitted_changes:
            from icechunk import ConflictDetector

            solver = ConflictDetector()
            with self._explained():
                snapshot = undisturbed(lambda: self._session.commit(message, rebase_with=solver))
        return reading(self._repository, {"snapshot": snapshot})

    @contextmanager
    def _explained(self) -> Iterator[None]:
        where = f"branch '{self._branch}' of the Icechunk repository"
        try:
            yield
        except Exception as error:
            if type(error).__name__ not in _CONFLICTS:
                raise errors.StoreError(
                    f"cannot commit to {where}: {_said(error)}; look with repository.ancestry(branch=...) "
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
