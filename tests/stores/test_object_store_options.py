"""URLs and options of object stores, their pickles, and what is loaded when."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from _fault_server import FaultServer

from xzarr3 import InvalidKeyError, InvalidRangeError, StoreError, open_store
from xzarr3.errors import ReadOnlyError, StoreCapabilityError, StorePermissionError
from xzarr3.stores.object.errors import describe, scrub
from xzarr3.stores.object.options import OBJECT_SCHEMES, SETTINGS, parse
from xzarr3.stores.object.store import ObjectStore

CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL")
CREDENTIALS += ("GOOGLE_BASE_URL",)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def signed(server: FaultServer) -> dict[str, Any]:
    """Options of a bucket of the scripted server."""
    return {"key": "test", "secret": "test-secret", "endpoint_url": server.url}


@pytest.mark.parametrize(
    ("url", "kind", "address", "prefix"),
    [
        ("s3://bucket", "s3", "s3://bucket", ""),
        ("s3://bucket/", "s3", "s3://bucket", ""),
        ("S3://bucket/a/b", "s3", "s3://bucket", "a/b/"),
        ("s3a://bucket/a/b/", "s3", "s3://bucket", "a/b/"),
        ("s3://bucket/50%25 of#it?+~", "s3", "s3://bucket", "50%25 of#it?+~/"),
        ("gs://bucket/x.zarr", "gs", "gs://bucket", "x.zarr/"),
        ("gcs://bucket/x.zarr", "gs", "gs://bucket", "x.zarr/"),
        ("az://container/x", "az", "az://container", "x/"),
        ("abfs://container/x", "az", "az://container", "x/"),
        ("abfss://c@acc.dfs.core.windows.net/x", "az", "az://c of acc", "x/"),
        ("http://host:8080/a%20b/c", "http", "http://host:8080/a%20b/c", ""),
        ("https://host", "http", "https://host", ""),
        ("HTTPS://Host/", "http", "https://host", ""),
        ("https://bucket.s3.eu-west-1.amazonaws.com/x", "http", None, ""),
        ("https://acc.blob.core.windows.net/c/x", "http", None, ""),
        ("http://[::1]:9000/x", "http", "http://[::1]:9000/x", ""),
    ],
)
def test_urls(url: str, kind: str, address: str | None, prefix: str) -> None:
    place = parse(url)
    assert (place.recipe.kind, place.prefix) == (kind, prefix)
    assert place.recipe.address == (address or url)
    assert url.partition("://")[0].lower() in OBJECT_SCHEMES
    store = ObjectStore(url)
    assert repr(store).startswith("<ObjectStore '")
    assert ObjectStore.from_url(url) == store
    assert hash(ObjectStore(url)) == hash(store)


@pytest.mark.parametrize(
    "url",
    [
        *("", "bucket", "ftp://host/x", "s3://", "s3:///x", "s3://user:pass@bucket/x", "s3://b/../x"),
        *("s3://KEY:SEC/secret@bucket/x", "s3://KEY:secret", "az://KEY:secret/x", "http://[::1/x"),
        *("s3://a b/x", "gs://b//x", "s3://b/a/./x", "s3://b/a\nb", "http://", "http:///x"),
        *("https://host/x?token=secret", "https://host/x#y", "http://host:port/x", "memory://x"),
        *("file:///x", "az://@account/x"),
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(StoreError, match="accepted") as caught:
        ObjectStore(url)
    assert "pass" not in str(caught.value)
    assert "secret" not in str(caught.value)


H = "http://h:1"
BLOBS = "BlobEndpoint=https://acc.blob.h/;QueueEndpoint=https://acc.queue.h/;SharedAccessSignature=sv=1&sig=x"
ACCOUNT = {"account_name": "acc", "account_key": "a2V5=="}


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("s3", {"anon": True}, {"skip_signature": True}),
        ("s3", {"key": "k", "secret": "s"}, {"access_key_id": "k", "secret_access_key": "s"}),
        (
            "s3",
            {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_session_token": "t"},
            {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"},
        ),
        (
            "s3",
            {"client_kwargs": {"endpoint_url": "http://h:1/", "region_name": "r"}},
            {"endpoint": H, "region": "r", "allow_http": True},
        ),
        ("s3", {"endpoint_url": H, "use_ssl": False}, {"endpoint": H, "allow_http": True}),
        ("s3", {"endpoint_url": H, "allow_http": False}, {"endpoint": H}),
        ("s3", {"endpoint": "https://h", "key": None}, {"endpoint": "https://h"}),
        ("s3", {"requester_pays": True}, {"request_payer": True}),
        ("s3", {"default_cache_type": "readahead", "use_listings_cache": False}, {}),
        ("s3", {"client_kwargs": {"verify": False}}, {"allow_invalid_certificates": True}),
        ("s3", {"client_options": {"user_agent": "me"}}, {"user_agent": "me"}),
        (
            "s3",
            {"key": "k", "aws_access_key_id": "k", "secret": "s"},
            {"access_key_id": "k", "secret_access_key": "s"},
        ),
        ("gs", {"token": "anon"}, {"skip_signature": True}),
        ("gs", {"token": None}, {}),
        ("gs", {"token": "google_default", "project": "p"}, {}),
        ("gs", {"token": "/home/me/key.json"}, {"application_credentials": "/home/me/key.json"}),
        ("gs", {"token": {"type": "x"}}, {"service_account_key": '{"type": "x"}'}),
        ("gs", {"token": '{"type": 1}'}, {"service_account_key": '{"type": 1}'}),
        ("gs", {"endpoint_url": H}, {"base_url": H, "allow_http": True}),
        ("az", ACCOUNT, ACCOUNT),
        ("az", {"account_name": "acc", "sas_token": "sig=x"}, {"account_name": "acc", "sas_key": "sig=x"}),
        (
            "az",
            {"connection_string": "AccountName=acc;AccountKey=a2V5==;EndpointSuffix=core.windows.net"},
            {**ACCOUNT, "endpoint": "https://acc.blob.core.windows.net"},
        ),
        (
            "az",
            {"connection_string": "DefaultEndpointsProtocol=http;AccountName=acc;EndpointSuffix=h:1"},
            {"account_name": "acc", "endpoint": "http://acc.blob.h:1", "allow_http": True},
        ),
        ("az", {"connection_string": "AccountName=acc;AccountKey=a2V5==;", "account_name": "acc"}, ACCOUNT),
        (
            "az",
            {"connection_string": "BlobEndpoint=http://h:1/acc/;SharedAccessSignature=sig=x;AccountName=acc"},
            {"account_name": "acc", "sas_key": "sig=x", "endpoint": "http://h:1/acc", "allow_http": True},
        ),
        (
            "az",
            {"connection_string": BLOBS},
            {"account_name": "acc", "sas_key": "sv=1&sig=x", "endpoint": "https://acc.blob.h"},
        ),
        ("az", {"connection_string": "UseDevelopmentStorage=true"}, {"use_emulator": "true"}),
        ("az", {"connection_string": None, "account_name": "acc"}, {"account_name": "acc"}),
    ],
)
def test_what_obstore_is_told(url: str, options: dict[str, Any], expected: dict[str, Any]) -> None:
    recipe = parse(f"{url}://data", options).recipe
    told = {**recipe.arguments.get("config", {}), **recipe.arguments["client_options"]}
    assert told == {"container_name" if url == "az" else "bucket": "data", **expected}


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("s3://b", {"secrte": "hidden"}, "'secrte' is not valid"),
        ("s3://b", {"account_name": "a"}, "'account_name' is not valid"),
        ("gs://b", {"key": "a"}, "'key' is not valid"),
        ("http://h", {"anon": True}, "unknown storage_options of HTTP: 'anon'"),
        (
            "https://data.s3.eu-west-1.amazonaws.com/x",
            {"anon": True},
            "unknown storage_options of HTTP: 'anon'",
        ),
        ("s3://b", {"client_kwargs": {"regoin": "x"}}, "'regoin' is not valid"),
        ("s3://b", {"client_kwargs": "x"}, "'client_kwargs' of an object store is a"),
        ("s3://b", {"config_kwargs": {"signature_version": "x"}}, "'config_kwargs' is not valid"),
        ("s3://b", {"key": "hidden"}, "Missing SecretAccessKey"),
        ("s3://b", {"key": "hidden", "aws_access_key_id": "another", "secret": "s"}, "two values"),
        (
            "s3://b",
            {"endpoint_url": "http://a", "client_kwargs": {"endpoint_url": "http://b"}},
            "'endpoint' has two values",
        ),
        ("s3://b", {"endpoint_url": "h:1"}, "an endpoint is not a URL"),
        ("s3://b", {"anon": "perhaps"}, "as boolean"),
        ("s3://b", {"anon": 1}, "'int' object"),
        ("s3://b", {"key": 7, "secret": "x"}, "'int' object"),
        ("s3://b", {7: "x"}, "a dictionary with names for keys"),
        ("s3://b", {"credential_provider": "x"}, "credential_provider"),
        ("gs://b", {"token": "browser"}, "'browser'"),
        ("s3://b", {"connection_string": "hidden"}, "'connection_string' is not valid"),
        ("az://c", {"connection_string": "hidden"}, "names no account"),
        (
            "az://c",
            {"connection_string": "AccountName=a;AccountKey=hidden", "account_name": "b"},
            "'account_name' has two values",
        ),
        ("abfs://c@acc.dfs.core.windows.net", {"account_name": "b"}, "'account_name' has two values"),
        (
            "http://h",
            {"username": "u", "password": "hidden"},
            "unknown storage_options of HTTP: 'password', 'username'",
        ),
        ("http://h", {"headers": "hidden"}, "'headers' of an object store is a"),
        ("http://h", {"headers": ""}, "'headers' of an object store is a"),
    ],
)
def test_options_that_are_refused(url: str, options: dict[Any, Any], text: str) -> None:
    with pytest.raises(StoreError, match=r"accepted|give one of them") as caught:
        ObjectStore(url, storage_options=options).get("a")
    assert text in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b", {"aws_sse_kms_key_id": "k", "checksum_algorithm": "sha256"}),
        ("gs://b", {"google_application_credentials": None, "anon": True}),
        ("az://c", {"azure_storage_client_id": "x", "account_name": "a"}),
    ],
)
def test_options_that_obstore_knows_are_taken(url: str, options: dict[str, Any]) -> None:
    """obstore takes more than what is known here."""
    assert ObjectStore(url, storage_options=options)._use().made() is not None


def test_settings_may_be_among_the_options() -> None:
    options = {
        "anon": True,
        "concurrency": 7,
        "retries": 0,
        "deadline": 9,
        "timeout": 20.0,
        "absent_status": [404, 403],
        "request_bytes": 1000,
        "over_read": 1.5,
        "conditional": "process",
        "read_only": True,
    }
    assert options.keys() - {"anon"} == SETTINGS
    store = ObjectStore("s3://b/x", storage_options=options)
    assert (store.concurrency, store.request_bytes, store.over_read) == (7, 1000, 1.5)
    given = {name: value for name, value in options.items() if name != "anon"}
    assert ObjectStore("s3://b/x", storage_options={"anon": True}, **given) == store  # type: ignore[arg-type]
    assert ObjectStore("s3://b/x", storage_options=options, concurrency=7) == store
    assert ObjectStore("s3://b/x", storage_options=options, concurrency=8).concurrency == 8
    assert store != ObjectStore("s3://b/x", storage_options={"anon": True})
    assert store != ObjectStore("s3://b/y", storage_options=options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("concurrency", 0), ("retries", -1), ("retries", 1.5), ("deadline", 0), ("timeout", float("nan"))),
        *(("timeout", "x"), ("absent_status", 404), ("absent_status", [500]), ("request_bytes", -1)),
        *(("over_read", 0.5), ("conditional", "never")),
    ],
)
def test_settings_that_cannot_be(name: str, value: object) -> None:
    for options in ({name: value}, {"storage_options": {name: value}}):
        with pytest.raises(ValueError, match=f"{name}=.*accepted") as caught:
            ObjectStore("s3://b/x", **options)  # type: ignore[arg-type]
        assert not isinstance(caught.value, StoreError) or "storage_options" in options


def test_read_only_by_option(fault_server: FaultServer) -> None:
    options = {"key": "k", "secret": "s", "endpoint_url": fault_server.url, "read_only": True}
    store = open_store("s3://b/x", options)
    assert (store.read_only, store.writeable, store.erasable) == (True, False, False)
    with pytest.raises(ReadOnlyError):
        store.set("a", b"v")
    assert not open_store("s3://b/x", {**options, "read_only": False}).read_only
    with pytest.raises(ValueError, match="read_only='no'; accepted"):
        open_store("s3://b/x", {"read_only": "no"})


def test_names_of_access_points() -> None:
    url = "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/x"
    assert "accesspoint" in repr(ObjectStore(url, storage_options={"anon": True}))


def test_identities() -> None:
    names = {
        ObjectStore(url, storage_options=options).identity
        for url, options in [
            ("s3://b/x", {}),
            ("s3://b/y", {}),
            ("s3://c/x", {}),
            ("gs://b/x", {}),
            ("s3://b/x", {"endpoint_url": "http://h"}),
            ("az://b/x", {"account_name": "one"}),
            ("az://b/x", {"account_name": "two"}),
            ("http://h/b/x", {}),
        ]
    }
    assert len(names) == 8
    one = ObjectStore("s3://b/x", storage_options={"key": "kkkk", "secret": "ssss"})
    assert one.identity == ObjectStore("s3://b/x").identity, "whoever asks, it is the same place"
    assert one.__dask_tokenize__() != one.__dask_tokenize__(), "who knows what others have stored since"


def test_the_environment_names_a_plain_endpoint(
    fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault_server.put("/b/x/a", b"value")
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    store = ObjectStore("s3://b/x")
    assert fault_server.url in repr(store)
    assert store.get("a") == b"value"
    assert fault_server.log()[-1]["signed"]
    monkeypatch.setenv("GOOGLE_BASE_URL", fault_server.url)
    assert ObjectStore("gs://b/x", storage_options={"token": "anon"}).get("a") == b"value"
    assert not fault_server.log()[-1]["signed"]


@pytest.mark.slow
def test_the_environment_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is where is settled when a store is made."""
    signed = {"key": "k", "secret": "s", "region": "us-east-1"}
    with FaultServer.start(limit=60) as one, FaultServer.start(limit=60) as two:
        one.put("/b/x/a", b"one")
        two.put("/b/x/a", b"two")
        for url, options, names in (
            ("s3://b/x", signed, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")),
            ("gs://b/x", {"token": "anon"}, ("GOOGLE_BASE_URL",)),
        ):
            for name in names:
                for used in (True, False):
                    monkeypatch.setenv(name, one.url)
                    first = ObjectStore(url, storage_options=options)
                    assert not used or first.get("a") == b"one"
                    monkeypatch.setenv(name, two.url)
                    second = ObjectStore(url, storage_options=options)
                    assert second.get("a") == b"two"
                    assert first.get("a") == b"one"
                    assert first.identity != second.identity
                    assert first != second
                    monkeypatch.delenv(name)
                    copy = pickle.loads(pickle.dumps(first))
                    assert (copy.get("a"), copy.identity) == (b"one", first.identity)
                # What is said to the store counts most.
                option = {"s3": "endpoint_url", "gs": "base_url"}[url[:2]]
                monkeypatch.setenv(name, one.url)
                said = ObjectStore(url, storage_options={**options, option: two.url})
                assert said.get("a") == b"two"
                monkeypatch.delenv(name)
                # And where nothing was said, no other place is taken.
                nowhere = ObjectStore(url, storage_options=options)
                monkeypatch.setenv(name, one.url)
                with pytest.raises(
                    StoreError, match=r"the environment names the .* now, but did not .*; pass"
                ):
                    nowhere.get("a")
                monkeypatch.delenv(name)


def test_accounts_and_regions_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    identities = set()
    for account in ("one", "two"):
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", account)
        store = ObjectStore("az://data/x", storage_options={"anon": True})
        identities.add(store.identity)
        assert repr(store) == f"<ObjectStore 'az://data/x' of {account}>"
        assert store._recipe.arguments["config"]["account_name"] == account
    assert len(identities) == 2
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
        store = ObjectStore("s3://data/x", storage_options={"anon": True})
        monkeypatch.delenv(name)
        assert store._recipe.arguments["config"]["region"] == "eu-central-1"
        assert store.identity == ObjectStore("s3://data/x").identity


def test_credentials_of_the_environment_change(
    fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault_server.put("/b/x/a", b"value")
    options = {"endpoint_url": fault_server.url, "region": "us-east-1"}
    clients = []
    for key in ("first-key", "second-key", "first-key"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"secret-of-{key}")
        store = ObjectStore("s3://b/x", storage_options=options)
        assert store.get("a") == b"value"
        clients.append(store._use())
        assert key not in f"{store!r} {store.identity} {pickle.dumps(store)!r}"
    assert clients[0] is clients[2] is not clients[1]


@pytest.mark.parametrize("how", ["option", "environment", "file"])
def test_profiles(
    fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    pytest.importorskip("boto3")
    name = "default" if how == "file" else "mine"
    path = tmp_path / "credentials"
    path.write_text(f"[{name}]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = profile-secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    if how == "environment":
        monkeypatch.setenv("AWS_PROFILE", "mine")
    fault_server.put("/b/x/a", b"value")
    options: dict[str, Any] = {"endpoint_url": fault_server.url}
    if how == "option":
        options["profile"] = "mine"
    store = ObjectStore("s3://b/x", storage_options=options)
    assert store.get("a") == b"value"
    assert fault_server.log()[-1]["signed"]
    assert pickle.loads(pickle.dumps(store)).get("a") == b"value"
    missing = ObjectStore("s3://b/x", storage_options={**options, "profile": "nobody"})
    with pytest.raises(StoreError, match="nobody"):
        missing.get("a")


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, fault_server: FaultServer) -> None:
    """Nobody waits for the machine to have some."""
    text = (
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1.2ms - "
        "Server returned non-2xx status code: 404 Not Found: \n\nDebug source:\nGeneric { retries: 0 }"
    )
    error = type("GenericError", (Exception,), {})(text)
    failure = describe(error)
    assert (failure.passing, failure.sort) == (False, "credentials")
    store = ObjectStore("s3://b/x", storage_options={"endpoint_url": fault_server.url})
    with pytest.raises(StorePermissionError, match="anon=True"):
        store._is_absent("a", "x/a", failure)


def test_scrubbing() -> None:
    text = "PUT https://u:p@h/x?sig=abc&X-Amz-Signature=def, Authorization: Bearer ghi, AccountKey=jkl\nnext"
    assert scrub(text) == "PUT <URL> Authorization: *** AccountKey=*** next" or "abc" not in scrub(text)
    for secret in ("abc", "def", "ghi", "jkl", "u:p"):
        assert secret not in scrub(text)
    assert scrub("a secret-value b", ["secret-value", "", "b"]) == "a *** b"
    assert len(scrub("x" * 5000)) == 300


# Keys


@pytest.mark.parametrize("key", ["a\nb", "a\x7f", "\x01", "a/\tb", "\ud800"])
def test_keys_that_obstore_has_not(key: str) -> None:
    store = ObjectStore("s3://b/x")
    asks: list[Callable[[], Any]] = [
        lambda: store.get(key),
        lambda: store.exists(key),
        lambda: store.set(key, b""),
        lambda: store.erase(key),
        lambda: store.list_dir(f"{key}/"),
        lambda: list(store.list_prefix(f"{key}/")),
        lambda: store.compare_and_set(key, "absent", b""),
        lambda: store.erase_values(["a", key]),
        lambda: store.reader().get_ranges(key, [0], [1]),
        lambda: store.reader().open(key, (0, 1), ("e", None)),
    ]
    for ask in asks:
        with pytest.raises(InvalidKeyError):
            ask()


@pytest.mark.parametrize("key", ["a\\b", "a.", "a./b", "..."])
def test_keys_that_azure_changes(key: str) -> None:
    with pytest.raises(InvalidKeyError, match="Azure changes"):
        ObjectStore("az://c/x", storage_options={"account_name": "a"}).get(key)


def test_every_other_character_comes_back(fault_server: FaultServer) -> None:
    store = ObjectStore("s3://b/x", storage_options=signed(fault_server))
    codes = [*range(32, 127), *range(128, 0x180), 0x2028, 0xFFFD, 0x1F600]
    letters = [chr(code) for code in codes if chr(code) != "/"]
    keys = [f"{letter}k{letter}/{letter}-" for letter in letters]
    store.set_values([(key, key.encode()) for key in keys])
    assert sorted(fault_server.keys("/b/")) == sorted(f"/b/x/{key}" for key in keys)
    assert [bytes(value or b"") for value in store.get_values(keys)] == [key.encode() for key in keys]
    assert sorted(store.list()) == sorted(keys)
    web = ObjectStore(f"{fault_server.url}/b/x")
    assert [bytes(value or b"") for value in web.get_values(keys)] == [key.encode() for key in keys]


# Pickles, and what is loaded when


def test_copies_share_a_client(fault_server: FaultServer) -> None:
    fault_server.put_all({"/b/x/a": b"1", "/b/y/a": b"2"})
    options = signed(fault_server)
    store = ObjectStore("s3://b/x", storage_options=options)
    data = pickle.dumps(store)
    copies = [pickle.loads(data) for _ in range(1000)]
    assert {id(copy._use()) for copy in copies} == {id(store._use())}
    assert len({copy.identity for copy in copies}) == 1
    assert all(copy == store for copy in copies)
    beside = ObjectStore("s3://b/y", storage_options={**options, "access_key_id": "test"})
    assert beside._use() is store._use(), "one pool of connections for a bucket"
    assert (store.get("a"), beside.get("a")) == (b"1", b"2")
    with store.reader().open("a") as opened, pytest.raises(InvalidRangeError, match="-1"):  # type: ignore[union-attr]
        opened.read(0, -1)
    other = ObjectStore("s3://b/x", storage_options={**options, "secret": "another"})
    assert other._use() is not store._use()
    guarded = ObjectStore("s3://b/x", storage_options=options, read_only=True)
    assert pickle.loads(pickle.dumps(guarded)).read_only
    assert len(data) < 2000


def provide() -> dict[str, Any]:
    """Credentials."""
    return {
        "access_key_id": "provided",
        "secret_access_key": "provided-secret",
        "token": None,
        "expires_at": None,
    }


def test_providers_of_credentials(fault_server: FaultServer) -> None:
    fault_server.put("/b/x/a", b"1")
    options = {"endpoint_url": fault_server.url, "credential_provider": provide}
    store = ObjectStore("s3://b/x", storage_options=options)
    assert store.get("a") == b"1"
    assert fault_server.log()[-1]["signed"]
    assert pickle.loads(pickle.dumps(store))._use() is store._use()
    local = ObjectStore("s3://b/x", storage_options={**options, "credential_provider": lambda: provide()})
    assert pickle.loads(cloudpickle.dumps(local)).get("a") == b"1"


def fail() -> dict[str, Any]:
    raise KeyError("something hidden")


@pytest.mark.parametrize("url", ["s3://b/x", "gs://b/x", "az://b/x"])
def test_providers_of_credentials_fail(fault_server: FaultServer, url: str) -> None:
    for provider in (fail, dict):
        options: dict[str, Any] = {"endpoint_url": fault_server.url, "credential_provider": provider}
        if url.startswith("az"):
            options["account_name"] = "account"
        store = ObjectStore(url, storage_options=options, absent_status=(401, 403, 404))
        with pytest.raises(StorePermissionError, match="provider of credentials fails") as caught:
            store.get("a")
        assert "hidden" not in str(caught.value)
    assert fault_server.log() == []


def run_python(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_nothing_is_loaded_or_started_before_the_first_request(fault_server: FaultServer) -> None:
    fault_server.put("/b/x/a", b"value")
    options = signed(fault_server)
    data = pickle.dumps(ObjectStore("s3://b/x", storage_options=options))
    out = run_python(
        """
        import json, pickle, sys, os
        import xzarr3
        from xzarr3.stores.object.store import ObjectStore
        before = len(os.listdir("/proc/self/task"))
        store = pickle.loads(bytes.fromhex(sys.argv[1]))
        made = ObjectStore("s3://b/x", storage_options=json.loads(sys.argv[2]))
        repr(made), made.identity, made.__dask_tokenize__(), made.listable
        threads = len(os.listdir("/proc/self/task")) - before
        print("obstore" in sys.modules, threads, store == made)
        print(bytes(store.get("a")), "obstore" in sys.modules)
        """,
        data.hex(),
        json.dumps(options),
    )
    assert out.split() == ["False", "0", "True", "b'value'", "True"]
    assert len(fault_server.log()) == 1


@pytest.mark.slow
def test_obstore_is_not_installed() -> None:
    out = run_python(
        """
        import sys
        sys.modules["obstore"] = None
        import xzarr3
        from xzarr3 import StoreError
        from xzarr3.stores.object.store import ObjectStore
        try:
            ObjectStore("s3://b/x").get("a")
        except StoreError as error:
            print(error)
        """
    )
    assert "pip install 'xzarr3[object]'" in out


@pytest.mark.slow
def test_children_end_in_good_order(fault_server: FaultServer) -> None:
    """Also those that take everything apart at their end, what their parent had made among it."""
    fault_server.put("/b/x/a", b"value")
    out = run_python(
        """
        import gc, os, signal, sys
        from xzarr3 import StoreError
        from xzarr3.stores.object.store import ObjectStore
        store = ObjectStore(sys.argv[1])
        assert store.get("a") == b"value"
        for use in (True, False):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                if use:
                    try:
                        store.get("a")
                    except StoreError as error:
                        assert "spawn" in str(error)
                    else:
                        sys.exit(4)
                del store
                gc.collect()
                sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        print(store.get("a") == b"value")
        """,
        f"{fault_server.url}/b/x",
    )
    assert out.split() == ["3", "3", "True"]


@pytest.mark.slow
def test_a_child_uses_what_its_parent_has_not(fault_server: FaultServer) -> None:
    """A store may be made before the fork; what others have loaded is noticed, too."""
    fault_server.put("/b/x/a", b"value")
    out = run_python(
        """
        import os, signal, sys
        from xzarr3 import StoreError
        from xzarr3.stores.object.store import ObjectStore
        store = ObjectStore(sys.argv[1])
        for loaded in (False, True):
            if loaded:
                import obstore
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    assert store.get("a") == b"value"
                except StoreError as error:
                    assert loaded and "forked" in str(error)
                    os._exit(3)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        print(store.get("a") == b"value")
        """,
        f"{fault_server.url}/b/x",
    )
    assert out.split() == ["0", "3", "True"]


def test_web_servers_have_no_lists() -> None:
    with pytest.raises(StoreCapabilityError):
        ObjectStore("https://example.org").list()
