"""Checks the keys and prefixes of stores, which cannot name anything outside the root of a store."""

from __future__ import annotations

from xzarr3.errors import InvalidKeyError, shorten

OWN = ".xzarr3-"
"""How the names begin of what writers keep beside nodes."""
DOCUMENTS = frozenset(("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"))
"""The names of the documents of versions 3 and 2."""
_BEGINS = ("", "/", ".")  # Of keys that are invalid or may be.
_ACCEPTED_KEY = "names separated by single '/', relative, none of them empty, '.' or '..'"


def check_key(key: str) -> str:
    """Return ``key`` if it is valid, which means that it cannot name anything outside the store's root.

    Raises
    ------
    InvalidKeyError
        If it is empty, absolute, ends with ``/``, climbs or holds a NUL character.

    Examples
    --------
    >>> from xzarr3.stores import check_key
    >>> check_key("ocean/c/0")
    'ocean/c/0'
    """
    if not isinstance(key, str):
        raise InvalidKeyError(f"a key must be a string, found {type(key).__name__}")
    # Looked for in the whole key, as splitting it takes twice as long.
    if "//" in key or "/." in key or "\0" in key or key[:1] in _BEGINS or key.endswith("/"):
        names = key.split("/")
        if "" in names or "." in names or ".." in names or "\0" in key:
            raise InvalidKeyError(f"invalid key {shorten(key)}; accepted: {_ACCEPTED_KEY}")
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is empty or a valid key followed by ``/``.

    Raises
    ------
    InvalidKeyError
        Otherwise.

    Examples
    --------
    >>> from xzarr3.stores import check_prefix
    >>> check_prefix("ocean/")
    'ocean/'
    """
    if not isinstance(prefix, str):
        raise InvalidKeyError(f"a prefix must be a string, found {type(prefix).__name__}")
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidKeyError(f"invalid prefix {shorten(prefix)}; accepted: '' or a key followed by '/'")
        check_key(prefix[:-1])
    return prefix


def below_document(key: str) -> str | None:
    """The prefix of all that a document tells how to read; None if the key is not that of a document.

    A document of the draft tells of what has another prefix, so everything counts.

    Examples
    --------
    >>> below_document("ocean/zarr.json"), below_document(".zmetadata"), below_document("ocean/c/0")
    ('ocean/', '', None)
    """
    above, slash, name = key.rpartition("/")
    if name in DOCUMENTS:
        return above + slash
    return "" if name.endswith((".array.json", ".group.json")) else None
