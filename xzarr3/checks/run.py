"""Runs all checks of a store in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from xzarr3.api import open as open_node
from xzarr3.checks.chunks import Decode, check_chunks
from xzarr3.checks.coordinates import check_coordinates
from xzarr3.checks.documents import Scope, check_copies, find_nodes
from xzarr3.checks.keys import Listing
from xzarr3.checks.readers import readable_by
from xzarr3.checks.report import ArrayReport, CheckReport, Findings
from xzarr3.checks.writes import check_writes
from xzarr3.errors import ArgumentError, one_of, short_traceback
from xzarr3.nodes.node import normal_path
from xzarr3.progress import Asked, check_asked
from xzarr3.stores import Store
from xzarr3.stores.open import StoreLike
from xzarr3.walk import looked_at


@short_traceback
def check(
    store: StoreLike,
    path: str = "",
    *,
    decode: Decode = "sample",
    threads: int | None = None,
    progress: Asked | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> CheckReport:
    """Check an array, or a group with all that is below it, for damage and for what misleads readers.

    Looks at documents and their consolidated copies, keys and sizes of values, indexes of shards, chunks,
    coordinates, and writes that have not ended. Nothing is changed. The keys are listed once,
    whatever their number; memory is about 16 bytes for each stored unit. Each finding has a code, a key, a
    meaning, a severity and a remedy, which names the command that mends it;
    :data:`xzarr3.checks.report.CODES` lists all of them.

    Parameters
    ----------
    store : path, URL or Store
    path : str
        Path of the array or group; by default the root.
    decode : {"sample", "all", "none"}
        Which stored units are read, checked and decoded: of each array 8 that are spread evenly, with 8
        inner chunks of a shard; all; or none, and then no values of coordinates either.
    threads : int, optional
        Most chunks that are decoded at a time; by default as many as there are cores, and as the store has
        requests in flight. Fewer, if their chunks would take more than 512 MiB, or than the
        option ``memory_limit`` says (:class:`xzarr3.set_options`).
    progress : bool or callable, optional
        Show a bar of the units read, or call ``progress(done, total)``.
    storage_options : mapping, optional
        Further options of the store; see :func:`xzarr3.open_store`.

    Returns
    -------
    CheckReport
        Its ``ok`` tells whether there is no error; printing it shows the findings by node.

    Raises
    ------
    NodeNotFoundError
        If there is no array or group at the path, and no trace of one.
    StoreError
        If the store cannot be read or listed.
    ValueError
        If an argument has no meaning.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> array = xzarr3.create_array(store, "sst", data=[[1, 2], [3, 4]], chunks=(1, 2))
    >>> store.set("sst/c/7/0", b"left by an array that was longer")
    >>> report = xzarr3.check(store)
    >>> report.ok, report.findings[0].code, report.findings[0].key
    (True, 'chunk-outside', 'sst/c/7/0')
    >>> store.erase("sst/c/7/0")
    >>> xzarr3.check(store).findings
    ()
    """
    if decode not in get_args(Decode):
        raise ArgumentError(f"decode={decode!r}; {one_of(decode, get_args(Decode))}")
    check_asked(progress or False)
    path = normal_path(path)
    with looked_at(store, storage_options) as opened:
        return _look(opened, path, decode, threads, progress)


def _look(
    store: Store, path: str, decode: Decode, threads: int | None, progress: Asked | None
) -> CheckReport:
    """What all checks of an open store find."""
    findings = Findings()
    scope = find_nodes(store, path, findings)
    if scope is None:
        if store.listable:
            check_writes(store, path, (), findings)
        if not findings.all():
            open_node(store, path)  # Raises, and tells what is there.
        return CheckReport(str(store), path, findings.all(), {}, decode)
    check_copies(scope, findings)
    listing = Listing(scope, findings)
    if scope.is_listed:
        listing.run()
        check_writes(store, path, listing.leases, findings)
    else:
        more = "" if scope.arrays else "; without consolidated metadata no array was found"
        told = f"the store cannot list its keys{more}"
        findings.add("keys-unlisted", path, "", told, severity=None if scope.arrays else "warning")
    read = check_chunks(listing, decode, findings, threads, progress)
    if decode != "none":
        check_coordinates(listing, findings)
    arrays = {each: _summary(scope, listing, each, read[each]) for each in scope.arrays}
    return CheckReport(str(store), path, findings.all(), arrays, decode)


def _summary(scope: Scope, listing: Listing, path: str, read: int) -> ArrayReport:
    meta, units = scope.arrays[path], listing.units[path]
    sizes = units.sizes
    is_known = units.is_listed and not units.others and (not sizes or min(sizes) >= 0)
    readers, others = readable_by(meta, scope.held[path])
    return ArrayReport(
        path=path,
        zarr_format=meta.zarr_format,
        shape=meta.shape,
        data_type=meta.data_type.name,
        units=units.total,
        stored=units.stored if units.is_listed else None,
        nbytes_stored=sum(sizes) if is_known else None,
        read=read,
        readable_by=readers,
        not_readable_by=others,
    )
