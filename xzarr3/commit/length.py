"""Changes the length of an array, one writer at a time.

An append stores rows before the document of the array names them. Two writers that append at once would write
to the same keys. So a writer takes the lease of the array first (see :mod:`xzarr3.commit.lease`) and reads
the document after that; other writers wait.

A slow owner that loses its lease does no harm. It stores values by compare-and-set, against versions that
were read while the lease was known to hold, so it cannot replace values of its successor. A successor that
cannot tell whether the owner was only slow stores empty chunks as well, so their keys are not free for the
owner.

The document changes by compare-and-set against the version that was read under the lease. A writer that takes
over a lease stores the document again first, so the document gets another version. This is as safe as
versions are. On S3 a version is a digest of the value, so the same bytes stored twice have the same version.
One risk remains there: an owner stops in the middle of a request for longer than a lease lasts, and its
successor found in place the very bytes that it was about to store. Then the owner may replace rows of the
successor.

This module knows nothing of shapes and chunks: its callers make the new document.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from xzarr3._types import Buffer
from xzarr3.commit.lease import HeldStore, Lease, LeaseLostError, check_complete, keeps_leases, lease_key
from xzarr3.errors import (
    ChangedError,
    ConflictError,
    OutcomeUnknownError,
    StoreCapabilityError,
    StoreError,
    contended,
    levels_to_caller,
)
from xzarr3.formats import documents
from xzarr3.parallel import pause
from xzarr3.stores.base import Store, update, versioned
from xzarr3.stores.locks import key_lock
from xzarr3.stores.values import ABSENT, ANY, Unchanged, joined

BEHIND = "behind"
"""First item of the identity of a store for values past the end of arrays, which no reader reads yet."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 1.0  # Seconds
_ATTEMPTS = 100


def turn(store: Store, key: str) -> AbstractContextManager[object]:
    """Makes the threads of this process take turns; between them no lease is needed."""
    return key_lock(store.identity, f"{key}\0length")


