"""Requests to an object store: one client for all stores of a recipe, and its limits.

obstore signs requests, keeps connections, limits the time of an answer and retries what it knows to be safe.
A client belongs to the process that made it. It is made at the first request and shared by all unpickled
copies of a store, which thus have one connection pool and one limit on concurrent requests.

The threads of obstore do not survive a fork, and a request in the child would wait for ever. If obstore was
loaded before the fork, a request in the child therefore raises an error.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from xzarr3.errors import StoreError, StoreOptionError
from xzarr3.parallel import pause, undisturbed, waiters
from xzarr3.stores.in_flight import reserved
from xzarr3.stores.interned import Interned
from xzarr3.stores.object.errors import AnswerError, Failure, describe, scrub
from xzarr3.stores.object.options import CLASSES, Recipe, Settings, accepted
from xzarr3.stores.values import check_size
from xzarr3.tracing.counters import add
from xzarr3.tracing.events import sent

Result = TypeVar("Result")
Version = tuple[str | None, str | None, int]
Call = Callable[[Any, Any], Result]  # Takes the package obstore and its store.

_CONNECT = 5.0  # Seconds
_SENDING = 180.0  # Seconds without an answer to a large upload.
_LONG = 2**20  # Bytes; sending a larger value may take a while.
_LONGEST_ANSWER = timedelta(days=12)  # As long as it keeps arriving.
_GLANCE = 0.5  # Seconds after which a waiting thread checks whether its work is still wanted.
_FIRST_PAUSE = 0.1  # Seconds
_LONGEST_PAUSE = 15.0
_HTML = ("text/html", "application/xhtml")
_UNWANTED = Failure("it is not wanted any more, as something done at the same time has failed")
_LOGIN = Failure("the answer is an HTML page, as from a server that asks for a login", 200)
_clients = Interned(32)
_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked |= "obstore" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _usable() -> Any:
    """The package obstore.

    Raises
    ------
    StoreError
        If it is not installed, or if it was loaded before this process was forked: its threads are not here.
    """
    if _is_forked:
        raise StoreError(
            f"process {os.getpid()} was forked from one that had loaded obstore, whose threads no fork has; "
            "start processes by 'spawn' or 'forkserver' of multiprocessing, or fork before using a store"
        )
    try:
        import obstore.store
    except ImportError as error:
        raise StoreError(
            "object stores and HTTP need the package obstore; install it with pip install 'xzarr3[object]'"
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
    version : (str or None, str or None, int)
        The e-tag, the generation and the size, which differ between versions of the value.
    modified : datetime, optional
        When the value was stored, if the answer tells.
    """

    body: memoryview
    first: int
    version: Version
    modified: datetime | None = None

    @property
    def is_named(self) -> bool:
        """Whether its version has a name."""
        return self.version[:2] != (None, None)

    def is_of(self, other: Answer) -> bool:
        """Whether both are of one version, as far as answers tell."""
        is_same = self.is_named or None in (self.modified, other.modified) or self.modified == other.modified
        return is_same and self.version == other.version


class Pace:
    """Decides when to try again: growing randomized pauses, up to a number of retries and a deadline."""

    def __init__(self, settings: Settings) -> None:
        self._left, self._end = settings.retries, time.monotonic() + settings.deadline
        self._pause, self.attempts = _FIRST_PAUSE, 1

    def again(self, failure: Failure) -> bool:
        """Wait for the next attempt; returns whether there is one."""
        seconds = self._pause * random.uniform(0.5, 1.0)
        is_wanted = failure.passing and self._left > 0 and time.monotonic() + seconds < self._end
        if not (is_wanted and pause(seconds)):
            return False
        add({"retries": 1})
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._left, self.attempts = self._left - 1, self.attempts + 1
        return True


