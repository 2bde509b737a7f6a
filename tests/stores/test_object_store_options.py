"""URLs and options of object stores, their pickles, and the limit on the bytes of answers in flight."""

import pickle
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import obstore
import pytest
from _conformance import calls, not_refused
from _fault_server import FaultServer
from _processes import printed_by
from _things import refused

from xzarr3 import StoreError, StoreOptionError, open_store
from xzarr3.errors import ReadOnlyError, StorePermissionError
from xzarr3.stores import in_flight
from xzarr3.stores.object import client
from xzarr3.stores.object.errors import describe, scrub
from xzarr3.stores.object.options import OBJECT_SCHEMES, Settings, parse
from xzarr3.stores.object.store import ObjectStore

SIGNED = {"key": "test", "secret": "test-secret"}


def store_at(server: FaultServer, url: str = "s3://b/x", **options: Any) -> ObjectStore:
    """A store of a server, which has a value there."""
    server.put("/b/x/a", b"value")
    return ObjectStore(url, storage_options={"endpoint_url": server.url, **options})


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_PROFILE AWS_ENDPOINT_URL GOOGLE_BASE_URL"
    for name in names.split():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.mark.parametrize(("url", "kind", "address", "prefix"), [
    ("s3://bucket", "s3", "s3://bucket", ""), ("S3://bucket/a/b", "s3", "s3://bucket", "a/b/"),
    ("s3a://bucket/a/b/", "s3", "s3://bucket", "a/b/"),
    ("s3://bucket/50%25 of#it?+~", "s3", "s3://bucket", "50%25 of#it?+~/"),
    ("s3://arn:aws:s3:us-west-2:12:x/x", "s3", "s3://arn:aws:s3:us-west-2:12:x", "x/"),
    ("gcs://bucket/x.zarr", "gs", "gs://bucket", "x.zarr/"),
    ("abfs://container/x", "az", "az://container", "x/"), ("HTTPS://Host/", "http", "https://host", ""),
    ("abfss://c@acc.dfs.core.windows.net/x", "az", "az://c of acc", "x/"),
    ("http://host:8080/a%20b/c", "http", "http://host:8080/a%20b/c", ""),
    ("https://user:secret@host/x", "http", "https://host/x", ""),
    ("https://acc.blob.core.windows.net/c", "http", "https://acc.blob.core.windows.net/c", ""),
    ("http://[::1]:9000/x", "http", "http://[::1]:9000/x", ""),
])  # fmt: skip
def test_parse(url: str, kind: str, address: str, prefix: str) -> None:
    recipe, found = parse(url, {})
    assert (recipe.kind, found, recipe.address) == (kind, prefix, address)
    assert url.partition("://")[0].lower() in OBJECT_SCHEMES
    store = ObjectStore(url)
    assert repr(store).startswith("<ObjectStore '")
    assert (ObjectStore(url), hash(ObjectStore(url))) == (store, hash(store))


NO_URLS = (
    *("", "bucket", "ftp://host/x", "s3://", "s3:///x", "s3://user:hidden@bucket/x", "s3://b/../x"),
    *("s3://KEY:SEC/hidden@bucket/x", "s3://KEY:hidden", "az://KEY:hidden/x", "http://[::1/x"),
    *("s3://a b/x", "gs://b//x", "s3://b/a/./x", "s3://b/a\nb", "http://", "http:///x"),
    *("az://@account/x", "memory://x", "file:///x"),
    *("https://host/x?token=hidden", "https://host/x#y", "http://host:port/x"),
)
H = "http://h:1"
AT_H = {"aws_endpoint_url_s3": H, "allow_http": True}


