"""What a check found: findings, a summary of each array, and their text and JSON.

:data:`CODES` has every kind of finding, with its severity and what to do about it. This module knows no
stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from xzarr3.checks.readers import DOCUMENTED, newest
from xzarr3.display.report import Page, Report, Table
from xzarr3.display.text import brief
from xzarr3.display.units import counted
from xzarr3.errors import printable

Severity: TypeAlias = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

_KEPT = 100  # Findings of one code and node that are kept one by one.
_SHOWN = 24  # Lines of findings in text,
_REMEDIES = 10  # and of what to do.
_NAMED = 3  # Arrays that are named because a library does not read them.


@dataclass(frozen=True)
class Kind:
    """A kind of finding.

    Parameters
    ----------
    severity : {"error", "warning", "note"}
        ``error``: data cannot be read, or readers get wrong values or other metadata than they should.
        ``warning``: some readers or tools will fail or be misled. ``note``: permitted, and worth knowing.
    remedy : str
        What to do about it.
    """

    severity: Severity
    remedy: str


_ERASE = "xzarr3.open_store(STORE, mode='r+').erase(KEY)"
_AGAIN = f"write the chunk again from its source, or erase it to read the fill value there: {_ERASE}"
_RECOVER = "run xzarr3 recover STORE"
_CONSOLIDATE = "run xzarr3 consolidate STORE PATH"

CODES: dict[str, Kind] = {
    # Documents
    "document-invalid": Kind(
        "error",
        "restore the document from a copy, or correct the field if what wrote it cannot read it either",
    ),
    "document-literals": Kind(
        "note",
        "set numbers or strings in place of NaN and infinity: xzarr3.open(STORE, PATH, mode='r+').attrs",
    ),
    "extension-unknown": Kind(
        "warning",
        "install what it needs, as with pip install 'xzarr3[codecs]', or read it with what wrote it; "
        "it was not checked further",
    ),
    "document-double": Kind("warning", f"remove the documents of the format that is not used: {_ERASE}"),
    "document-orphan": Kind("warning", f"restore the document of its node, or remove this one: {_ERASE}"),
    "node-lost": Kind("error", "run xzarr3.create_group(STORE, PATH) for the group above it"),
    "node-other-format": Kind(
        "warning", "run xzarr3 copy STORE TARGET --source-path PATH --format FORMAT, or open it by its path"
    ),
    "consolidated-invalid": Kind("error", _CONSOLIDATE),
    "consolidated-differs": Kind("error", _CONSOLIDATE),
    "consolidated-stale": Kind("error", _CONSOLIDATE),
    "consolidated-lacks": Kind("error", _CONSOLIDATE),
    "dimension-names-invalid": Kind("error", "give one name for each dimension"),
    # Keys
    "chunks-missing": Kind(
        "note", "nothing if they hold only the fill value; else write them again (missing='error' names them)"
    ),
    "chunk-empty": Kind("error", _AGAIN),
    "chunk-size": Kind("error", _AGAIN),
    "chunk-outside": Kind("warning", f"it would come back if the array grew: {_ERASE}"),
    "chunk-misnamed": Kind("warning", f"rename the key to that of a chunk, or erase it: {_ERASE}"),
    "chunks-orphan": Kind("warning", f"restore the document of the array, or erase the keys: {_ERASE}"),
    "key-temporary": Kind("warning", f"once its writer has ended: {_ERASE}, or remove the file"),
    "key-foreign": Kind("note", "nothing: xzarr3 neither reads nor erases it"),
    "keys-unlisted": Kind("note", "check the store where its keys can be listed"),
    # Shards
    "shard-small": Kind("error", _AGAIN),
    "shard-index": Kind("error", _AGAIN),
    "shard-bounds": Kind("error", _AGAIN),
    "shard-overlap": Kind("error", _AGAIN),
    "shard-gaps": Kind("note", "nothing, or write the shard again to use less space"),
    # Chunks
    "chunk-damaged": Kind("error", _AGAIN),
    "chunk-unreadable": Kind("error", "make the key readable, or read the error of the store"),
    "chunks-large": Kind("note", "read them where there is memory for one of them; they were not decoded"),
    # Coordinates
    "coordinate-nan": Kind("error", "write the coordinate again without NaN"),
    "coordinate-fill": Kind("error", "write the coordinate again, all of it"),
    # Writers
    "write-running": Kind("note", "wait until the writer has ended"),
    "write-unknown": Kind("warning", f"make sure that the writer has ended, then {_RECOVER[4:]}"),
    "write-resumable": Kind("warning", "repeat the same call with resume=True; it is removed after a day"),
    "write-unfinished": Kind("error", _RECOVER),
    "write-leftover": Kind("warning", _RECOVER),
}
"""Every code of a finding."""
_OF_MANY = frozenset(("chunks-missing", "chunks-orphan"))
"""Codes of which one finding is about many chunks."""


@dataclass(frozen=True)
class Finding:
    """One finding.

    Parameters
    ----------
    path : str
        Path of the node, empty for the root.
    key : str
        Key of the value or document; empty where none is to blame.
    code : str
        One of :data:`CODES`.
    meaning : str
        What was found.
    severity : {"error", "warning", "note"}
    remedy : str
        What to do about it.
    count : int
        How many such findings this one stands for; or how many chunks, where one finding is about many.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.array([1, 2, 3]).store
    >>> store.set("c/0", b"")
    >>> found = xzarr3.check(store).findings[0]
    >>> found.severity, found.code, found.key
    ('error', 'chunk-empty', 'c/0')
    """

    path: str
    key: str
    code: str
    meaning: str
    severity: Severity
    remedy: str
    count: int = 1


@dataclass(frozen=True)
class ArrayReport:
    """What a check saw of one array.

    Parameters
    ----------
    path : str
    zarr_format : {3, 2, "3-draft"}
    shape : tuple of int
    data_type : str
    units : int
        Number of stored units in the grid: shards, or chunks that are in no shard.
    stored : int or None
        How many of them exist; None if that cannot be listed.
    nbytes_stored : int or None
        Size in bytes of all stored units; None if the store does not tell sizes.
    read : int
        How many units were read and decoded.
    readable_by : mapping of str to str
        Libraries that read the array, with the oldest version that is known to; see
        :mod:`xzarr3.checks.readers`. It is empty where the documentation of a library names none.
    not_readable_by : mapping of str to str
        The other libraries, with the reason.

    Examples
    --------
    >>> import xzarr3
    >>> seen = xzarr3.check(xzarr3.array([1, 2, 3]).store).arrays[""]
    >>> seen.shape, seen.stored, seen.read
    ((3,), 1, 1)
    """

    path: str
    zarr_format: int | str
    shape: tuple[int, ...]
    data_type: str
    units: int
    stored: int | None
    nbytes_stored: int | None
    read: int
    readable_by: Mapping[str, str] = field(default_factory=dict)
    not_readable_by: Mapping[str, str] = field(default_factory=dict)


class Findings:
    """Collects findings; keeps the first hundred of a code and node, and counts the others."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[Finding]] = {}
        self._more: dict[tuple[str, str], int] = {}

    def add(
        self, code: str, path: str, key: str, meaning: str, *, count: int = 1, remedy: str = "",
        severity: Severity | None = None,
    ) -> None:  # fmt: skip
        """Add a finding; ``remedy`` and ``severity`` replace those of its kind."""
        kept = self._kept.setdefault((path, code), [])
        if len(kept) >= _KEPT:
            self._more[path, code] = self._more.get((path, code), 0) + count
            return
        kind = CODES[code]
        said = severity or kind.severity, remedy or kind.remedy
        kept.append(Finding(path, key, code, meaning, *said, count))

    def any(self, code: str, path: str) -> bool:
        """Whether there is a finding of this code at a node."""
        return (path, code) in self._kept

    def has(self, path: str, key: str) -> bool:
        """Whether an error or a warning about a key of a node is among the findings that are kept."""
        found = (each for (at, _), kept in self._kept.items() if at == path for each in kept)
        return any(each.key == key and each.severity != "note" for each in found)

    def all(self) -> tuple[Finding, ...]:
        """All findings, the worst first, then by path."""
        found = [each for kept in self._kept.values() for each in kept]
        for (path, code), number in self._more.items():
            last = self._kept[path, code][-1]
            found.append(replace(last, key="", meaning=f"{number} more of this kind", count=number))
        return tuple(sorted(found, key=lambda each: (SEVERITIES.index(each.severity), each.path)))


