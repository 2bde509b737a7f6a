"""Repairs what can be repaired without touching data of the grid.

Four things are repaired, in this order: writes that were cut off, by the functions of :mod:`xzarr3.commit`;
temporary files; chunks outside of the grid; consolidated metadata. Chunks within the grid are never written
or erased here; only the swap of a killed writer that is finished replaces a node by its new values.

Keys are erased through the store. In a directory, a key is left alone if its file, or a directory on the way
to it, is a link: what it leads to may be data of another array.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from xzarr3.checks.documents import Scope
from xzarr3.checks.keys import is_surely_temporary
from xzarr3.checks.report import Finding, Repair
from xzarr3.checks.writes import code_of, find_writes
from xzarr3.commit.lease import SWAPS, Lease
from xzarr3.commit.leftovers import ABANDONED
from xzarr3.commit.length import Length
from xzarr3.commit.recover import finish_swap, recover_swaps
from xzarr3.errors import StoreError, Xzarr3Error
from xzarr3.model.metadata import ArrayMetadata
from xzarr3.nodes.case_folding import root_of
from xzarr3.nodes.consolidated import write_consolidated
from xzarr3.nodes.find import metadata_of
from xzarr3.stores import Store
from xzarr3.stores.local.files import discard
from xzarr3.stores.local.names import is_lock

_AT_ONCE = 1000  # Keys that are erased together.
_NAMED = 5  # Keys that a step names.
_HOUR = 3600.0  # Seconds without a change after which a temporary file counts as left.

_WRITES = ("write-unfinished", "write-leftover")
_COPIES = ("consolidated-invalid", "consolidated-differs", "consolidated-stale", "consolidated-lacks")


@dataclass(frozen=True)
class Step:
    """One step of a repair, and the findings that it mends.

    Parameters
    ----------
    what : str
    findings : tuple of Finding
    act : callable
        Carries the step out; raises if that is not possible.
    """

    what: str
    findings: tuple[Finding, ...]
    act: Callable[[], object]

    def described(self, outcome: str) -> Repair:
        """The step as a report has it."""
        keys = dict.fromkeys(finding.key for finding in self.findings if finding.key)
        count = sum(finding.count for finding in self.findings)
        return Repair(self.what, tuple(keys)[:_NAMED], max(count, len(keys)), outcome)


def plan(store: Store, scope: Scope | None, findings: Iterable[Finding]) -> list[Step]:
    """The steps that mend findings; nothing is changed."""
    found = [finding for finding in findings if finding.repairable]
    steps = [*_plan_writes(store, scope, _of(found, *_WRITES))]
    if scope is not None:
        steps += _plan_temporary(scope, _of(found, "key-temporary"))
        is_sure = not _of(found, "consolidated-differs")
        steps += _plan_outside(scope, _of(found, "chunk-outside"), is_sure=is_sure)
        steps += _plan_copies(scope, _of(found, *_COPIES))
    return steps


def _of(findings: Iterable[Finding], *codes: str) -> list[Finding]:
    return [finding for finding in findings if finding.code in codes]


def carry_out(steps: Sequence[Step], findings: Sequence[Finding]) -> tuple[list[Repair], list[Finding]]:
    """Carry out steps; returns what came of them, and the findings with those marked that were mended."""
    done: list[Repair] = []
    mended: set[int] = set()
    for step in steps:
        try:
            step.act()
        except Xzarr3Error as error:
            done.append(step.described(f"not done, {error}"))
            continue
        done.append(step.described("done"))
        mended.update(id(finding) for finding in step.findings)
    return done, [replace(each, repaired=True) if id(each) in mended else each for each in findings]


# Writes that were cut off


def _plan_writes(store: Store, scope: Scope | None, found: Sequence[Finding]) -> Iterator[Step]:
    if found:
        keys = [finding.key for finding in found]
        path = "" if scope is None else scope.path
        what = "finish or remove all writes whose writers have ended, as xzarr3 recover does"
        yield Step(what, tuple(found), lambda: _end_writes(store, path, keys))


def _end_writes(store: Store, path: str, keys: Sequence[str]) -> None:
    """Finish swaps and remove leftovers of dead writers, then the leases that only block nobody."""
    recover_swaps(store)
    for key in keys:
        lease = Lease(store, key, "replace")
        holder = lease.there()
        if holder.state in SWAPS and holder.is_dead:  # nothing is left to do but to release it
            finish_swap(store, key, path)
        elif holder.owner and holder.is_dead and not holder.state and holder.plan is None and lease.take():
            lease.release()
    left = [write for write in find_writes(store, path, keys) if write.key in keys]
    if left:
        hours = ABANDONED / _HOUR
        raise StoreError(
            f"{len(left)} of them are still there, as {left[0].key!r} is ({code_of(left[0])}); what is "
            f"abandoned is removed {hours:g} hours after its last change"
        )


# Keys


def _plan_temporary(scope: Scope, found: Sequence[Finding]) -> Iterator[Step]:
    """Remove lock files that no writer holds, and other programs' temporary files that are an hour old."""
    store, root = scope.store, root_of(scope.store)
    prefixes = scope.format.prefixes(scope.path) if scope.path and found else ("",) * bool(found)
    there = {name for prefix in prefixes for name in store.leftovers(prefix)}
    own = tuple(each for each in found if each.key in there)
    if own and root is not None:
        what = "remove temporary files of writers that have ended"
        yield Step(what, own, partial(_discard, store, root, [each.key for each in own]))
    left = [each for each in found if each not in own and is_surely_temporary(each.key)]
    others = tuple(each for each in left if not is_lock(each.key) and _is_old(store, each.key))
    if others:
        keys = [each.key for each in others]
        yield Step(
            "remove temporary files that are an hour old or older", others, lambda: _erase(store, keys)
        )


