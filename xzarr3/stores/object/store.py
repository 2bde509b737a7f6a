"""A store in an object storage service or on a web server (S3, Google, Azure, HTTP), accessed with obstore.

A key is the name of an object behind a prefix. The calling threads make the requests, with a limit on
concurrent ones, and repeat them where that may help. A failed read raises an error and never counts as
absence.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Final, Self, TypeAlias

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConflictError,
    InvalidKeyError,
    OutcomeUnknownError,
    ReadOnlyError,
    StoreCapabilityError,
    StoreError,
    StoreOptionError,
    StorePermissionError,
    contended,
    printable,
    shorten,
)
from xzarr3.parallel import parallel_map
from xzarr3.stores.base import ABSENT, KeySet, Store, check_key
from xzarr3.stores.locks import key_lock
from xzarr3.stores.object import client as object_client
from xzarr3.stores.object.client import Answer, Client, client_of
from xzarr3.stores.object.errors import Failure
from xzarr3.stores.object.options import Recipe, folder_above, of_ready, parse
from xzarr3.stores.object.reader import ObjectReader, ObjectsReader, ObjectsWriter, changed, is_version
from xzarr3.stores.object.retries import Pace
from xzarr3.stores.readers import Reader, Scratch, Writer, steady
from xzarr3.stores.sharing import reduced

Names: TypeAlias = list[str]
Sizes: TypeAlias = list[tuple[str, int]]

_CONCURRENCY: Final = 64
_RETRIES: Final = 10
_DEADLINE: Final = 12.0
_TIMEOUT: Final = 7.0
_FAR = 2**62  # Bytes; no value is that large, and services accept no much larger numbers.
_BULK = 1000  # Keys erased by one request.
_LARGE = 2**26  # Bytes; larger values are uploaded in parts.
_SENT_PART = 2**24
_SENT_AT_ONCE = 4
_LONGEST_TURN = 1.0  # Seconds between attempts while others change the same key.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WRONG_TAG = '"00000000000000000000000000000000"'
_IGNORED = Failure("the service ignores conditions")
_PASSING_STATE = frozenset({"_client", "_identity", "_tags"})
_MOST_TAGS = 2**14
_SERVICES = frozenset({"s3", "gs", "az"})
_OF_THE_WEB = frozenset({"get", "exists", "reader", "get_versioned", "tag"})  # What web servers support.
_LENIENT = frozenset({"s3", "gs"})  # obstore may take a page as the end of a list.
_ROUND = 100  # Page lengths are multiples of this number.
_LISTS = 20  # Most attempts to confirm the end of a list.
_WHOLE_LISTS = 6


class ObjectStore(Store):
    """Values are objects of S3, Google Cloud Storage or Azure, or files on a web server.

    The store needs the package obstore (``pip install 'xzarr3[object]'``). It is neither imported nor used
    before the first request.

    Accepted URLs: ``s3://``, ``gs://`` and ``az://`` (also ``s3a``, ``gcs``, ``abfs``, ``abfss``) with a
    bucket or container and a path, which is taken literally, ``%`` and ``#`` included;
    ``abfs://container@account.dfs.core.windows.net/path``; ``http://`` and ``https://``. An ``https://`` URL
    of S3 or Azure counts as a web server too. A web server is read only and cannot be listed. If it shows
    folders as HTML pages, as the servers of Python, nginx, Apache and lighttpd can, :meth:`list_dir` reads
    these pages, so that the nodes in a group are found. Otherwise a group needs consolidated metadata.

    Where the options name no endpoint, region or account, the environment does (``AWS_ENDPOINT_URL``,
    ``AWS_REGION``, ``AZURE_STORAGE_ACCOUNT_NAME`` and similar variables). It is read when the store is made,
    also for later unpickled copies.

    Credentials come from `storage_options`, or else from the environment as obstore reads it (``AWS_...``,
    ``GOOGLE_...``, ``AZURE_...``). boto3, if installed, reads an AWS profile or credentials file. The pickled
    form of the store contains credentials, because other processes need them. Nothing else shows them.

    A missing object is an absent key. Every other failure is retried where that may help, and then raised: an
    answer shorter than promised or of another range, an HTML page, a missing bucket, refused access.

    The service performs :meth:`compare_and_set`. The store checks once that the service honours conditions.
    An object cannot be erased on condition.

    A process forked after obstore was loaded cannot use obstore, whose threads do not exist in the child; a
    request there raises an error. Processes started by ``spawn`` or ``forkserver`` work.

    Parameters
    ----------
    store : str or store of obstore
        A URL, or a ready store, whose own retry settings are replaced by those given here.
    storage_options : dict, optional
        In the terms of fsspec: ``anon``, ``key``, ``secret``, ``token``, ``endpoint_url``, ``client_kwargs``,
        ``region``, ``profile``, ``account_name``, ``account_key``, ``sas_token``, ``connection_string``,
        ``headers``. In the terms of obstore: everything its store accepts. The arguments below are accepted
        here as well. Options that obstore does not know raise an error at the first request. ``headers`` are
        sent with every request to a web server, but not to another server that it redirects to. With headers
        other than ``Authorization``, ``Cookie`` and harmless ones, each request opens its own connection.
    read_only : bool
        Refuse every write.
    concurrency : int, default 64
        Most requests in flight at once. See also :mod:`xzarr3.stores.in_flight`.
    retries : int, default 10
        How often obstore repeats a request. Pauses grow from 0.1 to 15 seconds, or to a quarter of
        `deadline` if that is less. The server's ``Retry-After`` is not available.
    deadline : float, default 12
        Seconds after which a request is not repeated, so that a lasting fault is reported within 20 seconds.
        Increase it for a service that may be down for longer. If one of several concurrent requests fails,
        the others are waited for as long.
    timeout : float, default 7
        Seconds without a byte of the answer after which one attempt fails; an answer that keeps arriving may
        take any time. For an attempt that sends more than 1 MiB the limit is `deadline`, or 180 seconds if
        that is longer. Increase it for a server that is slow to begin its answers.
    absent_status : tuple of int, default (404,)
        HTTP statuses that mean an absent key; ``(404, 403)`` for buckets that answer 403 instead.
    request_bytes : int, default 2**20
        About how many bytes arrive in the time that one more request takes. Byte ranges of a value whose gap
        is smaller are coalesced.
    over_read : float, default 2
        The most bytes read, gaps included, as a multiple of the wanted bytes; applies above 1 MiB. With 1 no
        unwanted byte is read, however many requests that takes, for users who pay per byte. See
        :attr:`Store.over_read`.
    conditional : {"service", "process"}, default "service"
        Where versions are compared before a value is replaced. ``"process"`` is for services without
        conditions; changes by other processes may then be lost.

    Raises
    ------
    StoreError
        If the URL or an option cannot be used. A missing obstore is reported by the first request only.
    ValueError
        If an argument has an invalid value.
    TypeError
        If `store` is neither a URL nor a store of obstore, or options are given with a ready store.

    Examples
    --------
    >>> store = ObjectStore("s3://noaa-goes16/a", storage_options={"anon": True, "region": "us-east-1"})
    >>> store
    <ObjectStore 's3://noaa-goes16/a'>
    >>> store.listable, store.concurrency
    (True, 64)
    >>> ObjectStore("https://example.org/era5.zarr").writeable
    False
    """

    request_bytes = 2**20
    concurrency = _CONCURRENCY
    erases_conditionally = False
    _tells = False  # Its client reports the requests.

    def __init__(
        self,
        store: Any,
        *,
        storage_options: Mapping[str, Any] | None = None,
        read_only: bool = False,
        concurrency: int | None = None,
        retries: int | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
        absent_status: Sequence[int] | None = None,
        request_bytes: int | None = None,
        over_read: float | None = None,
        conditional: str | None = None,
    ) -> None:
        super().__init__(read_only=read_only)
        asked: dict[str, Any] = {
            "concurrency": concurrency,
            "retries": retries,
            "deadline": deadline,
            "timeout": timeout,
            "absent_status": absent_status,
            "request_bytes": request_bytes,
            "over_read": over_read,
            "conditional": conditional,
        }
        self._ready: Any = None
        if isinstance(store, (str, os.PathLike)):
            place = parse(os.fspath(store), storage_options)
            self._recipe, self._prefix = place.recipe, place.prefix
            asked = {**place.settings, **{name: value for name, value in asked.items() if value is not None}}
        else:
            self._take(store, storage_options)
        given = {name: _setting(name, value) for name, value in asked.items() if value is not None}
        self.read_only = read_only or given.get("read_only", False)
        self.concurrency = given.get("concurrency", _CONCURRENCY)
        self.request_bytes = given.get("request_bytes", ObjectStore.request_bytes)
        self.over_read = given.get("over_read", ObjectStore.over_read)
        self._retries = given.get("retries", _RETRIES)
        self._deadline = given.get("deadline", _DEADLINE)
        self._timeout = min(given.get("timeout", _TIMEOUT), self._deadline)
        self._absent_status = given.get("absent_status", (404,))
        self._conditional = given.get("conditional", "service")
        self.erases_conditionally = self._conditional == "process"
        self._client: Client | None = None
        self._tags: dict[str, str] = {}

    def _take(self, store: Any, storage_options: Mapping[str, Any] | None) -> None:
        """Use a ready store."""
        if storage_options:
            raise StoreOptionError(
                "storage_options with a ready store; accepted: options with a URL, or the store alone"
            )
        if not any(cls.__module__.partition(".")[0] == "obstore" for cls in type(store).__mro__):
            raise ArgumentTypeError(
                f"not a store: {type(store).__name__}; accepted: a URL or a store of obstore"
            )
        found = of_ready(store)
        if found is not None:
            self._recipe, self._prefix = found
            return
        name = type(store).__name__
        self._recipe = Recipe("", name, {}, f"obstore.{name} {self._identity[:8]}")
        self._prefix = ""
        self._ready = store

    @classmethod
    def from_url(cls, url: str, *, storage_options: Mapping[str, Any] | None = None, **settings: Any) -> Self:
        """The store at a URL; see the class for the accepted URLs and options.

        Examples
        --------
        >>> ObjectStore.from_url("gs://gcp-public-data-arco-era5/ar", storage_options={"token": "anon"})
        <ObjectStore 'gs://gcp-public-data-arco-era5/ar'>
        """
        return cls(url, storage_options=storage_options, **settings)

    def __repr__(self) -> str:
        where, at, host = self._recipe.address.partition(" ")
        path = f"{where}/{self._prefix[:-1]}" if self._prefix else where
        return printable(f"<{type(self).__name__} '{path}'{at}{host}>")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._same() == self._same()

    def __hash__(self) -> int:
        return hash((self._recipe.address, self._prefix))

    def _same(self) -> object:
        return self.__getstate__() | {"_ready": id(self._ready)}

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self, ObjectStore, Recipe)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _PASSING_STATE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._client = None
        self._tags = {}
        self.__dict__.update(state)

    @property
    def identity(self) -> object:
        return "ObjectStore", self._recipe.address, self._prefix

    @property
    def above(self) -> tuple[Store, str] | None:
        found = folder_above(self._recipe, self._prefix)
        if found is None:
            return None
        recipe, prefix, name = found
        store = object.__new__(ObjectStore)
        store.__setstate__(self.__getstate__() | {"_recipe": recipe, "_prefix": prefix, "read_only": True})
        return store, name

    # Capabilities

    @property
    def _is_web(self) -> bool:
        return self._recipe.kind == "http"

    def _has(self, *operations: str) -> bool:
        return super()._has(*(_OF_THE_WEB.intersection(operations) if self._is_web else operations))

    @property
    def writes_conditionally(self) -> bool:  # type: ignore[override]
        """Whether the service compares versions."""
        return self._conditional == "service" and self._has("compare_and_set")

    @property
    def survives_crashes(self) -> bool:  # type: ignore[override]
        """Whether a service keeps the values; obstore's stores in memory and of local files promise less."""
        return self._recipe.kind in _SERVICES

    def _check_writable(self) -> None:
        super()._check_writable()
        if self._is_web:
            raise ReadOnlyError(
                f"{self} cannot be written, because it is a web server; use s3://, gs:// or az://"
            )

    @property
    def browsable(self) -> bool:  # type: ignore[override]
        """Whether this is a web server, which may show its folders."""
        return self._is_web

    def _check_listable(self, operation: str) -> None:
        if self._is_web and operation != "list_dir":
            raise StoreCapabilityError(
                f"{self} cannot be listed, because it is a web server; use consolidated metadata, or keys "
                "by name"
            )

    # Requests

    def _use(self) -> Client:
        if self._client is None:
            bounds = self.concurrency, self._retries, self._timeout, self._deadline
            if self._ready is None:
                self._client = client_of(self._recipe, *bounds)
            else:
                self._client = Client(self._recipe, *bounds, ready=self._ready)
        return self._client

    def _path(self, key: str) -> str:
        return self._checked(self._prefix + check_key(key), key)

    def _checked(self, path: str, key: str) -> str:
        """Refuse names that obstore or the service would alter or reject."""
        if _CONTROL.search(path):
            raise InvalidKeyError(f"invalid key {shorten(key)} for {self}; accepted: no control characters")
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InvalidKeyError(
                f"invalid key {shorten(key)} for {self}; accepted: text in Unicode"
            ) from error
        if self._recipe.kind == "az" and ("\\" in path or "./" in path or path.endswith(".")):
            raise InvalidKeyError(
                f"invalid key {shorten(key)} for {self}; accepted: no '\\' and no name that ends with '.', "
                "which Azure changes"
            )
        return path

    def _error(self, doing: str, key: str, failure: Failure) -> StoreError:
        what = f"key '{key}'" if key and doing != "list" else f"keys below '{key}'" if key else "keys"
        text = f"cannot {doing} {what} of {self}: {failure.text}"
        if failure.attempts > 1:
            text += f", in {failure.attempts} attempts"
        kind: type[StoreError] = StoreError
        if failure.status in (401, 403) or failure.bad_credentials or failure.sort == "credentials":
            kind = StorePermissionError
            text += f"; pass credentials in storage_options that may {doing} it, "
            text += "as headers={'Authorization': ...}" if self._is_web else "or anon=True for public data"
            if failure.status == 403 and doing == "read":
                text += ", or absent_status=(404, 403) if it answers so for absent keys"
        elif failure.no_place:
            text += "; create the bucket or container, or correct the URL"
        elif doing == "erase" and self._recipe.kind == "s3" and failure.status in (400, 405, 501):
            text += "; pass disable_bulk_delete=True in storage_options if it erases one key at a time only"
        elif failure.status == 501 or failure.sort == "unsupported":
            kind = StoreCapabilityError
            text += "; use a service that can do this"
        elif failure.status in (301, 307) or "AuthorizationHeaderMalformed" in failure.code:
            text += "; pass the region of the bucket, region='...', in storage_options"
        elif failure.sort == "whole":
            text += "; use a server that sends parts of values"
        elif failure.unreachable:
            text += "; correct the address, or start the server"
        elif failure.passing:
            text += f"; raise retries (now {self._retries}) or deadline (now {self._deadline:g} s), or lower "
            text += f"concurrency (now {self.concurrency})"
        return kind(text)

    def _names_absence(self, failure: Failure) -> bool:
        """Whether a status means that the key is absent."""
        about_key = not (failure.no_place or failure.bad_credentials or failure.sort)
        return about_key and failure.status in self._absent_status

    def _is_absent(self, key: str, path: str, failure: Failure) -> bool:
        """Whether a failed read means that the key is absent; otherwise raises the error."""
        if not self._names_absence(failure):
            raise self._error("read", key, failure)
        client = self._use()
        if failure.status == 404 and not client.place_is_known:
            # An answer to HEAD does not tell a missing key from a missing bucket.
            asked = None if failure.names_key else client.read(path, {"range": (0, 1)})
            if isinstance(asked, Failure) and not (asked.beyond or self._names_absence(asked)):
                raise self._error("read", key, asked)
            client.place_is_known = True
        return True

    def _ask(
        self, key: str, path: str, options: dict[str, Any] | None, limit: int | None = None
    ) -> Answer | Failure | None:
        """A value or part of it; None if the key is absent, a Failure if the part cannot be had."""
        found = self._use().read(path, options, limit)
        if isinstance(found, Failure):
            if (
                found.beyond
                or found.sort == "whole"
                or (found.status == 412 and options and "if_match" in options)
            ):
                return found
            return None if self._is_absent(key, path, found) else found
        self._use().place_is_known = True
        return found

    def _head(self, key: str, path: str) -> Answer | None:
        return self._whole(key, path, options={"head": True})

    def _whole(
        self, key: str, path: str, limit: int | None = None, options: dict[str, Any] | None = None
    ) -> Answer | None:
        found = self._ask(key, path, options, limit)
        if isinstance(found, Failure):
            raise self._error("read", key, found)
        return found

    def _open(self, key: str, path: str, start: int, length: int | None) -> ObjectReader | None:
        """A reader that already holds a part, if one request can fetch it."""
        options = self._range(start, length)
        if options is None:
            answer = self._head(key, path)
            return None if answer is None else ObjectReader(self, key, path, answer)
        found = self._ask(key, path, options or None)
        if isinstance(found, Failure):
            answer = self._head(key, path)
            if answer is not None and answer.size and found.sort == "whole":
                raise self._error("read", key, found)
            return None if answer is None else ObjectReader(self, key, path, answer)
        return None if found is None else ObjectReader(self, key, path, found)

    def _range(self, start: int, length: int | None) -> dict[str, Any] | None:
        """The obstore options that request a part; None if the size must be known first."""
        if length == 0 or not -_FAR < start < _FAR:
            return None
        if start >= 0:
            if length is None:
                return {"range": {"offset": start}} if start else {}
            return {"range": (start, min(start + length, _FAR))}
        if self._recipe.kind == "az" or (length is not None and -start - length > self.request_bytes):
            return None
        return {"range": {"suffix": -start}}

    # Readable

    def _get(self, key: str, byte_range: ByteRange | None) -> Buffer | None:
        path = self._path(key)
        if byte_range is None or byte_range == (0, None):
            answer = self._whole(key, path)
            self._note_tag(key, answer)
            return None if answer is None else answer.body
        start, length = byte_range

        def read() -> Buffer | None:
            reader = self._open(key, path, start, length)
            return None if reader is None else reader.read(start, length)

        return steady(read)

    def _exists(self, key: str) -> bool:
        return self._head(key, self._path(key)) is not None

    def _reader(self, scratch: Scratch | None, limit: int) -> Reader:
        return ObjectsReader(self, scratch, limit)

    def _parts(
        self, key: str, path: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> tuple[int | None, list[Buffer]] | None:
        """Several parts of a single version of a value."""
        wanted = list(zip(starts, lengths, strict=True))
        if not wanted:
            answer = self._head(key, path)
            return None if answer is None else (answer.size, [])
        readers = parallel_map(lambda part: self._open(key, path, *part), wanted, self.concurrency)
        first = readers[0]
        for reader in readers:
            if (first is None) is not (reader is None) or (first and reader and reader.mark != first.mark):
                raise changed(self, key)
        if first is None:
            return None
        parts = [
            reader.read(*part) for reader, part in zip(readers, wanted, strict=True) if reader is not None
        ]
        return first.size, parts

    def tag(self, key: str) -> str | None:
        return self._tags.get(key)

    def _note_tag(self, key: str, answer: Answer | None) -> None:
        if len(self._tags) >= _MOST_TAGS:
            self._tags = {}
        if answer is None:
            self._tags.pop(key, None)
        else:
            self._tags[key] = repr(answer.mark)

    # Changes that keep concurrent changes

    def _get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        return self._versioned(key, None)

    def _versioned(self, key: str, limit: int | None) -> tuple[Buffer | None, object]:
        if self._conditional != "service":
            return super()._get_versioned(key)
        answer = self._whole(key, self._path(key), limit)
        self._note_tag(key, answer)
        return (None, ABSENT) if answer is None else (answer.body, answer.version)

    def _compare_and_set(self, key: str, version: object, value: bytes | None) -> bool:
        if self._conditional != "service":
            return super()._compare_and_set(key, version, value)
        path = self._path(key)
        if value is None:
            raise StoreCapabilityError(
                f"{self} cannot erase key '{key}' on condition; replace its value, or erase it without a "
                "condition"
            )
        content = memoryview(value)
        mode: object = "create"
        if version != ABSENT:
            tag, generation, _ = version if is_version(version) else (None, None, 0)
            mode = {
                name: known for name, known in (("e_tag", tag), ("version", generation)) if known is not None
            }
            if not mode or (tag is not None and tag.startswith("W/")):
                raise StoreCapabilityError(
                    f"{self} does not distinguish versions of key '{key}'; use a service with e-tags, "
                    "or conditional='process', which compares within one process only"
                )
        with key_lock(self.identity, key):
            return self._put_if(key, path, mode, version, content)

    def _put_if(self, key: str, path: str, mode: object, version: object, content: memoryview) -> bool:
        client = self._use()
        kind = "create" if mode == "create" else "update"
        if kind in client.ignored:
            raise self._unconditional(key, _IGNORED)
        pace = Pace(self._retries, self._deadline)
        turns = Pace(sys.maxsize, self.conflict_deadline, _LONGEST_TURN)
        in_doubt = False
        while True:
            # obstore would repeat it after an error 5xx, and mistake its own write for another writer's.
            found = client.once(_put(path, content, mode), "put", size=content.nbytes)
            if not isinstance(found, Failure):
                self._confirm(key, path, kind, content)
                return True
            in_doubt |= found.ambiguous
            if found.refused or (kind == "update" and found.status == 404 and not found.no_place):
                if found.status == 412:
                    client.confirmed.add(kind)
                # The condition may have failed because of an earlier attempt whose answer was lost.
                return in_doubt and self._is_ours(key, self._look(key)[0], content)
            if found.status == 501 or found.sort == "unsupported":
                raise self._unconditional(key, found)
            if in_doubt or found.busy:
                stored, now = self._look(key) if in_doubt else self.get_versioned(key)
                if now != version:
                    return in_doubt and self._is_ours(key, stored, content)
            if found.busy and not turns.again(replace(found, passing=True)):
                raise self._too_busy(key, replace(found, attempts=turns.attempts))
            if not found.busy and not pace.again(found):
                raise self._error("write", key, replace(found, attempts=pace.attempts))

    def _look(self, key: str) -> tuple[Buffer | None, object]:
        """Read the present value to find out whether a put succeeded."""
        try:
            return self.get_versioned(key)
        except StoreError as error:
            raise OutcomeUnknownError(
                f"no answer came to an attempt to replace key '{key}' of {self}, and it cannot be read to "
                f"see whether it was replaced: {error}"
            ) from error

    def _too_busy(self, key: str, failure: Failure) -> ConflictError:
        return contended(
            key,
            self,
            f"other writers keep replacing it, {failure.text}, in {failure.attempts} attempts "
            f"within {self.conflict_deadline:g} s",
        )

    def _is_ours(self, key: str, stored: Buffer | None, content: memoryview) -> bool:
        """Whether a put without an answer succeeded; raises if another value is stored by now."""
        if stored is not None and memoryview(stored) == content:
            return True
        raise OutcomeUnknownError(
            f"no answer came to an attempt to replace key '{key}' of {self}, which has a value of another "
            "writer now: it may have been replaced or not; read it again to find out"
        )

    def _confirm(self, key: str, path: str, kind: str, content: memoryview) -> None:
        """Check that the service honours a kind of condition, before relying on it for the first time.

        The same bytes are put again under a condition that does not hold. If that gets no answer, the value
        is stored nevertheless, and the next change checks again.
        """
        client = self._use()
        if kind in client.confirmed:
            return
        with client.confirming:
            if kind in client.confirmed:
                return
            mode: object = "create" if kind == "create" else {"e_tag": _WRONG_TAG, "version": "1"}
            found = client.request(_put(path, content, mode), "put", size=content.nbytes)
            if not isinstance(found, Failure):
                client.ignored.add(kind)
                raise self._unconditional(key, _IGNORED)
            if found.status == 501 or found.sort == "unsupported":
                raise self._unconditional(key, found)
            if found.refused or (kind == "update" and found.status == 404):
                client.confirmed.add(kind)

    def _unconditional(self, key: str, failure: Failure) -> StoreCapabilityError:
        return StoreCapabilityError(
            f"cannot replace key '{key}' of {self} on condition: {failure.text}; use a service with "
            "conditional puts, or conditional='process', which compares within one process only"
        )

    def _writer(self, scratch: Scratch | None, limit: int) -> Writer:
        self._use()
        return ObjectsWriter(self, scratch, limit)

    # Writeable

    def _set(self, key: str, value: bytes) -> None:
        path = self._path(key)
        content = memoryview(value)
        found = self._use().request(_put(path, content, None), "put", size=content.nbytes)
        if isinstance(found, Failure):
            raise self._error("write", key, found)

    def _copy_values(self, pairs: Sequence[tuple[str, str]]) -> None:
        plainly = super()._copy_values

        def copy(pair: tuple[str, str]) -> None:
            source, target = map(self._path, pair)
            found = self._use().request(
                lambda obstore, store: obstore.copy(store, source, target), "put", sends=True
            )
            if isinstance(found, Failure):  # The service may not support copies.
                plainly([pair])

        parallel_map(copy, pairs, self.concurrency)

    def _erase(self, key: str) -> None:
        path = self._path(key)
        found = self._use().request(lambda obstore, store: obstore.delete(store, path), "delete")
        if isinstance(found, Failure):
            self._settle(key, found)

    def _settle(self, key: str, failure: Failure) -> None:
        """Ignore a failure to erase a key that is absent; raise any other."""
        config = self._recipe.arguments.get("config", {})
        # A bulk delete is sent to the bucket, so a 404 there does not mean an absent key.
        listed = self._recipe.kind == "s3" and not config.get("disable_bulk_delete")
        if failure.status != 404 or failure.no_place or failure.sort or (listed and not failure.names_key):
            raise self._error("erase", key, failure)

    def _erase_values(self, keys: Sequence[str]) -> None:
        wanted = {key: self._path(key) for key in keys}
        if self._recipe.kind != "s3" or len(wanted) < 2:
            parallel_map(self.erase, wanted, self.concurrency)
            return
        paths = list(wanted.values())

        def erase(at: int) -> None:
            some = paths[at : at + _BULK]
            found = self._use().request(lambda obstore, store: obstore.delete(store, some), "delete")
            if isinstance(found, Failure):
                self._settle("", found)

        parallel_map(erase, range(0, len(paths), _BULK), self.concurrency)

    # Listable

    def _list(self, prefix: str) -> Iterator[str]:
        return (key for key, _ in self._sizes(prefix))

    def _list_sizes(self, prefix: str) -> Iterator[tuple[str, int | None]]:
        return self._sizes(prefix)

    def _sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        within = self._prefix + prefix
        self._checked(within[:-1], prefix)
        return self._listed(within, prefix)

    def _listed(self, within: str, prefix: str) -> Iterator[tuple[str, int]]:
        cut = len(self._prefix)
        for page in self._pages(within, prefix):
            self._use().place_is_known = True
            sizes = dict(page)
            for path in self._objects(within, sizes):
                yield path[cut:], sizes[path]

    def _pages(self, within: str, prefix: str) -> Iterator[Sizes]:
        """Pages of the objects whose names begin with ``within``, and their sizes.

        On S3 and Google, obstore takes an HTML login page for the end of a list. Full pages have a multiple
        of `_ROUND` names. A list of such a length, or an empty one, is therefore asked for again behind its
        last but one name. It has ended once the last name comes again with nothing new behind it.
        """
        ordered = self._recipe.kind in _LENIENT and not self._recipe.arguments["config"].get("s3_express")
        last: deque[str] = deque(maxlen=2)
        number = 0
        for checks in range(_LISTS + 1):
            seen = grew = False
            for page in self._stream(within, prefix, last[0] if len(last) == 2 else None, ordered):
                new = [entry for entry in page if entry[0] not in last] if ordered else page
                seen |= len(new) < len(page)
                grew |= bool(new)
                number += len(new)
                last.extend(path for path, _ in new)
                yield new
            if not ordered or number % _ROUND:
                break
            if checks and not grew and (seen or not last or self._is_gone(last[-1])):
                break
        else:
            failure = Failure("the answers do not agree, some may be HTML pages", attempts=_LISTS)
            raise self._error("list", prefix, failure)
        if number == 0:
            self._check_page(within)

    def _stream(self, within: str, prefix: str, offset: str | None, ordered: bool) -> Iterator[Sizes]:
        """The pages of a list, starting behind ``offset``; after a failure, resumes behind the last name."""
        stream: Any = None

        def ask(obstore: Any, store: Any) -> Sizes:
            nonlocal stream
            if stream is None:
                pages = obstore.list(store, within or None, offset=offset, chunk_size=object_client.PAGE)
                stream = iter(pages)
            pages, stream = stream, None  # After a failure the next call starts anew.
            page = next(pages, ())
            stream = pages
            return [(entry["path"], entry["size"]) for entry in page]

        while True:
            # A list without order cannot resume behind a name.
            again = ordered or stream is None
            page = self._use().request(ask, "list") if again else self._use().once(ask, "list", alone=False)
            if isinstance(page, Failure):
                raise self._error("list", prefix, page)
            if not page:
                return
            yield page
            offset = page[-1][0] if ordered else None

    def _is_gone(self, path: str) -> bool:
        return self._head(path[len(self._prefix) :], path) is None

    def _check_page(self, within: str) -> None:
        """Check that the service does not answer every request with a login page."""
        if self._recipe.kind in _SERVICES:
            path = within[:-1] or "-"
            self._head(path, path)

    def _objects(self, within: str, found: Mapping[str, int]) -> Names:
        """The objects that are keys. obstore lists a directory marker without its '/', as an empty object."""
        inside = [path for path in found if path.startswith(within)]
        empty = [path for path in inside if found[path] == 0]
        if not empty:
            return inside
        there = parallel_map(lambda path: self._head(path, path) is not None, empty, self.concurrency)
        gone = {path for path, is_there in zip(empty, there, strict=True) if not is_there}
        return [path for path in inside if path not in gone]

    def _list_dir(self, prefix: str) -> tuple[KeySet, KeySet]:
        within = self._prefix + prefix
        self._checked(within[:-1], prefix)
        if self._is_web:
            return self._list_page(prefix)

        def ask() -> tuple[dict[str, int], set[str]]:
            found = self._use().request(
                lambda obstore, store: obstore.list_with_delimiter(store, within or None), "list"
            )
            if isinstance(found, Failure):
                raise self._error("list", prefix, found)
            return {entry["path"]: entry["size"] for entry in found["objects"]}, set(found["common_prefixes"])

        objects, folders = ask()
        for _ in range(_WHOLE_LISTS):
            if self._recipe.kind not in _LENIENT or (len(objects) + len(folders)) % _ROUND:
                break  # Full pages have a multiple of `_ROUND` names; see `_pages`.
            before = objects.keys() | folders
            # A server that asks for a login answers every request with the same page.
            self._check_page(within)
            objects, folders = ask()
            if objects.keys() | folders >= before:
                break
        cut = len(self._prefix)
        prefixes = {f"{path.rstrip('/')}/" for path in folders}
        return (
            {path[cut:] for path in self._objects(within, objects)},
            {path[cut:] for path in prefixes if path.startswith(within) and path != within},
        )

    def _list_page(self, prefix: str) -> tuple[KeySet, KeySet]:
        """The names on the page with which a web server lists a folder."""
        found = self._use().folder(prefix)
        if not isinstance(found, Failure):
            return {prefix + name for name in found[0]}, {f"{prefix}{name}/" for name in found[1]}
        if found.sort == "unlisted" or found.status in (403, 404):
            raise StoreCapabilityError(
                f"{self} does not list the folder '{prefix}': {found.text}; let the web server list its "
                "folders, or use consolidated metadata, or keys by name"
            )
        raise self._error("list", prefix, found)


def _put(path: str, content: memoryview, mode: object) -> Callable[[Any, Any], Any]:
    def call(obstore: Any, store: Any) -> Any:
        if mode is None and content.nbytes > _LARGE:
            return obstore.put(
                store, path, content, use_multipart=True, chunk_size=_SENT_PART, max_concurrency=_SENT_AT_ONCE
            )
        return obstore.put(store, path, content, mode=mode or "overwrite", use_multipart=False)

    return call


def _setting(name: str, value: Any) -> Any:
    """The value of an argument, validated."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    whole = number and isinstance(value, Integral)
    statuses = isinstance(value, (tuple, list)) and all(one in range(400, 500) for one in value)
    fits, accepted = {
        "concurrency": (whole and value >= 1, "an integer of at least 1"),
        "retries": (whole and value >= 0, "an integer of at least 0"),
        "request_bytes": (whole and value >= 0, "an integer of at least 0"),
        "deadline": (number and 0 < value <= 10**6, "seconds, more than 0"),
        "timeout": (number and 0 < value <= 10**6, "seconds, more than 0"),
        "over_read": (number and value >= 1, "a number of at least 1"),
        "absent_status": (statuses, "HTTP statuses from 400 to 499, as in (404, 403)"),
        "conditional": (value in ("service", "process"), "'service', 'process'"),
        "read_only": (value in (True, False), "a bool"),
    }[name]
    if not fits:
        raise ArgumentError(f"{name}={shorten(value)}; accepted: {accepted}")
    return tuple(value) if statuses else int(value) if whole else float(value) if number else value
