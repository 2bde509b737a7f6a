"""Object stores over servers that fail: what is tried again, an error, absence; folders of web servers."""

import http.server
import itertools
import logging
import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import xarray as xr
from _conformance import run_threads
from _fault_server import FaultServer
from _servers import WebServer, answered_by
from _things import refused
from _unprivileged import run_child

import xzarr3
from xzarr3 import ConflictError, MemoryStore, Store, StoreError, to_zarr
from xzarr3.errors import ChangedError, OutcomeUnknownError, StoreCapabilityError, StorePermissionError
from xzarr3.parallel import parallel_map
from xzarr3.stores import ReadOnlyStore, WrapperStore
from xzarr3.stores.base import update, versioned
from xzarr3.stores.object import client
from xzarr3.stores.object import store as object_store
from xzarr3.stores.object.errors import AnswerError
from xzarr3.stores.object.listing import names_on
from xzarr3.stores.object.store import ObjectStore
from xzarr3.stores.values import OversizedError, Scratch, Value
from xzarr3.testing import check_store

VALUE = bytes(range(256)) * 400
PATH = "/b/x/a"
SERVICES = ["s3", "gs", "http"]
SCHEMES = {"s3_server": "s3", "azure_server": "az", "gcs_server": "gs", "fault_server": "s3"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.004)
    monkeypatch.setattr(client, "_LONGEST_PAUSE", 0.02)


def make(service: str, server: FaultServer, **settings: Any) -> ObjectStore:
    if service == "http":
        return ObjectStore(f"{server.url}/b/x", **settings)
    options = {
        "s3": {"key": "test-key", "secret": "test-secret", "endpoint_url": server.url},
        "gs": {"bearer_token": "test-token", "endpoint_url": server.url},
    }[service]
    return ObjectStore(f"{service}://b/x", storage_options=options, **settings)


def real(request: pytest.FixtureRequest, server: str, bucket: str = "b") -> tuple[Any, ObjectStore]:
    """A server, and a store in a bucket that is new there."""
    running = request.getfixturevalue(server)
    bucket = bucket if server == "fault_server" else running.bucket()
    url = f"{SCHEMES[server]}://{bucket}/x"
    return running, ObjectStore(url, storage_options=running.storage_options)


def filled(service: str, server: FaultServer, **settings: Any) -> ObjectStore:
    """A store that has a value."""
    server.put(PATH, VALUE)
    return make(service, server, **settings)


def put_if(store: Store, key: str, version: object, value: bytes) -> bool:
    return store.put(key, [value], if_version=version)


def _into(store: Store) -> bytes:
    out = bytearray(2000)
    assert _open(store, "a").read_into(3, memoryview(out)) == 2000
    return bytes(out)


def _open(store: Store, key: str, *how: Any) -> Value:
    value = store.open(key, *how)
    assert value is not None
    return value


READS: dict[str, Callable[[Store], Any]] = {
    "whole": lambda store: store.get("a"),
    "part": lambda store: store.get("a", (100, 5000)),
    "end": lambda store: store.get("a", (-7, None)),
    "rest": lambda store: store.get("a", (500, None)),
    "scratch": lambda store: store.get("a", into=Scratch(), limit=10**7),
    "ranges": lambda store: b"".join(_open(store, "a").read_ranges([0, 700], [10, 20])),
    "into": _into,
    "opened": lambda store: _open(store, "a").read(5, 50),
    "opened part": lambda store: _open(store, "a", (-9, 9)).read(-9, 9),
    "versioned": lambda store: versioned(store, "a")[0],
}
EXPECTED = {name: bytes(read(MemoryStore({"a": VALUE}))) for name, read in READS.items()}
WRITES: dict[str, Callable[[ObjectStore], Any]] = {
    "set": lambda store: store.set("a", b"x"),
    "large": lambda store: store.set("a", bytes(2**21)),
    "create": lambda store: put_if(store, "a", "absent", b"x"),
    "update": lambda store: put_if(store, "a", ('"1"', "1", 1), b"x"),
    "values": lambda store: store.set_values([("a", b"x"), ("b", b"y")]),
    "erase": lambda store: store.erase("a"),
    "erase values": lambda store: store.erase_values(["a", "b"]),
}
BY_HEAD = ("ranges", "into", "opened")  # The first request asks for no bytes.
BY_RANGE = {"part", "end", "rest", "opened part", *BY_HEAD}


PASSING: list[tuple[str, dict[str, Any]]] = [
    *(("status", {"status": status}) for status in (408, 429, 500, 502, 503, 504)),
    ("status", {"status": 400, "body": "<Error><Code>SlowDown</Code></Error>"}),
    ("reset", {}),
    ("reset-body", {}),
    ("short", {}),
]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(("kind", "parameters"), PASSING, ids=str)
def test_what_passes_is_repeated_and_what_stays_is_an_error(
    fault_server: FaultServer, service: str, kind: str, parameters: Any
) -> None:
    store = filled(service, fault_server, retries=3)
    # How often obstore has asked for a body again, it does not say.
    is_cut = kind in ("reset-body", "short")
    tried = "" if is_cut else f"{parameters.get('status', '')}.*in 4 attempts"
    for name, read in READS.items():
        if name in BY_HEAD and "body" in parameters:
            continue  # The answer to HEAD has none.
        fault_server.clear_faults()
        number = fault_server.fault(kind, PATH, times=2, **parameters)
        assert bytes(read(store)) == EXPECTED[name], name
        assert fault_server.hits(number) == 2
        fault_server.fault(kind, PATH, **parameters)
        fault_server.clear_log()
        refused(StoreError, rf"key 'a' of .*{tried}; raise retries \(now 3\)", partial(read, store))
        assert is_cut or len(fault_server.log()) == 4, name


@pytest.mark.parametrize("service", ["s3", "gs"])
@pytest.mark.parametrize("kind", ["status", "reset", "lost-answer"])
def test_writes_lists_and_erasing_are_tried_again(fault_server: FaultServer, service: str, kind: str) -> None:
    store = make(service, fault_server)
    fault_server.configure(max_keys=3)
    fault_server.fault(kind, "/b*", share=0.3)
    for at in range(20):
        store.set(f"d/{at:02}", b"%d" % at)
    keys = [f"d/{at:02}" for at in range(20)]
    for _ in range(5):
        assert list(store.list()) == keys
        assert store.list_dir("d/") == (set(keys), set())
        assert store.list_dir("") == (set(), {"d/"})
    assert [bytes(value or b"") for value in store.get_values(keys)] == [b"%d" % at for at in range(20)]
    store.erase(keys[0])
    store.erase_values(keys[1:9])
    assert list(store.list()) == keys[9:]
    store.erase_prefix("d/")
    fault_server.clear_faults()
    assert fault_server.keys("/b/") == []