@pytest.mark.parametrize(("kind", "options", "expected"), [
    ("s3", {"anon": True}, {"skip_signature": True}),
    ("s3", {"key": "k", "secret": "s"}, {"access_key_id": "k", "secret_access_key": "s"}),
    ("s3", {"aws_access_key_id": "k"}, {"access_key_id": "k"}),
    ("s3", {"AWS_SESSION_TOKEN": "t"}, {"session_token": "t"}),
    ("s3", {"token": "t", "region": "r"}, {"session_token": "t", "region": "r"}),
    ("s3", {"endpoint_url": "http://h:1/"}, AT_H), ("s3", {"aws_endpoint": H, "key": None}, AT_H),
    ("s3", {"endpoint_url": H, "allow_http": False}, {**AT_H, "allow_http": False}),
    ("s3", {"client_options": {"user_agent": "me"}}, {"user_agent": "me"}),
    ("gs", {"token": "anon"}, {"skip_signature": True}), ("gs", {"token": None}, {}),
    ("gs", {"token": "google_default"}, {}),
    ("gs", {"token": "/home/me/key.json"}, {"application_credentials": "/home/me/key.json"}),
    ("gs", {"endpoint_url": H}, {"base_url": H, "allow_http": True}),
    ("az", {"account_name": "a", "azure_storage_sas_key": "x"}, {"account_name": "a", "sas_key": "x"}),
    ("az", {"endpoint_url": "https://h"}, {"endpoint": "https://h", "allow_http": False}),
])  # fmt: skip
def test_parse_translates_options(kind: str, options: dict[str, Any], expected: dict[str, Any]) -> None:
    recipe, _ = parse(f"{kind}://data", options)
    told = {**recipe.config, **recipe.arguments["client_options"]}
    assert told == {"container_name" if kind == "az" else "bucket": "data", **expected}


@pytest.mark.parametrize(("url", "options", "text"), [
    *((url, {}, "accepted") for url in NO_URLS), ("s3://b", {"secrte": "hidden"}, "'secrte' is not valid"),
    ("http://h", {"anon": True}, "unknown options of a web server: 'anon'"),
    ("s3://b", {"key": "hidden"}, "Missing SecretAccessKey"),
    ("s3://b", {"endpoint_url": "h:1"}, "an endpoint is not a URL"),
    ("s3://b", {"anon": "perhaps"}, "as boolean"), ("gs://b", {"key": "hidden"}, "'key' is not valid"),
    ("s3://b", {"credential_provider": "x"}, "credential_provider"),
    ("http://h", {"client_options": "hidden"}, "is not a dictionary"),
    ("http://h", {"client_options": {"default_headers": "hidden"}}, "is not a dictionary"),
    # Each other name of fsspec with the word of obstore.
    ("s3://b", {"profile": "hidden"}, "Boto3CredentialProvider"),
    ("s3://b", {"client_kwargs": {"region_name": "hidden"}}, "endpoint_url and region"),
    ("s3://b", {"config_kwargs": {}}, "client_options"),
    ("s3://b", {"requester_pays": True}, "request_payer"), ("s3://b", {"use_ssl": False}, "allow_http"),
    ("s3://b", {"default_cache_type": "readahead"}, "'default_cache_type' is a name of fsspec"),
    ("az://c", {"connection_string": "hidden"}, "account_key or sas_key"),
    ("az://c", {"credential": "hidden"}, "credential_provider"),
    ("http://h", {"headers": {"Authorization": "hidden"}}, "default_headers"),
    ("http://h", {"username": "u", "password": "hidden"}, "default_headers"),
])  # fmt: skip
def test_urls_and_options_that_are_refused(url: str, options: dict[str, Any], text: str) -> None:
    kind = StoreOptionError if options else StoreError
    (error,) = refused(kind, re.escape(text), lambda: ObjectStore(url, storage_options=options).get("a"))
    assert "hidden" not in str(error)


