"""URLs, options and settings of object stores, and the recipe made from them.

Options are those of obstore, and a few of fsspec. A recipe holds everything needed to make a client of
obstore. It is compared, pickled and sent to other processes. It contains secrets and is therefore never
shown; :attr:`Recipe.address` is the location without secrets.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from xzarr3.errors import ArgumentError, ArgumentTypeError, StoreError, StoreOptionError, listed, one_of

_KINDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "http", "https": "http"} | dict.fromkeys(
    ("az", "azure", "abfs", "abfss", "adl"), "az"
)
OBJECT_SCHEMES: Final = frozenset(_KINDS)
"""The URL schemes that :class:`~xzarr3.stores.ObjectStore` handles."""
CLASSES: Final = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore", "http": "HTTPStore"}
"""The class of obstore for each kind of service."""
# The names of fsspec that are accepted, besides 'anon' and 'endpoint_url'.
_NAMES = {
    "s3": {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token"},
    "gs": {"token": "application_credentials"},
}
# The option that sets the address of a service, and the variables that do so; the first one set counts.
_ENDPOINT = {
    "s3": ("endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("base_url", "GOOGLE_BASE_URL"),
    "az": ("endpoint", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_HEADERS = "client_options={'default_headers': {...}}"
# Other names of fsspec, and obstore's words for them.
_OF_FSSPEC = (
    {"profile": "credential_provider=Boto3CredentialProvider(boto3.Session(profile_name=...)) of obstore"}
    | {"client_kwargs": "its entries themselves, such as endpoint_url and region", "region_name": "region"}
    | {"config_kwargs": "client_options={...}", "credential": "credential_provider"}
    | {"connection_string": "account_name, with account_key or sas_key", "session": "credential_provider"}
    | {"verify": "client_options={'allow_invalid_certificates': True}", "use_ssl": "allow_http"}
    | dict.fromkeys(("headers", "auth", "username", "password"), _HEADERS)
    | dict.fromkeys(("project", "skip_instance_cache", "use_listings_cache", "asynchronous"), "nothing")
    | {"requester_pays": "request_payer", "default_cache_type": "nothing", "default_block_size": "nothing"}
)
_PREFIX = re.compile(r"^(aws_|google_|azure_storage_|azure_)")  # Of obstore's names, which it does not need.
_SECRET = re.compile("key|secret|token|password|sas_")
_BUCKET = re.compile(r"arn:[a-z0-9:_-]+|[^/\\?#@:\s\x00-\x1f\x7f]+")
_NO_NAMES = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
_NO_URL = (
    "not a URL of an object store; accepted: 's3://', 'gs://' or 'az://', a bucket or container and names, "
    "none of them empty, '.' or '..'; 'https://' with a host, a port and a path, in which '?' is '%3F' and "
    f"'#' is '%23'; signatures of requests are given as {_HEADERS}"
)


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
        """The settings with the given ones.

        Raises
        ------
        ValueError
            If one has an invalid value.
        TypeError
            If there is no setting of a name.
        """
        try:
            return msgspec.convert(msgspec.structs.asdict(cls(**given)), cls)
        except msgspec.ValidationError as error:
            raise ArgumentError(f"settings of an ObjectStore: {dict(given)}; {error}") from None


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

    @property
    def config(self) -> Mapping[str, Any]:
        """The options of the service."""
        return self.arguments.get("config") or {}


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
    kind = _KINDS.get(scheme.lower(), "") if mark else ""
    if kind == "http":
        return _web(url, options), ""
    place, _, path = rest.partition("/")
    place, _, host = place.partition("@") if kind == "az" else (place, "", "")
    names = path.removesuffix("/")
    if not (kind and _BUCKET.fullmatch(place)) or (names and _NO_NAMES.search(names)):
        raise StoreError(_NO_URL)
    config = _named(kind, options)
    client, provider = config.pop("client_options", {}), config.pop("credential_provider", None)
    if host:
        config.setdefault("account_name", host.partition(".")[0])
    endpoint, address = config.pop(_ENDPOINT[kind][0], None), f"{kind}://{place}"
    if endpoint is not None:
        address += f" at {_public(endpoint)}"
        client = {"allow_http": endpoint.lower().startswith("http:"), **client}
        # The name for S3 goes before all variables.
        config["aws_endpoint_url_s3" if kind == "s3" else _ENDPOINT[kind][0]] = endpoint
    elif "account_name" in config:
        address += f" of {config['account_name']}"
    secrets = _pieces(value for name, value in config.items() if _SECRET.search(name))
    config["container_name" if kind == "az" else "bucket"] = place
    arguments = {"config": dict(sorted(config.items())), "client_options": client}
    arguments |= {} if provider is None else {"credential_provider": provider}
    return Recipe(kind, arguments, address, secrets), names and f"{names}/"


def _web(url: str, options: Mapping[str, Any]) -> Recipe:
    """The recipe for a web server; user and password in its URL become a header."""
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0 or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise StoreError(_NO_URL) from None
    config = _named("http", options)
    client = {"allow_http": parts.scheme == "http", **config.pop("client_options", {})}
    if config:
        names = listed(sorted(config))
        raise StoreOptionError(f"unknown options of a web server: {names}; {accepted(names)}")
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        client["default_headers"] = login | client.get("default_headers", {})
    secrets = _pieces(client.get("default_headers", {}).values())
    return Recipe("http", {"url": _public(url), "client_options": client}, _public(url), secrets)


def _named(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options under the names of obstore, without its prefixes."""
    endpoint, *variables = _ENDPOINT.get(kind, ("",))
    told = next((os.environ[name] for name in variables if os.environ.get(name)), None)
    wanted: dict[str, Any] = {} if told is None else {endpoint: told.rstrip("/")}
    for spelling, value in options.items():
        name = _PREFIX.sub("", str(spelling).lower())
        if name in _OF_FSSPEC:
            raise StoreOptionError(f"storage_options: '{name}' is a name of fsspec; give {_OF_FSSPEC[name]}")
        name = _NAMES.get(kind, {}).get(name, name)
        if kind != "http" and (name == "anon" or value == "anon"):
            name, value = "skip_signature", value == "anon" or value
        elif name in ("endpoint_url", "endpoint_url_s3", endpoint):
            name, value = endpoint, value and str(value).rstrip("/")
        if value is not None and value != "google_default":
            wanted[name] = value
    client = wanted.get("client_options", {})
    if not isinstance(client, Mapping) or not isinstance(client.get("default_headers", {}), Mapping):
        raise StoreOptionError(f"'client_options' is not a dictionary of dictionaries; accepted: {_HEADERS}")
    if "allow_http" in wanted:
        wanted["client_options"] = {"allow_http": wanted.pop("allow_http"), **client}
    return wanted


