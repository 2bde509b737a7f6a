"""URLs and options of object stores, in the terms of fsspec and obstore, and the recipe made from them.

Only the common fsspec options are known here. All others are passed to obstore unchanged, which refuses
unknown ones. A recipe holds everything needed to make a client. It is compared, pickled and sent to other
processes. It contains secrets and is therefore never shown; :attr:`Recipe.address` is the location without
secrets.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from xzarr3.errors import StoreError, listed, one_of

OBJECT_SCHEMES: Final = frozenset(
    ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "http", "https")
)
"""The URL schemes that :class:`~xzarr3.stores.ObjectStore` handles."""
SETTINGS: Final = frozenset(
    {
        *("concurrency", "retries", "deadline", "timeout", "absent_status", "request_bytes"),
        *("over_read", "conditional", "read_only"),
    }
)
"""Arguments of the store that may also be given as options."""

_KINDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "http", "https": "http"}
TITLES: Final = {"s3": "S3", "gs": "Google Cloud Storage", "az": "Azure", "http": "HTTP"}
_CLASSES = {
    "s3": "S3Store",
    "gs": "GCSStore",
    "az": "AzureStore",
    "http": "HTTPStore",
    "local": "LocalStore",
}
_PREFIXES = {"s3": ("aws_",), "gs": ("google_",), "az": ("azure_storage_", "azure_")}  # In obstore's names.
_REFUSED = re.compile("'([^']+)'")  # The option that a message names.
_ENDPOINT = {"s3": "endpoint", "gs": "base_url", "az": "endpoint"}
_CONTAINER = {"s3": "bucket", "gs": "bucket", "az": "container_name"}
# Other names of options and the name used here; prefixes of obstore's names are removed before.
SPELLINGS: Final[dict[str, dict[str, str]]] = {
    "s3": {
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
        "anon": "skip_signature",
        "requester_pays": "request_payer",
        "profile_name": "profile",
        "endpoint_url": "endpoint",
        "endpoint_url_s3": "endpoint",
        "region_name": "region",
        "default_region": "region",
    },
    "gs": {
        "anon": "skip_signature",
        "endpoint": "base_url",
        "endpoint_url": "base_url",
        "service_account_file": "service_account",
        "service_account_path": "service_account",
    },
    "az": {
        "anon": "skip_signature",
        "endpoint_url": "endpoint",
        "account": "account_name",
        "access_key": "account_key",
        "sas_token": "sas_key",
        "bearer_token": "token",
    },
    "http": {},
}
# Option names in an Azure connection string, in lower case, and the name used here.
_CONNECTION = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
    "usedevelopmentstorage": "use_emulator",
}
_COMMON = ("verify", "allow_http", "headers", "client_kwargs", "client_options")
# fsspec options for its own caches and event loops, which are not used here.
_WITHOUT_EFFECT = frozenset(
    {
        *("default_block_size", "default_cache_type", "default_fill_cache", "skip_instance_cache", "project"),
        *("use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "cache_regions"),
        "use_ssl",  # The scheme of the endpoint decides.
    }
)
_SECRET = re.compile("key|secret|token|password|sas_")
# Options that set a location, and the environment variables for them; the first variable that is set counts.
_PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "s3_express": ("AWS_S3_EXPRESS",),
    },
    "gs": {"base_url": ("GOOGLE_BASE_URL",)},
    "az": {
        "account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
        "endpoint": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    },
    "http": {},
}
_READ_BY_OBSTORE = {"s3": ("AWS_",), "gs": ("GOOGLE_",), "az": ("AZURE_", "MSI_", "IDENTITY_")}
_BUCKET = re.compile(r"arn:[a-z0-9:_-]+|[^/\\?#@:\s\x00-\x1f\x7f]+")
ANYWHERE: Final = frozenset(
    ("user-agent", "accept", "accept-encoding", "accept-language", "range", "if-match")
)
"""Headers that may be sent to any server."""
_DROPPED = frozenset(("authorization", "cookie"))  # obstore drops them on a redirect to another server.
_forked = False


def is_forked() -> bool:
    """Whether this process was forked after obstore was loaded; obstore's threads do not exist then."""
    return _forked


