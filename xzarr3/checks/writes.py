"""Checks for writers at work and for writes that were cut off: whose they are, since when, and what to do.

Reads leases and the notes of staged writes. It watches nobody: where the system cannot tell whether a writer
lives, the finding says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xzarr3.checks.report import Findings
from xzarr3.commit.lease import SWAPPING, Holder, keys_above, lease_key
from xzarr3.commit.recover import staged_prefixes
from xzarr3.commit.staged import BEGUN, SWAP, is_top, said_in
from xzarr3.errors import printable
from xzarr3.stores import Store
from xzarr3.stores.local.files import staging_folders

_TAKEN_OVER = "nothing: the next writer of the node takes its lease over"


@dataclass(frozen=True)
class Write:
    """A write that has begun and not ended.

    Parameters
    ----------
    key : str
        Key of its lease, or the prefix of its staged values where no lease names them.
    holder : Holder or None
        What the lease says; None without one.
    top : str
        Prefix of the staged values; empty without any.
    path : str
        Path of the node, as far as the key tells.
    has_steps : bool
        Whether the steps of a swap are listed beside the staged values, so that it can be finished.
    """

    key: str
    holder: Holder | None
    top: str
    path: str
    has_steps: bool = False


def check_writes(store: Store, path: str, leases: Iterable[str], findings: Findings) -> None:
    """Note all writes at a node and below it that have not ended."""
    for write in find_writes(store, path, leases):
        code = code_of(write)
        if code == "write-leftover" and not write.top:  # the lease of a dead writer keeps nobody away
            findings.add(code, write.path, write.key, meaning_of(write), remedy=_TAKEN_OVER, severity="note")
        else:
            findings.add(code, write.path, write.key, meaning_of(write))


def find_writes(store: Store, path: str, leases: Iterable[str]) -> Iterator[Write]:
    """The writes that have not ended.

    Parameters
    ----------
    store : Store
    path : str
    leases : iterable of str
        Keys of leases that a listing found.
    """
    tops = _tops(store)
    keys = dict.fromkeys([*leases, *map(lease_key, tops), *(keys_above(store, path) if path else ())])
    begun = dict(zip(tops, store.get_values([f"{top}{BEGUN}" for top in tops]), strict=True))
    named = {top: said_in(value).get("lease") for top, value in begun.items()}
    keys |= dict.fromkeys(key for key in named.values() if isinstance(key, str))
    values = store.get_values(list(keys))
    holders = {key: Holder.parse(value) for key, value in zip(keys, values, strict=True) if value is not None}
    seen: set[str] = set()
    for key, holder in holders.items():
        owns = [top for top in tops if holder.top == top or key == lease_key(top) or named[top] == key]
        seen.update(owns)
        top = holder.top if holder.top in tops else next(iter(owns), "")
        has_steps = bool(holder.state == SWAPPING and is_top(top) and store.exists(f"{top}{SWAP}"))
        yield Write(key, holder, top, _path_of(key, named), has_steps)
    if not path:
        yield from (Write(top, None, top, "") for top in tops if top not in seen)


def _tops(store: Store) -> list[str]:
    """The prefixes of staged values."""
    if store.folder is not None:
        return sorted(f"{os.path.basename(folder)}/" for folder in staging_folders(store.folder))
    return staged_prefixes(store)


def _path_of(key: str, tops: Iterable[str]) -> str:
    """The path of a node, from the key of its lease; the root where the key does not tell."""
    above = key.rpartition("/")[0]
    if any(f"{above}/" == top for top in tops):
        return ""
    return above.removeprefix("data/root/").removeprefix("data/") if above.startswith("data/") else above


def code_of(write: Write) -> str:
    """The code of the finding for a write."""
    holder = write.holder
    if holder is None:
        return "write-leftover"
    if holder.is_dead is False:
        return "write-running"
    if holder.is_dead and write.has_steps:
        return "write-unfinished"
    if holder.is_dead is None:
        return "write-unknown"
    return "write-resumable" if holder.plan is not None else "write-leftover"


def meaning_of(write: Write) -> str:
    """Who writes what, and since when."""
    holder = write.holder
    if holder is None:
        return "values that a write staged and that no lease names"
    who = f"process {holder.pid} of host {holder.host!r}" if holder.host else "a writer that it does not name"
    since = f", since {holder.since}" if holder.since else ""
    dead = holder.is_dead
    ended = "has ended" if dead else "runs" if dead is False else "may be running"
    doing = {"replace": "replaces a node", "resize": "changes the length of an array"}
    what = doing.get(holder.purpose, "writes")
    if holder.state == SWAPPING:
        what = "puts new values in place of a node"
    staged = f"; its values are staged below '{write.top}'" if write.top else ""
    return printable(f"{who} {what}{since}, and {ended}{staged}")
