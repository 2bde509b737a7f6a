"""Printable names of fsspec file systems, without passwords and tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xzarr3.stores.fsspec.files import FileSystem, protocols

_SECRET = re.compile(
    "secret|token|passw|pwd|credential|signature|^sig|auth|cookie|session|header|key|sas|private|connection",
    re.IGNORECASE,
)
_USER = re.compile(r"(\w://)[^/\s'\"@]+@")
_QUERY = re.compile(r"(\w://[^\s'\"<>?]*)\?[^\s'\"<>)\]]*")
_PASSWORD = re.compile(r"\w://[^/\s@:]*:([^/\s]+)@")
_SHORTEST_SECRET = 4


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` that may be shown: without user names, passwords, queries of URLs and known secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _QUERY.sub(r"\1?...", _USER.sub(r"\1", text))


def _texts(value: Any, *, secret: bool = False, named: bool = True) -> Iterator[tuple[str, bool]]:
    """The texts in nested options, in order, each with whether it is a secret.

    Without ``named`` the keys of mappings are not option names; references, for example, have none.
    """
    if isinstance(value, Mapping):
        yield str(len(value)), False
        for name, item in sorted(value.items(), key=lambda pair: str(pair[0])):
            hidden = secret or (named and _SECRET.search(str(name)) is not None)
            yield str(name), False
            yield from _texts(item, secret=hidden, named=named and name != "fo")
    elif isinstance(value, (list, tuple)):
        yield str(len(value)), False
        for item in value:
            yield from _texts(item, secret=secret, named=named)
    elif hasattr(value, "storage_options"):
        made = [protocols(value), value.storage_args, value.storage_options]
        yield from _texts(made, secret=secret, named=named)
    elif isinstance(value, (str, bytes, int, float, type(None))):
        yield str(value), secret
    else:
        yield type(value).__name__, False


def secrets_in(value: object) -> list[str]:
    """The secret texts among options, longest first."""
    found: set[str] = set()
    for text, secret in _texts(value):
        found.update(_PASSWORD.findall(text), [text] if secret else [])
    secrets = [text for text in found if len(text) >= _SHORTEST_SECRET]
    return sorted(secrets, key=lambda text: (-len(text), text))


def shown(fs: FileSystem, root: str, secrets: Iterable[str]) -> str:
    """The printable name of a location."""
    options = getattr(fs, "storage_options", {})
    text = root if "://" in root else f"{protocols(fs)[0]}://{options.get('host', '')}{root}"
    if isinstance(options.get("fo"), str):
        text += f"::{options['fo']}"
    return without_secrets(text, secrets)


def token(fs: FileSystem) -> str:
    """Distinguishes file systems with equal names, without using their secrets."""
    told = [without_secrets(text) for text, secret in _texts(fs) if not secret]
    return hashlib.blake2b(repr(told).encode(errors="surrogatepass"), digest_size=12).hexdigest()
