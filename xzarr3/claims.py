"""Claims: who is changing the length of an array, so that nobody else does it at the same time.

An array grows by rows that are stored before its document tells of them. Two who do that at once would write
to the same places. So whoever is about to do it first puts a claim into the document: white space behind
the JSON, made of random bits, which no reader of JSON looks at. All others then wait. A claim is renewed
while its owner lives; one that stays the same for :data:`PATIENCE` seconds is taken away by whoever waits for
it, by putting another one in its place. It tells of the host and the process of its owner as well, so that
one of a killed process is taken away at once on the same host.

An owner who was only slow, and lost its claim, can do no harm: it stores values by compare-and-set, against
versions that were read while the claim was known to hold, so that nothing its successor stored is replaced;
and the document changes only as long as the claim is in it. That is as sure as versions are. On S3 they are
digests of the value, so that bytes which are stored twice look like one version: an owner that stops for
longer than :data:`PATIENCE` in the middle of a request may put its rows over those of a successor there, if
this one found the very bytes in place that it was about to store, as it may if it had lost its claim before.

Where answers can get lost, an owner also leaves a seal in the document that it changed: more white space,
which those who come after it leave there. So whoever got no answer can see later whether its change was made,
even if others have changed the document since; a change that was made must not be made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from xzarr3._types import Buffer, ByteRange
from xzarr3.errors import ConflictError, OutcomeUnknownError, StoreCapabilityError, StoreError
from xzarr3.reservations import _runs, boot
from xzarr3.stores.base import (
    UNCHANGED,
    Change,
    Scratch,
    Store,
    Unchanged,
    Updater,
    flat,
)
from xzarr3.stores.locks import key_lock

PATIENCE = 10.0
"""Seconds after which a claim that was not renewed is nobody's any more."""

_OWNER_BITS, _HOST_BITS, _PROCESS_BITS, _NUMBER_BITS = 64, 32, 32, 16
_BEGIN, _END = b"\n\t\n", b"\n"
_SIZE = len(_BEGIN) + _OWNER_BITS + _HOST_BITS + _PROCESS_BITS + _NUMBER_BITS + len(_END)
_SEAL_SIZE = 1 + _OWNER_BITS + len(_END)
_MOST_SEALS = 16
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5  # Seconds
_ERASED_AT_ONCE = 1000
_MOST_SEEN = 256

# Claims of others by store and key, and since when they have been there. Each wait may be a short one.
_seen: dict[tuple[object, str], tuple[bytes, float]] = {}


class ClaimLostError(ConflictError):
    """Somebody else has taken a claim away, or the document was replaced."""


def _blanks(number: int, bits: int) -> bytes:
    """A number in white space."""
    return format(number, f"0{bits}b").translate({48: " ", 49: "\t"}).encode()


def _number(blanks: bytes) -> int:
    """The number that is said in white space."""
    return int(blanks.translate(bytes.maketrans(b" \t", b"01")), 2)


def _here() -> int:
    """What tells the processes that this one can see from those of other hosts and containers."""
    try:
        seen = os.readlink("/proc/self/ns/pid")
    except OSError:  # Other systems do not tell.
        seen = ""
    text = "\n".join([*boot(), seen]).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HOST_BITS // 8).digest())


def _is_of_the_dead(claim: bytes) -> bool:
    """Whether a claim is that of a process of this host which has ended."""
    said = claim[len(_BEGIN) + _OWNER_BITS :]
    process = _number(said[_HOST_BITS:][:_PROCESS_BITS])
    return process > 0 and _number(said[:_HOST_BITS]) == _here() and not _runs(process)


def claim_in(value: Buffer) -> bytes:
    """The claim at the end of a document; empty if there is none.

    Examples
    --------
    >>> claim_in(b'{"zarr_format": 3}\\n')
    b''
    """
    end = bytes(memoryview(value)[-_SIZE:])
    is_claim = len(end) == _SIZE and end.startswith(_BEGIN) and end.endswith(_END)
    return end if is_claim and not end[len(_BEGIN) : -len(_END)].strip(b" \t") else b""


def left_claim(store: Store, key: str, owner: str) -> bool:
    """Whether a document has the claim of an owner, who is known to be gone; nobody here waits for it then.

    Parameters
    ----------
    store : Store
    key : str
        Key of the document.
    owner : str
        :attr:`Claim.owner` of the one who is gone.
    """
    value = store.get_versioned(key)[0]
    there = b"" if value is None else claim_in(value)
    if not there or there[len(_BEGIN) :][:_OWNER_BITS].hex() != owner:
        return False
    _seen[store.identity, key] = there, time.monotonic() - PATIENCE
    return True


