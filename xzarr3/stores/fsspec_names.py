"""What file systems of fsspec are called where everybody may see it: without passwords and tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping

from xzarr3.stores.fsspec_files import FileSystem, layers, protocols

_SECRET = re.compile(
    "secret|token|passw|pwd|credential|signature|^sig|auth|cookie|session|header|key|sas|private|connection",
    re.IGNORECASE,
)
_USER = re.compile(r"(\w://)[^/\s'\"@]+@")
_QUERY = re.compile(r"(\w://[^\s'\"<>?]*)\?[^\s'\"<>)\]]*")
_PASSWORD = re.compile(r"\w://[^/\s@:]*:([^/\s]+)@")
_SHORTEST_SECRET = 4


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """A text for everybody: no user names and passwords, nor queries of URLs, nor known secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _QUERY.sub(r"\1?...", _USER.sub(r"\1", text))


def secrets_in(value: object, *, secret: bool = False) -> Iterator[str]:
    """The texts among options that are secrets."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from secrets_in(item, secret=secret or _is_secret(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from secrets_in(item, secret=secret)
    elif isinstance(value, str):
        if secret and len(value) >= _SHORTEST_SECRET:
            yield value
        for found in _PASSWORD.findall(value):
            yield from secrets_in(found, secret=True)
    elif hasattr(value, "storage_options"):
        yield from secrets_in(value.storage_options)


def _is_secret(name: object) -> bool:
    """Whether an option of that name may hold a secret."""
    return _SECRET.search(str(name)) is not None


def shown(fs: FileSystem, root: str, secrets: Iterable[str]) -> str:
    """What a place is called."""
    names = [protocols(layer)[0] for layer in layers(fs)]
    options = getattr(fs, "storage_options", {})
    place = root if "://" in root else f"{names[-1]}://{options.get('host', '')}{root}"
    text = "::".join([*names[:-1], place])
    if isinstance(options.get("fo"), str):
        text += f"::{options['fo']}"
    return without_secrets(text, secrets)


def token(fs: FileSystem) -> str:
    """Tells file systems apart that have the same name, without their secrets."""
    told: list[object] = []
    for layer in layers(fs):
        told += [protocols(layer)[0], _public(layer.storage_args), _public(layer.storage_options)]
    return hashlib.blake2b(repr(told).encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _public(value: object, *, names: bool = True) -> object:
    """What may be said of an option; without ``names`` those in it are no names of options."""
    if isinstance(value, Mapping):
        items = [(str(name), item) for name, item in value.items() if not (names and _is_secret(name))]
        return [(name, _public(item, names=name != "fo")) for name, item in sorted(items, key=lambda i: i[0])]
    if isinstance(value, (list, tuple)):
        return [_public(item) for item in value]
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, (bytes, int, float, type(None))):
        return value
    if hasattr(value, "storage_options"):
        return protocols(value)[0], _public(value.storage_options)
    return type(value).__name__