@pytest.mark.parametrize("service", ["s3", "gs"])
@pytest.mark.parametrize(("kind", "parameters", "text", "number"), [
    ("status", {}, "status 503, in 4 attempts", 4),
    ("reset", {}, "the connection broke, in 4 attempts", 4),
    ("status", {"status": 403}, "status 403; pass credentials", 1),
    *((kind, {}, "", ANY) for kind in ("short", "reset-body")),
], ids=str)  # fmt: skip
def test_failed_lists(
    fault_server: FaultServer, service: str, kind: str, parameters: Any, text: str, number: Any
) -> None:
    store = filled(service, fault_server, retries=3)
    fault_server.fault(kind, "/b", **parameters)
    for enumerate_ in (lambda: list(store.list_prefix("d/")), lambda: store.list_dir("d/")):
        fault_server.clear_log()
        refused(StoreError, f"cannot list keys below 'd/' of .*{text}", enumerate_)
        assert len(fault_server.log()) == number


@pytest.mark.parametrize("service", SERVICES)
def test_no_answer_in_time(fault_server: FaultServer, service: str) -> None:
    store = filled(service, fault_server, timeout=0.15)
    fault_server.fault("hang", PATH, times=2)
    assert store.get("a") == VALUE
    assert len(fault_server.log()) == 3
    fault_server.clear_faults()
    fault_server.fault("slow", PATH, times=1, pieces=2, seconds=3)
    assert store.get("a") == VALUE


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("settings", [{"timeout": 0.3, "retries": 0}, {"timeout": 0.4, "deadline": 0.5}])
def test_a_body_that_keeps_coming_is_in_time(fault_server: FaultServer, service: str, settings: Any) -> None:
    fault_server.fault("slow", PATH, pieces=20, seconds=1.0)
    assert filled(service, fault_server, **settings).get("a") == VALUE
    assert len(fault_server.log()) == 1


@pytest.mark.parametrize(("kind", "settings", "words"), [
    ("status", {"retries": 10**6, "deadline": 0.3}, r"status 503, in \d+ attempts"),
    ("hang", {"timeout": 0.1, "deadline": 0.4}, r"no answer in time, in \d+ attempts; raise retries"),
])  # fmt: skip
def test_deadline(fault_server: FaultServer, kind: str, settings: Any, words: str) -> None:
    fault_server.fault(kind, PATH)
    refused(StoreError, words, lambda: filled("s3", fault_server, **settings).get("a"))


@pytest.mark.parametrize("settings", [{}, {"deadline": 0.4}, {"deadline": 500, "timeout": 90}], ids=str)
def test_the_last_attempt_begins_before_the_deadline(
    fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch, settings: dict[str, float]
) -> None:
    """So that by default a fault that stays is reported within 20 seconds, whatever each attempt takes."""
    monkeypatch.undo()
    deadline = settings.get("deadline", 12)
    timeout = settings.get("timeout", min(7, deadline))
    made = make("s3", fault_server, **settings)._use().made(False, False)
    pause = made.retry_config["backoff"]["max_backoff"]
    assert abs((made.retry_config["retry_timeout"] + pause).total_seconds() - deadline) < 0.01
    assert made.client_options["read_timeout"] == f"{timeout:g}s" or settings
    assert deadline + timeout < 20 or settings


def test_nobody_waits_for_a_request_that_is_not_wanted_any_more(fault_server: FaultServer) -> None:
    store = make("s3", fault_server, timeout=1.5, retries=0, concurrency=1)
    fault_server.fault("hang", "/b/x/*")

    def do(at: int) -> object:
        time.sleep(at * 0.2)
        return store.get(str(at)) if at < 2 else 1 // 0

    refused((ZeroDivisionError, StoreError), None, lambda: parallel_map(do, range(3), 3))
    assert len(fault_server.log()) <= 1


def test_no_server_there() -> None:
    store = ObjectStore("http://127.0.0.1:9/x", retries=3)
    told = r"key 'a' of .*the connection is refused, in 4 attempts; correct the address"
    refused(StoreError, told, *(partial(ask, "a") for ask in (store.get, store.exists, store.open)))


def test_a_body_without_a_tag_is_asked_for_again(fault_server: FaultServer) -> None:
    """obstore goes on where a body ended only if it has a tag, which tells that it is the same value."""
    store = filled("http", fault_server)
    fault_server.fault("short", PATH, times=2, headers={"ETag": None})
    assert store.get("a") == VALUE
    assert [entry["range"] for entry in fault_server.log()] == [None] * 3


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("html", {}),
    ("redirect", {"location": "/-/login"}),
    ("redirect", {"location": "/b/x/elsewhere", "status": 301}),
    ("headers", {"headers": {"Content-Length": None, "Last-Modified": None, "Content-Type": "text/html"}}),
    ("chunked", {}),
    ("no-length", {}),
]
WRONG_PARTS: list[tuple[str, dict[str, Any]]] = [
    ("ignore-range", {}), ("wrong-range", {}), ("wrong-range", {"shift": 7}), ("narrow-range", {}),
    ("headers", {"headers": {"Content-Range": None}}),
    ("headers", {"headers": {"Content-Range": "bytes 3-5/*"}}),
    ("headers", {"headers": {"Content-Range": "bytes 0-9/10"}}),
    ("headers", {"headers": {"Content-Range": "nonsense"}}),
]  # fmt: skip


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(("kind", "parameters"), [*WRONG, *WRONG_PARTS], ids=str)
def test_wrong_answers_are_told(fault_server: FaultServer, service: str, kind: str, parameters: Any) -> None:
    fault_server.put_all({PATH: VALUE, "/b/x/elsewhere": b"?" * len(VALUE)})
    store = make(service, fault_server, retries=2)
    fault_server.fault(kind, PATH, **parameters)
    for name, read in READS.items():
        if parameters.get("location") == "/b/x/elsewhere":  # Where the server says it is.
            assert bytes(read(store)) == b"?" * len(EXPECTED[name])
        elif (kind, parameters) in WRONG_PARTS and name not in BY_RANGE:
            assert bytes(read(store)) == EXPECTED[name]
        else:
            refused(StoreError, "key 'a' of", partial(read, store))


@pytest.mark.parametrize("service", ["s3", "gs"])
@pytest.mark.parametrize("kind", ["html", "redirect"])
def test_wrong_answers_are_no_success(fault_server: FaultServer, service: str, kind: str) -> None:
    store = make(service, fault_server, retries=2)
    fault_server.fault(kind, "*")
    # obstore takes every status of success of GCS for an answer to DELETE.
    left_out = "erase" if (service, kind) == ("gs", "html") else "none"
    writes = [partial(write, store) for name, write in WRITES.items() if left_out not in name]
    refused(StoreError, r"cannot (write|erase) key", *writes)