def seals_in(value: Buffer) -> list[bytes]:
    """The seals of those who changed a document last, the latest one at the end.

    Examples
    --------
    >>> seals_in(b'{"zarr_format": 3}\\n')
    []
    """
    found: list[bytes] = []
    view = memoryview(value)
    end = len(view) - len(claim_in(value))
    while len(found) < _MOST_SEALS:
        seal = bytes(view[max(end - _SEAL_SIZE, 0) : end])
        is_seal = len(seal) == _SEAL_SIZE and seal.startswith(b"\n") and seal.endswith(_END)
        if not is_seal or seal[1 : -len(_END)].strip(b" \t"):
            break
        found.insert(0, seal)
        end -= _SEAL_SIZE
    return found


def turn(store: Store, key: str) -> AbstractContextManager[object]:
    """Makes the threads of this process take turns, as they need not claim anything from each other."""
    return key_lock(store.identity, f"{key}\0length")


class Claim:
    """The claim of one owner on a document, from the ``with`` statement on that it is used in.

    Parameters
    ----------
    store : Store
    key : str
        Key of the document.
    deadline : float
        When to give up, on the clock of :func:`time.monotonic`.

    Raises
    ------
    ConflictError
        If others hold the document until then.
    StoreError
        If there is no document.
    """

    def __init__(self, store: Store, key: str, deadline: float) -> None:
        self._store = store
        self._key = key
        self._deadline = deadline
        self._owner = _blanks(secrets.randbits(_OWNER_BITS), _OWNER_BITS)
        self._where = _blanks(0, _HOST_BITS + _PROCESS_BITS)
        self._number = 0
        self._over = False
        self._sealed = False  # It may be: the document was given to the store with the seal in it.
        self._seals: list[bytes] = []
        self._renewing = threading.Lock()
        self.document: Buffer = b""
        """The document as it was when it was claimed."""
        self.store: Store = store
        """What stores values for the owner, as long as the claim holds."""
        self.displaced: str | None = None
        """Whose claim was taken away for this one, because it had been left behind."""

    @property
    def owner(self) -> str:
        """Whose claim it is."""
        return self._owner.hex()

    def _text(self) -> bytes:
        number = _blanks(self._number % 2**_NUMBER_BITS, _NUMBER_BITS)
        return _BEGIN + self._owner + self._where + number + _END

    def __enter__(self) -> Claim:
        pause = _FIRST_PAUSE
        self._where = _blanks(_here(), _HOST_BITS) + _blanks(os.getpid(), _PROCESS_BITS)
        while True:
            value, version = self._store.get_versioned(self._key)
            if value is None:
                raise StoreError(f"key '{self._key}' of {self._store} is gone; accepted: opening it again")
            there = claim_in(value)
            claimed = there == self._text()  # No answer came.
            if claimed or not there or self._is_abandoned(there):
                document = bytes(memoryview(value)[: len(value) - len(there)])
                try:
                    claimed = claimed or self._store.compare_and_set(
                        self._key, version, document + self._text()
                    )
                except StoreCapabilityError:  # Nobody can be kept away: threads take turns, and that is all.
                    self.document, self._over = document, True
                    return self
                except OutcomeUnknownError:  # Whatever it was, it is not there any more.
                    claimed = False
                if claimed:
                    if there and there != self._text():
                        self.displaced = there[len(_BEGIN) :][:_OWNER_BITS].hex()
                    self._seals = seals_in(document)
                    self.document = document
                    self.store = _ClaimedStore(self._store, self)
                    _beat.add(self)
                    return self
            if time.monotonic() >= self._deadline:
                raise ConflictError(
                    f"cannot change key '{self._key}' of {self._store}: others were changing the length of "
                    f"the array for {self._store.conflict_deadline:g} s; accepted: fewer writers of it, or a "
                    "longer conflict_deadline"
                )
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _is_abandoned(self, there: bytes) -> bool:
        now, place = time.monotonic(), (self._store.identity, self._key)
        before, since = _seen.get(place, (b"", now))
        if there == before:
            return now - since >= PATIENCE or since < 0
        if _is_of_the_dead(there):
            return True
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen[place] = there, now
        return False

    def holds(self, stored: Buffer | None) -> bool:
        """Whether a document has this claim."""
        if self.store is self._store:
            return True
        return stored is not None and claim_in(stored)[len(_BEGIN) :].startswith(self._owner)

    def check(self, stored: Buffer | None) -> None:
        """Refuse a document that has not this claim.

        Raises
        ------
        ClaimLostError
        """
        if not self.holds(stored):
            raise ClaimLostError(
                f"cannot change key '{self._key}' of {self._store}: somebody else has changed the length of "
                "the array or replaced it at the same time"
            )

    def verify(self) -> None:
        """Ask the store whether the claim still holds.

        Raises
        ------
        ClaimLostError
            If it does not.
        """
        if self.store is not self._store:
            self.check(self._store.get_versioned(self._key)[0])  # Not what a cache remembers.

    def _seal(self) -> bytes:
        """White space that tells the document of this owner from the same one of another owner."""
        return b"\n" + self._owner + _END

    def sealed(self, stored: Buffer) -> bytes:
        """The seals to put behind what is made of a document, that of this owner among them.

        Whoever hears no answer looks at what is stored. Where answers do not get lost there is no need for
        it.
        """
        seals = seals_in(stored)
        if self._store.concurrency > 1 and self.store is not self._store:
            self._sealed = True
            seals = [*seals, self._seal()][-_MOST_SEALS:]
        return b"".join(seals)

    def changed(self, stored: Buffer | None) -> bool:
        """Whether a document is one that this owner has changed, or that was made of such a one.

        Raises
        ------
        OutcomeUnknownError
            If it may have been, but it cannot be known any more.
        """
        if not self._sealed:
            return False
        seals = [] if stored is None else seals_in(stored)
        if self._seal() in seals:
            return True
        # All seals that came after those which were there before are there, and this one would be.
        follows = self._seals[-1] in seals if self._seals else len(seals) < _MOST_SEALS
        if stored is not None and (self.holds(stored) or follows):
            return False
        raise self.in_doubt()

    def in_doubt(self) -> OutcomeUnknownError:
        """What to raise where nobody can tell whether the document was changed."""
        return OutcomeUnknownError(
            f"key '{self._key}' of {self._store} was to be changed, but no answer came, and what is stored "
            "now does not tell whether it was: rows may have been appended, or the shape changed; accepted: "
            "looking at the array before that is done again"
        )

    def was_made(self, error: StoreError) -> bool:
        """Whether the document was changed, though storing it ended in an error.

        If not, it will not be either: no request that is still under way can succeed.

        Raises
        ------
        OutcomeUnknownError
            If it cannot be known.
        """
        if not self._sealed:
            return False
        try:
            stored = self._store.get_versioned(self._key)[0]
            if self.changed(stored):
                return True
            if stored is not None and self.holds(stored):
                self.renew()  # So that what it was to replace is not there any more.
                return self.changed(self._store.get_versioned(self._key)[0])
            return False
        except StoreError as another:
            raise self.in_doubt() from (error if isinstance(another, OutcomeUnknownError) else another)

    def settled(self) -> None:
        """The document was changed for the last time, and has no claim any more."""
        self._over = True

    def renew(self) -> None:
        """Tell others that the owner is alive."""
        with self._renewing:
            if self._over:
                return

            def change(stored: Buffer | None) -> list[Buffer] | Unchanged:
                if stored is None or not self.holds(stored):
                    return UNCHANGED
                return [bytes(memoryview(stored)[:-_SIZE]), self._text()]

            self._number += 1
            self._store.update(self._key, change)

    def take_anew(self) -> None:
        """Claim the document by another name, so that a copy of this in another process does not hold it.

        Raises
        ------
        StoreError
        """
        with self._renewing:
            if self._over:
                return
            before, self._owner = self._owner, _blanks(secrets.randbits(_OWNER_BITS), _OWNER_BITS)

            def change(stored: Buffer | None) -> list[Buffer] | Unchanged:
                if stored is None or not claim_in(stored)[len(_BEGIN) :].startswith(before):
                    return UNCHANGED
                return [bytes(memoryview(stored)[:-_SIZE]), self._text()]

            try:
                self._store.update(self._key, change)
            except OutcomeUnknownError:  # It changes nothing if it has.
                self._store.update(self._key, change)
            except StoreError:
                self._owner = before
                raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _beat.remove(self)
        with self._renewing:
            if self._over:
                return
            self._over = True

            def change(stored: Buffer | None) -> list[Buffer] | Unchanged:
                if stored is None or not self.holds(stored):
                    return UNCHANGED
                return [bytes(memoryview(stored)[:-_SIZE])]

            try:
                try:
                    self._store.update(self._key, change)
                except OutcomeUnknownError:  # Others have been there since.
                    self._store.update(self._key, change)
            except StoreError as another:
                # This process, at least, need not wait for itself.
                _seen[self._store.identity, self._key] = self._text(), -PATIENCE
                if error is None:
                    raise
                error.add_note(
                    f"others may have to wait {PATIENCE:g} s, as a claim could not be taken back: {another}"
                )


