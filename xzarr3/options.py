"""Options that hold for the whole process."""

from __future__ import annotations

from types import TracebackType

from xzarr3.errors import MetadataError

MAX_DOCUMENT_BYTES = 64 * 2**20
_values = {"max_document_bytes": MAX_DOCUMENT_BYTES}


def max_document_bytes() -> int:
    """Largest size in bytes of a metadata document that is read."""
    return _values["max_document_bytes"]


class set_options:  # noqa: N801 - used as a function
    """Set options of this process, permanently or within a ``with`` statement, like xarray's `set_options`.

    Parameters
    ----------
    max_document_bytes : int, optional
        Largest size in bytes of a metadata document; a larger one is refused with a
        :class:`~xzarr3.MetadataError`. 64 MiB by default. Consolidated metadata of a very large hierarchy may
        need more. Files, zip members and objects tell their size, and a larger document is not read at all.
        From other stores a larger document is read, but not decoded.

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
        """Do nothing: ``__init__`` has set the options."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _values.update(self._before)
