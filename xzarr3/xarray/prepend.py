"""``to_zarr(prepend_dim=...)``: a dataset is put before the first element of the stored one, as one change.

The dataset is planned and encoded as one that is appended. The elements that are stored move to other indices
as :mod:`xzarr3.copying.rolling` says; the new values are then written before them, into the new node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from xzarr3.arrays import Array
from xzarr3.copying.plan import Source
from xzarr3.copying.rolling import Shift, shift
from xzarr3.dask.plan import BlockWrite, WrittenArray
from xzarr3.errors import ChangedError, ConflictError
from xzarr3.groups import Group
from xzarr3.nodes.freshness import check_read, same
from xzarr3.parallel import parallel_map
from xzarr3.xarray.coders import is_lazy
from xzarr3.xarray.commit import check_unchanged
from xzarr3.xarray.compare import Plan
from xzarr3.xarray.execute import planned
from xzarr3.xarray.labels import Compared
from xzarr3.xarray.recode import Change


def put_before(
    plan: Plan, options: Mapping[str, Any] | None, progress: bool, *, is_finished: bool
) -> Group | None:
    """Carry out a plan of :func:`xzarr3.to_zarr` that prepends; None if no array gets longer by it.

    Parameters
    ----------
    plan : Plan
    options : mapping or None
        For dask's scheduler.
    progress : bool
    is_finished : bool
        Whether a write that was interrupted, maybe of the same call, has been finished before.
    """
    dim = str(plan.asked.append_dim)
    grown = [each for each in plan.changes if _growth(each, dim)]
    if not grown:
        return None
    if is_finished and not (plan.asked.check_labels and any(each.array.basename == dim for each in grown)):
        size = grown[0].array.shape[(grown[0].array.dimension_names or ()).index(dim)]
        raise ConflictError(
            f"a write to '/{plan.path}' in {plan.store} was interrupted, and is finished or given up now; "
            f"{dim!r} has {size} elements, and no labels tell whether the new ones are among them: nothing "
            "was written; repeat the call if they are not"
        )
    asked = _Prepended(plan, dim, _growth(grown[0], dim), options, progress).asked
    return shift(plan.store, plan.path, dim, asked, below=False, progress=progress)


def _axis(array: Array, dim: str) -> int | None:
    return (array.dimension_names or ()).index(dim) if dim in (array.dimension_names or ()) else None


def _growth(change: Change, dim: str) -> int:
    """How many elements an array gets along the dimension."""
    axis = _axis(change.array, dim)
    return 0 if axis is None else change.metadata.shape[axis] - change.array.shape[axis]


@dataclass(frozen=True)
class _Prepended:
    """What comes before the stored elements.

    Parameters
    ----------
    plan, options, progress
        As :func:`put_before` has them.
    dim : str
    number : int
        How many elements.
    """

    plan: Plan
    dim: str
    number: int
    options: Mapping[str, Any] | None
    progress: bool

    def asked(self, group: Group, nodes: Mapping[str, Source]) -> Shift:
        """What changes in the group, if it is still as it was when the plan was made."""
        plan = self.plan
        try:  # Labels were compared with those of these arrays.
            parallel_map(check_read, [each.array for each in plan.changes], plan.store.concurrency)
        except ChangedError as error:
            raise _changed(group, "an array") from error
        for change in plan.changes:
            node = nodes.get(change.array.basename)
            if not isinstance(node, Array):
                raise _changed(group, repr(change.array.basename))
            check_unchanged(change.array, same(change.array, node.metadata))
        made = {each.path.rpartition("/")[2]: each for each in plan.added}
        for name in made:
            if name in nodes:
                raise _changed(group, repr(name))
        arrays = {name: each.metadata for name, each in made.items()}
        arrays |= {each.array.basename: each.metadata for each in plan.changes if each.rewritten}
        write = partial(self._write, made)
        return Shift(-self.number, plan.attributes, arrays, plan.consolidated, write)

    def _write(self, made: Mapping[str, WrittenArray], arrays: Mapping[str, Array]) -> None:
        """Store the new values in the new arrays, those of dask arrays first."""
        plan, store = self.plan, self.plan.store
        for name, array in arrays.items():
            array.write_empty_chunks = (
                made[name].write_empty_chunks if name in made else bool(plan.asked.write_empty_chunks)
            )
        jobs = [self._job(change, arrays) for change in plan.changes]
        jobs += [BlockWrite(each.values, arrays[name], ...) for name, each in made.items()]
        planned([job for job in jobs if is_lazy(job.source)], store, self.options, self.progress)()
        eager = [job for job in jobs if not is_lazy(job.source) and job.source.size]
        parallel_map(lambda job: job.target.set(job.region, job.source), eager, store.concurrency)

    def _job(self, change: Change, arrays: Mapping[str, Array]) -> BlockWrite:
        array, axis, number = change.array, _axis(change.array, self.dim), self.number
        if change.compared:
            compared = Compared(self.plan.store, array.path, array.metadata, format=array.format)
            return BlockWrite(change.data, compared, change.region)
        target = arrays[array.basename]
        if change.rewritten:  # All values, of which the new ones are the last.
            values = change.data if axis is None else np.roll(change.data, number, axis)
            return BlockWrite(values, target, ...)
        region = tuple(slice(0, number) if at == axis else part for at, part in enumerate(change.region))
        return BlockWrite(change.data, target, region)


def _changed(group: Group, name: str) -> ConflictError:
    return ConflictError(
        f"another writer has made, replaced or removed {name} in '/{group.path}' of {group.store} since this "
        "write was planned; nothing was written; repeat the call"
    )