def test_erasing_one_by_one_where_a_service_cannot_erase_many(fault_server: FaultServer) -> None:
    fault_server.fault("status", "/b*", status=404)
    several = make("s3", fault_server, retries=2)
    refused(StoreError, "cannot erase keys", lambda: several.erase_values(["a", "b"]))
    options = {**fault_server.storage_options, "disable_bulk_delete": True}
    single = ObjectStore("s3://b/x", storage_options=options)
    single.erase("a")
    fault_server.clear_faults()
    single.set_values([("a", b"x"), ("b", b"y")])
    single.erase_values(["a", "b", "c"])
    assert fault_server.keys() == []
    assert len(fault_server.log("DELETE")) == 4


def test_login_pages_of_a_real_server(http_server: WebServer) -> None:
    name, path = http_server.directory()
    (path / "a").write_bytes(VALUE)

    def at(place: str, **options: Any) -> ObjectStore:
        return ObjectStore(f"{http_server.url}/{place}/{name}", **options)

    pages = [partial(read, at(prefix)) for read in READS.values() for prefix in ("login", "moved")]
    refused(StoreError, "HTML page|not the range", *pages)
    for prefix, status in (("forbidden", 403), ("auth", 401)):
        refused(StorePermissionError, f"status {status}", lambda prefix=prefix: at(prefix).get("a"))
    assert at("forbidden", absent_status=(403,)).get("a") is None
    given = {"client_options": {"default_headers": {"Authorization": "Basic cmVhZGVyOm9mLXRoZS10ZXN0cw=="}}}
    assert at("auth", storage_options=given).get("a") == VALUE
    url = http_server.url.replace("http://", f"http://{http_server.user}:{http_server.password}@")
    store = ObjectStore(f"{url}/auth/{name}")
    assert store.get("a") == VALUE
    assert http_server.password not in repr(store)


def test_a_web_server_is_read_only(http_server: WebServer) -> None:
    name, path = http_server.directory()
    (path / "a b").mkdir()
    for file, value in {"a b/c%2Fd#?+~": VALUE, "empty": b"", "ten": b"0123456789"}.items():
        (path / file).write_bytes(value)
    store = ObjectStore(f"{http_server.url}/{name}/")
    assert store.get("a b/c%2Fd#?+~") == VALUE
    for start, length in itertools.product(range(-12, 13), [None, *range(12)]):
        first = start % 10 if -10 <= start < 0 else max(start, 0)
        assert store.get("ten", (start, length)) == b"0123456789"[first:][:length]
        assert store.get("empty", (start, length)) == b""
    assert store.get("empty/x") is store.get("no") is None
    assert not store.exists("no")
    assert (store.readable, store.writeable, store.erasable, store.listable) == (True, False, False, False)
    refused(
        xzarr3.ReadOnlyError, None, partial(store.set, "a", b""), partial(store.erase, "a"),
        *(partial(store.erase_prefix, "a/"), partial(put_if, store, "a", "absent", b"")),
        partial(update, store, "a", lambda _: [b""]),
    )  # fmt: skip


@pytest.mark.parametrize("service", SERVICES)
def test_statuses_that_mean_absence(fault_server: FaultServer, service: str) -> None:
    asks = [*(READS[name] for name in ("whole", "part", "versioned")), lambda store: store.exists("a")]
    strict, lenient = make(service, fault_server), make(service, fault_server, absent_status=(404, 403, 410))
    for status in (401, 403, 410, 400, 405):
        fault_server.clear_faults()
        fault_server.fault("status", PATH, status=status)
        error = StorePermissionError if status in (401, 403) else StoreError
        refused(error, f"key 'a' of .*status {status}", *(partial(ask, strict) for ask in asks))
        assert status not in (403, 410) or not any(ask(lenient) for ask in asks)
    fault_server.clear_faults()
    codes = "SignatureDoesNotMatch InvalidAccessKeyId RequestTimeTooSkewed AuthenticationFailed"
    for code in codes.split():
        fault_server.fault("status", PATH, status=403, times=1, body=f"<Error><Code>{code}</Code></Error>")
        refused(StorePermissionError, code, lambda: lenient.get("a"))
    assert not any(ask(strict) for ask in asks)
    if service == "s3":  # A bucket of another region.
        fault_server.fault("status", PATH, status=301)
        refused(StoreError, "status 301.*region=", lambda: strict.get("a"))


def test_an_answer_about_something_else_is_no_absence(fault_server: FaultServer) -> None:
    """The statuses are those of the key, and not of a service that is to give credentials."""
    fault_server.fault("status", "/token", status=404)
    options = {
        "account_name": "account", "endpoint_url": fault_server.url, "client_id": "client-id",
        "client_secret": "client-secret", "tenant_id": "tenant", "authority_host": fault_server.url,
    }  # fmt: skip
    store = ObjectStore("az://b/x", storage_options=options)
    told = "no credentials are given, or what gives them fails"
    refused(StoreError, told, lambda: store.get("a"), lambda: store.exists("a"))


@pytest.mark.parametrize(("server", "scheme"), [("s3_server", "s3"), ("azure_server", "az")])
def test_a_missing_bucket_is_an_error(request: pytest.FixtureRequest, server: str, scheme: str) -> None:
    options = request.getfixturevalue(server).storage_options
    store = ObjectStore(f"{scheme}://no-such-place/x", storage_options=options)
    refused(
        StoreError, r"status 404.*create the bucket or container",
        *(partial(READS[name], store) for name in ("whole", "part", "versioned")),
        *(partial(WRITES[name], store) for name in ("set", "erase", "erase values", "create")),
        *(lambda: list(store.list()), lambda: store.list_dir("")),
        lambda: put_if(store, "a", ('"0"', None, 1), b"x"),
    )  # fmt: skip


@pytest.mark.parametrize("service", SERVICES)
def test_readers_keep_to_one_version(fault_server: FaultServer, service: str) -> None:
    store = filled(service, fault_server)
    reader = _open(store, "a")
    part = _open(store, "a", (-8, 8))
    assert reader.read(3, 4) == VALUE[3:7]
    fault_server.put(PATH, VALUE[::-1])
    for one in (reader, part):
        assert one.size == len(VALUE)
        reads = partial(one.read, 3, 4), partial(one.read_ranges, [1, 2], [3, 4])
        refused(ChangedError, "key 'a'", *reads)
    assert part.read(-8, 8) == VALUE[-8:], "what came with the answer stays what it was"
    fault_server.delete(PATH)
    refused(ChangedError, None, partial(reader.read, 0))


@pytest.mark.parametrize("service", ["s3", "gs"])
def test_a_known_version_is_opened_without_a_request(fault_server: FaultServer, service: str) -> None:
    store = filled(service, fault_server)
    version: Any = pickle.loads(pickle.dumps(_open(store, "a", (0, 10)).version))
    assert hash(version) == hash(_open(store, "a", (0, 10)).version)
    fault_server.clear_log()
    known = _open(store, "a", (0, 10), version)
    assert known.version == version
    assert fault_server.log() == []
    assert known.read_ranges([1, 2, 10**6], [3, 4, 5]) == [VALUE[1:4], VALUE[2:6], b""]
    for start, length in ((-5, None), (-50, 10), (7, 3), (len(VALUE), 3)):
        assert known.read(start, length) == VALUE[start:][:length]
    assert {entry["if_match"] for entry in fault_server.log("GET")} == {version[0]}
    for change in (lambda: fault_server.put(PATH, b"another"), lambda: fault_server.delete(PATH)):
        change()
        refused(ChangedError, None, *(partial(known.read, start, 3) for start in (0, -3)))


