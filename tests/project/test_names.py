"""Names from elsewhere are answered with the one to use: arguments, encodings, attributes, functions."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xzarr3
from xzarr3.names import facts

FIELD: dict[str, Any] = {"shape": 4, "dtype": "int8"}

ARGUMENTS = {
    "compressor": "compressors=", "compression": "compressors=", "complevel": "{'level': 1}",
    "zlib": "{'name': 'gzip', 'configuration': {'level': 5}}", "chunk": "did you mean 'chunks'",
    "chunksizes": "chunks=", "chunk_shape": "chunks=", "contiguous": "chunks=-1",
    "shard": "did you mean 'shards'", "fillvalue": "did you mean 'fill_value'",
    "filter": "did you mean 'filters'", "codecs": "filters=..., serializer=... and compressors=...",
    "object_codec": "dtype='string'", "dims": "dimension_names=", "attrs": "attributes=",
    "atributes": "did you mean 'attributes'", "dimension_separator": "chunk_key_encoding={'separator': '/'}",
    "zarr_version": "zarr_format=", "config": "write_empty_chunks=",
    "synchronizer": "leave 'synchronizer' out", "cache_metadata": "leave 'cache_metadata' out",
    "chunk_store": "one store", "mode": "overwrite=True",
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_create_array(name: str) -> None:
    store = xzarr3.MemoryStore()
    with pytest.raises(TypeError, match="create_array") as caught:
        xzarr3.create_array(store, **FIELD, **{name: 1})
    assert ARGUMENTS[name] in str(caught.value)
    assert len(str(caught.value).partition("accepted:")[0]) < 400
    assert not list(store.list())
    if name != "mode":
        with pytest.raises(TypeError, match=name) as again:
            xzarr3.group(store).create_array("x", **FIELD, **{name: 1})
        assert ARGUMENTS[name] in str(again.value)


def test_arguments_with_one_meaning_get_one_hint() -> None:
    for create in (partial(xzarr3.create_array, xzarr3.MemoryStore()), xzarr3.group().create_array):
        with pytest.raises(TypeError, match="for 'zlib', 'complevel' use compressors=") as caught:
            create("x", **FIELD, zlib=True, complevel=9)
        assert str(caught.value).count("gzip") == 1
        assert "{'level': 9}" in str(caught.value)


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: xzarr3.zeros(3, compressor="zstd"), "compressors="),
    (lambda: xzarr3.group(synchronizer=None), "leave 'synchronizer' out"),
    (lambda: xzarr3.open_group("x", cache_attrs=1), "leave 'cache_attrs' out"),
    (lambda: xzarr3.create_group("x", mode="w"), "overwrite=True"),
    (lambda: xzarr3.open("x", shape=3), "create_array() creates"),
    (lambda: xzarr3.open_array("x", chunk_shape=3), "create_array() creates"),
    (lambda: xzarr3.open("x", mode="w"), "create_array() and create_group() create"),
    (lambda: xzarr3.from_zarr("x", component="y"), "use path="),
    (lambda: xzarr3.group().create_array("x", **FIELD, zarr_format=2), "that of the group"),
    (lambda: xzarr3.open_zarr("x", synchronizer=None), "leave 'synchronizer' out"),
    (lambda: xzarr3.open_dataset("x", drop_variable="t"), "did you mean 'drop_variables'"),
    (lambda: xzarr3.open_datatree("x", chunk_store=None), "in one store"),
    (lambda: xr.open_dataset("x", engine="xzarr3", consolidate=True), "did you mean 'consolidated'"),
    (lambda: xr.open_dataset("x", engine="xzarr3", chunk=1), "did you mean 'chunks'"),
    (lambda: xr.open_datatree("x", engine="xzarr3", zarr_version=2), "use zarr_format="),
    (lambda: xzarr3.to_zarr(xr.Dataset(), encodng={}), "did you mean 'encoding'"),
    (lambda: xr.Dataset().xzarr3.to_zarr(chunk=3), "for 'chunk' use encoding={'name': {'chunks': ...}}"),
    (lambda: xr.DataTree().xzarr3.to_zarr(zarr_version=2), "use zarr_format="),
    (lambda: xzarr3.copy("x", "y", storage_options={}), "use source_options=... and target_options=..."),
    (lambda: xzarr3.check("x", decod="all"), "did you mean 'decode'"),
    (lambda: list(xzarr3.group().members(max_dept=1)), "did you mean 'max_depth'"),
    (lambda: xzarr3.advise(acces={}), "did you mean 'access'"),
    (lambda: xzarr3.from_array(None, data=[1], shape=3), "leave shape=... out"),
]


@pytest.mark.parametrize(("call", "text"), CALLS, ids=[text for _, text in CALLS])
def test_arguments_of_other_functions(call: Callable[[], object], text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ({"zlib": True}, "for 'zlib' use compressors={'name': 'gzip', 'configuration': {'level': 5}}; acc"),
        ({"zlib": True, "complevel": 9}, "; for 'zlib', 'complevel' use compressors={'name': 'gzip', 'conf"),
        ({"chunksizes": (2,)}, "for 'chunksizes' use chunks="),
        ({"shuffle": True}, "BloscCodec"),
        ({"fletcher32": True}, "crc32c"),
    ],
)
def test_keys_of_encodings(encoding: dict[str, Any], told: str) -> None:
    dataset = xr.Dataset({"t": ("x", np.arange(4))})
    store = xzarr3.MemoryStore()
    with pytest.raises(ValueError, match="unexpected encoding") as caught:
        xzarr3.to_zarr(dataset, store, encoding={"t": encoding})
    assert told in str(caught.value)
    assert caught.value.__notes__ == ["raised for variable 't' of dtype int64"]
    assert not list(store.list())


def test_tables_do_not_contradict_each_other() -> None:
    found = facts()
    assert not found["instead"].keys() & found["needless"].keys()
    absent = found["absent"]["module"].keys()
    assert not found["earlier"].keys() & absent
    assert not set(dir(xzarr3)) & (found["earlier"].keys() | absent)


def test_dir_has_the_public_names_only() -> None:
    for module in ("", ".stores", ".codecs", ".dtypes", ".checks", ".differences", ".advice"):
        found = importlib.import_module(f"xzarr3{module}")
        assert dir(found) == sorted(found.__all__)


@pytest.mark.parametrize("owner", ["module", "Array", "Group"])
def test_absent_names_say_what_to_use(owner: str) -> None:
    things = {"module": xzarr3, "Array": xzarr3.zeros(1), "Group": xzarr3.group()}
    for name, text in facts()["absent"][owner].items():
        assert not hasattr(things[owner], name)
        with pytest.raises(AttributeError) as caught:
            getattr(things[owner], name)
        assert text.replace("`", "") in str(caught.value)
    with pytest.raises(AttributeError, match=r"no attribute 'frobnicate'") as caught:
        things[owner].frobnicate  # noqa: B018
    assert "use" not in str(caught.value)
    with pytest.raises(AttributeError, match="use LocalStore"):
        xzarr3.DirectoryStore  # noqa: B018


IMPORTS = """
import importlib, pkgutil, sys
import xzarr3
assert not {"dask", "xarray", "zarr"} & sys.modules.keys()
for name in ("array", "zeros", "group", "save", "load", "tree", "config"):
    getattr(xzarr3, name)
assert xzarr3.array([1, 2])[1] == 2
assert not {"dask", "xarray", "zarr"} & sys.modules.keys(), sorted(sys.modules)
kinds = {name: type(getattr(xzarr3, name)) for name in xzarr3.__all__}
for module in pkgutil.walk_packages(xzarr3.__path__, "xzarr3."):
    if "._" not in module.name:
        importlib.import_module(module.name)
assert kinds == {name: type(getattr(xzarr3, name)) for name in xzarr3.__all__}
"""


@pytest.mark.slow
def test_no_module_shadows_a_public_name() -> None:
    """Importing a module of the package sets an attribute of the package."""
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


@pytest.mark.parametrize("room", ["codecs.GzipCodec", "dtypes.Int8", "stores.Store"])
def test_rooms_are_names_of_the_module(room: str) -> None:
    subprocess.run([sys.executable, "-c", f"import xzarr3; xzarr3.{room}"], check=True)
