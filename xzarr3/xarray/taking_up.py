"""Writes of datasets that can be taken up again where they were cut off: what tells one from another."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xzarr3._types import AnyArray
from xzarr3.commit.lease import lease_key
from xzarr3.commit.length import Length
from xzarr3.commit.replace import sweep
from xzarr3.dask.journal import Journal, fingerprint
from xzarr3.dask.sources import stamps_of_others
from xzarr3.errors import ConflictError, StoreError, printable
from xzarr3.formats import Format
from xzarr3.formats.base import node_prefix
from xzarr3.group import Group
from xzarr3.resuming import Continuation, Plan
from xzarr3.stores import Store
from xzarr3.xarray.comparing import Change
from xzarr3.xarray.planning import PlannedArray, stored_documents
from xzarr3.xarray.running import Job

if TYPE_CHECKING:
    from xzarr3.xarray.committing import Commit


def resumable(write: Commit, store: Store, path: str) -> Any:
    """A write that can be taken up again.

    Parameters
    ----------
    write : Commit
        One that keeps a journal already, or that changes values of arrays that are there.
    store : Store
    path : str
        Path of the group.

    Raises
    ------
    ValueError
        If it cannot be.
    """
    if write.journal is not None:
        return write
    if not write.adds_nodes:
        return Settings(write, store, path)
    raise ValueError(
        "resume=True goes with mode 'w-' and 'w', and with values of variables that are there; found a write "
        "that adds variables to a group, or stores one anew in other units; accepted: resume=False"
    )


class Settings:
    """Values that are set in arrays that are there, or appended, which can be taken up again.

    What is appended is known by what it is, not by where it goes. So if the documents tell of it already, it
    is not appended once more. What is set is found in place: what others set there since the write was cut
    off stays, in tiles that it had finished, as if they had come after it.

    Parameters
    ----------
    changes : Commit
    store : Store
    path : str
        Path of the group.

    Raises
    ------
    ConflictError
        If it cannot be known whether the same was appended before.
    """

    def __init__(self, changes: Commit, store: Store, path: str) -> None:
        self.store = self._store = store
        self._path = path
        self._changes = changes
        self.jobs: list[Job] = changes.jobs
        grown = {target.path: change for change, target in changes.settings if change.grows}
        arrays = [target for _, target in changes.settings]
        plan = _plan_of_jobs(path, self.jobs, grown)
        places = {
            target.path: [[part.start, part.stop] for part in change.region]
            for change, target in changes.settings
            if change.grows
        }
        keys = {array.path: array._key for array in arrays}
        self._grows = bool(grown)
        changes.keeps_leases_for(plan.fingerprint)
        self._continuation = Continuation(
            store,
            path,
            plan,
            [key for place, key in keys.items() if place not in grown],
            [lease_key(target.format.chunk_prefix(target.path)) for target in arrays if target.path in grown],
            places,
        )
        self.journal: Journal | None = Journal(store, plan.journal, plan.fingerprint)
        self.only_creates = False
        self._is_done = bool(grown) and self._was_appended(grown)
        if self._is_done:
            self.jobs = []

    def _was_appended(self, grown: Mapping[str, Change]) -> bool:
        """Whether a write of this plan has appended all values, and was cut off after that."""
        noted = self._continuation.noted()
        places = noted.get("places")
        if noted.get("ending") is not True or not isinstance(places, dict) or set(places) != set(grown):
            return False
        asked = []
        for place, change in grown.items():
            edges, shape = places[place], change.array.shape
            lengths = [part.stop - part.start for part in change.region]
            if not _is_region(edges) or [stop - start for start, stop in edges] != lengths:
                return False
            if any(stop > size for (_, stop), size in zip(edges, shape, strict=True)):
                return False  # It has not grown.
            if change.data is not None:
                there = change.array[tuple(slice(*edge) for edge in edges)]
                asked.append(_are_same(there, np.asarray(change.data)))
        if asked and all(asked):
            return True
        if asked:
            return False
        raise ConflictError(
            "a write of the same values was cut off when it was about to end, and the arrays have grown "
            "since, by as much as it appends or more: it cannot be told whether these are its values; "
            f"accepted: looking at them, and removing key '{self._continuation.about}' to append once more"
        )

    def begin(self) -> Any:
        self._continuation.begin()
        if self._is_done:
            return None
        try:
            begun = self._changes.begin()
            if self._grows:
                self._warn_of_others(begun.lengths)
                self._continuation.note()
        except BaseException as error:
            self._continuation.leave(error)
            raise
        return begun

    def room(self, begun: Any) -> str:
        return self._changes.room(begun)

    def _warn_of_others(self, held: Mapping[str, Length]) -> None:
        """Warn of other writes that were cut off when they were appending to the same arrays."""
        leases = [length.lease for length in held.values()]
        if any(each.displaced is not None and each.displaced.plan != each.plan for each in leases):
            warnings.warn(
                f"a write that appended to '/{printable(self._path)}' in {self._store} was cut off "
                "that is not the same as this one, so nothing of it is taken up: its data or encoding are "
                "others, or dask has given its arrays other names, as it does for what it cannot name by its "
                "content; what it left is removed by a later call, once it has not changed for a day",
                stacklevel=2,
            )

    def finish(self, begun: Any) -> None:
        try:
            if self.journal is not None:
                self.journal.flush()
            self._continuation.check()
            if self._is_done:
                self._changes.finish_again()
                self._continuation.clear()
            else:
                self._continuation.ending()
                self._changes.finish(begun)
        except BaseException as error:
            self._continuation.leave(error)
            raise
        self._continuation.end()
        try:
            sweep(self._store)
        except StoreError as error:
            warnings.warn(
                f"all is written to {self._store}, but not all could be removed that writes had left which "
                f"were cut off: {error}",
                stacklevel=3,
            )

    def discard(self, begun: Any, error: BaseException) -> None:
        if self.journal is not None:
            self.journal.close(error)
        if begun is not None:
            self._changes.discard(begun, error)
        self._continuation.leave(error)

    def group(self) -> Group:
        return self._changes.group()


def _is_region(edges: object) -> bool:
    return isinstance(edges, list) and all(
        isinstance(edge, list) and len(edge) == 2 and all(type(at) is int and at >= 0 for at in edge)
        for edge in edges
    )


def _are_same(one: AnyArray, other: AnyArray) -> bool:
    if one.dtype == other.dtype and one.dtype.kind not in "OT":
        return one.tobytes() == other.tobytes()
    return bool(np.array_equal(one, other))


def _plan_of_jobs(path: str, jobs: list[Job], grown: Mapping[str, Change]) -> Plan:
    """What is known of values that are set, or appended somewhere."""
    arrays = []
    for job in jobs:
        target = job.target
        bare = replace(target.metadata, attributes={})
        said: dict[str, Any] = {
            key: json.loads(text) for key, text in stored_documents(target.format, bare, target.path).items()
        }
        region = repr(job.region)
        if target.path in grown:
            old = grown[target.path].array.shape
            for document in said.values():
                document.pop("shape", None)
            region = repr(
                [
                    (part.stop - part.start, "end" if part.start == size else part.start)
                    for part, size in zip(job.region, old, strict=True)
                ]
            )
        arrays.append([target.path, said, target.write_empty_chunks, region])
    settings = {"doing": "set", "path": path, "arrays": arrays, "appended": sorted(grown)}
    names = [_name(job.source) for job in jobs]
    return Plan(fingerprint(settings, names, [job.source.chunks for job in jobs]))


def _name(source: Any) -> str:
    """What is the same for a dask array as long as its values are."""
    stamps = stamps_of_others([list(source.dask.layers.values())])
    return "-".join([source.name, *stamps])


def plan_of_creation(
    format: Format, path: str, variables: Mapping[str, PlannedArray], stored: Mapping[str, bytes]
) -> Plan:
    """What is known of a write of new groups.

    Attributes do not count, and neither do values that are not in dask arrays: both are written each time.

    Parameters
    ----------
    format : Format
    path : str
        Path of the uppermost group.
    variables : mapping of str to PlannedArray
        By path relative to that.
    stored : mapping of str to bytes
        The documents of the uppermost group.
    """
    layouts: dict[str, Any] = {}
    for name, variable in variables.items():
        place = node_prefix(path) + name
        bare = replace(variable.metadata, attributes={})
        said = {key: text.decode() for key, text in stored_documents(format, bare, place).items()}
        layouts[name] = [said, variable.write_empty_chunks, variable.is_lazy]
    lazy = {name: variable.data for name, variable in sorted(variables.items()) if variable.is_lazy}
    settings = {"doing": "create", "format": format.zarr_format, "path": path, "arrays": layouts}
    names = [f"{name}: {_name(data)}" for name, data in lazy.items()]
    return Plan(fingerprint(settings, names, [data.chunks for data in lazy.values()]), stored)
