"""open_store: which store a path, a URL or an object of another library is."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from _conformance import VALUE
from _things import refused

from xzarr3 import LocalStore, MemoryStore, NodeNotFoundError, StoreError, open_store


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("s3://bucket/x", "ObjectStore"),
        ("https://example.invalid/x.zarr", "ObjectStore"),
        ("gs://a/b", "ObjectStore"),
        ("memory://x", "FsspecStore"),
        ("dir::memory://x", "FsspecStore"),
        ("file:///x.zarr", "LocalStore"),
        ("C:", "LocalStore"),  # A drive, or a name with a colon, is no URL.
    ],
)
def test_open_store_knows_what_a_url_is(location: str, kind: str) -> None:
    assert type(open_store(location)).__name__ == kind


def test_open_store_takes_paths_and_stores(tmp_path: Path) -> None:
    path = tmp_path / "a b#c%41.zarr"
    assert open_store(str(path)) == open_store(path) == LocalStore(path)
    assert open_store(f"file://{quote(str(path))}") == LocalStore(path)
    for store in (MemoryStore(), LocalStore(path, read_only=True)):
        assert open_store(store) is store
    refused(StoreError, r"(?s)nowhere.*correct the URL", lambda: open_store("nowhere://a/b"))


def test_open_store_knows_zips(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr.zip"
    refused(NodeNotFoundError, "ZipStore", lambda: open_store(path))
    with open_store(path, mode="a") as store:
        store.set("a", VALUE)
    assert bytes(open_store(f"file://{path}").get("a") or b"") == VALUE
    folder = tmp_path / "folder.zip"
    folder.mkdir()
    assert open_store(folder) == LocalStore(folder)


@pytest.mark.parametrize(
    "url",
    ["s3://archive.zip", "gs://archive.zip/", "https://data.zip", "https://data.zip/", "s3://a.zip/x.zarr"],
)
def test_open_store_takes_no_bucket_and_no_host_for_a_zip(url: str) -> None:
    assert str(open_store(url)) == f"<ObjectStore '{url.rstrip('/')}'>"


def test_open_store_takes_options(tmp_path: Path) -> None:
    store = open_store(tmp_path, {"fsync": True, "read_only": True})
    assert (store, store.read_only) == (LocalStore(tmp_path, fsync=True, read_only=True), True)
    for place, option in ((tmp_path, "anon"), (MemoryStore(), "read_only"), (tmp_path / "a.zip", "secret")):
        with pytest.raises(TypeError, match=option) as caught:
            open_store(place, {option: "hush"})
        assert "hush" not in str(caught.value)


def test_open_store_shows_no_password_of_a_zip_that_is_only_read() -> None:
    with pytest.raises(StoreError, match="upload it") as caught:
        open_store("https://user:sesame@host/a/b.zip", mode="a")
    assert "sesame" not in str(caught.value)
