"""A store around the store of an Icechunk session: a transaction that its owner commits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from xzarr3.errors import ReadOnlyError
from xzarr3.stores.zarr_python.interface import layers
from xzarr3.stores.zarr_python.store import ZarrPythonStore

_KEY = re.compile(r"(?:.+/)?(?:zarr\.json|c((?:/(?:0|[1-9][0-9]{0,9}))*))", re.DOTALL)
_DOCUMENT = "zarr.json"
_MOST_CHUNKS = 2**32  # Along one dimension.


class IcechunkStore(ZarrPythonStore):
    """Values are those of an Icechunk session.

    What is written becomes visible to others when the owner of the session commits it, all at once. This
    store never commits. Icechunk notices at the commit if another session has changed the same chunks or
    documents. So the session itself gives the guarantees that xzarr3 gives elsewhere with a lease, staged
    values and a swap. None of their keys is written, as Icechunk holds only documents and chunks of Zarr
    version 3 with the chunk key encoding ``default``. Other keys count as absent, and are refused when
    written.

    - Documents are stored before chunks: Icechunk takes a chunk only within the shape of a known array.
    - A node that is replaced is erased first, within the session. After an error, call
      ``session.discard_changes()``, or write again, before you commit: parts of the write may be in the
      session.
    - Threads of one process may write to one session. Partial writes of one chunk wait for each other.
    - Other processes can read a session made with ``repo.readonly_session``. A writable session stays in its
      process: chunks that another process writes to a copy, also to one made with ``session.fork()``, would
      have to be merged by hand. So write with threads (``scheduler="threads"``).
    - Consolidated metadata are not written; a session has all documents at hand.

    Values do not change while they are read, except by writes to the same session. So shards are read in
    parts.
    """

    transactional = True
    _of_one_version = True
    _accepted = "documents and chunks of Zarr version 3 with the chunk key encoding 'default'"
    _advice: ClassVar[str] = (
        "commit the session and read it with repo.readonly_session(...) there, and write with threads "
        "(scheduler='threads')"
    )

    def __init__(self, store: Any, *, read_only: bool = False) -> None:
        super().__init__(store, read_only=read_only)
        self._layer = next(layer for layer in layers(store) if hasattr(layer, "session"))
        session = self._layer.session
        self._snapshot: str | None = session.snapshot_id if session.read_only else None

    def _name(self) -> str:
        session = self._layer.session
        where = f"snapshot {session.snapshot_id}"
        return where if session.branch is None else f"session of branch '{session.branch}' on {where}"

    @property
    def identity(self) -> object:
        """The snapshot of a read-only session, which is the same in every process; else the session."""
        return "IcechunkStore", self._snapshot or self._identity

    @property
    def tells_changes(self) -> bool:
        """Whether the session is read-only: then nothing changes."""
        return self._snapshot is not None

    def stamp(self, keys: Sequence[str]) -> object:
        return self._snapshot or super().stamp(keys)

    def _is_around(self, store: object) -> bool:
        # A session makes a new store object each time.
        return type(self.foreign) is type(store) and bool(self.foreign == store)

    def _is_lost_in_copies(self) -> bool:
        return self._snapshot is None

    def _check_writable(self) -> None:
        super()._check_writable()
        if self._layer.session.read_only:
            raise ReadOnlyError(
                f"{self} is read-only since its session was committed; write to a new session, as "
                "repo.writable_session(...) makes"
            )

    def _holds(self, key: str) -> bool:
        found = _KEY.fullmatch(key)
        return found is not None and all(int(at) < _MOST_CHUNKS for at in (found[1] or "").split("/")[1:])

    def _gives_parts(self, key: str) -> bool:
        return not key.endswith(_DOCUMENT)  # Icechunk returns wrong parts of documents.

    def _says_absent(self, error: Exception) -> bool:
        # A key such as "a/c" may be that of a chunk, and also the path of node "c" in group "a".
        return type(error).__name__ == "InvalidInputError" and "there is not an array at" in str(error)

    def _listed(self, prefix: str) -> str:
        """The prefix of the nearest node above: no other prefix can be listed."""
        while prefix and not self.exists(prefix + _DOCUMENT):
            prefix = prefix[: prefix.rstrip("/").rfind("/") + 1]
        return prefix