@dataclass(frozen=True, repr=False)
class CheckReport(Report):
    """What :func:`xzarr3.check` found.

    Parameters
    ----------
    store : str
        The store, as messages name it.
    path : str
        Path of the checked node.
    findings : tuple of Finding
        The worst first. At most a hundred of a code and node; one more counts the others.
    arrays : mapping of str to ArrayReport
        The arrays by path.
    decode : {"sample", "all", "none"}
        Which stored units were read and decoded.

    Examples
    --------
    >>> import xzarr3
    >>> store = xzarr3.MemoryStore()
    >>> array = xzarr3.create_array(store, data=[1, 2, 3], chunks=2)
    >>> store.set("c/1", b"")
    >>> report = xzarr3.check(store)
    >>> report.ok, [(finding.code, finding.key) for finding in report.findings]
    (False, [('chunk-empty', 'c/1')])
    """

    store: str
    path: str
    findings: tuple[Finding, ...]
    arrays: Mapping[str, ArrayReport]
    decode: str

    _also = ("ok",)

    @property
    def ok(self) -> bool:
        """Whether no error was found."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity ``error``."""
        return tuple(each for each in self.findings if each.severity == "error")

    def count(self, severity: Severity) -> int:
        """Number of findings of a severity."""
        found = (each for each in self.findings if each.severity == severity)
        return sum(1 if each.code in _OF_MANY else each.count for each in found)

    def _page(self) -> Page:
        arrays, found = self.arrays.values(), self.findings
        stored = [array.stored for array in arrays]
        of = "" if None in stored else f" of {sum(filter(None, stored)):,}"
        rows = [
            (f"/{each.path}", each.severity, each.code, f"{each.key}: {each.meaning}".removeprefix(": "))
            for each in found
        ]
        remedies = dict.fromkeys((each.code, each.remedy) for each in found)
        facts = [
            ("arrays", f"{len(arrays):,}"),
            ("decoded", f"{sum(array.read for array in arrays):,}{of} stored units"),
            ("found", ", ".join(counted(self.count(each), each) for each in SEVERITIES)),
        ]
        return Page(
            "xzarr3.check",
            f"check of '/{self.path}' in {self.store}",
            [*facts, *(("read by", text) for text in self._readers())],
            [
                Table([("node", "severity", "code", "finding"), *rows], 4, by_node=True, most=_SHOWN),
                Table([("what", "to do"), *remedies], 2, most=_REMEDIES),
            ],
        )

    def _readers(self) -> Iterator[str]:
        """How many of the arrays each library reads, from which version on, and which it does not."""
        arrays = self.arrays
        names = dict.fromkeys(
            name for each in arrays.values() for name in (*each.readable_by, *each.not_readable_by)
        )
        refused = {path: each.not_readable_by for path, each in arrays.items()}
        told = []
        for name in names:
            unread = {path: reasons[name] for path, reasons in refused.items() if name in reasons}
            since = newest(each.readable_by.get(name, "") for each in arrays.values())
            label = f"{name} {since}" if since or len(unread) == len(arrays) else f"{name} ({DOCUMENTED})"
            told.append((len(unread), f"{label.rstrip()}: {self._read(unread)}"))
        if told:
            yield ", ".join(text for _, text in sorted(told, key=lambda each: each[0]))

    def _read(self, unread: Mapping[str, str]) -> str:
        """How many arrays a library reads, and why not the others, of which it names a few."""
        total = len(self.arrays)
        if not unread or len(unread) == total:
            return "0" if unread else "all"
        texts = [f"{brief(path)}: {brief(reason)}" for path, reason in [*unread.items()][:_NAMED]]
        more = [f"and {len(unread) - _NAMED} more"] if len(unread) > _NAMED else []
        return printable(f"{total - len(unread)} of {total} (not {'; '.join([*texts, *more])})")
