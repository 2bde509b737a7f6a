"""Requests to an object store: one client for all stores of a recipe, and its limits.

obstore signs requests, keeps connections, limits the time of an answer and retries what it knows to be safe.
A client belongs to the process that made it. It is made at the first request and shared by all unpickled
copies of a store, which thus have one connection pool and one limit on concurrent requests.

The threads of obstore do not survive a fork, and a request in the child would wait for ever. If obstore was
loaded before the fork, a request in the child therefore raises an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from xzarr3.errors import StoreError
from xzarr3.parallel import pause, undisturbed, waiters
from xzarr3.stores.base import OversizedError
from xzarr3.stores.in_flight import reserved
from xzarr3.stores.object.errors import AnswerError, Failure, describe, scrub
from xzarr3.stores.object.options import Recipe, accepted, is_forked, read_by_obstore, settled
from xzarr3.stores.object.retries import Pace, retry_config
from xzarr3.tracing.events import sent

if TYPE_CHECKING:
    from xzarr3.stores.object.listing import Names
    from xzarr3.stores.object.web import Web

Result = TypeVar("Result")

_KEPT = 32  # Clients kept per process, for the next task that needs one.
_CONNECT = 5.0  # Seconds
_SENDING = 180.0  # Seconds without an answer to a large upload.
_LONG = 2**20  # Bytes; sending a larger value may take a while.
_LONGEST_ANSWER = 86400.0  # Seconds for one answer, as long as it keeps arriving.
_GLANCE = 0.5  # Seconds after which a waiting thread checks whether its work is still wanted.
PAGE = 1000
"""The most names that services put on one page of a list."""
_PAGES = ("text/html", "application/xhtml")


def _refuse_forked() -> None:
    """Raise if obstore was loaded before this process was forked: its threads do not exist here."""
    if is_forked():
        raise StoreError(
            f"process {os.getpid()} was forked from one that had loaded obstore, whose threads do not "
            "survive a fork, so requests would never be answered; start processes by the method 'spawn' or "
            "'forkserver' of multiprocessing, or use no object store before forking"
        )


def _usable() -> Any:
    """The package obstore.

    Raises
    ------
    StoreError
        If it is not installed, or this process was forked after it was loaded.
    """
    _refuse_forked()
    try:
        import obstore.store
    except ImportError as error:
        raise StoreError(
            "object storage and HTTP need the package obstore, which cannot be imported; install it with "
            "pip install 'xzarr3[object]'"
        ) from error
    return obstore


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about a value: the whole value, a part of it, or its properties only.

    Parameters
    ----------
    body : memoryview
    first : int
        Offset of the body in the value.
    size : int
        Size of the whole value in bytes.
    tag, generation : str, optional
        Names of this version of the value.
    modified : datetime, optional
        When the value was stored, if the answer tells.
    """

    body: memoryview
    first: int
    size: int
    tag: str | None
    generation: str | None
    modified: datetime | None

    @property
    def is_named(self) -> bool:
        """Whether the version has a name."""
        return self.tag is not None or self.generation is not None

    @property
    def version(self) -> tuple[str | None, str | None, int]:
        """Distinguishes this version from others, if the version has a name."""
        return self.tag, self.generation, self.size

    @property
    def mark(self) -> tuple[object, ...]:
        """Equal for parts of the same version, as far as answers tell."""
        return *self.version, None if self.is_named else self.modified