class Client:
    """A client of obstore and the state that its users share.

    Parameters
    ----------
    recipe : Recipe
    settings : Settings
    ready : object, optional
        A store of obstore that cannot be made again and is used as it is.
    """

    def __init__(self, recipe: Recipe, settings: Settings, ready: Any = None) -> None:
        self._recipe, self._settings, self._ready = recipe, settings, ready
        self.confirmed: set[str] = set()
        """Kinds of conditions that the service was seen to honour."""
        self.ignored: set[str] = set()
        """Kinds of conditions that the service was seen to ignore."""
        self.confirming = threading.Lock()
        self._slots = threading.Semaphore(settings.concurrency)
        self._stores: dict[tuple[bool, bool], Any] = {}

    def made(self, once: bool, sends: bool) -> Any:
        """The store of obstore for requests that it must not repeat, or that may take long.

        After an error of the service obstore would repeat a conditional put, and mistake its own write for
        that of another writer.
        """
        if self._ready is not None:
            return self._ready
        if (once, sends) not in self._stores:
            self._stores.setdefault((once, sends), self._make(once, sends))
        return self._stores[once, sends]

    def _make(self, once: bool, sends: bool) -> Any:
        recipe, obstore, deadline = self._recipe, _usable(), self._settings.deadline
        timeout, longest = min(self._settings.timeout, deadline), min(_LONGEST_PAUSE, deadline / 4)
        client = {
            "timeout": _LONGEST_ANSWER,
            "read_timeout": timedelta(0, max(deadline, _SENDING) if sends else timeout),
            "connect_timeout": timedelta(0, min(timeout, _CONNECT)),
        }
        pauses = {"init_backoff": min(_FIRST_PAUSE, longest), "max_backoff": longest}
        retries = {
            "max_retries": 0 if once else self._settings.retries,
            # obstore checks it before a pause, so that the last attempt begins before the deadline.
            "retry_timeout": timedelta(0, deadline - longest),
            "backoff": {name: timedelta(0, pause) for name, pause in pauses.items()},
        }
        arguments = {**recipe.arguments, "retry_config": retries}
        arguments["client_options"] = client | dict(recipe.arguments["client_options"])
        if recipe.kind == "s3" and arguments.get("credential_provider") is None:
            arguments["credential_provider"] = _of_boto3(recipe.config)
        try:
            return getattr(obstore.store, CLASSES[recipe.kind])(**arguments)
        except (obstore.exceptions.BaseError, OSError, ValueError, TypeError, RuntimeError) as error:
            text = scrub(str(error).partition("\n\nDebug source")[0], recipe.secrets).rstrip(".")
        raise StoreOptionError(f"no client for {recipe.address}: {text}; {accepted(text)}")

    def once(self, call: Call[Result], operation: str, size: int = 0, alone: bool = True) -> Result | Failure:
        """Make one request.

        Parameters
        ----------
        call : callable
        operation : {"get", "get_range", "head", "list", "put", "delete"}
            The operation to report. During "put" and "delete" Ctrl-C is deferred until the answer.
        size : int
            Number of bytes sent; a put without any is a copy.
        alone : bool
            Whether obstore must not repeat the request.
        """
        obstore = _usable()
        store = self.made(alone, operation == "put" and not 0 < size <= _LONG)
        while not self._slots.acquire(timeout=_GLANCE):
            if not pause(0):
                return _UNWANTED
        telling = sent(operation)

        def told() -> Result:
            with telling:
                found = call(obstore, store)
                telling.size = size or len(getattr(found, "body", b""))
                return found

        try:
            return (undisturbed if operation in ("put", "delete") else _interruptible)(told)
        except AnswerError as error:
            return error.failure
        except (obstore.exceptions.BaseError, OSError, ValueError, TypeError, RuntimeError) as error:
            return describe(error, self._recipe.secrets)
        finally:
            self._slots.release()

    def request(self, call: Call[Result], operation: str, size: int = 0) -> Result | Failure:
        """Make a request, and repeat it while that may help.

        obstore does most repetitions itself. This method adds: lists whose answer ends early, values without
        a tag whose body is cut off, deletions without an answer (which obstore considers unsafe to repeat),
        and requests that S3 refuses because another change of the same key is in progress.
        """
        pace, tried = Pace(self._settings), 0
        while True:
            found = self.once(call, operation, size, alone=False)
            if not isinstance(found, Failure):
                return found
            tried += found.attempts
            if found.attempts > 1 or not pace.again(found):
                return replace(found, attempts=tried)

    def read(self, path: str, options: Mapping[str, Any], limit: int) -> Answer | Failure:
        """Request a value or part of it.

        Parameters
        ----------
        path : str
        options : dict
            Options of obstore; ``{"head": True}`` requests no bytes.
        limit : int
            Most bytes to fetch; a larger answer is refused.
        """

        def call(obstore: Any, store: Any) -> Answer:
            result = obstore.get(store, path, options=options)
            kind = result.attributes.get("Content-Type") or ""
            if kind.lower().startswith(_HTML) and not path.endswith((".html", ".htm", ".xhtml")):
                raise AnswerError(_LOGIN)
            meta, (first, stop), body = result.meta, result.range, b""
            if "head" not in options:
                check_size(stop - first, limit)
                with reserved(stop - first):
                    body = result.bytes()
                if len(body) != stop - first:
                    text = f"found {len(body)} bytes in the body, expected {stop - first}"
                    raise AnswerError(Failure(text, passing=True))
            modified = meta["last_modified"]  # 1970 where the answer has no such header.
            version = meta["e_tag"], meta["version"], meta["size"]
            return Answer(memoryview(body), first, version, modified if modified.timestamp() > 0 else None)

        return self.request(call, "head" if "head" in options else "get_range" if options else "get")


def _of_boto3(config: Mapping[str, Any]) -> Any:
    """Credentials found by boto3, if neither options nor variables give any and there is a file of AWS."""
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", os.path.expanduser("~/.aws/credentials"))
    is_named = "AWS_PROFILE" in os.environ or os.path.exists(shared)
    given = {"access_key_id", "skip_signature", "web_identity_token_file"} & config.keys()
    if given or os.environ.get("AWS_ACCESS_KEY_ID") or not is_named:
        return None
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    try:
        return Boto3CredentialProvider(boto3.Session())
    except ValueError:  # The file has no credentials.
        return None
    except BotoCoreError as error:
        raise StoreError(f"no credentials of AWS: {error}; correct AWS_PROFILE in the environment") from error


def _interruptible(call: Callable[[], Result]) -> Result:
    """Run ``call`` in another thread if this is the main thread, which hears Ctrl-C only in Python code."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    try:
        waiting = waiters.get().submit(call)
    except RuntimeError:  # The interpreter is shutting down and starts no more threads.
        return call()
    return waiting.result()


def client_of(recipe: Recipe, settings: Settings) -> Client:
    """The client of this process for a recipe, settings and the present variables of the environment."""
    _usable()  # No client may be dropped in a forked child: its destructor may hang.
    prefixes = ("AWS_", "GOOGLE_", "AZURE_", "MSI_", "IDENTITY_")
    variables = sorted(item for item in os.environ.items() if item[0].startswith(prefixes))
    limits = settings.concurrency, settings.retries, settings.timeout, settings.deadline
    try:
        key: object = pickle.dumps((recipe, limits, variables))
    except (pickle.PicklingError, TypeError, AttributeError):  # A provider of credentials that cannot be.
        key = id(recipe)
    return _clients(key, lambda: Client(recipe, settings))