@pytest.mark.parametrize(("first", "then"), [
    ({}, {"ETag": '"other"'}), ({}, {"ETag": None}), ({"ETag": 'W/"1"'}, {"ETag": 'W/"2"'}),
], ids=["other", "none", "weak"])  # fmt: skip
def test_tags_that_come_back_are_compared(fault_server: FaultServer, first: Any, then: Any) -> None:
    """A server may take no notice of If-Match, and is not asked for weak tags."""
    store = filled("http", fault_server)
    fault_server.fault("headers", PATH, headers=first)
    reader = _open(store, "a")
    assert reader.read(3, 4) == VALUE[3:7]
    assert (fault_server.log()[-1]["if_match"] is None) == bool(first)
    fault_server.clear_faults()
    fault_server.fault("headers", PATH, headers=then)
    refused(ChangedError, None, lambda: reader.read(3, 4))


def test_values_without_tags(fault_server: FaultServer) -> None:
    store = filled("s3", fault_server)
    fault_server.fault("headers", PATH, headers={"ETag": None, "x-goog-generation": None})
    reader, version = _open(store, "a"), versioned(store, "a")[1]
    assert reader.version is None
    assert reader.read_ranges([0, 9], [3, 3]) == [VALUE[:3], VALUE[9:12]]
    refused(StoreCapabilityError, "not distinguish versions", lambda: put_if(store, "a", version, b"x"))
    fault_server.put(PATH, VALUE + b"more")
    refused(ChangedError, None, lambda: reader.read(0, 3))


def test_parts_read_together_are_of_one_version(fault_server: FaultServer) -> None:
    store = make("s3", fault_server)
    for after in range(5):
        fault_server.put(PATH, b"c" * 1000)
        fault_server.clear_faults()
        fault_server.fault("overwrite", PATH, value=b"d" * 1000, after=after, times=1)
        with suppress(ChangedError):
            found = _open(store, "a", (0, 10)).read_ranges([0, 100, 200], [10] * 3)
            assert len({bytes(part) for part in found}) == 1


def test_values_beyond_the_limit_are_not_fetched(fault_server: FaultServer) -> None:
    store = make("s3", fault_server)
    fault_server.put(PATH, bytes(20_000_000))
    fault_server.fault("slow", PATH, seconds=6000.0)  # Who waits for the body gets an error.
    for _ in range(5):
        refused(OversizedError, "found 20000000 bytes", lambda: store.get("a", into=Scratch(), limit=1000))
    fault_server.put("/b/x/b", b"small")
    assert store.get("b", limit=5) == b"small"


@pytest.mark.parametrize("service", ["s3", "gs"])
def test_conditions(fault_server: FaultServer, service: str) -> None:
    store = make(service, fault_server)
    assert put_if(store, "a", versioned(store, "a")[1], b"1")
    _, version = versioned(store, "a")
    fault_server.put(PATH, b"of others")
    assert not put_if(store, "a", version, b"2")
    _, version = versioned(store, "a")
    assert pickle.loads(pickle.dumps(version)) == version
    fault_server.delete(PATH)
    for status in (412, 404):
        fault_server.configure(match_missing=status)
        assert not put_if(store, "a", version, b"3")
    assert fault_server.get(PATH) is None
    assert not store.traits.erases_conditionally
    refused(StoreCapabilityError, "cannot erase", lambda: store.put("a", None, if_version=version))


@pytest.mark.parametrize("service", ["s3", "gs"])
def test_conditions_are_tried_once(fault_server: FaultServer, service: str) -> None:
    """The first of each kind is made twice, the second time under a condition that does not hold."""
    store = make(service, fault_server, concurrency=5)
    for version in (lambda key: "absent", lambda key: versioned(store, key)[1]):
        fault_server.clear_log()
        for at in range(3):
            assert put_if(store, f"k{at}", version(f"k{at}"), b"1")
        assert [entry["status"] for entry in fault_server.log("PUT")] == [200, 412, 200, 200]


@pytest.mark.parametrize("service", ["s3", "gs"])
@pytest.mark.parametrize("kind", ["ignore-conditions", "no-conditions"])
def test_services_without_conditions_are_found(fault_server: FaultServer, service: str, kind: str) -> None:
    fault_server.put(PATH, b"0")
    fault_server.fault(kind, "/b/*")
    concurrency = 6 if kind == "no-conditions" else 7
    store = make(service, fault_server, concurrency=concurrency)
    changes = [partial(update, store, key, lambda stored: [b"1"]) for key in ("a", "new")]
    refused(StoreCapabilityError, "conditional='process'", *changes, *changes)
    if kind == "ignore-conditions":
        assert len(fault_server.log("PUT")) == 4, "nothing is stored without a condition once that is known"
    fault_server.put(PATH, b"0")
    alone = make(service, fault_server, conditional="process")

    def count() -> None:
        for _ in range(10):
            update(alone, "a", lambda stored: [b"%d" % (int(bytes(stored or b"0")) + 1)])

    run_threads(*[count] * 4)
    assert fault_server.get(PATH) == b"40"


@pytest.mark.parametrize("kind", ["ignore-conditions", "no-conditions"])
def test_a_dataset_is_replaced_in_a_service_without_conditions(fault_server: FaultServer, kind: str) -> None:
    """Also when that shows only after a request, which has stored what it was to store."""
    fault_server.fault(kind, "/b/*")
    concurrency = 9 + 2 * (kind == "no-conditions")  # It has a client of its own.
    store = make("s3", fault_server, concurrency=concurrency)
    for at in range(3):
        to_zarr(xr.Dataset({"t": ("x", np.full(4, float(at)))}), store, mode="w")
        assert xzarr3.open_array(store, "t")[:].tolist() == [at] * 4
    assert not [key for key in store.list() if "xzarr3" in key]


@pytest.mark.parametrize("service", ["s3", "gs"])
@pytest.mark.parametrize("kind", ["lost-answer", "reset", "status", "hang"])
def test_answers_to_conditions_get_lost(fault_server: FaultServer, service: str, kind: str) -> None:
    """Whether the put was carried out or not, the change is made exactly once."""
    store = make(service, fault_server, timeout=0.1)
    changed_twice(store)
    for at in range(6):
        for key in ("a", f"new{at}"):
            fault_server.fault(kind, f"/b/x/{key}", methods=["PUT"], times=1)
            update(store, key, lambda stored, at=at: [bytes(stored or b""), b"%d" % at])  # type: ignore[misc]
        assert fault_server.get(PATH) == b"1012345"[: at + 2]
        assert fault_server.get(f"/b/x/new{at}") == b"%d" % at


