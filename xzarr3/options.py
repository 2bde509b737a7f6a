"""Options of the whole process."""

from __future__ import annotations

from types import TracebackType

from xzarr3.errors import MetadataError

MAX_DOCUMENT_BYTES = 64 * 2**20
_values = {"max_document_bytes": MAX_DOCUMENT_BYTES}


def max_document_bytes() -> int:
    """Size in bytes beyond which a metadata document is not read."""
    return _values["max_document_bytes"]


class set_options:  # noqa: N801 - used as a function
    """Set options of this process, for good or for a ``with`` statement, as xarray's function of this name.

    Parameters
    ----------
    max_document_bytes : int, optional
        Size in bytes beyond which a metadata document is refused with a :class:`~xzarr3.MetadataError`;
        64 MiB by default. Consolidated metadata of a very large hierarchy may need more. Files, members of
        zips and answers of object stores tell their size, and are not read then; what others give is not
        decoded.

    Examples
    --------
    >>> import xzarr3
    >>> with xzarr3.set_options(max_document_bytes=2**30):
    ...     group = xzarr3.create_group(xzarr3.MemoryStore())
    """

    def __init__(self, *, max_document_bytes: int | None = None) -> None:
        self._before = dict(_values)
        if max_document_bytes is None:
            return
        if type(max_document_bytes) is not int or max_document_bytes <= 0:
            raise MetadataError(
                "not a size", field="max_document_bytes", found=max_document_bytes,
                accepted="a positive number of bytes",
            )  # fmt: skip
        _values["max_document_bytes"] = max_document_bytes

    def __enter__(self) -> None:
        """The options are set already."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _values.update(self._before)