def test_settings_may_be_among_the_options() -> None:
    given: dict[str, Any] = {
        "concurrency": 7, "retries": 0, "deadline": 9, "timeout": 20.0, "absent_status": [404, 403],
        "request_bytes": 1000, "over_read": 1.5, "conditional": "process", "read_only": True,
    }  # fmt: skip
    assert given.keys() == set(Settings.__struct_fields__)
    store = ObjectStore("s3://b/x", storage_options={"anon": True, **given})
    assert (store.concurrency, store.traits.request_bytes, store.traits.over_read) == (7, 1000, 1.5)
    assert (store.traits.conditional, store.read_only) == ("threads", True)
    assert ObjectStore("s3://b/x", storage_options={"anon": True}, **given) == store
    assert ObjectStore("s3://b/x", storage_options=given, concurrency=8).concurrency == 8
    assert store != ObjectStore("s3://b/x", storage_options={"anon": True})
    refused(ReadOnlyError, None, lambda: open_store("s3://b/x", {"anon": True, **given}).set("a", b"v"))
    refused(TypeError, "concurency", lambda: ObjectStore("s3://b/x", concurency=1))


@pytest.mark.parametrize(("name", "value"), [
    *(("concurrency", 0), ("retries", -1), ("retries", 1.5), ("deadline", 0), ("timeout", "x")),
    *(("absent_status", 404), ("absent_status", [500]), ("request_bytes", -1), ("over_read", 0.5)),
    *(("conditional", "never"), ("read_only", "no")),
])  # fmt: skip
def test_settings_that_cannot_be(name: str, value: object) -> None:
    made = partial(ObjectStore, "s3://b/x")
    ways = (lambda: made(**{name: value}), lambda: made(storage_options={name: value}))
    refused(ValueError, rf"(?s)'{name}': .*(xpected|nvalid)", *ways)


def test_identities() -> None:
    places: list[tuple[str, dict[str, Any]]] = [
        *((url, {}) for url in ("s3://b/x", "s3://b/y", "s3://c/x", "gs://b/x", "http://h/b/x")),
        ("s3://b/x", {"endpoint_url": "http://h"}),
        *(("az://b/x", {"account_name": name}) for name in ("one", "two")),
    ]
    assert len({ObjectStore(url, storage_options=options).identity for url, options in places}) == len(places)
    one = ObjectStore("s3://b/x", storage_options=SIGNED)
    assert one.identity == ObjectStore("s3://b/x").identity, "whoever asks, it is the same place"
    assert one.__dask_tokenize__() != one.__dask_tokenize__(), "who knows what others have stored since"
    inner = obstore.store.MemoryStore()
    assert ObjectStore(inner).identity == ObjectStore(inner).identity
    # What is kept of a store in memory, such as decoded chunks, must not be taken for that of a later one.
    assert len({ObjectStore(obstore.store.MemoryStore()).identity for _ in range(99)}) == 99
    ready = ObjectStore(obstore.store.HTTPStore("https://user:sesame@host/x"))
    assert "sesame" not in f"{ready!r} {ready.identity} {ready.__dask_tokenize__()}"
    assert "https://host/x" in repr(ready)


S3_HERE = {**SIGNED, "region": "us-east-1"}