BUSY = {"status": 409, "body": "<Error><Code>ConditionalRequestConflict</Code></Error>"}
Fault = tuple[str, str, dict[str, Any]]
"""What goes wrong, with which method, and how; once, unless it says how often."""
LOST: Fault = ("lost-answer", "PUT", {})
RESET: Fault = ("reset", "PUT", {})


def theirs(method: str, value: bytes, **when: int) -> Fault:
    return "overwrite", method, {"value": value, **when}


def happen(server: FaultServer, faults: list[Fault], key: str = "a") -> None:
    for kind, method, parameters in faults:
        server.fault(kind, f"/b/x/{key}", methods=[method], **{"times": 1, **parameters})


STORIES: dict[str, tuple[list[Fault], list[bytes], bytes]] = {
    # What happens to the requests, the values to which "+" is added, and what is stored in the end.
    "carried out, as is seen": ([LOST], [b"1"], b"1+"),
    "carried out late": ([RESET, theirs("PUT", b"1+")], [b"1"], b"1+"),
    "others were faster": ([RESET, theirs("GET", b"2", after=1)], [b"1", b"2"], b"2+"),
    "nothing can be read then": ([LOST, ("status", "GET", {"times": 2, "after": 1})], [b"1"], b"1+"),
    "conflict": ([("status", "PUT", {**BUSY, "times": 3})], [b"1"], b"1+"),
    # A busy service has done nothing: what is stored then is of somebody else, even if it is the same.
    **{
        f"busy, {busy['status']}": ([("status", "PUT", busy), theirs("PUT", b"1+")], [b"1", b"1+"], b"1++")
        for busy in ({"status": 429}, {"status": 503}, {"status": 500, "body": PASSING[6][1]["body"]})
    },
}


def changed_twice(store: ObjectStore) -> object:
    """Past the first changes, which find out whether the service keeps to conditions; the version then."""
    for value in (b"0", b"1"):
        update(store, "a", lambda _, value=value: [value])  # type: ignore[misc]
    return versioned(store, "a")[1]


@pytest.mark.parametrize("service", ["s3", "gs"])
@pytest.mark.parametrize("story", STORIES)
def test_a_change_is_made_once(fault_server: FaultServer, service: str, story: str) -> None:
    faults, expected, stored = STORIES[story]
    store = make(service, fault_server, retries=1 if story == "nothing can be read then" else 5)
    changed_twice(store)
    fault_server.clear_log()
    happen(fault_server, faults)
    calls = []

    def change(value: Any) -> list[bytes]:
        calls.append(bytes(value))
        return [bytes(value), b"+"]

    update(store, "a", change)
    assert calls == expected
    assert fault_server.get(PATH) == stored
    if story == "carried out, as is seen":
        assert len(fault_server.log("PUT")) == 1


@pytest.mark.parametrize("service", ["s3", "gs"])
@pytest.mark.parametrize(("key", "faults", "words"), [
    ("a", [LOST, theirs("GET", b"theirs")], "may have been replaced or not; read it again"),
    # It comes late: it was not there when it was looked for, and then others had changed it.
    ("a", [RESET, theirs("PUT", b"theirs")], "may have been replaced or not; read it again"),
    ("new", [LOST, theirs("GET", b"theirs")], "may have been replaced or not; read it again"),
    ("a", [LOST, ("status", "GET", {"times": 20})], "to see whether it was replaced: cannot read"),
], ids=["others were faster", "carried out late", "new", "not readable"])  # fmt: skip
def test_whether_a_change_was_made_may_be_unknown(
    fault_server: FaultServer, service: str, key: str, faults: list[Fault], words: str
) -> None:
    store = make(service, fault_server)
    version = changed_twice(store) if key == "a" else "absent"
    happen(fault_server, faults, key)
    refused(OutcomeUnknownError, rf"key '{key}' of .*{words}", lambda: put_if(store, key, version, b"mine"))


def test_a_busy_service_is_asked_again(fault_server: FaultServer) -> None:
    store = make("s3", fault_server, retries=3)
    busy: Fault = ("status", "PUT", {**BUSY, "times": 3})
    for key, version in (("new", "absent"), ("a", changed_twice(store))):
        happen(fault_server, [busy], key)
        assert put_if(store, key, version, b"1")
        assert store.get(key) == b"1"
    # Who was faster is another version as ever.
    _, version = versioned(store, "a")
    happen(fault_server, [("status", "PUT", BUSY), theirs("GET", b"theirs")])
    assert not put_if(store, "a", version, b"mine")
    assert fault_server.get(PATH) == b"theirs"
    fault_server.fault("status", "/b/x/c", methods=["PUT"], **BUSY)
    said = "ConditionalRequestConflict, in 4 attempts; reduce"
    refused(ConflictError, said, lambda: put_if(store, "c", "absent", b"1"))
    assert fault_server.get("/b/x/c") is None


@pytest.mark.parametrize("service", ["s3", "gs"])
@pytest.mark.parametrize("kind", ["create", "update"])
def test_a_stored_change_is_not_told_as_failed(fault_server: FaultServer, service: str, kind: str) -> None:
    """What follows the storing fails: the answer is lost at the last attempt, or the service is not asked
    whether it keeps to conditions."""
    client._clients.__init__(32)  # type: ignore[misc]  # A client of an earlier test may know already.
    fault_server.put(PATH, b"0")

    def version(store: ObjectStore) -> tuple[str, object]:
        return ("new", "absent") if kind == "create" else ("a", versioned(store, "a")[1])

    store = make(service, fault_server, retries=0)
    key, known = version(store)
    fault_server.fault("lost-answer", f"/b/x/{key}", methods=["PUT"], times=1)
    assert put_if(store, key, known, b"1")
    assert fault_server.get(f"/b/x/{key}") == b"1"
    fault_server.delete("/b/x/new")
    store = make(service, fault_server, retries=1)
    key, known = version(store)
    number = fault_server.fault("status", f"/b/x/{key}", methods=["PUT"], after=1, status=503)
    assert put_if(store, key, known, b"2")
    assert fault_server.hits(number) > 1
    assert fault_server.get(f"/b/x/{key}") == b"2"


def test_a_copy_that_was_not_made(fault_server: FaultServer) -> None:
    """S3 may say that all is well before it fails: the value is then copied through this process."""
    headers = {"Content-Type": "application/xml", "ETag": '"x"'}
    error = {"status": 200, "body": "<Error><Code>InternalError</Code></Error>", "headers": headers}
    store = make("s3", fault_server, retries=0)
    store.set("a", b"value")
    number = fault_server.fault("status", "/b/x/c", methods=["PUT"], times=1, **error)
    store.copy("a", "c")
    assert fault_server.hits(number) == 1
    assert store.get("c") == b"value"


def _add_all(store: ObjectStore, marks: str) -> None:
    for mark in marks:
        update(store, "a", lambda stored, mark=mark: [bytes(stored or b""), mark.encode()])  # type: ignore[misc]


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        yield pool