def _discard(store: Store, root: str, names: Iterable[str]) -> None:
    """Remove lock files, unless a writer has taken one of them meanwhile."""
    store.check_writable()
    try:
        for name in names:
            discard(os.path.join(root, name))
    except OSError as error:
        raise StoreError(f"cannot remove '{name}' of {store}: {error.strerror or error}") from error


def _is_old(store: Store, key: str) -> bool:
    """Whether a file is known not to have changed for an hour; without a directory that is not known."""
    root = root_of(store)
    if root is None or not key:
        return False
    try:
        info = os.lstat(_straight(root, key))
    except OSError:
        return False
    return time.time() - info.st_mtime > _HOUR


def _straight(root: str, key: str) -> str:
    """The path of a key; raises if a link is on the way."""
    above, _, name = os.path.join(os.path.realpath(root), key).rpartition("/")
    if os.path.realpath(above) != above:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), key)
    return os.path.join(above, name)


def _plan_outside(scope: Scope, found: Sequence[Finding], *, is_sure: bool) -> Iterator[Step]:
    """Erase chunks outside of grids, unless a consolidated copy may have another shape."""
    for path in dict.fromkeys(finding.path for finding in found):
        own = tuple(finding for finding in found if finding.path == path)
        what = f"erase chunks outside of the grid of '/{path}'"
        yield Step(what, own, partial(_erase_outside, scope, path) if is_sure else _refuse)


def _refuse() -> None:
    raise StoreError(
        "a document and its consolidated copy differ, so the shape may be wrong; find out which one is "
        "right, then repair again"
    )


def _erase_outside(scope: Scope, path: str) -> None:
    """Erase the chunks outside of the document's grid, which no other writer can change meanwhile."""
    store, format = scope.store, scope.format
    prefix, key = format.chunk_prefix(path), format.array_key(path)
    with Length(store, prefix, key, time.monotonic()) as length:
        meta = metadata_of(format, path, {key: length.document})
        if not isinstance(meta, ArrayMetadata):
            raise StoreError(f"'/{path}' of {store} is no array any more")
        _erase(store, _outside(store, prefix, meta))


def _outside(store: Store, prefix: str, meta: ArrayMetadata) -> Iterator[str]:
    counts = meta.chunk_grid.counts(meta.shape)
    for key in store.list_prefix(prefix):
        coords = meta.chunk_key_encoding.coords(key[len(prefix) :], len(meta.shape))
        if coords is not None and any(at >= count for at, count in zip(coords, counts, strict=True)):
            yield key


def _erase(store: Store, keys: Iterable[str]) -> None:
    """Erase keys, unless a link leads to one of them."""
    check = _link_check(store)
    batch: list[str] = []
    for key in keys:
        check(key)
        batch.append(key)
        if len(batch) == _AT_ONCE:
            store.erase_values(batch)
            batch = []
    if batch:
        store.erase_values(batch)


def _link_check(store: Store) -> Callable[[str], None]:
    """A function that raises if the key of a store leads through a link."""
    root = root_of(store)
    if root is None:
        _check_no_links(store)
        return lambda key: None

    def check(key: str) -> None:
        try:
            is_file = stat.S_ISREG(os.lstat(_straight(root, key)).st_mode)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"'{key}' of {store} is reached through a link; it was not erased") from error
        if not is_file:
            raise StoreError(f"'{key}' of {store} is a link ({os.path.join(root, key)}); it was not erased")

    return check


def _check_no_links(store: Store) -> None:
    """Refuse stores that may have links and cannot tell."""
    from xzarr3.stores import FsspecStore

    inner: Store | None = store
    while inner is not None:
        if isinstance(inner, FsspecStore):
            raise StoreError(
                f"{store} cannot tell links from files, so nothing is erased; open it by its path"
            )
        inner = getattr(inner, "inner", None)


# Consolidated metadata


def _plan_copies(scope: Scope, found: Sequence[Finding]) -> Iterator[Step]:
    for path in sorted({finding.path for finding in found}, key=len, reverse=True):
        own = tuple(finding for finding in found if finding.path == path)
        what = f"write the consolidated metadata of '/{path}' again"
        yield Step(what, own, partial(_consolidate, scope, path))


def _consolidate(scope: Scope, path: str) -> None:
    write_consolidated(scope.store, scope.format, path)