@pytest.mark.parametrize(("scheme", "variable", "options"), [
    *(("s3", name, S3_HERE) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")),
    ("gs", "GOOGLE_BASE_URL", {"token": "anon"}),
])  # fmt: skip
def test_the_environment_names_an_endpoint(
    fault_server: FaultServer, monkeypatch: Any, scheme: str, variable: str, options: dict[str, Any]
) -> None:
    """The one that it named when the store was made, also for copies; an option counts more."""
    monkeypatch.setenv(variable, fault_server.url)
    store = ObjectStore(f"{scheme}://b/x", storage_options=options)
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    said = store_at(fault_server, f"{scheme}://b/x", **options)
    for one in (store, said, pickle.loads(pickle.dumps(store))):
        assert (one.get("a"), fault_server.url in repr(one)) == (b"value", True)
        assert fault_server.log()[-1]["signed"] is (scheme == "s3")


def test_credentials_of_the_environment_change(fault_server: FaultServer, monkeypatch: Any) -> None:
    clients = []
    for key in ("first-key", "second-key", "first-key"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"secret-of-{key}")
        store = store_at(fault_server, region="us-east-1")
        assert store.get("a") == b"value"
        clients.append(store._use())
        assert key not in f"{store!r} {store.identity} {pickle.dumps(store)!r}"
    assert clients[0] is clients[2] is not clients[1]


@pytest.mark.parametrize("name", ["default", "mine"])
def test_files_of_aws(fault_server: FaultServer, monkeypatch: Any, tmp_path: Path, name: str) -> None:
    pytest.importorskip("boto3")
    path = tmp_path / "credentials"
    path.write_text(f"[{name}]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = profile-secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    if name == "mine":
        monkeypatch.setenv("AWS_PROFILE", "mine")
    assert store_at(fault_server).get("a") == b"value"
    assert fault_server.log()[-1]["signed"]
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    refused(StoreError, r"nobody.*correct AWS_PROFILE", lambda: store_at(fault_server).get("a"))


def test_no_credentials() -> None:
    text = (
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1.2ms - "
        "Server returned non-2xx status code: 404 Not Found: \n\nDebug source:\nGeneric { retries: 0 }"
    )
    failure = describe(type("GenericError", (Exception,), {})(text))
    assert (failure.passing, failure.kind) == (False, "credentials")
    error = ObjectStore("s3://b/x")._error("read", "a", failure)
    assert isinstance(error, StorePermissionError)
    assert "anon=True" in str(error)


def test_scrub() -> None:
    text = "PUT https://u:p@h/x?sig=abc&X-Amz-Signature=def, Authorization: Bearer ghi, AccountKey=jkl\nnext"
    for secret in ("abc", "def", "ghi", "jkl", "u:p", "\n"):
        assert secret not in scrub(text)
    assert scrub("a secret-value b", ["secret-value", "", "b"]) == "a *** b"
    assert len(scrub("x" * 5000)) == 300


@pytest.mark.parametrize(("url", "key"), [
    *(("s3://b/x", key) for key in ("a\nb", "a\x7f", "\x01", "a/\tb")),
    *(("az://c/x", key) for key in ("a\\b", "a.", "a./b", "...")),
])  # fmt: skip
def test_keys_that_a_service_changes(url: str, key: str) -> None:
    store = ObjectStore(url, storage_options={"anon": True})
    by_prefix = {"list_dir": store.list_dir, "list": lambda prefix: [*store.list(prefix)]}
    assert not_refused(calls(store), [key]) + not_refused(by_prefix, [f"{key}/"]) == []


def test_every_other_character_comes_back(fault_server: FaultServer) -> None:
    store = store_at(fault_server, **SIGNED)
    store.erase("a")
    codes = [*range(32, 127), *range(128, 0x180), 0x2028, 0xFFFD, 0x1F600]
    keys = [f"{chr(code)}k{chr(code)}/{chr(code)}-" for code in codes if chr(code) != "/"]
    store.set_values([(key, key.encode()) for key in keys])
    assert sorted(fault_server.keys("/b/")) == sorted(f"/b/x/{key}" for key in keys)
    assert sorted(store.list()) == sorted(keys)
    for one in (store, ObjectStore(f"{fault_server.url}/b/x")):
        assert [bytes(value or b"") for value in one.get_values(keys)] == [key.encode() for key in keys]


def test_copies_share_a_client(fault_server: FaultServer) -> None:
    store, beside = (store_at(fault_server, f"s3://b/{name}", **SIGNED) for name in "xy")
    fault_server.put("/b/y/a", b"2")
    data = pickle.dumps(store)
    copies = [pickle.loads(data) for _ in range(1000)]
    assert {id(copy._use()) for copy in copies} == {id(store._use())}
    assert all(copy == store and copy.identity == store.identity for copy in copies)
    assert beside._use() is store._use(), "one pool of connections for a bucket"
    assert (store.get("a"), beside.get("a")) == (b"value", b"2")
    assert store_at(fault_server, key="test", secret="another")._use() is not store._use()
    assert pickle.loads(pickle.dumps(store.with_traits(read_only=True))).read_only
    assert not store.read_only
    assert len(data) < 2000


def provide() -> dict[str, Any]:
    return {"access_key_id": "provided", "secret_access_key": "hidden", "token": None, "expires_at": None}


def fail() -> dict[str, Any]:
    raise KeyError("something hidden")


def test_providers_of_credentials(fault_server: FaultServer) -> None:
    store = store_at(fault_server, credential_provider=provide)
    assert store.get("a") == b"value"
    assert fault_server.log()[-1]["signed"]
    assert pickle.loads(pickle.dumps(store))._use() is store._use()
    local = store_at(fault_server, credential_provider=lambda: provide())
    assert pickle.loads(cloudpickle.dumps(local)).get("a") == b"value"
    fault_server.clear_log()
    options = {"credential_provider": fail, "absent_status": (401, 403, 404)}
    for url, account in (("s3://b/x", {}), ("gs://b/x", {}), ("az://b/x", {"account_name": "account"})):
        store = store_at(fault_server, url, **options, **account)
        (error,) = refused(StorePermissionError, "what gives them fails", partial(store.get, "a"))
        assert "hidden" not in str(error)
    assert fault_server.log() == []


CHILDREN = """
import gc, os, signal, sys
from xzarr3 import StoreError
from xzarr3.stores.object.store import ObjectStore
store = ObjectStore(sys.argv[1])
for step in ("nothing", "loaded", "used", "dropped"):
    if step == "loaded":
        import obstore
    if step == "used":
        assert store.get("a") == b"value"
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            if step != "dropped":
                assert store.get("a") == b"value"
        except StoreError as error:
            assert "spawn" in str(error)
            sys.exit(3)
        finally:
            del store
            gc.collect()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print(store.get("a") == b"value")
"""


@pytest.mark.slow
def test_children(fault_server: FaultServer) -> None:
    store_at(fault_server)
    printed = printed_by(CHILDREN, f"{fault_server.url}/b/x", PYTHONWARNINGS="ignore")
    assert printed == ["0", "3", "3", "0", "True"]


def test_bytes_under_way_are_bounded(fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While bodies come slowly, not more of them come than there may be bytes."""
    store = ObjectStore("s3://b/x", storage_options=fault_server.storage_options)
    size, most = 200_000, 0
    fault_server.put_all({f"/b/x/{at}": bytes(size) for at in range(8)})
    fault_server.fault("slow", "/b/*", pieces=4, seconds=0.1)

    @contextmanager
    def watched(size: int) -> Iterator[None]:
        nonlocal most
        with in_flight.reserved(size):
            most = max(most, in_flight._budget.used)
            yield

    monkeypatch.setattr(client, "reserved", watched)
    monkeypatch.setattr(in_flight._budget, "limit", 1)
    for limit, expected in ((3 * size, 3 * size), (10, size)):  # A larger value comes alone.
        in_flight.set_limit(limit)
        most = 0
        values = store.get_values([str(at) for at in range(8)])
        assert ([len(value or b"") for value in values], most) == ([size] * 8, expected)
    assert in_flight._budget.used == 0


def test_reservations() -> None:
    budget = in_flight.Budget(10)
    order: list[str] = []
    begun, release = threading.Event(), threading.Event()

    def take(name: str, size: int) -> None:
        with budget.reserved(size):
            order.append(name)
            begun.set()
            if name == "first":
                assert release.wait(120)
            with budget.reserved(100):
                pass  # Nobody waits within.

    asked = [("first", 8), ("large", 50), ("small", 1), ("smaller", 0)]
    threads = [threading.Thread(target=take, args=each) for each in asked]
    for number, thread in enumerate(threads):
        thread.start()
        assert begun.wait(120)
        while len(budget._waiting) < number:
            time.sleep(0.001)
    assert order == ["first"], "who comes first is served first"
    release.set()
    for thread in threads:
        thread.join(120)
    assert (order[:2], sorted(order[2:])) == (["first", "large"], ["small", "smaller"])
    assert budget.used == 0
    with pytest.raises(RuntimeError, match="within"), budget.reserved(5):
        raise RuntimeError("within")
    assert budget.used == 0
    for limit in (0, -1, 1.5, "1", None):
        refused(ValueError, "accepted", partial(in_flight.set_limit, limit))
