"""URLs, options and settings of object stores, and the recipe made from them.

Options are those of obstore, and a few of fsspec. A recipe holds everything needed to make a client of obstore.
It is compared, pickled and sent to other processes. It contains secrets and is therefore never shown;
:attr:`Recipe.address` is the location without secrets.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from xzarr3.errors import ArgumentError, StoreError, StoreOptionError, listed

_KINDS = {
    **{"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "http", "https": "http"},
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), "az"),
}
OBJECT_SCHEMES: Final = frozenset(_KINDS)
"""The URL schemes that :class:`~xzarr3.stores.ObjectStore` handles."""
CLASSES: Final = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore", "http": "HTTPStore"}
"""The class of obstore for each kind of service."""
_CONTAINER = {"s3": "bucket", "gs": "bucket", "az": "container_name"}
# The names of fsspec that are accepted.
_NAMES = {
    "s3": {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token"},
    "gs": {"token": "application_credentials", "endpoint_url": "base_url"},
    "az": {},
    "http": {},
}
# The option that sets the address of a service, and the variables that do so; the first one set counts.
_ENDPOINT = {
    "s3": ("endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("base_url", "GOOGLE_BASE_URL"),
    "az": ("endpoint", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "http": ("",),
}
_HEADERS = "client_options={'default_headers': {...}}"
# Other names of fsspec, and obstore's words for them.
_OF_FSSPEC = {
    "profile": "credential_provider=Boto3CredentialProvider(boto3.Session(profile_name=...)) of obstore",
    "client_kwargs": "its entries themselves, such as endpoint_url and region",
    "config_kwargs": "client_options={...}",
    "requester_pays": "request_payer",
    "use_ssl": "allow_http",
    "verify": "client_options={'allow_invalid_certificates': True}",
    "region_name": "region",
    "connection_string": "account_name, with account_key or sas_key",
    **dict.fromkeys(("credential", "session"), "credential_provider"),
    **dict.fromkeys(("headers", "auth", "username", "password"), _HEADERS),
    **dict.fromkeys(
        ("project", "skip_instance_cache", "use_listings_cache", "asynchronous"), "nothing for it"
    ),
    **dict.fromkeys(("default_block_size", "default_cache_type", "default_fill_cache"), "nothing for it"),
}
_PREFIX = re.compile(r"^(aws_|google_|azure_storage_|azure_)")  # Of obstore's names, which it does not need.
_SECRET = re.compile("key|secret|token|password|sas_")
_BUCKET = re.compile(r"arn:[a-z0-9:_-]+|[^/\\?#@:\s\x00-\x1f\x7f]+")
_NO_NAMES = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")


class Settings(msgspec.Struct, frozen=True):
    """The arguments of a store that may also be options; :class:`~xzarr3.ObjectStore` documents them."""

    read_only: bool = False
    concurrency: Annotated[int, Meta(ge=1)] = 64
    retries: Annotated[int, Meta(ge=0)] = 10
    deadline: Annotated[float, Meta(gt=0, le=10**6)] = 12.0
    timeout: Annotated[float, Meta(gt=0, le=10**6)] = 7.0
    absent_status: tuple[Annotated[int, Meta(ge=400, le=499)], ...] = (404,)
    request_bytes: Annotated[int, Meta(ge=0)] = 2**20
    over_read: Annotated[float, Meta(ge=1)] = 2.0
    conditional: Literal["service", "process"] = "service"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """The settings with the given ones; raises :class:`ArgumentError` if one has an invalid value."""
        for name, value in given.items():
            try:
                msgspec.convert({name: value}, cls)
            except msgspec.ValidationError as error:
                text = str(error).partition(" - at ")[0].lower()
                raise ArgumentError(f"{name}={value!r}; accepted: {text.removeprefix('expected ')}") from None
        return msgspec.convert(given, cls)


@dataclass(frozen=True, repr=False)
class Recipe:
    """Everything needed to make a client of obstore.

    Parameters
    ----------
    kind : str
        ``"s3"``, ``"gs"``, ``"az"`` or ``"http"``; empty for a ready store that cannot be made again.
    arguments : mapping
        Arguments of the class of obstore, including secrets.
    address : str
        The location, without secrets.
    secrets : tuple of str
        Texts that must never be shown.
    """

    kind: str
    arguments: Mapping[str, Any]
    address: str
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Recipe of {self.address}>"


def parse(url: str, options: Mapping[str, Any]) -> tuple[Recipe, str]:
    """The recipe for a URL, and the beginning of every key, which is empty or ends with ``/``.

    Raises
    ------
    StoreError
        If it is not the URL of an object store.
    StoreOptionError
        If options are unknown, or contradict each other or the URL.

    Examples
    --------
    >>> recipe, prefix = parse("s3://bucket/a.zarr", {"anon": True, "endpoint_url": "http://localhost:9000"})
    >>> recipe.kind, prefix, recipe.address
    ('s3', 'a.zarr/', 's3://bucket at http://localhost:9000')
    """
    scheme, mark, rest = url.partition("://")
    kind = _KINDS.get(scheme.lower()) if mark else None
    if kind is None:
        raise StoreError(f"not a URL of an object store; accepted: {', '.join(sorted(_KINDS))}, then '://'")
    wanted = _named(kind, options)
    if kind == "http":
        return _of_web(url, wanted), ""
    place, _, path = rest.partition("/")
    if kind == "az" and "@" in place:
        place, _, host = place.partition("@")
        _put(wanted, "account_name", host.partition(".")[0])
    names = path.removesuffix("/")
    if not _BUCKET.fullmatch(place) or (names and _NO_NAMES.search(names)):
        raise StoreError(
            f"not a URL of an object store: what follows '{scheme}://'; accepted: the name of a bucket or "
            "container without ':' and '@', '/', and names separated by single '/', none of them '.' or '..', "
            "without control characters"
        )
    client, provider = wanted.pop("client_options", {}), wanted.pop("credential_provider", None)
    endpoint, address = wanted.get(_ENDPOINT[kind][0]), f"{kind}://{place}"
    if endpoint is not None:
        address += f" at {_public(str(endpoint))}"
    elif "account_name" in wanted:
        address += f" of {wanted['account_name']}"
    if wanted.pop("allow_http", str(endpoint).startswith("http://")):
        client = {"allow_http": True, **client}
    secrets = [str(value) for name, value in wanted.items() if _SECRET.search(name)]
    config = dict(sorted({**wanted, _CONTAINER[kind]: place}.items()))
    if kind == "s3" and endpoint is not None:  # This name goes before all variables.
        config["aws_endpoint_url_s3"] = config.pop("endpoint")
    arguments = {"config": config, "client_options": client, "credential_provider": provider}
    return Recipe(kind, arguments, address, _parts(secrets)), names and f"{names}/"


def of_ready(store: Any) -> Recipe | None:
    """The recipe of a ready store of obstore; None if the store cannot be made again."""
    kind = next((kind for kind, name in CLASSES.items() if name == type(store).__name__), None)
    if kind is None:
        return None
    positional, arguments = store.__getnewargs_ex__()
    first = {"url": positional[0]} if positional else {}
    config = arguments.get("config") or {}
    secrets = [str(value) for name, value in config.items() if _SECRET.search(name)]
    headers = (arguments.get("client_options") or {}).get("default_headers") or {}
    address = f"obstore.{store!r}" + "".join(
        f" at {_public(config[name])}" for name in config if "endpoint" in name
    )
    return Recipe(kind, {**arguments, **first}, address, _parts([*secrets, *map(str, headers.values())]))


def accepted(kind: str) -> str:
    """The accepted options, for an error message."""
    names = "" if kind == "http" else "anon, endpoint_url, key, region, secret, token, "
    return f"accepted: {names}client_options, what {CLASSES[kind]} of obstore takes, settings of ObjectStore"


def _of_web(url: str, wanted: dict[str, Any]) -> Recipe:
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0 or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise StoreError(
            "not a URL of a directory: no host with a path and a port, or a query or a fragment; accepted: URLs "
            "such as https://example.org/era5.zarr; write '?' and '#' in it as '%3F' and '%23'; give signatures "
            f"of requests as {_HEADERS}"
        ) from None
    client = {"allow_http": parts.scheme == "http", **wanted.pop("client_options", {})}
    if wanted:
        raise StoreOptionError(
            f"unknown options of a web server: {listed(sorted(wanted))}; {accepted('http')}"
        )
    headers = client.get("default_headers", {})
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}", **headers}
        client["default_headers"] = headers
    place = _public(url)
    return Recipe("http", {"url": place, "client_options": client}, place, _parts(map(str, headers.values())))


def _named(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options under the names of obstore, without its prefixes."""
    wanted: dict[str, Any] = {}
    endpoint, *variables = _ENDPOINT[kind]
    for spelling, value in options.items():
        name = _PREFIX.sub("", str(spelling).lower())
        if name in _OF_FSSPEC:
            raise StoreOptionError(f"storage_options: '{name}' is a name of fsspec; give {_OF_FSSPEC[name]}")
        name = _NAMES[kind].get(name, name)
        if kind != "http" and (name == "anon" or value == "anon"):
            name, value = "skip_signature", value == "anon" or value
        elif name in ("endpoint_url", "endpoint_url_s3", endpoint):
            name, value = endpoint, value and str(value).rstrip("/")
        if value is not None and value != "google_default":
            _put(wanted, name, value)
    client = wanted.get("client_options", {})
    if not isinstance(client, Mapping) or not isinstance(client.get("default_headers", {}), Mapping):
        raise StoreOptionError(f"'client_options' is not a dictionary of dictionaries; accepted: {_HEADERS}")
    told = next((os.environ[name] for name in variables if os.environ.get(name)), None)
    if told is not None:
        wanted.setdefault(endpoint, told.rstrip("/"))
    return wanted


def _put(wanted: dict[str, Any], name: str, value: object) -> None:
    if wanted.setdefault(name, value) != value:
        raise StoreOptionError(f"storage_options: '{name}' has two values; give one of them")


def _parts(secrets: Any) -> tuple[str, ...]:
    """Secrets and their parts, each as it is and decoded."""
    pieces = [part for secret in secrets for part in (secret, *secret.split(" "))]
    return tuple(piece for part in pieces for piece in (part, unquote(part)) if piece)


def _public(url: str) -> str:
    """A URL without user, password and query.

    Raises
    ------
    StoreOptionError
        If it is not the URL of a web server.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise StoreOptionError("an endpoint is not a URL; accepted: URLs such as https://example.org:9000")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"
