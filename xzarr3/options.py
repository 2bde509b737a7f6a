"""Options that hold for the whole process: :class:`set_options` sets them, :data:`config` shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import EllipsisType, TracebackType
from typing import Any, Literal, TypeAlias, cast, get_args

from xzarr3.errors import ArgumentError, ArgumentTypeError, UnknownNameError, one_of
from xzarr3.quantities import byte_count, integer

Missing: TypeAlias = Literal["fill", "warn", "error"]
"""What a read does about absent chunks."""
_MISSING = get_args(Missing)

MAX_DOCUMENT_BYTES = 64 * 2**20
_DEFAULTS: dict[str, Any] = {
    "max_document_bytes": MAX_DOCUMENT_BYTES,
    "memory_limit": None,
    "missing": "fill",
    "threads": None,
}
_values = dict(_DEFAULTS)
_ELSEWHERE = {
    "array.order": "order=... of create_array()",
    "array.read_missing_chunks": "'missing'",
    "array.write_empty_chunks": "write_empty_chunks=... of create_array()",
    "async.concurrency": "concurrency=... of a store",
    "default_zarr_format": "zarr_format=... of create_array() and create_group()",
    "threading.max_workers": "'threads'",
}
"""Options of zarr-python, and what has their meaning here."""


def max_document_bytes() -> int:
    """Largest size in bytes of a metadata document that is read."""
    return cast("int", _values["max_document_bytes"])


def memory_limit() -> int | None:
    """Bytes that the blocks of a write by dask may take; None if this option is not set."""
    return cast("int | None", _values["memory_limit"])


def memory_for_values() -> int:
    """Bytes of values that a copy, a check or a diff holds: the option ``memory_limit``, else 512 MiB."""
    return memory_limit() or 2**29


def most_threads() -> int | None:
    """Most threads of a read, write or copy that is not told a number; None if this option is not set."""
    return cast("int | None", _values["threads"])


def check_missing(missing: str | None) -> Missing:
    """Return ``missing`` if its value is accepted; the option ``missing`` if it is None.

    Raises
    ------
    ValueError
        If the value is not accepted.

    Examples
    --------
    >>> check_missing("warn"), check_missing(None)
    ('warn', 'fill')
    """
    if missing is None:
        missing = _values["missing"]
    if missing not in _MISSING:
        raise ArgumentError(f"missing={missing!r}; {one_of(missing, _MISSING)}")
    return cast("Missing", missing)


class set_options:  # noqa: N801 - used as a function
    """Set options of this process, permanently or within a ``with`` statement, like xarray's `set_options`.

    :data:`xzarr3.config` has the options as a mapping. Other processes, such as the workers of a cluster,
    have options of their own.

    Parameters
    ----------
    threads : int, optional
        The most threads that a read, write or copy uses where it is not told ``threads=...``; None, the
        default, for all cores, or over a store with latency as many as its ``concurrency``.
    memory_limit : int or str, optional
        Bytes that the blocks of :func:`xzarr3.store` and :func:`xzarr3.to_zarr` may take in memory before a
        :class:`LargeWriteWarning` tells of it, as a number or as ``"4 GiB"``. None, the default, for
        half of the memory of this machine or of all workers. Also the bytes of values that
        :func:`xzarr3.copy`, :func:`xzarr3.check` and :func:`xzarr3.diff` hold, but at least what one chunk
        takes; by default 512 MiB.
    missing : {"fill", "warn", "error"}, optional
        What reads do about absent chunks of arrays that are opened without ``missing=...``; see
        :func:`xzarr3.open`. ``"fill"`` by default.
    max_document_bytes : int, optional
        Largest size in bytes of a metadata document; a larger one is refused with a
        :class:`~xzarr3.MetadataError`. 64 MiB by default. Consolidated metadata of a very large hierarchy may
        need more. Files, zip members and objects tell their size, and a larger document is not read at all.
        From other stores a larger document is read, but not decoded.

    Raises
    ------
    KeyError
        If there is no such option.
    ValueError
        If a value is not accepted. Then no option is set.

    Examples
    --------
    >>> import xzarr3
    >>> with xzarr3.set_options(max_document_bytes=2**30, threads=2):
    ...     group = xzarr3.create_group(xzarr3.MemoryStore())
    """

    def __init__(
        self,
        *,
        max_document_bytes: int | None = None,
        memory_limit: int | str | EllipsisType | None = ...,
        missing: Missing | EllipsisType = ...,
        threads: int | EllipsisType | None = ...,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise _unknown(name)
        self._before = dict(_values)
        given: dict[str, Any] = {}
        if max_document_bytes is not None:
            given["max_document_bytes"] = integer("max_document_bytes", max_document_bytes)
        if memory_limit is not ...:
            given["memory_limit"] = None if memory_limit is None else byte_count(memory_limit, "memory_limit")
        if missing is not ...:
            given["missing"] = check_missing(missing)
        if threads is not ...:
            given["threads"] = None if threads is None else integer("threads", threads)
        _values.update(given)

    def __enter__(self) -> None:
        """Do nothing: ``__init__`` has set the options."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _values.update(self._before)


class Config(Mapping[str, Any]):
    """The options of this process, by name; :class:`set_options` describes them.

    Examples
    --------
    >>> import xzarr3
    >>> with xzarr3.config.set(threads=2, missing="error"):
    ...     xzarr3.config["threads"], xzarr3.config.get("missing")
    (2, 'error')
    >>> xzarr3.config
    <xzarr3.config max_document_bytes=67108864, memory_limit=None, missing='fill', threads=None>
    """

    def __getitem__(self, name: str) -> Any:
        if name not in _values:
            raise _unknown(name)
        return _values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_values)

    def __len__(self) -> int:
        return len(_values)

    def __repr__(self) -> str:
        return f"<xzarr3.config {', '.join(f'{name}={value!r}' for name, value in _values.items())}>"

    def set(self, values: Mapping[str, Any] | None = None, **named: Any) -> set_options:
        """Set options, permanently or within a ``with`` statement.

        Parameters
        ----------
        values : mapping, optional
            Options by name, as in zarr-python's ``config.set({...})``.
        **named
            The same as keyword arguments.

        Raises
        ------
        KeyError
            If there is no such option.
        ValueError
            If a value is not accepted. Then no option is set.

        Examples
        --------
        >>> import xzarr3
        >>> with xzarr3.config.set({"threads": 2}):
        ...     xzarr3.config["threads"]
        2
        """
        if not isinstance(values, (Mapping, type(None))):
            raise ArgumentTypeError(f"no options: {values!r}; accepted: a mapping of names to values")
        return set_options(**{**(values or {}), **named})

    def reset(self) -> None:
        """Set all options to their defaults.

        Examples
        --------
        >>> import xzarr3
        >>> _ = xzarr3.config.set(threads=2)
        >>> xzarr3.config.reset()
        >>> xzarr3.config["threads"] is None
        True
        """
        _values.update(_DEFAULTS)


def _unknown(name: object) -> UnknownNameError:
    elsewhere = _ELSEWHERE.get(name) if isinstance(name, str) else None
    hint = one_of(name, _DEFAULTS) if elsewhere is None else f"here that is {elsewhere}"
    return UnknownNameError(f"no option {name!r}; {hint}")


config = Config()
"""The options of this process."""
