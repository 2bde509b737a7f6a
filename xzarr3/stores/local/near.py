"""Says what was probably meant by a local path that does not exist."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import islice

from xzarr3.names import nearest, some

_MOST_ENTRIES = 1000  # Entries of a directory that are read to propose a name.
_SLIP = re.compile(
    r"(s3a?|gs|gcs|az|abfss?|https?|ftp|sftp|hdfs|memory|file)(?::/?|//)(?![/:])(.*)", re.IGNORECASE
)


def meant_url(location: str) -> str | None:
    """The URL that a path was probably meant for, if it only lacks a slash or a colon.

    Examples
    --------
    >>> meant_url("s3:/bucket/era5.zarr")
    's3://bucket/era5.zarr'
    """
    slip = _SLIP.match(location)
    return slip and f"{slip[1]}://{'/' if slip[1].lower() == 'file' else ''}{slip[2]}"


def missing_part(path: str) -> str:
    """Where an absolute path leaves the directories that exist, and the nearest name there."""
    above, missing = os.path.split(path)
    while not os.path.isdir(above) and os.path.dirname(above) != above:
        above, missing = os.path.split(above)
    rest = os.path.relpath(path, above)
    if "*" in rest or "?" in rest:
        return f"{rest!r} is a pattern, not a path; open all that match with xzarr3.open_mfdataset(...)"
    names: list[str] = []
    with suppress(OSError), os.scandir(above) as entries:  # A directory that may not be read has no names.
        names = sorted(entry.name for entry in islice(entries, _MOST_ENTRIES))
    shown = [name for name in names if not name.startswith(".")]
    has = f"{_question(missing, shown)}it has: {some(shown, missing)}" if shown else "it is empty"
    return f"there is no {missing!r} in {above!r}; {has}"


def _question(missing: str, names: list[str]) -> str:
    """The question that proposes a name; endings, which most stores share, make no name near."""
    stems = {os.path.splitext(name)[0]: name for name in names}
    stem = os.path.splitext(missing)[0]
    near = [stem] if stem in stems else nearest(stem, [*stems])
    return f"did you mean {stems[near[0]]!r}? " if near else ""
