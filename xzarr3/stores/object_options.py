"""URLs and options of object stores, in the words of fsspec and of obstore, and the recipe made from them.

A recipe is all it takes to make a client: it is compared, pickled and sent to other processes. It holds
secrets, so that it is never shown; what may be shown of a place is its :attr:`Recipe.address`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from xzarr3.errors import StoreError, listed, shorten
from xzarr3.stores.object_errors import scrub
from xzarr3.stores.opening import OBJECT_SCHEMES

SETTINGS: Final = frozenset(
    {
        *("concurrency", "retries", "deadline", "timeout", "absent_status", "request_bytes"),
        *("over_read", "conditional", "read_only"),
    }
)
"""Arguments of the store itself, which may be among the options, too."""

_KINDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "http", "https": "http"}
_TITLES = {"s3": "S3", "gs": "Google Cloud Storage", "az": "Azure", "http": "HTTP"}
_BUCKET = re.compile(r"arn:[a-z0-9:_-]+|[^/\\?#@:\s\x00-\x1f\x7f]+")
_HOST_OF_S3 = re.compile(r"(.+\.)?(s3([.-][a-z0-9-]+)*\.amazonaws\.com(\.cn)?|r2\.cloudflarestorage\.com)")
_HOST_OF_AZURE = re.compile(r"([a-z0-9]+)\.(?:blob|dfs)\.(?:core\.windows\.net|fabric\.microsoft\.com)")

# The option as obstore has it, and what else it is called.
_S3 = {
    "access_key_id": ("key", "aws_access_key_id"),
    "secret_access_key": ("secret", "aws_secret_access_key"),
    "session_token": ("token", "aws_session_token", "aws_token"),
    "skip_signature": ("anon", "aws_skip_signature"),
    "endpoint": ("endpoint_url", "aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3"),
    "region": ("region_name", "aws_region", "default_region", "aws_default_region"),
    "request_payer": ("requester_pays", "aws_request_payer"),
    "virtual_hosted_style_request": ("aws_virtual_hosted_style_request",),
    "unsigned_payload": ("aws_unsigned_payload",),
    "checksum_algorithm": ("aws_checksum_algorithm",),
    "server_side_encryption": ("aws_server_side_encryption",),
    "sse_kms_key_id": ("aws_sse_kms_key_id",),
    "sse_bucket_key_enabled": ("aws_sse_bucket_key_enabled",),
    "sse_customer_key_base64": ("aws_sse_customer_key_base64",),
    "s3_express": ("aws_s3_express",),
    "disable_tagging": ("aws_disable_tagging",),
    "disable_bulk_delete": ("aws_disable_bulk_delete",),
    "imdsv1_fallback": ("aws_imdsv1_fallback",),
    "metadata_endpoint": ("aws_metadata_endpoint",),
    "role_arn": ("aws_role_arn",),
    "role_session_name": ("aws_role_session_name",),
    "web_identity_token_file": ("aws_web_identity_token_file",),
    "sts_endpoint": ("aws_endpoint_url_sts",),
    "profile": ("profile_name", "aws_profile"),
}
_GS = {
    "bearer_token": ("google_bearer_token",),
    "skip_signature": ("anon", "google_skip_signature"),
    "base_url": ("endpoint", "endpoint_url", "google_base_url"),
    "service_account": (
        *("service_account_path", "service_account_file", "google_service_account"),
        "google_service_account_path",
    ),
    "service_account_key": ("google_service_account_key",),
    "application_credentials": ("google_application_credentials",),
    "token": (),
}
_AZ = {
    "account_name": ("account", "azure_storage_account_name", "storage_account_name"),
    "account_key": ("azure_storage_account_key", "access_key"),
    "sas_key": ("sas_token", "azure_storage_sas_token", "azure_storage_sas_key"),
    "token": ("bearer_token", "azure_storage_token"),
    "skip_signature": ("anon", "azure_skip_signature"),
    "endpoint": ("endpoint_url", "azure_storage_endpoint", "azure_endpoint"),
    "account_host": (),
    "connection_string": ("azure_storage_connection_string",),
    "client_id": ("azure_client_id", "azure_storage_client_id"),
    "client_secret": ("azure_client_secret", "azure_storage_client_secret"),
    "tenant_id": ("azure_tenant_id", "azure_storage_tenant_id"),
    "authority_host": ("azure_authority_host", "azure_storage_authority_host"),
    "use_emulator": ("azure_storage_use_emulator",),
    "use_azure_cli": ("azure_use_azure_cli",),
    "use_fabric_endpoint": ("azure_use_fabric_endpoint",),
    "msi_endpoint": ("azure_msi_endpoint",),
    "object_id": ("azure_object_id",),
    "msi_resource_id": ("azure_msi_resource_id",),
    "federated_token_file": ("azure_federated_token_file",),
    "credential_type": ("azure_credential_type",),
    "disable_tagging": ("azure_disable_tagging",),
    "encryption_key": ("azure_encryption_key",),
}
_HTTP = {"headers": (), "username": ("user",), "password": (), "bearer_token": ("token",)}
_COMMON = {"allow_http": (), "use_ssl": (), "verify": (), "client_kwargs": (), "client_options": ()}
_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {**_S3, "config_kwargs": (), "credential_provider": ()},
    "gs": {**_GS, "credential_provider": ()},
    "az": {**_AZ, "credential_provider": ()},
    "http": _HTTP,
}
# Of fsspec: how its own caches and loops work, which are not here.
_WITHOUT_EFFECT = frozenset(
    {
        *("default_block_size", "default_cache_type", "default_fill_cache", "skip_instance_cache", "project"),
        *("use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "cache_regions"),
    }
)
_SECRET = frozenset(
    {
        *(
            "access_key_id",
            "secret_access_key",
            "session_token",
            "bearer_token",
            "service_account_key",
            "token",
        ),
        *("account_key", "sas_key", "client_secret", "password", "sse_customer_key_base64", "encryption_key"),
    }
)
_SWITCHES = frozenset(
    {
        *(
            "skip_signature",
            "request_payer",
            "virtual_hosted_style_request",
            "unsigned_payload",
            "s3_express",
        ),
        *("sse_bucket_key_enabled", "disable_tagging", "disable_bulk_delete", "imdsv1_fallback"),
        *("use_emulator", "use_azure_cli", "use_fabric_endpoint", "allow_http", "use_ssl", "verify"),
    }
)
# The options that say where something is, and the variables of the environment that do; the first one counts.
_PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "virtual_hosted_style_request": ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST",),
        "s3_express": ("AWS_S3_EXPRESS",),
    },
    "gs": {"base_url": ("GOOGLE_BASE_URL",)},
    "az": {
        "account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
        "endpoint": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        "use_emulator": ("AZURE_STORAGE_USE_EMULATOR",),
        "use_fabric_endpoint": ("AZURE_USE_FABRIC_ENDPOINT",),
    },
}
_READ_BY_OBSTORE = {
    "s3": ("AWS_",),
    "gs": ("GOOGLE_",),
    "az": ("AZURE_", "MSI_", "IDENTITY_"),
}
_YES = frozenset({"1", "true", "on", "yes", "y"})
# Separate parts of AWS, where buckets may have the names that others have elsewhere.
_PARTITIONS = {
    "cn-": "aws-cn",
    "us-gov-": "aws-us-gov",
    "us-iso": "aws-iso",
    "eu-iso": "aws-iso",
    "eusc-": "aws-eusc",
}
_ENDPOINT_OPTION = {"s3": "endpoint", "gs": "base_url", "az": "endpoint"}
_CLASSES = {
    "s3": "S3Store",
    "gs": "GCSStore",
    "az": "AzureStore",
    "http": "HTTPStore",
    "local": "LocalStore",
}
_EMULATOR = "http://127.0.0.1:10000/devstoreaccount1"
_DIGEST_KEY = os.urandom(16)  # What is made of secrets is of no use elsewhere.


@dataclass(frozen=True, repr=False)
class Recipe:
    """What it takes to make a client of obstore.

    Parameters
    ----------
    kind : str
        ``"s3"``, ``"gs"``, ``"az"``, ``"http"`` or ``"local"``; empty for other ready stores.
    class_name : str
        The class of obstore.
    arguments : mapping
        What it is made with; secrets are among it.
    address : str
        Where it is, without anything secret.
    profile : str, optional
        Whose credentials boto3 is to find.
    secrets : tuple of str
        What must not be seen anywhere.
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
        """What is equal for equal recipes."""
        return self.kind, self.class_name, _frozen(self.arguments), self.profile

    def __hash__(self) -> int:
        return hash(self.key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and other.key() == self.key()


@dataclass(frozen=True, repr=False)
class Place:
    """What a URL and its options say.

    Parameters
    ----------
    recipe : Recipe
    prefix : str
        What keys begin with, empty or ending with ``/``.
    settings : mapping
        Arguments of the store that were among the options.
    """

    recipe: Recipe
    prefix: str
    settings: Mapping[str, Any]


def parse(url: str, options: Mapping[str, Any] | None = None) -> Place:
    """The place that a URL names.

    Raises
    ------
    StoreError
        If there is an option that is not known, or options contradict each other or the URL.

    Examples
    --------
    >>> place = parse("s3://bucket/era5.zarr", {"anon": True, "endpoint_url": "http://localhost:9000"})
    >>> place.recipe.kind, place.prefix, place.recipe.address
    ('s3', 'era5.zarr/', 's3://bucket at http://localhost:9000')
    >>> parse("s3://bucket", {"secrte": "x"})
    Traceback (most recent call last):
    xzarr3.errors.StoreError: storage_options of S3: 'secrte' not known; accepted: 'access_key_id' ('key', ...
    """
    given = dict(options or {})
    for name in given:
        if not isinstance(name, str):
            raise StoreError(
                f"storage_options: found a name of type {type(name).__name__}; accepted: strings"
            )
    scheme, mark, rest = url.partition("://")
    scheme = scheme.lower()
    if not mark or scheme not in OBJECT_SCHEMES:
        raise StoreError(
            f"not a URL of an object store: {scrub(url)}; accepted: {', '.join(sorted(OBJECT_SCHEMES))}"
        )
    kind = _KINDS.get(scheme, "az")
    settings = {name: given.pop(name) for name in sorted(SETTINGS & given.keys())}
    place, prefix = "", ""
    if kind == "http":
        try:
            kind, place, prefix = _of_web(url, given)
        except ValueError:
            raise StoreError(
                f"not a URL: what follows '{scheme}://' is no host with a path; accepted: as in "
                "https://example.org/era5.zarr, https://[::1]/era5.zarr"
            ) from None
    else:
        place, _, prefix = rest.partition("/")
        account, host = "", ""
        if kind == "az" and "@" in place:
            place, _, host = place.partition("@")
            account = host.partition(".")[0]
            given = _with(given, "account_name", account, f"the URL names account '{account}'", _AZ)
        if not _BUCKET.fullmatch(place):
            shown = "***" if ":" in rest else _public(rest)
            raise StoreError(
                f"no {'container' if kind == 'az' else 'bucket'} in the URL {scheme}://{shown}; "
                f"accepted: '{scheme}://', its name without ':' and '@', '/' and the path"
            )
    wanted = _named(kind, given)
    _check(kind, wanted)
    recipe = _recipe(kind, place, wanted)
    return Place(recipe, _prefix(prefix, url), settings)


def _of_web(url: str, given: dict[str, Any]) -> tuple[str, str, str]:
    """Kind, place and prefix of an http or https URL."""
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment:
        raise StoreError(
            "not the URL of a directory: it has a query, a fragment or no host; accepted: 'https://', a host "
            "and a path, '?' and '#' in it spelled as '%3F' and '%23'; headers={...} for what signs requests"
        )
    path = parts.path.strip("/")
    foreign = given.keys() - {*_COMMON, *_HTTP, *(name for names in _HTTP.values() for name in names)}
    azure = _HOST_OF_AZURE.fullmatch(parts.hostname)
    if azure and foreign & _every(_AZ):
        container, _, prefix = path.partition("/")
        given.setdefault("account_name", azure[1])
        given.setdefault("endpoint", f"https://{parts.hostname.replace('.dfs.', '.blob.')}")
        return "az", container, unquote(prefix)
    s3 = _HOST_OF_S3.fullmatch(parts.hostname)
    if s3 and foreign & _every(_S3):
        within = (s3[1] or "").rstrip(".")
        host = s3[2]
        if "r2." in host:
            bucket, _, prefix = path.partition("/")
            given.setdefault("endpoint", f"https://{within}.{host}" if within else f"https://{host}")
            given.setdefault("region", "auto")
        else:
            region = re.search(r"s3[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.", host)
            if region:
                given.setdefault("region", region[1])
            bucket, prefix = (within, path) if within else (path.partition("/")[0], path.partition("/")[2])
        return "s3", bucket, unquote(prefix)
    if parts.username is not None:
        given.setdefault("username", unquote(parts.username))
        given.setdefault("password", unquote(parts.password or ""))
    try:
        port = parts.port
    except ValueError as error:
        raise StoreError(
            f"not a URL: the port of {parts.hostname} is no number; accepted: 1 to 65535"
        ) from error
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = f"{parts.scheme.lower()}://{host}" + ("" if port is None else f":{port}")
    return "http", f"{where}/{path}" if path else where, ""


def _every(names: Mapping[str, Iterable[str]]) -> set[str]:
    return {*names, *(other for others in names.values() for other in others)}


def _with(
    given: dict[str, Any], name: str, value: str, why: str, names: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    for spelling in (name, *names[name]):
        if given.get(spelling) not in (None, value):
            raise StoreError(
                f"storage_options: '{spelling}' contradicts the URL: {why}; accepted: one of them"
            )
        given.pop(spelling, None)
    return {**given, name: value}


def _named(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options by the names that obstore has for them."""
    names = {**_NAMES[kind], **_COMMON}
    spelled = {spelling: name for name, others in names.items() for spelling in (name, *others)}
    items = [(name, value) for name, value in given.items() if value is not None]
    for outer in ("client_kwargs", "config_kwargs"):
        inner = given.get(outer)
        if outer in names and inner is not None:
            items += _inner(kind, outer, inner)
    unknown = sorted({name for name, _ in items} - spelled.keys() - _WITHOUT_EFFECT)
    if unknown:
        accepted = ", ".join(
            f"'{name}'" + (f" ({listed(others)})" if others else "") for name, others in sorted(names.items())
        )
        raise StoreError(
            f"storage_options of {_TITLES[kind]}: {listed(unknown)} not known; accepted: {accepted}, and "
            f"{listed(sorted(SETTINGS))}"
        )
    wanted: dict[str, Any] = {}
    by: dict[str, str] = {}
    for spelling, value in items:
        name = spelled.get(spelling)
        if name is None or name in ("client_kwargs", "config_kwargs"):
            continue
        value = _checked(kind, name, spelling, value)
        if name in wanted and wanted[name] != value:
            raise StoreError(
                f"storage_options of {_TITLES[kind]}: '{by[name]}' and '{spelling}' mean the same and have "
                "different values; accepted: one of them"
            )
        wanted[name], by[name] = value, spelling
    return wanted


def _inner(kind: str, outer: str, inner: object) -> list[tuple[str, Any]]:
    """What fsspec hands on to the library that it uses."""
    if not isinstance(inner, Mapping):
        raise StoreError(f"storage_options: '{outer}' is {type(inner).__name__}; accepted: a dictionary")
    if outer == "client_kwargs":
        return [(str(name), value) for name, value in inner.items() if value is not None]
    found: list[tuple[str, Any]] = []
    for name, value in inner.items():
        style = value.get("addressing_style") if name == "s3" and isinstance(value, Mapping) else None
        if style not in ("path", "virtual", "auto") or len(value) > 1:
            raise StoreError(
                f"storage_options of {_TITLES[kind]}: {shorten({name: '...'})} in 'config_kwargs'; accepted: "
                "{'s3': {'addressing_style': 'path' or 'virtual'}}"
            )
        if style != "auto":
            found.append(("virtual_hosted_style_request", style == "virtual"))
    return found


def _checked(kind: str, name: str, spelling: str, value: Any) -> Any:
    """The value of an option, of the type it must have; what it is is never said, for it may be a secret."""

    def refused(accepted: str) -> StoreError:
        return StoreError(
            f"storage_options of {_TITLES[kind]}: '{spelling}' is of type {type(value).__name__}; accepted: "
            f"{accepted}"
        )

    if name in _SWITCHES:
        if name == "request_payer" and isinstance(value, str) and value.lower() == "requester":
            return True
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            if name == "verify":
                raise refused(
                    "True or False; client_options={'root_certificate': ...} for certificates of yours"
                )
            raise refused("True or False")
        return value
    if name in ("headers", "client_options"):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise refused("a dictionary with names for keys")
        return dict(value)
    if name == "credential_provider":
        if not callable(value):
            raise refused("a function that gives credentials, as obstore takes them")
        return value
    if kind == "gs" and name in ("token", "service_account_key") and isinstance(value, Mapping):
        return json.dumps(dict(value), sort_keys=True)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise refused("a string")
    if not value:
        raise refused("a string that is not empty")
    return value.rstrip("/") if name in ("endpoint", "base_url") else value


def _check(kind: str, wanted: dict[str, Any]) -> None:
    """See to it that options do not contradict each other, and settle what they say together."""
    title = _TITLES[kind]

    def contradict(one: str, other: str) -> StoreError:
        return StoreError(f"storage_options of {title}: {one} contradicts {other}; accepted: one of them")

    if kind == "s3":
        pair = [name for name in ("access_key_id", "secret_access_key") if name in wanted]
        if len(pair) == 1:
            other = {"access_key_id": "secret", "secret_access_key": "key"}[pair[0]]
            raise StoreError(f"storage_options of {title}: '{pair[0]}' alone; accepted: '{other}' with it")
        if "session_token" in wanted and not pair:
            raise StoreError(
                f"storage_options of {title}: 'token' alone; accepted: 'key' and 'secret' with it"
            )
        if pair and "profile" in wanted:
            raise contradict("'profile'", "'key'")
    if kind == "gs" and "token" in wanted:
        _settle_token(wanted, contradict)
    if kind == "az" and "connection_string" in wanted:
        _settle_connection(wanted, contradict)
    if kind == "az" and "account_host" in wanted:
        host = f"https://{wanted.pop('account_host')}"
        if wanted.setdefault("endpoint", host) != host:
            raise contradict("'account_host'", "'endpoint'")
    signing = {
        "s3": ("access_key_id", "profile", "role_arn", "web_identity_token_file"),
        "gs": ("bearer_token", "service_account", "service_account_key", "application_credentials"),
        "az": ("account_key", "sas_key", "token", "client_secret", "federated_token_file", "use_azure_cli"),
        "http": (),
    }[kind]
    given = [name for name in (*signing, "credential_provider") if wanted.get(name)]
    if wanted.get("skip_signature") and given:
        raise contradict("'anon'", f"'{given[0]}'")
    if "credential_provider" in given and len(given) > 1:
        raise contradict("'credential_provider'", f"'{given[0]}'")
    several = [name for name in ("account_key", "sas_key", "token") if name in wanted and kind == "az"]
    if len(several) > 1 and "credential_type" not in wanted:
        raise contradict(f"'{several[0]}'", f"'{several[1]}'")
    if kind == "http":
        _settle_headers(wanted, contradict)


def _settle_token(wanted: dict[str, Any], contradict: Callable[[str, str], StoreError]) -> None:
    """gcsfs's ``token``: "anon", a file, or what would be in it."""
    token = wanted.pop("token")
    if token in ("google_default", "cloud"):
        return
    if token == "anon":
        name, value = "skip_signature", True
    elif token.lstrip().startswith("{"):
        name, value = "service_account_key", token
    elif token in ("cache", "browser"):
        raise StoreError(
            f"storage_options of Google Cloud Storage: token='{token}'; accepted: 'anon', the path of a file "
            "with credentials, its content, 'google_default'; bearer_token= for a token itself"
        )
    else:
        name, value = "application_credentials", os.path.expanduser(token)
    if wanted.setdefault(name, value) != value:
        raise contradict("'token'", f"'{name}'")


def _settle_connection(wanted: dict[str, Any], contradict: Callable[[str, str], StoreError]) -> None:
    """Azure's connection string, which is a list of options itself."""
    parts: dict[str, str] = {}
    for part in wanted.pop("connection_string").split(";"):
        name, mark, value = part.strip().partition("=")
        if name and mark:
            parts[name.lower()] = value
    found: dict[str, Any] = {}
    for name, option in (
        ("accountname", "account_name"),
        ("accountkey", "account_key"),
        ("sharedaccesssignature", "sas_key"),
        ("blobendpoint", "endpoint"),
    ):
        if parts.get(name):
            found[option] = parts[name].rstrip("/") if option == "endpoint" else parts[name]
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        found["use_emulator"] = True
    elif "endpoint" not in found and "account_name" in found and parts.get("endpointsuffix"):
        scheme = parts.get("defaultendpointsprotocol", "https")
        found["endpoint"] = f"{scheme}://{found['account_name']}.blob.{parts['endpointsuffix']}"
    if not found:
        raise StoreError(
            "storage_options of Azure: 'connection_string' names no account; accepted: "
            "'AccountName=...;AccountKey=...', 'SharedAccessSignature=...', 'BlobEndpoint=...'"
        )
    for option, value in found.items():
        if wanted.setdefault(option, value) != value:
            raise contradict("'connection_string'", f"'{option}'")


def _settle_headers(wanted: dict[str, Any], contradict: Callable[[str, str], StoreError]) -> None:
    headers = wanted.pop("headers", {})
    user, password = wanted.pop("username", None), wanted.pop("password", None)
    bearer = wanted.pop("bearer_token", None)
    if password is not None and user is None:
        raise StoreError("storage_options of HTTP: 'password' alone; accepted: 'username' with it")
    signs = [name for name in headers if name.lower() == "authorization"]
    if bearer is not None and (user is not None or signs):
        raise contradict("'bearer_token'", "'username'" if user is not None else "'headers'")
    if user is not None:
        if signs:
            raise contradict("'username'", "'headers'")
        pair = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        headers = {**headers, "Authorization": f"Basic {pair}"}
        wanted["_secrets"] = (password or "", pair)
    if bearer is not None:
        headers = {**headers, "Authorization": f"Bearer {bearer}"}
        wanted["_secrets"] = (bearer,)
    if not all(isinstance(value, str) for value in headers.values()):
        raise StoreError(
            "storage_options of HTTP: 'headers' has a value that is no string; accepted: strings"
        )
    if headers:
        wanted["headers"] = headers


def _recipe(kind: str, place: str, wanted: dict[str, Any]) -> Recipe:
    secrets = [value for name, value in wanted.items() if name in _SECRET and isinstance(value, str)]
    secrets += [*wanted.pop("_secrets", ()), *wanted.get("headers", {}).values()]
    for secret in list(secrets):
        signed = re.findall(r"sig=([^&]+)", secret)
        secrets += [*secret.split(" "), unquote(secret), *signed, *map(unquote, signed)]
        if secret.lstrip().startswith("{"):
            secrets += re.findall(r"\"([^\"]{12,})\"", secret)
    client = dict(wanted.pop("client_options", {}))
    allow, ssl = wanted.pop("allow_http", None), wanted.pop("use_ssl", None)
    if wanted.pop("verify", True) is False:
        client["allow_invalid_certificates"] = True
    headers = wanted.pop("headers", None)
    if headers:
        client["default_headers"] = {**client.get("default_headers", {}), **headers}
    if isinstance(client.get("default_headers"), Mapping):
        secrets += [str(value) for value in client["default_headers"].values()]
    provider = wanted.pop("credential_provider", None)
    profile = wanted.pop("profile", None)
    wanted.update(_of_environment(kind, wanted))
    endpoint = place if kind == "http" else wanted.get(_ENDPOINT_OPTION[kind])
    if endpoint is not None and "://" not in endpoint:
        endpoint = f"{'http' if ssl is False else 'https'}://{endpoint}"
        wanted[_ENDPOINT_OPTION[kind]] = endpoint
    elif wanted.get("use_emulator"):
        endpoint = endpoint or _EMULATOR
    plain = endpoint is not None and endpoint.lower().startswith("http://")
    if plain and (ssl is True or allow is False):
        option = "use_ssl=True" if ssl is True else "allow_http=False"
        raise StoreError(
            f"storage_options of {_TITLES[kind]}: {option} contradicts the address, which begins with "
            "'http://'; accepted: 'https://'"
        )
    if not plain and ssl is False and kind != "http":
        raise StoreError(
            f"storage_options of {_TITLES[kind]}: use_ssl=False contradicts the address, which does not "
            "begin with 'http://'; accepted: endpoint_url='http://...'"
        )
    if plain or allow:
        client["allow_http"] = True
    arguments: dict[str, Any] = {"client_options": client}
    if kind == "http":
        arguments["url"] = place
        address = place
    else:
        name = {"s3": "bucket", "gs": "bucket", "az": "container_name"}[kind]
        arguments["config"] = {**wanted, name: place}
        if provider is not None:
            arguments["credential_provider"] = provider
        address = _address(kind, place, endpoint, wanted)
    return Recipe(
        kind, _CLASSES[kind], arguments, address, profile, tuple(dict.fromkeys(filter(None, secrets)))
    )


def _of_environment(kind: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What the environment says of the place, where the options do not."""
    found: dict[str, Any] = {}
    for option, names in _PLACES.get(kind, {}).items():
        value = next((os.environ[name] for name in names if os.environ.get(name)), None)
        if value is None or option in wanted or (wanted.get("use_emulator") is True and option in _AZ):
            continue
        if option not in _SWITCHES:
            found[option] = value.rstrip("/") if option == _ENDPOINT_OPTION[kind] else value
        elif value.lower() in _YES and not (option == "use_emulator" and "endpoint" in wanted):
            found[option] = True
    return found


def missing(kind: str, config: Mapping[str, Any], address: str) -> dict[str, Any]:
    """Options for obstore that leave nothing of the place to the environment, which may have changed.

    Raises
    ------
    StoreError
        If that cannot be: the store was made where the environment named no place, and now it does.
    """
    complete = dict(config)
    for option, value in _of_environment(kind, config).items():
        if option not in _SWITCHES and (option != "region" or _partition(value)):
            raise StoreError(
                f"the environment names the {option.replace('_', ' ')} of {address} now, but did not when "
                f"the store was made; accepted: '{option}' in storage_options, or the same environment"
            )
    for option in _PLACES.get(kind, {}):
        if option in _SWITCHES:
            complete.setdefault(option, False)
    if kind == "s3" and "endpoint" in complete:
        complete["aws_endpoint_url_s3"] = complete.pop("endpoint")  # It counts more than all variables.
    return complete


def others(kind: str) -> bytes:
    """A digest of what else obstore reads in the environment, credentials above all."""
    prefixes = _READ_BY_OBSTORE.get(kind, ())
    read = sorted(item for item in os.environ.items() if prefixes and item[0].startswith(prefixes))
    return hashlib.blake2b(repr(read).encode("utf-8", "surrogateescape"), key=_DIGEST_KEY).digest()


def _partition(region: object) -> str:
    """The part of AWS that a region belongs to, if it is not the common one."""
    return next((name for start, name in _PARTITIONS.items() if str(region).startswith(start)), "")


def _address(kind: str, place: str, endpoint: str | None, config: Mapping[str, Any]) -> str:
    """Where something is, and nothing that is secret."""
    if endpoint is not None:
        return f"{kind}://{place} at {_shown(endpoint)}"
    of = config.get("account_name", "") if kind == "az" else ""
    if kind == "s3":
        of = _partition(config.get("region"))
    return f"{kind}://{place}" + (f" of {of}" if of else "")


def _shown(endpoint: str) -> str:
    """An address without user, password and query."""
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        raise StoreError("an endpoint is no URL; accepted: as in https://example.org:9000") from None
    try:
        port = parts.port
    except ValueError:
        port = None
    where = f"{parts.scheme}://{parts.hostname or ''}" + ("" if port is None else f":{port}")
    return where + parts.path.rstrip("/")


def _public(rest: str) -> str:
    """What follows ``://``, without what may be user and password."""
    user, _, public = rest.rpartition("@")
    return f"***@{scrub(public)}" if user else scrub(public)


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
    """``value`` as something that can be compared and is a key."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(name), _frozen(inner)) for name, inner in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(inner) for inner in value)
    if value is None or isinstance(value, (str, bytes, int, float, timedelta)):
        return value
    try:  # A copy from another process is the same.
        return type(value).__qualname__, hashlib.blake2b(pickle.dumps(value)).digest()
    except (pickle.PicklingError, TypeError, AttributeError):
        return id(value)


def of_ready(store: Any) -> tuple[Recipe, str] | None:
    """The recipe of a ready store of obstore and its prefix; None if it cannot be made again."""
    name = type(store).__name__
    kinds = {name: kind for kind, name in _CLASSES.items()}
    kind = kinds.get(name)
    remake = getattr(store, "__getnewargs_ex__", None)
    if kind is None or remake is None:
        return None
    positional, arguments = remake()
    arguments = {key: value for key, value in arguments.items() if value is not None}
    if kind == "local":
        root = str(positional[0]) if positional and positional[0] is not None else "/"
        return Recipe(kind, name, {**arguments, "prefix": root}, f"obstore.LocalStore {root}"), ""
    prefix = str(arguments.pop("prefix", ""))
    arguments.pop("retry_config", None)
    given = arguments.get("config", {})
    config = dict(given)
    secrets = [value for key, value in config.items() if key in _SECRET and isinstance(value, str)]
    secrets += [
        str(value) for value in dict(arguments.get("client_options", {})).get("default_headers", {}).values()
    ]
    if kind == "http":
        url = str(positional[0] if positional else arguments.pop("url")).rstrip("/")
        arguments["url"] = url
        address = _shown(url)
    else:
        place = config.get("bucket") or config.get("container_name") or (positional[0] if positional else "")
        config["container_name" if kind == "az" else "bucket"] = place
        foremost = config.pop("endpoint_url_s3", None) or os.environ.get(_PLACES["s3"]["endpoint"][0])
        if kind == "s3" and foremost:
            config["endpoint"] = foremost
        config.update(_of_environment(kind, config))
        arguments["config"] = config
        endpoint = config.get("endpoint") or config.get("base_url")
        plain = endpoint is not None and str(endpoint).lower().startswith("http://")
        if plain and endpoint not in dict(given).values():
            arguments["client_options"] = {**dict(arguments.get("client_options", {})), "allow_http": True}
        address = _address(kind, str(place), None if endpoint is None else str(endpoint), config)
    recipe = Recipe(kind, name, arguments, address, None, tuple(dict.fromkeys(filter(None, secrets))))
    return recipe, _prefix(prefix, f"{kind}://{prefix}")