class _ClaimedStore(Store):
    """A store in which an owner changes values beside the document, as long as its claim holds."""

    def __init__(self, store: Store, claim: Claim) -> None:
        super().__init__(read_only=store.read_only)
        self.request_bytes = store.request_bytes
        self.concurrency = store.concurrency
        self.conflict_deadline = store.conflict_deadline
        self.erases_conditionally = store.erases_conditionally
        self._store = store
        self._claim = claim
        self._absent: list[object] = []  # The version of values that are not there, once it is known.

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def identity(self) -> object:
        return self._store.identity

    @property
    def listable(self) -> bool:
        return self._store.listable

    def get(self, key: str, byte_range: ByteRange | None = None) -> Buffer | None:
        return self._store.get(key, byte_range)

    def exists(self, key: str) -> bool:
        return self._store.exists(key)

    def list_dir(self, prefix: str) -> tuple[set[str], set[str]]:
        return self._store.list_dir(prefix)

    def list_prefix(self, prefix: str) -> Iterator[str]:
        return self._store.list_prefix(prefix)

    def get_versioned(self, key: str) -> tuple[Buffer | None, object]:
        return self._store.get_versioned(key)

    def compare_and_set(self, key: str, version: object, value: Buffer | None) -> bool:
        return self._store.compare_and_set(key, version, value)

    def set(self, key: str, value: Buffer) -> None:
        content = bytes(flat(value, key))
        with key_lock(self.identity, key):
            # Mostly there is nothing yet, and nothing that a successor stored will be replaced.
            if self.concurrency <= 1 or not self._made(key, content):
                with self.updater() as update:
                    update(key, lambda _: [content])

    def _made(self, key: str, content: bytes) -> bool:
        """Store a value where there is none; returns whether there was none."""
        if not self._absent:
            if self._store.exists(key):  # And may be of any size.
                return False
            stored, version = self._store.get_versioned(key)
            if stored is not None:
                return False
            self._absent.append(version)
        return self._store.compare_and_set(key, self._absent[0], content)

    @contextlib.contextmanager
    def updater(self, scratch: Scratch | None = None, limit: int = sys.maxsize) -> Iterator[Updater]:
        with self._store.updater(scratch, limit) as update:

            def update_claimed(key: str, change: Change) -> None:
                def checked(stored: Buffer | None) -> Sequence[Buffer] | Unchanged | None:
                    if stored is not None:
                        self._claim.verify()
                    return change(stored)

                update(key, checked)

            yield update_claimed

    def erase(self, key: str) -> None:
        self.erase_values([key])

    def erase_values(self, keys: Iterable[str]) -> None:
        wanted: Sequence[str] = list(keys)
        for at in range(0, len(wanted), _ERASED_AT_ONCE):
            self._claim.verify()
            self._store.erase_values(wanted[at : at + _ERASED_AT_ONCE])


class _Beat:
    """The thread that renews the claims of this process, while there are any."""

    def __init__(self) -> None:
        self._claims: set[Claim] = set()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, claim: Claim) -> None:
        with self._guard:
            self._claims.add(claim)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="xzarr3-claims", daemon=True)
                self._thread.start()

    def remove(self, claim: Claim) -> None:
        with self._guard:
            self._claims.discard(claim)

    def _run(self) -> None:
        while True:
            time.sleep(PATIENCE / 4)
            with self._guard:
                claims = list(self._claims)
                if not claims:
                    self._thread = None
                    return
            for claim in claims:
                # Who loses a claim for that, or the store with it, hears of it soon enough.
                with contextlib.suppress(StoreError):
                    claim.renew()


_beat = _Beat()


def _renew_beat() -> None:
    """A forked child owns no claims, and must not wait for a thread of its parent."""
    global _beat
    _beat = _Beat()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_beat)