@pytest.mark.parametrize("server", SCHEMES)
def test_check_store(server: str, request: pytest.FixtureRequest) -> None:
    numbers = itertools.count()
    if server == "fault_server":
        request.getfixturevalue(server).configure(max_keys=7)  # Lists of several pages.
    assert check_store(lambda: real(request, server, f"bucket-{next(numbers)}")[1])


@pytest.mark.parametrize("server", SCHEMES)
def test_no_change_is_lost(request: pytest.FixtureRequest, server: str, pool: Any) -> None:
    running, store = real(request, server)
    if server == "fault_server":
        running.fault("status", "/b/*", share=0.1)
        running.fault("lost-answer", "/b/*", methods=["GET"], share=0.1)
    names = ["abcdefg", "hijklmn", "opqrstu", "ABCDEFG", "HIJKLMN", "OPQRSTU"]
    with ThreadPoolExecutor(3) as threads:
        others = pool.starmap_async(_add_all, [(store, marks) for marks in names[:3]])
        for future in [threads.submit(_add_all, store, marks) for marks in names[3:]]:
            future.result(timeout=120)
        others.get(timeout=120)
    assert sorted(bytes(store.get("a") or b"").decode()) == sorted("".join(names))


@pytest.mark.parametrize("server", SCHEMES)
def test_large_values_are_sent_in_parts(request: Any, monkeypatch: Any, server: str) -> None:
    monkeypatch.setattr(object_store, "_LARGE", 2**20)
    monkeypatch.setattr(object_store, "_PART", {**object_store._PART, "chunk_size": 5 * 2**20})
    running, store = real(request, server)
    if server == "fault_server":
        running.fault("status", "/b/*", methods=["PUT"], share=0.3)
        running.fault("reset", "/b/*", methods=["PUT"], share=0.2)
    value = bytes(range(256)) * 50_000
    for one in (value, value[: 2**20 + 1], value[: 2**20]):
        store.set("a", one)
        assert store.get("a") == one
    if server == "fault_server":
        running.clear_faults()
        running.fault("status", "/b/*", methods=["PUT"])
        said, again = "cannot write key 'a' of .*status 503, in 3 attempts", make("s3", running, retries=2)
        refused(StoreError, said, lambda: again.set("a", b"other" * 10**6))
        assert store.get("a") == one


def test_requests_at_once_are_bounded(fault_server: FaultServer) -> None:
    keys = [str(at) for at in range(60)]
    fault_server.put_all({f"/b/x/{key}": key.encode() for key in keys})
    fault_server.configure(latency=0.03)
    stores = [pickle.loads(pickle.dumps(make("s3", fault_server, concurrency=9))) for _ in range(6)]
    acts: list[Callable[[ObjectStore], Any]] = [
        lambda store: store.get_values(keys),
        lambda store: store.set_values((key, key.encode()) for key in keys),
    ]
    for act in acts:
        fault_server.clear_log()
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(act, stores))
        counts = fault_server.counts()
        assert (counts["requests"], counts["most_at_once"]) == (360, 9)
        # Where the machine is busy, some connections come back to the pool after the next request has begun,
        # and that opens another one. Six pools would open 6 * 9.
        connections = {entry["connection"] for entry in fault_server.log()}
        assert len(connections) < 6 * 9 / 2, "copies share their connections"


@pytest.mark.parametrize("service", ["s3", "gs"])
def test_prefixes_and_what_stands_for_directories(fault_server: FaultServer, service: str) -> None:
    store = make(service, fault_server)
    fault_server.configure(max_keys=2)
    values = ["x/a/b", "x/a", "x/ab/c", "x/a/empty", "x/a/d/e", "x", "xy/z", "y", "x.z"]
    fault_server.put_all({f"/b/{path}": b"" if "empty" in path else b"v" for path in values})
    fault_server.put_all({f"/b/{path}": b"" for path in ("x/", "x/a/", "x/a/d/", "x/gone/")})
    assert sorted(store.list()) == ["a", "a/b", "a/d/e", "a/empty", "ab/c"]
    assert sorted(store.list_prefix("a/")) == ["a/b", "a/d/e", "a/empty"]
    assert store.list_dir("a/") == ({"a/b", "a/empty"}, {"a/d/"})
    assert store.list_dir("")[0] == {"a"}
    assert store.list_dir("")[1] >= {"a/", "ab/"}
    assert list(store.list_prefix("no/")) == []
    store.erase_prefix("a/")
    assert sorted(store.list()) == ["a", "ab/c"]


def test_a_list_is_asked_for_once(fault_server: FaultServer) -> None:
    fault_server.put_all({f"/b/x/d/{at:02}": b"v" for at in range(25)})
    store = make("s3", fault_server)
    for prefix in ("d/", "", "no/"):
        for ask in (lambda prefix: list(store.list(prefix)), store.list_dir):
            fault_server.clear_log()
            ask(prefix)
            assert len(fault_server.log()) == 1
    fault_server.put("/b/x//b", b"v")  # No key, but it does not hide.
    refused(StoreError, "cannot list", lambda: list(store.list()))