def _pieces(secrets: Iterable[object]) -> tuple[str, ...]:
    """Secrets and their words, each as it is and decoded."""
    words = [word for secret in secrets for word in (str(secret), *str(secret).split(" "))]
    return tuple(shown for word in words for shown in (word, unquote(word)) if shown)


def accepted(refusal: str) -> str:
    """The accepted options, for an error message; first the one nearest to the one that is refused."""
    found = re.search("'([^']+)'", refusal)
    names = ("anon", "client_options", "endpoint_url", "key", "region", "secret", "token")
    return f"{one_of(found and found[1], names + Settings.__struct_fields__)}, and the names of obstore"


def of_ready(store: Any, options: Mapping[str, Any]) -> Recipe:
    """The recipe of a ready store of obstore; of no kind if the store cannot be made again."""
    if not any(cls.__module__.partition(".")[0] == "obstore" for cls in type(store).__mro__):
        raise ArgumentTypeError(f"not a store: {type(store).__name__}; accepted: a URL or a store of obstore")
    if options:
        raise StoreOptionError("options of a ready store; accepted: a URL with options, or the store alone")
    kind = next((kind for kind, name in CLASSES.items() if name == type(store).__name__), "")
    address = f"obstore.{store!r}".replace(" ", "")
    if not kind:
        return Recipe(kind, {}, address)
    positional, arguments = store.__getnewargs_ex__()
    config = arguments.get("config") or {}
    if kind == "http":
        address = f"obstore.HTTPStore('{_public(positional[0])}')"
    address += "".join(f" at {_public(value)}" for name, value in config.items() if "endpoint" in name)
    first = {"url": positional[0]} if positional else {}
    return Recipe(kind, {"client_options": {}, **arguments, **first}, address)


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