class Client:
    """A client of obstore and the state that its users share.

    Parameters
    ----------
    recipe : Recipe
    concurrency : int
        Most requests in flight at once.
    retries : int
    timeout, deadline : float
        Seconds without a byte after which an attempt fails, and seconds after which none is repeated.
    ready : object, optional
        A store of obstore that cannot be made again and is used as it is.
    """

    def __init__(
        self,
        recipe: Recipe,
        concurrency: int,
        retries: int,
        timeout: float,
        deadline: float,
        ready: Any = None,
    ) -> None:
        self.recipe = recipe
        self.place_is_known = recipe.kind in ("http", "local", "")
        self.confirmed: set[str] = set()
        """Kinds of conditions that the service was seen to honour."""
        self.ignored: set[str] = set()
        """Kinds of conditions that the service was seen to ignore."""
        self.confirming = threading.Lock()
        self._slots = threading.Semaphore(concurrency)
        self._retries = retries
        self._timeout = timeout
        self._deadline = deadline
        self._lock = threading.Lock()
        self._ready = ready
        self._stores: dict[tuple[bool, bool], Any] = {}
        self._web = self._own if recipe.private_headers() else None

    @cached_property
    def _own(self) -> Web:
        """Makes the requests to a web server that obstore cannot make."""
        from xzarr3.stores.object.web import Web

        return Web(self.recipe, self._timeout)

    def made(self, *, once: bool = False, sends: bool = False) -> Any:
        """The store of obstore for a kind of request.

        Parameters
        ----------
        once : bool
            Whether obstore must not repeat a request. After an error of the service it would repeat a
            conditional put, and mistake its own write for that of another writer.
        sends : bool
            Whether the request sends many bytes, so that its answer may take long.
        """
        if self._ready is not None:
            return self._ready
        if (once, sends) not in self._stores:
            with self._lock:
                if (once, sends) not in self._stores:
                    self._stores[once, sends] = self._make(once, sends)
        return self._stores[once, sends]

    def _make(self, once: bool, sends: bool) -> Any:
        recipe = self.recipe
        obstore = _usable()
        arguments = dict(recipe.arguments)
        if recipe.kind == "local":
            return obstore.store.LocalStore(**arguments)
        if "config" in arguments:
            arguments["config"] = settled(recipe.kind, arguments["config"], recipe.address)
        arguments["client_options"] = {
            "timeout": timedelta(seconds=max(self._deadline, _LONGEST_ANSWER)),
            "read_timeout": timedelta(seconds=max(self._deadline, _SENDING) if sends else self._timeout),
            "connect_timeout": timedelta(seconds=min(self._timeout, _CONNECT)),
            **arguments.get("client_options", {}),
        }
        arguments["retry_config"] = retry_config(0 if once else self._retries, self._deadline)
        if recipe.kind == "s3" and "credential_provider" not in arguments:
            session = self._session()
            if session is not None:
                arguments["credential_provider"] = session
                arguments["config"] = {**getattr(session, "config", {}), **arguments["config"]}
        url = arguments.pop("url", None)
        try:
            return getattr(obstore.store, recipe.class_name)(*(() if url is None else (url,)), **arguments)
        except (obstore.exceptions.BaseError, OSError, ValueError, TypeError, RuntimeError) as error:
            text = scrub(str(error).partition("\n\nDebug source")[0], recipe.secrets)
        raise StoreError(f"no client for {recipe.address}: {text.rstrip('.')}; {accepted(recipe.kind, text)}")

    def _session(self) -> Any:
        """Credentials found by boto3, if a profile or a credentials file asks for it."""
        profile, config = self.recipe.profile, self.recipe.arguments["config"]
        if profile is None:
            if any(name in config for name in ("access_key_id", "skip_signature", "web_identity_token_file")):
                return None
            shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", os.path.expanduser("~/.aws/credentials"))
            named = os.environ.get("AWS_PROFILE") or os.path.exists(shared)
            if os.environ.get("AWS_ACCESS_KEY_ID") or not named:
                return None
        try:
            import boto3
            from botocore.exceptions import BotoCoreError
            from obstore.auth.boto3 import Boto3CredentialProvider
        except ImportError as error:
            if profile is None:
                return None
            raise StoreError(
                f"{self.recipe.address}: a profile of AWS needs the package boto3, which is not installed; "
                "install boto3, or pass 'key' and 'secret' in storage_options"
            ) from error
        try:
            return Boto3CredentialProvider(boto3.Session(profile_name=profile))
        except (BotoCoreError, ValueError) as error:
            if profile is None and isinstance(error, ValueError):
                return None
            text = scrub(str(error), self.recipe.secrets)
        raise StoreError(f"no credentials for {self.recipe.address}: {text}; correct the name of the profile")

    def once(
        self,
        call: Callable[[Any, Any], Result],
        operation: str,
        *,
        size: int = 0,
        sends: bool = False,
        alone: bool = True,
    ) -> Result | Failure:
        """Make one request. ``call`` takes the package obstore and its store.

        Parameters
        ----------
        call : callable
        operation : {"get", "get_range", "head", "list", "put", "delete"}
            The operation to report. During "put" and "delete" Ctrl-C is deferred until the answer.
        size : int
            Number of bytes sent.
        sends : bool
            See :meth:`made`; implied for many bytes.
        alone : bool
            Whether obstore must not repeat the request.
        """
        obstore: Any = _usable()
        sends |= size > _LONG
        package, store = (self._web, None) if self._web else (obstore, self.made(once=alone, sends=sends))
        if not self._admitted():
            return Failure("it is not wanted any more, because something done at the same time has failed")
        telling = sent(operation)

        def told() -> Result:
            with telling:
                found = call(package, store)
                telling.size = size or len(getattr(found, "body", b""))
                return found

        try:
            return (undisturbed if operation in ("put", "delete") else _interruptible)(told)
        except AnswerError as error:
            return error.failure
        except (obstore.exceptions.BaseError, OSError, ValueError, TypeError, RuntimeError) as error:
            insisted = getattr(error, "insisted", False)
            return replace(describe(error, self.recipe.secrets), insisted=insisted)
        finally:
            self._slots.release()

    def _admitted(self) -> bool:
        """Wait for a free request slot; returns False if the request is no longer wanted."""
        while not self._slots.acquire(timeout=_GLANCE):
            if not pause(0):
                return False
        return True

    def request(
        self, call: Callable[[Any, Any], Result], operation: str, *, size: int = 0, sends: bool = False
    ) -> Result | Failure:
        """Make a request, and repeat it while that may help.

        obstore does most repetitions itself. This method adds: lists whose answer ends early, values without
        a tag whose body is cut off, deletions without an answer (which obstore considers unsafe to repeat),
        and requests that S3 refuses because another change of the same key is in progress.
        """
        pace = Pace(self._retries, self._deadline)
        tried = 0
        while True:
            found = self.once(call, operation, size=size, sends=sends, alone=False)
            if not isinstance(found, Failure):
                return found
            tried += found.attempts
            if found.attempts > 1 or found.insisted or not pace.again(found):
                return replace(found, attempts=tried)

    def read(self, path: str, options: dict[str, Any] | None, limit: int | None = None) -> Answer | Failure:
        """Request a value or part of it.

        Parameters
        ----------
        path : str
        options : dict, optional
            Options of obstore; ``{"head": True}`` requests no bytes.
        limit : int, optional
            Most bytes to fetch; a larger answer is refused.
        """
        wanted = options or {}
        head = "head" in wanted

        def call(package: Any, store: Any) -> Answer:
            result = package.get(store, path, options=options)
            kind = result.attributes.get("Content-Type")
            if (
                kind is not None
                and kind.lower().startswith(_PAGES)
                and not path.endswith((".html", ".htm", ".xhtml"))
            ):
                raise AnswerError(
                    Failure("the answer is an HTML page, as from a server that asks for a login", 200)
                )
            meta = result.meta
            first, stop = result.range
            if head:
                body = memoryview(b"")
            else:
                size = stop - first
                if limit is not None and size > limit:
                    raise OversizedError(size, limit)
                with reserved(size):
                    try:
                        body = memoryview(result.bytes())
                    except Exception as error:
                        # obstore has retried the rest, on condition of the tag; the number is unknown.
                        error.insisted = meta["e_tag"] is not None  # type: ignore[attr-defined]
                        raise
                if len(body) != size:
                    raise AnswerError(
                        Failure(
                            f"found {len(body)} bytes in the body, expected {size}",
                            passing=True,
                            ambiguous=True,
                        )
                    )
            modified = meta["last_modified"]
            if modified.timestamp() <= 0:  # obstore's value where the answer has no such header.
                modified = None
            return Answer(body, first, meta["size"], meta["e_tag"], meta["version"], modified)

        return self.request(call, "head" if head else "get_range" if "range" in wanted else "get")

    def folder(self, path: str) -> Names | Failure:
        """The names of the files and of the folders in a folder of a web server."""
        own = self._own
        return self.request(lambda obstore, store: own.folder(path, self._deadline), "list")


def _interruptible(call: Callable[[], Result]) -> Result:
    """Run ``call`` in another thread if this is the main thread, which hears Ctrl-C only in Python code."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    try:
        waiting = waiters.get().submit(call)
    except RuntimeError:  # The interpreter is shutting down and starts no more threads.
        return call()
    return waiting.result()


def client_of(recipe: Recipe, concurrency: int, retries: int, timeout: float, deadline: float) -> Client:
    """The client of this process for a recipe, its limits and the present environment of obstore."""
    _refuse_forked()  # No client may be dropped in a forked child: its destructor may hang.
    return _client(recipe, concurrency, retries, timeout, deadline, read_by_obstore(recipe.kind))


@lru_cache(maxsize=_KEPT)
def _client(
    recipe: Recipe, concurrency: int, retries: int, timeout: float, deadline: float, variables: object
) -> Client:
    return Client(recipe, concurrency, retries, timeout, deadline)