def test_a_list_goes_on_where_it_failed(fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_PAGE", 5)
    fault_server.configure(max_keys=5)
    expected = [f"{at:03}" for at in range(50)]
    fault_server.put_all({f"/b/x/{key}": b"v" for key in expected})
    store = make("s3", fault_server, retries=2)
    names = iter(store.list())
    assert [next(names) for _ in range(5)] == expected[:5]
    assert len(fault_server.log()) <= 2
    fault_server.fault("status", "/b", methods=["GET"], times=1, after=2)
    fault_server.fault("short", "/b", methods=["GET"], times=1, after=4)
    assert list(names) == expected[5:]
    assert len(fault_server.log("GET")) == 12, "ten pages and two failures"


SECRETS: dict[str, dict[str, Any]] = {
    "s3": {"key": "AKIAVERYSECRETKEY", "secret": "s3cr3t/of+the=key", "token": "session-t0ken"},
    "az": {"account_name": "account", "sas_key": "sv=2024&sp=rl&sig=c2lnbmF0dXJl%2Bsecret%3D"},
    "gs": {"bearer_token": "ya29.bearer-of-google"},
    "http": {"client_options": {"default_headers": {"Authorization": "of-the-web", "X-Api-Key": "web-key"}}},
}
HIDDEN = {
    "s3": list(SECRETS["s3"].values()),
    "az": ["sv=2024&sp=rl&sig=c2lnbmF0dXJl", "c2lnbmF0dXJl%2Bsecret%3D", "c2lnbmF0dXJl+secret="],
    "gs": list(SECRETS["gs"].values()),
    "http": ["of-the-web", "web-key"],
}


@pytest.mark.parametrize("service", sorted(SECRETS))
def test_secrets_are_shown_nowhere(fault_server: FaultServer, service: str, caplog: Any, capfd: Any) -> None:
    caplog.set_level(logging.DEBUG)
    url, options = f"{service}://b/x", {**SECRETS[service], "endpoint_url": fault_server.url}
    if service == "http":
        url, options = f"{fault_server.url}/b/x", SECRETS[service]
    store = ObjectStore(url, storage_options=options, retries=1)
    shown = [repr(store), f"{store}", repr(store.identity), repr(store.__dask_tokenize__())]
    shown += [repr(store._recipe), repr(store._settings), repr(store._use())]
    echo = " ".join(HIDDEN[service])
    body = f"<Error><Code>AccessDenied</Code><Message>You sent {echo}</Message></Error>"
    faults: list[tuple[str, dict[str, Any]]] = [
        *(("status", {"status": each, "body": body}) for each in (400, 401, 403, 404, 409, 412, 500, 501)),
        ("redirect", {"location": f"{fault_server.url}/-/login?sig=c2lnbmF0dXJl%2Bsecret%3D"}),
        *((kind, {}) for kind in ("reset", "short", "html", "chunked", "ignore-range", "wrong-range")),
    ]
    asks: list[Callable[[ObjectStore], Any]] = [
        *READS.values(),
        *(WRITES[name] for name in ("set", "create", "erase", "erase values")),
        lambda store: list(store.list()),
        lambda store: store.list_dir("a/"),
    ]
    errors = 0
    for (kind, parameters), ask in itertools.product(faults, asks):
        fault_server.clear_faults()
        fault_server.put(PATH, VALUE)
        fault_server.fault(kind, "*", **parameters)
        try:
            ask(store)
        except (StoreError, AssertionError) as error:
            errors += 1
            shown += [str(error), repr(error), traceback.format_exc(), str(pickle.loads(pickle.dumps(error)))]
            chained: BaseException | None = error
            while chained is not None:
                shown += [str(chained), repr(chained.args)]
                assert chained.__context__ is None or chained.__context__ is chained.__cause__
                chained = chained.__cause__
    assert errors > 50
    for text in (*shown, caplog.text, *capfd.readouterr()):
        for secret in HIDDEN[service]:
            assert secret not in text, text


def test_a_forked_child_is_told_what_to_do(fault_server: FaultServer) -> None:
    """obstore would wait for ever; a child of a child, a copy and another store are told so, too."""
    fault_server.put(PATH, b"value")
    store = make("s3", fault_server)
    assert store.get("a") == b"value"
    kept = dict(client._clients._kept)

    def child() -> int:
        refused(
            StoreError, r"was forked from .*; start .*'spawn' or 'forkserver'",
            *(lambda: store.get("a"), lambda: update(store, "a", lambda _: [b"x"])),
            lambda: pickle.loads(pickle.dumps(store)).set("a", b"x"),
            lambda: list(make("gs", fault_server).list()),
        )  # fmt: skip
        assert dict(client._clients._kept) == kept, "nothing of the parent is dropped, which may hang"
        return 1

    assert run_child(child).checked() == 1
    assert run_child(lambda: run_child(child).checked()).checked() == 1
    assert store.get("a") == b"value"


def test_ready_stores(fault_server: FaultServer, tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore.store")
    fault_server.put(PATH, VALUE)
    http = {"client_options": {"allow_http": True}}
    secrets = {"access_key_id": "AKIAVERYSECRETKEY", "secret_access_key": "s3cr3t"}
    ready = obstore.S3Store(
        "b", prefix="x", endpoint=fault_server.url, retry_config={"max_retries": 3}, **secrets, **http
    )
    store = ObjectStore(ready)
    assert repr(store) == f'<ObjectStore \'obstore.S3Store(bucket="b",prefix="x")\' at {fault_server.url}>'
    fault_server.fault("status", PATH, times=3)
    for one in (store, pickle.loads(pickle.dumps(store))):
        assert one.get("a") == VALUE
    web = ObjectStore(obstore.HTTPStore.from_url(f"{fault_server.url}/b/x", **http))
    assert (web.get("a", (-3, None)), web.writeable) == (VALUE[-3:], False)
    local = ObjectStore(obstore.LocalStore(tmp_path))
    assert pickle.loads(pickle.dumps(local)) == local
    memory = ObjectStore(obstore.MemoryStore())
    update(memory, "c", lambda stored: [bytes(stored or b""), b"4"])
    assert memory.get("c") == b"4"
    run_child(lambda: refused(StoreError, "forked", lambda: memory.get("c"))).checked()
    refused(TypeError, "not a store", lambda: ObjectStore(object()))
    refused(TypeError, "ready store", lambda: ObjectStore(ready, storage_options={"anon": True}))


URL = "http://host:1/data/x.zarr/"
LONG = "a_very_long_name_of_a_variable_that_nginx_cuts_off"
PYTHON = """<!DOCTYPE HTML>
<html lang="en"><head><meta charset="utf-8"><title>Directory listing for /data/x.zarr/</title></head>
<body><h1>Directory listing for /data/x.zarr/</h1><hr><ul>
{}
</ul><hr></body></html>
"""
NGINX = f"""<html>\r
<head><title>Index of /data/x.zarr/</title></head>\r
<body>\r
<h1>Index of /data/x.zarr/</h1><hr><pre><a href="../">../</a>\r
<a href="{LONG}/">a_very_long_name_of_a_variable_tha..&gt;</a> 01-Jan-2026 10:00      -\r
<a href="sst%3Amean/">sst:mean/</a>                  01-Jan-2026 10:00                   -\r
<a href="zarr.json">zarr.json</a>                  01-Jan-2026 10:00                 171\r
</pre><hr></body>\r
</html>\r
"""
APACHE = """<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN">
<html>
 <head>
  <title>Index of /data/x.zarr</title>
 </head>
 <body>
<h1>Index of /data/x.zarr</h1>
  <table>
   <tr><th><img src="/icons/blank.gif" alt="[ICO]"></th><th><a href="?C=N;O=D">Name</a></th></tr>
<tr><td><a href="/data/">Parent Directory</a></td><td>&nbsp;</td></tr>
<tr><td><a href="./sst:mean/">sst:mean/</a></td><td align="right">  - </td></tr>
<tr><td><a href="t&amp;u/">t&amp;u/</a></td><td align="right">  - </td></tr>
<tr><td><a href="zarr.json">zarr.json</a></td><td align="right">171 </td></tr>
</table>
<address>Apache/2.4.62 (Debian) Server at <a href="mailto:me@host">host</a> Port 80</address>
</body></html>
"""


def linked(*links: str) -> str:
    return PYTHON.format("\n".join(f'<li><a href="{link}">name</a></li>' for link in links))


LEADING_ELSEWHERE = [
    *("", "/", ".", "./", "..", "../", "../x/", "../../etc/passwd", "/etc/passwd", "/data/y.zarr/", "x/y/"),
    *("%2e%2e/", "%2E%2E", ".%2e/", "a%2Fb", "..%2f..%2fetc", "%2Fetc/", "a%00b/", "a%0Ab/", "%FF%FE/"),
    *("./../x", "?C=N;O=D", "x?y", "#top", "x/#y", "mailto:me", "javascript:x", "data:x", "c:/x"),
    *("http://other/data/x.zarr/a/", "//other/a/", "http://host:2/data/x.zarr/a/", "http://[", "//["),
    *("file:///etc/passwd", "ftp://host:1/data/x.zarr/a/", f"http://other/?to={URL}a"),
]
PAGES: dict[str, tuple[str, set[str], set[str]]] = {
    **{f"elsewhere: {link}": (linked(link, "b/"), set(), {"b"}) for link in LEADING_ELSEWHERE},
    "python": (linked("a/", "%C3%A9%20b/", "zarr.json"), {"zarr.json"}, {"a", "\u00e9 b"}),
    "nginx": (NGINX, {"zarr.json"}, {LONG, "sst:mean"}),
    "apache": (APACHE, {"zarr.json"}, {"sst:mean", "t&u"}),
    "empty": (linked(), set(), set()),
    # The square of a million letters would take hours.
    "one name many times": (linked(*["a/"] * 10**5), set(), {"a"}),
    "a long tag": (linked("a/").replace("<ul>", "<a " + "x" * 10**6), set(), {"a"}),
    "many tags that do not end": (linked("a/").replace("<ul>", "<a " * 10**6), set(), {"a"}),
    "many attributes": (linked("a/").replace("<ul>", "<a " + "href='" * 10**6), {"href="}, {"a"}),
    "blanks": (linked("a/").replace("<h1>", "<h1>" + " " * 10**6 + "<h1>" * 10**5), set(), {"a"}),
}


@pytest.mark.parametrize("kind", PAGES)
def test_names_on_pages_of_servers(kind: str) -> None:
    page, files, folders = PAGES[kind]
    assert names_on(page, URL) == (files, folders)


REFUSED: dict[str, str] = {
    "nothing": "",
    "a page for a login": "<html><title>Log in</title><form>Password</form><a href='a/'>a</a></html>",
    "a page of somebody": "<html><h1>Index of refraction</h1><a href='a/'>a</a></html>",
    "a child by its path": linked("a/", "/data/x.zarr/b/"),
    "a child by its URL": linked("a/", f"{URL}b"),
    "a child by a detour": linked("a/", "b/../c/"),
    "a child with two slashes": linked("a/", "b//"),
    "no end": linked("a/").partition("</ul>")[0],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_names_on_refuses_what_is_no_whole_list(kind: str) -> None:
    refused(AnswerError, None, lambda: names_on(REFUSED[kind], URL))


def serving(folder: Path, needs: str = "") -> AbstractContextManager[str]:
    return answered_by(partial(type("Guarded", (Quiet,), {"needs": needs}), directory=str(folder)))


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Python's server of a directory, which may ask for a header."""

    needs = ""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        if self.needs and self.headers[self.needs] != "k":
            self.send_error(401)
        else:
            super().do_GET()


def fill(store: Any, **options: Any) -> xr.Dataset:
    ds = xr.Dataset({"t": ("x", np.arange(10.0)), "a b": ("x", np.ones(10))}, coords={"x": np.arange(10)})
    xzarr3.to_zarr(ds, store, consolidated=False, **options)
    xzarr3.to_zarr(ds[["t"]], store, group="g/\u00e9", consolidated=False, **options)
    return ds


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_groups_without_consolidated_metadata_are_found(zarr_format: Any, tmp_path: Path) -> None:
    ds = fill(tmp_path / "x \u00e9.zarr", zarr_format=zarr_format)
    with serving(tmp_path) as url:
        place = f"{url}/x \u00e9.zarr"  # Not encoded.
        xr.testing.assert_identical(xr.open_dataset(place, engine="xzarr3").load(), ds)
        assert set(xr.open_groups(place, engine="xzarr3")) == {"/", "/g", "/g/\u00e9"}
        group = xzarr3.open_group(place)
        assert sorted(group) == ["a b", "g", "t", "x"]
        assert sorted(xzarr3.copy(place, MemoryStore())) == sorted(group)


@pytest.mark.parametrize("needs", ["", "X-Key", "Authorization"])
def test_list_dir_of_a_web_server(needs: str, tmp_path: Path) -> None:
    for key in ("g/zarr.json", "g/a/zarr.json"):
        xzarr3.LocalStore(tmp_path).set(key, b"{}")
    with serving(tmp_path, needs) as url:
        options = {"client_options": {"default_headers": {needs or "X": "k"}}}
        store = ReadOnlyStore(WrapperStore(xzarr3.open_store(url, options)))
        assert store.list_dir("g/") == ({"g/zarr.json"}, {"g/a/"})
        assert (store.traits.browsable, store.listable) == (True, False)
        refused(StoreCapabilityError, "cannot be listed", store.list)
        if needs:
            refused(xzarr3.StorePermissionError, "401", lambda: xzarr3.open_store(url).list_dir("g/"))


UNLISTED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "none": (b"no", {"kind": "status", "status": 404}, "404"),
    "refused": (b"no", {"kind": "status", "status": 403}, "403"),
    "a login": (b"", {"kind": "html"}, "no list of a folder"),
    "elsewhere": (b"", {"kind": "redirect"}, "status 302"),
    "no text": (b"\xff\xfe", {}, "no text"),
    "many names": (linked(*map(str, range(2 * 10**5))).encode(), {}, "more than"),
    "no end": (b"<a href='a/'>a</a>" * 2**18, {}, "more than"),
    "drops": (b" " * 100, {"kind": "slow", "pieces": 100, "seconds": 60}, "took over 1 s"),
}


@pytest.mark.parametrize("kind", UNLISTED)
def test_list_dir_without_a_page_names_consolidated_metadata(kind: str, fault_server: FaultServer) -> None:
    page, fault, why = UNLISTED[kind]
    fault_server.put("/x/g/", page)
    if fault:
        fault_server.fault(pattern="/x/g/", **fault)
    store = xzarr3.open_store(f"{fault_server.url}/x", {"deadline": 1} if kind == "drops" else {})
    said = f"keys below 'g/'.*{why}.*consolidated"
    refused(StoreCapabilityError, said, lambda: store.list_dir("g/"))


def test_list_dir_asks_again_for_a_page_without_its_end(fault_server: FaultServer) -> None:
    fault_server.put("/x/", linked("a/").partition("</body>")[0].encode())
    fault_server.fault("overwrite", "/x/", value=linked("a/", "b/").encode(), after=1, times=1)
    assert xzarr3.open_store(f"{fault_server.url}/x").list_dir("") == (set(), {"a/", "b/"})
    fault_server.put("/x/", b"")
    refused(StoreError, None, lambda: xzarr3.open_store(f"{fault_server.url}/x", {"retries": 0}).list_dir(""))