class Length:
    """The right to change the length of an array, held inside a ``with`` statement.

    Parameters
    ----------
    store : Store
    prefix : str
        Prefix of the chunk keys of the array.
    key : str
        Key of the document that holds the shape.
    path : str
        Path of the array.
    deadline : float
        When to give up, on the clock of :func:`time.monotonic`.

    Raises
    ------
    ConflictError
        If other writers hold the lease until the deadline.
    ChangedError
        If there is no document.
    IncompleteWriteError
        If a writer that has ended was replacing a group above, so that what is changed now would be lost.
    """

    def __init__(self, store: Store, prefix: str, key: str, path: str = "", deadline: float = 0.0) -> None:
        self._store, self._key, self._path = store, key, path
        self.deadline = deadline
        self._version: object = None
        self.lease = Lease(store, lease_key(prefix), "resize")
        """Keeps other writers away."""
        self.is_exclusive = keeps_leases(store)
        """Whether the lease keeps other processes away; otherwise only threads take turns."""
        self.document: Buffer = b""
        """The document as read after the lease was taken."""
        self.placed_at: float | None = None
        """When the array was put in its place, by that document."""
        self.read_at = 0.0
        """When the document was read, on the clock of :func:`time.monotonic`."""
        self.store = GuardedStore(store, self)
        """Stores values for the owner as long as the lease holds, also in other processes."""

    def __enter__(self) -> Length:
        self.is_exclusive = keeps_leases(self._store)
        store = self._store
        if not (store.traits.conditional != "threads" or store.traits.visible != "at once"):
            warnings.warn(
                f"{self._store} cannot detect changes by other processes, so rows that they append at the "
                f"same time may be lost (key '{self._key}'); append from one process only, or use a store "
                "with conditional writes, such as a LocalStore or an ObjectStore",
                stacklevel=levels_to_caller(),
            )
        try:
            if self.is_exclusive and not self.lease.take(self.deadline):
                raise contended(
                    self._key,
                    self._store,
                    "other writers kept changing the length of the array or replacing it for "
                    f"{self._store.traits.conflict_deadline:g} s",
                )
        except StoreCapabilityError:  # the store cannot keep other processes away; threads take turns
            self.is_exclusive = False
        try:
            if self.is_exclusive and self.lease.displaced is not None:
                if self._store.folder is None:
                    check_complete(self._store, self._path, f"array '/{self._path}' to change")
                self._set_apart()
            self._read()
            self.placed_at = documents.replaced_at(self.document)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def is_of_another(self, document: Buffer | None) -> bool:
        """Whether a document is that of an array that has replaced the one of which the lease was taken."""
        return (documents.replaced_at(document) or 0) > (self.placed_at or 0)

    def _read(self) -> None:
        self.read_at = time.monotonic()
        value, self._version = versioned(self._store, self._key)
        if value is None:
            raise ChangedError(f"key '{self._key}' of {self._store} is gone; open the array again")
        self.document = value

    def _set_apart(self) -> Buffer:
        """Store the document again, so that it gets a new version and no older request to change it succeeds.

        Returns
        -------
        bytes
            The document as it was before.
        """
        for _ in range(_ATTEMPTS):
            value, version = versioned(self._store, self._key)
            if value is None:
                raise ChangedError(f"key '{self._key}' of {self._store} is gone; open the array again")
            other = format(secrets.randbits(64), "064b").translate({48: " ", 49: "\t"}).encode()
            mark = documents.mark_of(value) or b"\n"
            said = bytes(value).rstrip(b" \t\r\n") + b"\n" + other + mark  # JSON readers skip whitespace
            with contextlib.suppress(OutcomeUnknownError):
                if self._store.put(self._key, [said], if_version=version):
                    return value
        raise contended(self._key, self._store, f"other writers changed it {_ATTEMPTS} times")

    def verify(self) -> None:
        """Ask the store whether the lease still holds.

        Raises
        ------
        LeaseLostError
            If the lease was lost.
        """
        if self.is_exclusive and not self.lease.holds():
            raise self._lost()

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(
            f"cannot change key '{self._key}' of {self._store}: another writer changed the length of "
            "the array or replaced it at the same time"
        )

    def verify_now_and_then(self) -> None:
        """As :meth:`verify`, but only if the lease was not confirmed recently."""
        if self.is_exclusive and not self.lease.is_sure:
            self.verify()

    @property
    def keeps_empty(self) -> bool:
        """Whether to store chunks that hold only the fill value.

        If they were left out, a slow previous owner of the lease could still create their keys with its rows.
        """
        return self.is_exclusive and self.lease.may_be_contested

    # The document

    def commit(
        self, change: Callable[[Buffer | None], Sequence[Buffer] | Unchanged], tells: Callable[[Buffer], bool]
    ) -> None:
        """Change the document.

        Parameters
        ----------
        change : callable
            Takes the document and returns the new one. Called again if another process changed the document
            but not the length.
        tells : callable
            Whether a document has the new length.

        Raises
        ------
        LeaseLostError
            If another writer has changed the length.
        ConflictError
            If other processes kept changing the document.
        OutcomeUnknownError
            If it is unknown whether the document was changed.
        """
        if not self.is_exclusive:
            update(self._store, self._key, change)
            return
        end = time.monotonic() + self._store.traits.conflict_deadline
        longest, verify = _FIRST_PAUSE, self.verify_now_and_then
        while True:
            pieces = change(self.document)
            # after the version was read: no other holder can have stored that version
            verify()
            if isinstance(pieces, Unchanged):
                return
            try:
                if self._store.put(self._key, pieces, if_version=self._version):
                    return
            except StoreError as error:
                if self._was_made(error, tells):
                    return
                if not isinstance(error, OutcomeUnknownError):
                    raise
            if time.monotonic() >= end or not pause(random.uniform(0, longest)):
                raise contended(
                    self._key,
                    self._store,
                    f"other writers kept changing it for {self._store.traits.conflict_deadline:g} s",
                )
            longest = min(2 * longest, _LONGEST_PAUSE)
            self._read()
            if self.is_of_another(self.document):
                raise self._lost()
            verify = self.verify
            if tells(self.document):  # stored, although the store reported the opposite
                self.verify()
                return

    def _was_made(self, error: StoreError, tells: Callable[[Buffer], bool]) -> bool:
        """Whether the document was changed although storing it raised.

        If not, it stays unchanged: no pending request can succeed any more.
        """
        if isinstance(error, StoreCapabilityError):
            return False
        try:
            value = versioned(self._store, self._key)[0]
            made = value is not None and tells(value)
            # a request may still take effect after its error, but not in a store that answers at once
            is_late = self._store.concurrency > 1 or isinstance(error, OutcomeUnknownError)
            if value is not None and not made and is_late:
                made = tells(self._set_apart())
            self.verify()
        except StoreError as another:
            raise self.in_doubt() from (error if isinstance(another, ConflictError) else another)
        if value is None:
            raise self.in_doubt() from error
        return made

    def in_doubt(self) -> OutcomeUnknownError:
        """The error for an unknown outcome of a change of the document."""
        return OutcomeUnknownError(
            f"no answer came to a change of key '{self._key}' of {self._store}, and what is stored now does "
            "not show whether it was made: rows may have been appended, or the shape changed; read the "
            "array before you repeat the change"
        )

    # The end

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self.is_exclusive:
            return
        try:
            self.lease.release()
        except StoreError as another:
            said = (
                f"others may have to wait before they change the length of the array with key '{self._key}' "
                f"of {self._store}, as the lease '{self.lease.key}' could not be taken away yet: {another}"
            )
            if error is None:  # the change itself succeeded
                warnings.warn(said, stacklevel=levels_to_caller())
            else:
                error.add_note(said)


class GuardedStore(HeldStore):
    """Stores values past the end of an array, and changes other values but the document, under a lease."""

    def __init__(self, store: Store, length: Length) -> None:
        super().__init__(store, length.verify)
        self._length: Any = length

    @property
    def identity(self) -> object:
        return BEHIND, super().identity

    @property
    def is_exclusive(self) -> bool:
        """Whether the lease keeps other processes away."""
        return bool(self._length.is_exclusive)

    def put(self, key: str, pieces: Sequence[Buffer] | None, *, if_version: object = ANY) -> bool:
        if if_version is not ANY or not self.is_exclusive:
            self._verify(is_new=if_version == ABSENT)
            return self.inner.put(key, pieces, if_version=if_version)
        value = joined(pieces or ())
        if self.traits.conditional != "service":
            with self.inner.exclusive(key):
                self._verify(is_new=not self.inner.exists(key))
                return self.inner.put(key, [value])
        # Usually the key is absent: creating it only then cannot replace a value of a successor.
        self._verify(is_new=True)
        if not self.inner.put(key, [value], if_version=ABSENT):
            update(self, key, lambda _: [value])
        return True

    def _verify(self, *, is_new: bool) -> None:
        """Ask whether the lease holds; of a new key now and then, as a successor may have left it out.

        In memory each time: who replaces the array there takes the lease away, and may leave out the key.
        """
        if is_new and (self.traits.concurrency > 1 or self.inner.folder is not None):
            self._length.verify_now_and_then()
        else:
            self._length.verify()
