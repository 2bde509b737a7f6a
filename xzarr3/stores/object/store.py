"""A store in an object storage service or on a web server (S3, Google, Azure, HTTP), accessed with obstore.

A key is the name of an object behind a prefix. The calling threads make the requests, with a limit on
concurrent ones, and repeat them where that may help. A failed read raises an error and never counts as
absence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

from xzarr3._types import Buffer, Found, Part
from xzarr3.errors import (
    ChangedError,
    InvalidKeyError,
    OutcomeUnknownError,
    StoreCapabilityError,
    StoreError,
    contended,
    printable,
    shorten,
)
from xzarr3.parallel import parallel_map
from xzarr3.stores.base import Key, Names, Store, Traits, versioned
from xzarr3.stores.interned import Named, named, reduced
from xzarr3.stores.object.client import Answer, Client, Pace, Version, client_of
from xzarr3.stores.object.errors import ADVICE, Failure
from xzarr3.stores.object.listing import folder
from xzarr3.stores.object.options import Recipe, Settings, of_ready, parse
from xzarr3.stores.values import ABSENT, ANY, NO_LIMIT, Into, Value, check_range, clip, steady

_FAR = 2**62  # Bytes; no value is that large, and services accept no much larger numbers.
_BULK = 1000  # Keys erased by one request.
_PAGE = 1000  # The most names that services put on one page of a list.
_LARGE = 2**26  # Bytes; larger values are uploaded in parts.
_PART = {"use_multipart": True, "chunk_size": 2**24, "max_concurrency": 4}
_SETTLED = timedelta(seconds=5)
_REFUSED = re.compile(r"[\x00-\x1f\x7f]")
_REFUSED_BY_AZURE = re.compile(r"[\x00-\x1f\x7f\\]|\./|\.$")
_HEAD = {"head": True}
_WRONG_VERSION = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}
_NO_KEY = ("place", "credentials", "other")  # Kinds of failures that are not about a key.
_IGNORED = Failure("the service ignores conditions")
_UNNAMED = Failure("the service does not distinguish versions of it")


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
    ``GOOGLE_...``, ``AZURE_...``). boto3, if installed, reads the credentials file of AWS, and the profile
    that ``AWS_PROFILE`` names. The pickled form of the store contains credentials, because other processes
    need them. Nothing else shows them.

    A missing object is an absent key. Every other failure is retried where that may help, and then raised: an
    answer shorter than promised or of another range, an HTML page, a missing bucket, refused access.

    The service compares versions where a value is replaced on condition. The store checks once that the
    service honours conditions. An object cannot be erased on condition.

    A process forked after obstore was loaded cannot use obstore, whose threads do not exist in the child; a
    request there raises an error. Processes started by ``spawn`` or ``forkserver`` work.

    Parameters
    ----------
    store : str or store of obstore
        A URL, or a ready store, whose own retry settings are replaced by those given here.
    storage_options : dict, optional
        Everything that the store of obstore accepts for its service, by name (``access_key_id``,
        ``skip_signature``, ``account_name``, ``sas_key``, ...), ``client_options`` and
        ``credential_provider``. In the terms of fsspec: ``anon``, ``key``, ``secret``, ``token``,
        ``endpoint_url`` and ``region``; its other names raise an error that gives the word of obstore. The
        arguments below are accepted here as well. Names that obstore does not know raise an error at the
        first request. Headers for a web server are ``client_options={"default_headers": {...}}``. They are
        sent with every request, and all but ``Authorization`` and ``Cookie`` also to a server that it
        redirects to.
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
        :attr:`Traits.over_read`.
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
    >>> ObjectStore("gs://gcp-public-data-arco-era5/ar", storage_options={"token": "anon"})
    <ObjectStore 'gs://gcp-public-data-arco-era5/ar'>
    """

    reports = False  # Its client reports the requests.
    _not_pickled = Store._not_pickled | {"_client", "_name"}
    _client: Client | None = None
    _ready: Named | None = None
    """A store of obstore that cannot be made again, as its values are in memory."""

    def __init__(
        self, store: Any, *, storage_options: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        options = dict(storage_options or {})
        inner = {name: options.pop(name) for name in Settings.__struct_fields__ if name in options}
        self._settings = Settings.of({**inner, **settings})
        self._prefix = ""
        if isinstance(store, (str, os.PathLike)):
            self._recipe, self._prefix = parse(os.fspath(store), options)
        else:
            self._recipe = of_ready(store, options)
            self._ready = None if self._recipe.kind else named(store)
        told, is_web = self._settings, self._recipe.kind == "http"
        is_compared = told.conditional == "service" and not is_web
        shared = {name: getattr(told, name) for name in ("concurrency", "request_bytes", "over_read")}
        super().__init__(
            read_only=told.read_only or is_web,
            operations=("get",) if is_web else Traits().operations,
            browsable=is_web,
            conditional="service" if is_compared else "threads",
            erases_conditionally=not is_compared,
            durable=self._recipe.kind in ("s3", "gs", "az"),
            **shared,
        )

    def __repr__(self) -> str:
        where, at, host = self._recipe.address.partition(" ")
        path = f"{where}/{self._prefix[:-1]}" if self._prefix else where
        return printable(f"<{type(self).__name__} '{path}'{at}{host}>")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__getstate__() == self.__getstate__()

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[object, ...]:
        # A provider of credentials may be anything, which may not be pickled equally.
        is_plain = "credential_provider" not in self._recipe.arguments
        return reduced(self, ObjectStore, *((Recipe, Settings) if is_plain else ()))

    @property
    def identity(self) -> object:
        ready = "" if self._ready is None else f" {self._ready.name}"
        return "ObjectStore", f"{self._recipe.address}{ready}", self._prefix

    # Requests

    def _use(self) -> Client:
        if self._client is None:
            told, ready = (self._recipe, self._settings), self._ready
            self._client = client_of(*told) if ready is None else Client(*told, ready.thing)
        return self._client

    def _path(self, key: str) -> str:
        """The name of an object; names that obstore or the service would alter or reject are refused."""
        path = self._prefix + key
        if (_REFUSED_BY_AZURE if self._recipe.kind == "az" else _REFUSED).search(path):
            raise InvalidKeyError(
                f"invalid key {shorten(key)} for {self}; accepted: no control characters, on Azure no '\\' "
                "and no name that ends with '.'"
            )
        return path

    def _error(self, doing: str, key: str, failure: Failure) -> StoreError:
        what = f"key '{key}'" if key and doing != "list" else f"keys below '{key}'" if key else "keys"
        attempts = f", in {failure.attempts} attempts" if failure.attempts > 1 else ""
        kind, advice = ADVICE.get(failure.kind, (StoreError, ""))
        if failure.passing and not advice:
            told = self._settings
            advice = f"raise retries (now {told.retries}) or deadline (now {told.deadline:g} s), "
            advice += f"or lower concurrency (now {told.concurrency})"
        return kind(f"cannot {doing} {what} of {self}: {failure.text}{attempts}" + (advice and f"; {advice}"))

    def _sure(self, doing: str, key: str, found: Any) -> Any:
        """The answer to a request; raises if it failed."""
        if isinstance(found, Failure):
            raise self._error(doing, key, found)
        return found

    def _ask(self, key: str, options: Mapping[str, Any], limit: int = NO_LIMIT) -> Answer | Failure | None:
        """A value or part of it; None if the key is absent, a Failure if the part cannot be had."""
        found = self._use().read(self._path(key), options, limit)
        if not isinstance(found, Failure) or found.kind in ("beyond", "whole", "refused"):
            return found
        if found.status in self._settings.absent_status and found.kind not in _NO_KEY:
            return None
        raise self._error("read", key, found)

    def _opened(self, key: str, start: int, length: int | None, limit: int = NO_LIMIT) -> _ObjectValue | None:
        """A value that already holds a part, if one request can fetch it."""
        far = length is not None and -start - length > self.traits.request_bytes
        options: dict[str, Any] = _HEAD
        if start == 0 and length is None:
            options = {}
        elif start >= 0 and length != 0:
            end = {"offset": min(start, _FAR)}
            options = {
                "range": end if length is None else (min(start, _FAR), min(start, _FAR) + min(length, _FAR))
            }
        elif start < 0 and length != 0 and not far and self._recipe.kind != "az":  # Azure knows no suffix.
            options = {"range": {"suffix": min(-start, _FAR)}}
        found = self._ask(key, options, limit)
        if isinstance(found, Failure) and options is not _HEAD:  # Perhaps because the value is empty.
            head = self._ask(key, _HEAD)
            found = found if isinstance(head, Answer) and head.version[2] and found.kind == "whole" else head
        answer = self._sure("read", key, found)
        return None if answer is None else _ObjectValue(self, key, answer)

    # Reading

    def get(self, key: str, byte_range: Part = None, *, into: Into = None, limit: int = NO_LIMIT) -> Found:
        start, length = byte_range or (0, None)

        def read() -> Buffer | None:
            value = self._opened(key, start, length, limit if byte_range is None else NO_LIMIT)
            return None if value is None else value.read(start, length)

        return steady(read)

    def open(self, key: str, first: Part = None, version: object = None) -> Value | None:
        if _is_version(version):
            return _ObjectValue(self, key, Answer(memoryview(b""), 0, version))
        return self._opened(key, *(first or (0, 0)))

    # Writing

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        if pieces is None:
            raise StoreCapabilityError(f"{self} cannot erase key '{key}' on condition; erase it without one")
        content = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if if_version is not ANY:
            return self._put_if(key, content, if_version)
        call = _sending(self._path(key), content, "overwrite")
        self._sure("write", key, self._use().request(call, "put", content.nbytes))
        return True

    def _put_if(self, key: str, content: memoryview, version: object) -> bool:
        client, mode, pace = self._use(), self._mode(key, version), Pace(self._settings)
        kind = "create" if mode == "create" else "update"
        if kind in client.ignored:
            raise self._unconditional(key, _IGNORED)
        call, in_doubt = _sending(self._path(key), content, mode), False
        while True:
            # obstore would repeat it after an error 5xx, and mistake its own write for another writer's.
            found = client.once(call, "put", content.nbytes)
            if not isinstance(found, Failure):
                self._confirm(key, kind, content)
                return True
            if found.kind == "unsupported":
                raise self._unconditional(key, found)
            in_doubt |= found.ambiguous
            is_gone = kind == "update" and found.status == 404 and found.kind != "place"
            is_refused = is_gone or found.kind == "refused"
            if in_doubt:  # The condition may have failed because of an earlier attempt whose answer was lost.
                is_ours = self._is_ours(key, content, version, is_refused)
                if is_ours is not None:
                    return is_ours
            elif is_refused or (found.kind == "busy" and versioned(self, key)[1] != version):
                return False
            if not pace.again(found):
                if found.kind == "busy":
                    raise contended(key, self, f"{found.text}, in {pace.attempts} attempts")
                raise self._error("write", key, replace(found, attempts=pace.attempts))

    def _mode(self, key: str, version: object) -> object:
        """The mode in which obstore puts a value only if the stored one has a version."""
        if version == ABSENT:
            return "create"
        tag, generation, _ = version if _is_version(version) else (None, None, 0)
        if (tag or generation) is None or (tag or "").startswith("W/"):
            raise self._unconditional(key, _UNNAMED)
        return {name: known for name, known in (("e_tag", tag), ("version", generation)) if known is not None}

    def _is_ours(self, key: str, content: memoryview, version: object, is_refused: bool) -> bool | None:
        """Whether a put without an answer was carried out; None if the value is still the old one."""
        cause = None
        try:
            stored, now = versioned(self, key)
            if now == version and not is_refused:
                return None
            if stored is not None and memoryview(stored) == content:
                return True
            why = "it has a value of another writer now"
        except StoreError as error:
            cause, why = error, f"it cannot be read to see whether it was replaced: {error}"
        raise OutcomeUnknownError(
            f"no answer came to an attempt to replace key '{key}' of {self}, and {why}; it may have been "
            "replaced or not; read it again to find out"
        ) from cause

    def _confirm(self, key: str, kind: str, content: memoryview) -> None:
        """Check that the service honours a kind of condition, before relying on it for the first time.

        The same bytes are put again under a condition that does not hold. If that gets no answer, the value
        is stored nevertheless, and the next change checks again.
        """
        client = self._use()
        with client.confirming:
            if kind in client.confirmed:
                return
            call = _sending(self._path(key), content, "create" if kind == "create" else _WRONG_VERSION)
            found = client.request(call, "put", content.nbytes)
            if not isinstance(found, Failure):
                client.ignored.add(kind)
                raise self._unconditional(key, _IGNORED)
            if found.kind == "unsupported":
                raise self._unconditional(key, found)
            if found.kind == "refused" or (kind == "update" and found.status == 404):
                client.confirmed.add(kind)

    def _unconditional(self, key: str, failure: Failure) -> StoreCapabilityError:
        return StoreCapabilityError(
            f"cannot replace key '{key}' of {self} on condition: {failure.text}; use a service with "
            "conditional puts, or conditional='process', which compares within one process only"
        )

    def copy(self, source: str, target: str) -> None:
        """Let the service copy a value, or copy it through this process if the service cannot."""
        one, other = self._path(source), self._path(target)
        found = self._use().request(lambda obstore, store: obstore.copy(store, one, other), "put")
        if isinstance(found, Failure):
            super().copy(source, target)

    def erase(self, *keys: str) -> None:
        paths, is_s3 = [self._path(key) for key in keys], self._recipe.kind == "s3"
        is_bulk = is_s3 and not self._recipe.config.get("disable_bulk_delete")
        many = _BULK if is_s3 and len(keys) > 1 else 1

        def erase(at: int) -> None:
            some = paths[at] if many == 1 else paths[at : at + many]
            found = self._use().request(lambda obstore, store: obstore.delete(store, some), "delete")
            # A bulk request is sent to the bucket, so that a 404 does not mean an absent key.
            absent = ("key",) if is_bulk else ("key", "")
            if not (isinstance(found, Failure) and found.status == 404 and found.kind in absent):
                self._sure("erase", keys[at] if many == 1 else "", found)

        parallel_map(erase, range(0, len(paths), many), self.concurrency)

    # Listing

    def list(self, prefix: str = "") -> Iterable[str]:
        self._path(prefix[:-1])
        return self._listed(self._prefix + prefix, prefix)

    def _listed(self, within: str, prefix: str) -> Iterator[str]:
        pages: Any = None
        offset: str | None = None
        is_ordered = self._recipe.kind and "s3_express" not in self._recipe.config

        def ask(obstore: Any, store: Any) -> dict[str, int]:
            nonlocal pages
            asked, pages = pages, None  # After a failure the list goes on behind the last name.
            if asked is None:
                asked = iter(obstore.list(store, within or None, offset=offset, chunk_size=_PAGE))
            page = next(asked, ())
            pages = asked
            return {entry["path"]: entry["size"] for entry in page}

        while True:
            request = self._use().request if is_ordered or offset is None else self._use().once
            page: dict[str, int] = self._sure("list", prefix, request(ask, "list"))
            if not page:
                return
            *_, offset = page
            for path in self._objects(within, page):
                yield Key(path[len(self._prefix) :], page[path])

    def _objects(self, within: str, found: Mapping[str, int]) -> Iterable[str]:
        """The objects that are keys. obstore lists a directory marker without its '/', as an empty object."""
        start = len(self._prefix)
        keys = [path[start:] for path, size in found.items() if not size and path.startswith(within)]
        there = parallel_map(lambda key: self._ask(key, _HEAD) is not None, keys, self.concurrency)
        gone = {self._prefix + key for key, is_there in zip(keys, there, strict=True) if not is_there}
        return (path for path in found if path.startswith(within) and path not in gone)

    def list_dir(self, prefix: str) -> tuple[Names, Names]:
        self._path(prefix[:-1])
        if self.traits.browsable:
            return self._list_page(prefix)
        within, start = self._prefix + prefix, len(self._prefix)
        found = self._use().request(lambda lib, store: lib.list_with_delimiter(store, within or None), "list")
        listed = self._sure("list", prefix, found)
        sizes = {entry["path"]: entry["size"] for entry in listed["objects"]}
        folders = {f"{path.rstrip('/')}/" for path in listed["common_prefixes"]} - {within}
        keys = {path[start:] for path in self._objects(within, sizes)}
        return keys, {path[start:] for path in folders if path.startswith(within)}

    def _list_page(self, prefix: str) -> tuple[Names, Names]:
        """The names on the page with which a web server lists a folder."""
        client, told = self._recipe.arguments["client_options"], self._settings
        asked = self._recipe.address, prefix, client.get("default_headers", {}), told.timeout, told.deadline
        found = self._use().request(lambda obstore, store: folder(*asked), "list")
        names, folders = self._sure("list", prefix, found)
        return {prefix + name for name in names}, {f"{prefix}{name}/" for name in folders}


class _ObjectValue(Value):
    """Parts of one version of an object.

    Parameters
    ----------
    store : ObjectStore
    key : str
    known : Answer
        What is known of the value, perhaps with a part of it.
    """

    def __init__(self, store: ObjectStore, key: str, known: Answer) -> None:
        self._store, self._key, self._known = store, key, known
        self.size: int = known.version[2]
        self.concurrency = store.concurrency
        # A web server may give the same tag to two values stored within one second.
        is_new = known.modified is not None and datetime.now(UTC) - known.modified < _SETTLED
        is_known = known.is_named and not (is_new and store.traits.browsable)
        self.version = known.version if is_known else None

    def read(self, start: int, length: int | None = None) -> Buffer:
        check_range((start, length))
        known, store = self._known, self._store
        start, length = clip(self.size, start, length)
        inside = start - known.first
        if length == 0:
            return b""
        if 0 <= inside <= len(known.body) - length:
            return known.body[inside : inside + length]
        tag = known.version[0] or ""
        options = {"range": (start, start + length)} | ({"if_match": tag} if tag.startswith('"') else {})
        found = store._ask(self._key, options)
        if isinstance(found, Failure) and found.kind == "whole":
            raise store._error("read", self._key, found)
        if not isinstance(found, Answer) or not found.is_of(known):
            raise ChangedError(f"key '{self._key}' of {store} was replaced or removed while it was read")
        return found.body


def _is_version(version: object) -> TypeGuard[Version]:
    return isinstance(version, tuple) and len(version) == 3


def _sending(path: str, content: memoryview, mode: object) -> Callable[[Any, Any], Any]:
    how = _PART if mode == "overwrite" and content.nbytes > _LARGE else {"mode": mode, "use_multipart": False}
    return lambda obstore, store: obstore.put(store, path, content, **how)