def _note_fork() -> None:
    global _forked
    _forked |= "obstore" in sys.modules


if hasattr(os, "register_at_fork"):  # The package imports this module, so that no fork is missed.
    os.register_at_fork(after_in_child=_note_fork)


@dataclass(frozen=True, repr=False)
class Recipe:
    """Everything needed to make a client of obstore.

    Parameters
    ----------
    kind : str
        ``"s3"``, ``"gs"``, ``"az"``, ``"http"`` or ``"local"``; empty for other ready stores.
    class_name : str
        The class of obstore.
    arguments : mapping
        Arguments of that class, including secrets.
    address : str
        The location, without secrets.
    profile : str, optional
        The AWS profile whose credentials boto3 reads.
    secrets : tuple of str
        Texts that must never be shown.
    """

    kind: str
    class_name: str
    arguments: Mapping[str, Any] = field(repr=False)
    address: str
    profile: str | None = None
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Recipe of {self.address}>"

    def key(self) -> object:
        """Equal for equal recipes."""
        return self.kind, self.class_name, _frozen(self.arguments), self.profile

    def private_headers(self) -> dict[str, str]:
        """All headers, if a redirect to another server would carry some of them along; otherwise none."""
        headers = dict(self.arguments.get("client_options", {}).get("default_headers", {}))
        private = any(name.lower() not in ANYWHERE | _DROPPED for name in headers)
        return headers if private and self.kind == "http" else {}

    def __hash__(self) -> int:
        return hash(self.key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and other.key() == self.key()


@dataclass(frozen=True, repr=False)
class Location:
    """The meaning of a URL and its options.

    Parameters
    ----------
    recipe : Recipe
    prefix : str
        The beginning of every key, empty or ending with ``/``.
    settings : mapping
        Arguments of the store that were given as options.
    """

    recipe: Recipe
    prefix: str
    settings: Mapping[str, Any]


def parse(url: str, options: Mapping[str, Any] | None = None) -> Location:
    """The place that a URL names.

    Raises
    ------
    StoreError
        If it is not the URL of an object store, or options contradict each other or the URL.

    Examples
    --------
    >>> place = parse("s3://bucket/era5.zarr", {"anon": True, "endpoint_url": "http://localhost:9000"})
    >>> place.recipe.kind, place.prefix, place.recipe.address
    ('s3', 'era5.zarr/', 's3://bucket at http://localhost:9000')
    """
    given = dict(_dictionary("storage_options", {"storage_options": options}))
    scheme, mark, rest = url.partition("://")
    scheme = scheme.lower()
    if not mark or scheme not in OBJECT_SCHEMES:
        raise StoreError(
            f"not a URL of an object store: {_scrubbed(url)}; accepted: {', '.join(sorted(OBJECT_SCHEMES))}"
        )
    kind = _KINDS.get(scheme, "az")
    login: dict[str, str] = {}
    account = None
    settings = {name: given.pop(name) for name in sorted(SETTINGS & given.keys())}
    if kind == "http":
        try:
            (place, login), prefix = _of_web(url), ""
        except ValueError:
            raise StoreError(
                f"not a URL: what follows '{scheme}://' is not a host with a path and a port; accepted: "
                "URLs such as https://example.org/era5.zarr, https://[::1]:8080/era5.zarr"
            ) from None
    else:
        place, _, prefix = rest.partition("/")
        if kind == "az" and "@" in place:
            place, _, host = place.partition("@")
            account = host.partition(".")[0]
        if not _BUCKET.fullmatch(place):
            shown = "***" if ":" in rest else _public(rest)
            raise StoreError(
                f"no {'container' if kind == 'az' else 'bucket'} in the URL {scheme}://{shown}; "
                f"accepted: '{scheme}://', its name without ':' and '@', '/' and the path"
            )
    wanted = _named(kind, given)
    if account is not None and wanted.setdefault("account_name", account) != account:
        raise _differ(kind, "account_name")
    if login:
        wanted["headers"] = login | wanted.get("headers", {})
    return Location(_recipe(kind, place, wanted), _prefix(prefix, url), settings)


def folder_above(recipe: Recipe, prefix: str) -> tuple[Recipe, str, str] | None:
    """The recipe and the prefix one level up, and the name of this level there; None at the top."""
    if recipe.kind != "http":
        above, _, name = prefix.rstrip("/").rpartition("/")
        return (recipe, above and f"{above}/", name) if name else None
    url, _, name = str(recipe.arguments["url"]).rstrip("/").rpartition("/")
    if not name or url.endswith("/"):  # Above the host is nothing.
        return None
    return replace(recipe, arguments={**recipe.arguments, "url": url}, address=url), "", unquote(name)


def accepted(kind: str, refusal: str = "") -> str:
    """The known options, for an error message; first the one nearest to what is refused."""
    names = sorted({*SPELLINGS[kind], *_COMMON, *SETTINGS})
    found = _REFUSED.search(refusal)
    more = "more with s3://, gs:// and az://" if kind == "http" else f"what {_CLASSES[kind]} of obstore takes"
    return f"{one_of(found and found[1], names)}, and {more}"


def _of_web(url: str) -> tuple[str, dict[str, str]]:
    """The address of a web server, and the header for the user and password in its URL."""
    parts = urlsplit(url)
    if not parts.hostname or parts.port == 0 or parts.query or parts.fragment:
        raise StoreError(
            "not the URL of a directory: it has a query, a fragment or no host; accepted: 'https://', a "
            "host and a path; write '?' and '#' in it as '%3F' and '%23'; give signatures of requests as "
            "headers={...}"
        )
    login = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return f"{parts.scheme}://{_server(parts)}{parts.path.rstrip('/')}", login


def _canonical(kind: str, spelling: str) -> str:
    name = spelling.lower()
    for prefix in _PREFIXES.get(kind, ()):
        name = name.removeprefix(prefix)
    return SPELLINGS[kind].get(name, name)


def _named(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options under canonical names, including those in ``client_kwargs``."""
    outer = {spelling: value for spelling, value in given.items() if spelling != "client_kwargs"}
    inner = dict(_dictionary("client_kwargs", given))
    if kind == "az" and "connection_string" in outer:
        inner |= _of_connection(outer.pop("connection_string"))
    wanted: dict[str, Any] = {}
    for spelling, value in (*outer.items(), *inner.items()):
        name = _canonical(kind, str(spelling))
        if value is None or name in _WITHOUT_EFFECT:
            continue
        if name == _ENDPOINT.get(kind) and isinstance(value, str):
            value = value.rstrip("/")
        if wanted.setdefault(name, value) != value:
            raise _differ(kind, name)
    for name in ("headers", "client_options"):
        _dictionary(name, wanted)
    if kind == "gs" and "token" in wanted:
        _settle_token(wanted)
    return wanted


def _differ(kind: str, name: str) -> StoreError:
    return StoreError(f"storage_options of {TITLES[kind]}: '{name}' has two values; give one of them")


def _dictionary(name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """An option that must be a dictionary; empty if it is not given."""
    value = options.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise StoreError(
            f"'{name}' of an object store is a {type(value).__name__}; accepted: a dictionary with names for "
            "keys, such as {'anon': True}"
        )
    return value


def _of_connection(text: object) -> dict[str, str]:
    """The options in an Azure connection string; settings of other services are ignored."""
    if text is None:
        return {}
    pairs = [part.strip().partition("=") for part in str(text).split(";")]
    parts = {name.lower(): value for name, _, value in pairs if value}
    found = {option: parts[name] for name, option in _CONNECTION.items() if name in parts}
    if "endpoint" in found:  # With a shared access signature only the endpoint names the account.
        found.setdefault("account_name", found["endpoint"].partition("://")[2].partition(".")[0])
    elif "account_name" in found and "endpointsuffix" in parts:
        scheme = parts.get("defaultendpointsprotocol", "https")
        found["endpoint"] = f"{scheme}://{found['account_name']}.blob.{parts['endpointsuffix']}"
    if not found.keys() & {"account_name", "use_emulator"}:
        raise StoreError(
            "storage_options of Azure: 'connection_string' names no account; accepted: "
            "'AccountName=...;AccountKey=...', 'BlobEndpoint=...;SharedAccessSignature=...'"
        )
    return found


def _settle_token(wanted: dict[str, Any]) -> None:
    """Translate gcsfs's ``token``: "anon", the path of a file, or the content of such a file."""
    token = wanted.pop("token")
    if isinstance(token, Mapping):
        token = json.dumps(dict(token))
    if token == "anon":
        wanted["skip_signature"] = True
    elif not isinstance(token, str) or token in ("cache", "browser"):
        raise StoreError(
            "storage_options of Google Cloud Storage: 'token' is not text, 'cache' or 'browser'; accepted: "
            "'anon', the path of a file with credentials, its content, 'google_default'; give a token as "
            "bearer_token="
        )
    elif token.lstrip().startswith("{"):
        wanted["service_account_key"] = token
    elif token not in ("google_default", "cloud"):
        wanted["application_credentials"] = os.path.expanduser(token)


def _recipe(kind: str, place: str, wanted: dict[str, Any]) -> Recipe:
    secrets = [value for name, value in wanted.items() if _SECRET.search(name) and isinstance(value, str)]
    client = dict(wanted.pop("client_options", {}))
    if wanted.pop("verify", True) is False:
        client["allow_invalid_certificates"] = True
    headers = {**client.get("default_headers", {}), **wanted.pop("headers", {})}
    if headers:
        client["default_headers"] = headers
        secrets += map(str, headers.values())
    for secret in list(secrets):
        secrets += [*secret.split(" "), unquote(secret)]
        if secret.lstrip().startswith("{"):
            secrets += re.findall(r"\"([^\"]{12,})\"", secret)
    provider, profile = wanted.pop("credential_provider", None), wanted.pop("profile", None)
    wanted.update(_of_environment(kind, wanted))
    endpoint = place if kind == "http" else wanted.get(_ENDPOINT[kind])
    if wanted.pop("allow_http", str(endpoint).lower().startswith("http://")):
        client["allow_http"] = True
    arguments: dict[str, Any] = {"client_options": client}
    if kind == "http":
        if wanted:
            raise StoreError(
                f"unknown storage_options of HTTP: {listed(sorted(wanted))}; "
                f"{accepted(kind, listed(sorted(wanted)))}"
            )
        arguments["url"] = address = place
    else:
        arguments["config"] = {**wanted, _CONTAINER[kind]: place}
        if provider is not None:
            arguments["credential_provider"] = provider
        address = _address(kind, place, endpoint, wanted)
    return Recipe(
        kind, _CLASSES[kind], arguments, address, profile, tuple(dict.fromkeys(filter(None, secrets)))
    )


def _of_environment(kind: str, wanted: Mapping[str, Any]) -> dict[str, str]:
    """The location settings in the environment that the options do not give."""
    found = {}
    for option, names in _PLACES[kind].items():
        value = next((os.environ[name] for name in names if os.environ.get(name)), None)
        if value is not None and option not in wanted:
            found[option] = value.rstrip("/")
    return found


def settled(kind: str, config: Mapping[str, Any], address: str) -> dict[str, Any]:
    """Options for obstore that leave no location setting to the environment, which may have changed.

    Raises
    ------
    StoreError
        If the environment sets a location now, but set none when the store was made.
    """
    for option in _of_environment(kind, config).keys() - {"region"}:
        raise StoreError(
            f"the environment names the {option.replace('_', ' ')} of {address} now, but did not when the "
            f"store was made; pass '{option}' in storage_options, or use the same environment"
        )
    complete = dict(config)
    if kind == "s3" and "endpoint" in complete:
        complete["aws_endpoint_url_s3"] = complete.pop("endpoint")  # Takes precedence over all variables.
    return complete


def read_by_obstore(kind: str) -> tuple[tuple[str, str], ...]:
    """The other variables that obstore reads in the environment, mainly credentials."""
    prefixes = _READ_BY_OBSTORE.get(kind, ())
    return tuple(sorted(item for item in os.environ.items() if prefixes and item[0].startswith(prefixes)))


def _address(kind: str, place: str, endpoint: object, config: Mapping[str, Any]) -> str:
    """The location, without secrets: no user, password or query."""
    if endpoint is None:
        account = config.get("account_name", "") if kind == "az" else ""
        return f"{kind}://{place}" + (f" of {account}" if account else "")
    try:
        parts = urlsplit(str(endpoint))
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https"):
        raise StoreError("an endpoint is not a URL; accepted: URLs such as https://example.org:9000")
    return f"{kind}://{place} at {parts.scheme}://{_server(parts)}{parts.path.rstrip('/')}"


def _server(parts: SplitResult) -> str:
    """Host and port, without user and password."""
    return parts.netloc.rpartition("@")[2].lower()


def _public(rest: str) -> str:
    """The text after ``://``, without a possible user and password."""
    user, _, public = rest.rpartition("@")
    return f"***@{_scrubbed(public)}" if user else _scrubbed(public)


def _scrubbed(text: str) -> str:
    """The text without secrets."""
    from xzarr3.stores.object.errors import scrub  # Its patterns take long to compile.

    return scrub(text)


def _prefix(path: str, url: str) -> str:
    names = path.removesuffix("/")
    if not names:
        return ""
    if any(name in ("", ".", "..") for name in names.split("/")) or re.search(r"[\x00-\x1f\x7f]", names):
        raise StoreError(
            f"not the URL of a directory: {_public(url.partition('://')[2])}; accepted: names separated by "
            "single '/', none of them '.' or '..', no control characters"
        )
    return names + "/"


def _frozen(value: object) -> object:
    """A hashable form of ``value``; a copy from another process has an equal one."""
    if isinstance(value, Mapping):
        return frozenset((name, _frozen(inner)) for name, inner in value.items())
    if isinstance(value, str):
        return value
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError):
        return id(value)


def of_ready(store: Any) -> tuple[Recipe, str] | None:
    """The recipe and prefix of a ready store of obstore; None if the store cannot be made again."""
    name = type(store).__name__
    kind = next((kind for kind, found in _CLASSES.items() if found == name), None)
    if kind is None:
        return None
    positional, arguments = store.__getnewargs_ex__()
    arguments = {key: value for key, value in arguments.items() if value is not None}
    first = str(positional[0]) if positional and positional[0] is not None else ""
    if kind == "local":
        root = first or "/"
        return Recipe(kind, name, {**arguments, "prefix": root}, f"obstore.LocalStore {root}"), ""
    options = dict(arguments.get("config", {}))
    options |= {key: arguments[key] for key in ("client_options", "credential_provider") if key in arguments}
    if kind == "http":
        place = parse((first or str(arguments["url"])).rstrip("/"), options)
        return place.recipe, place.prefix
    if kind == "s3" and "endpoint_url_s3" not in options and os.environ.get("AWS_ENDPOINT_URL_S3"):
        options.pop("endpoint", None)  # obstore gives the variable precedence.
    container = options.pop(_CONTAINER[kind], None) or first
    place = parse(f"{kind}://{container}/{arguments.get('prefix', '')}", options)
    return place.recipe, place.prefix
