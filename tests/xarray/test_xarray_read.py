"""``engine="xzarr3"`` reads what xarray's own Zarr engine writes, and gives the same datasets."""

import importlib.util
import inspect
import itertools
import json
import pickle
import warnings
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numcodecs
import numpy as np
import pytest
import xarray as xr
from _conformance import contents
from _documents import document, edit
from _engines import QUIET, Stores, check_same, ours, theirs
from _processes import printed_by
from _recording import recording
from _things import case, refused
from _xarray_datasets import CORPUS
from xarray.core import indexing

import xzarr3
from xzarr3.conventions.fill_value_attribute import decode_fill_value, encode_fill_value
from xzarr3.errors import MetadataError, UnknownExtensionError
from xzarr3.xarray import backend
from xzarr3.xarray.backend import Xzarr3BackendEntrypoint
from xzarr3.xarray.lazy import LazyArray

zarr = pytest.importorskip("zarr")
CONSOLIDATED = (None, True, False)
pytestmark = [pytest.mark.filterwarnings(each) for each in QUIET]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of what xarray's own engine wrote in version 3."""
    stores = Stores(tmp_path_factory.mktemp("corpus"))
    return {name: stores(name) for name in CORPUS}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_other_data_types_of_zarr_python(tmp_path: Path, zarr_format: int) -> None:
    values = {
        "datetime64[s]": np.array([0, 10**9, "NaT"], "M8[s]"),
        "datetime64[D]": np.array(["2000-01-01", "1850-05-05", "2100-12-31"], "M8[D]"),
        "timedelta64[ms]": np.array([1, -1, "NaT"], "m8[ms]"), "U3": np.array(["a", "", "é"], "U3"),
        "S3": np.array([b"a", b"", b"xyz"], "S3"), "bytes": np.array([b"a\0", b"", b"c"], object),
        "records": np.array([(1, 2.5), (0, 0), (3, 4)], [("a", "<i2"), ("b", "<f8")]),
        "raw": np.array([b"ab", b"\0\0", b"cd"], "V2"),
    }  # fmt: skip
    group = zarr.create_group(tmp_path, zarr_format=zarr_format)
    version_2 = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
    named: dict[str, Any] = version_2 if zarr_format == 2 else {"dimension_names": ["x"]}
    for name, data in values.items():
        dtype = zarr.core.dtype.VariableLengthBytes() if name == "bytes" else data.dtype
        group.create_array(name, shape=3, chunks=2, dtype=dtype, **named)[:] = data
    odd = ["records", "raw", "bytes"]  # Of which xarray's own engine fails at fill values in version 2.
    for mask, chunks in itertools.product((True, False), (None, {})):
        options = {"mask_and_scale": mask, "chunks": chunks, "drop_variables": odd}
        check_same(ours(tmp_path, **options), theirs(tmp_path, **options))
    found = ours(tmp_path, mask_and_scale=False, keep_variables=odd)
    for name in odd:
        np.testing.assert_array_equal(found[name], values[name])
        check_same(found[[name]].drop_attrs(), theirs(tmp_path, decode_cf=False)[[name]].drop_attrs())


def test_types_that_numpy_does_not_have() -> None:
    ml_dtypes, store = pytest.importorskip("ml_dtypes"), xzarr3.MemoryStore()
    for name in ("bfloat16", "float8_e4m3fn", "int4"):
        data = np.array([1, 2, 3], getattr(ml_dtypes, name))
        xzarr3.create_array(store, name, data=data, dtype=name, dimension_names=["x"], chunks=2)
    for chunks in (None, {}):
        for name, found in ours(store, chunks=chunks).items():
            assert found.dtype == np.dtype(getattr(ml_dtypes, str(name)))
            assert found.isel(x=[2, 0]).values.astype(int).tolist() == [3, 1]


def test_very_many_chunks_of_several_lengths_are_not_listed() -> None:
    store = xzarr3.MemoryStore()
    xzarr3.create_array(store, "a", shape=10**9 + 7, dtype="i1", chunks=4, dimension_names=["x"])
    lengths = {"kind": "inline", "chunk_shapes": [[[3, 1], [1, 10**9], [4, 1]]]}
    edit(store, "a/zarr.json", chunk_grid={"name": "rectilinear", "configuration": lengths})
    found = ours(store)["a"]
    assert (found.encoding["chunks"], found[[0, 5, 10**9]].values.tolist()) == ((4,), [0, 0, 0])


def test_codecs_that_numcodecs_lacks_are_kept_as_they_are_in_the_document(tmp_path: Path) -> None:
    zlib = {"id": "zlib", "level": 2}
    named: dict[str, Any] = {"dimension_names": ["x"], "zarr_format": 2}
    array = xzarr3.create_array(tmp_path, "a", data=np.arange(4.0), compressors=zlib, **named)
    with mock.patch("numcodecs.get_codec", side_effect=ValueError("codec not available")):
        dataset = ours(tmp_path, consolidated=False)
        assert dataset["a"].encoding["compressors"] == (zlib,)
    again = xzarr3.MemoryStore()
    xzarr3.to_zarr(dataset, again, zarr_format=2)
    assert xzarr3.open_array(again, "a").compressors == array.compressors


VERSION_2_CODECS: dict[str, dict[str, Any]] = {
    "nothing": {"compressors": None}, "zlib": {"compressors": numcodecs.Zlib(1)},
    "gzip": {"compressors": numcodecs.GZip(1)}, "blosc": {"compressors": numcodecs.Blosc("zstd", 3, 2)},
    "delta": {"filters": [numcodecs.Delta("<f8")]},
    "packed": {"filters": [numcodecs.FixedScaleOffset(0, 4, "<f8", "<i4")]},
    "several": {"filters": [numcodecs.Delta("<f8"), numcodecs.CRC32()], "compressors": numcodecs.Zlib(1)},
}  # fmt: skip


@pytest.mark.parametrize("kind", VERSION_2_CODECS)
def test_what_is_opened_of_version_2_is_written_by_the_zarr_engine(kind: str, tmp_path: Path) -> None:
    dataset = xr.Dataset({"a": ("x", np.arange(16.0))}, {"x": np.arange(16)})
    options: dict[str, Any] = {"zarr_format": 2, "consolidated": False}
    encoding = {"a": {"chunks": (5,), **VERSION_2_CODECS[kind]}, "x": {"compressors": None}}
    dataset.to_zarr(tmp_path / "a", encoding=encoding, **options)
    found = pickle.loads(pickle.dumps(ours(tmp_path / "a"))).copy(deep=True)
    found.to_zarr(tmp_path / "b", **options)
    xr.testing.assert_identical(theirs(tmp_path / "b"), theirs(tmp_path / "a"))
    for key in ("compressor", "filters", "chunks"):
        one, other = (json.loads((tmp_path / name / "a/.zarray").read_text())[key] for name in "ab")
        assert one == other
    one, other = ((tmp_path / name / "a/0").read_bytes() for name in "ab")
    if kind == "gzip":  # its header says when it was made
        one, other = one[:4] + one[8:], other[:4] + other[8:]
    assert one == other
    if kind != "nothing":
        with pytest.raises(TypeError, match=r"Expected an? .*Codec\. Got <class 'numcodecs"):
            found.to_zarr(tmp_path / "d", zarr_format=3, consolidated=False)
    plain = found if kind == "nothing" else found.drop_encoding()
    plain.to_zarr(tmp_path / "c", zarr_format=3, consolidated=False)
    xzarr3.to_zarr(found, tmp_path / "e", zarr_format=3)
    for name in "ce":
        xr.testing.assert_identical(theirs(tmp_path / name), theirs(tmp_path / "a"))


def test_dimensions_as_netcdf_has_them(tmp_path: Path) -> None:
    attributes = {"title": "t", "_NCProperties": "version=2"}
    group = zarr.create_group(tmp_path, zarr_format=2, attributes=attributes)
    group.create_array("a", shape=(2, 3), dtype="i2", fill_value=None)[:] = np.arange(6).reshape(2, 3)
    (tmp_path / "a/.zattrs").write_text('{"units": "K", "_NCZARR_ATTR": {"types": {}}}')
    document = json.loads((tmp_path / "a/.zarray").read_text())
    document["_NCZARR_ARRAY"] = {"dimrefs": ["/y", "/deep/x"], "storage": "chunked"}
    (tmp_path / "a/.zarray").write_text(json.dumps(document))
    found = ours(tmp_path)
    assert (found["a"].dims, found["a"].attrs, found.attrs) == (("y", "x"), {"units": "K"}, {"title": "t"})
    check_same(found, theirs(tmp_path))


KEPT = sorted(Path(__file__).parents[1].joinpath("data").glob("xarray-*/*.json"))


@pytest.mark.parametrize("expected", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_other_versions_of_xarray_wrote(expected: Path) -> None:
    path, arrays = str(expected.with_suffix("")), json.loads(expected.read_text())["arrays"]
    for chunks in (None, {}):
        found = ours(path, chunks=chunks)
        assert found.sizes == {"x": 4, "time": 3}
        check_same(found, theirs(path, chunks=chunks))
    raw = ours(path, decode_cf=False)
    assert raw.variables.keys() == arrays.keys()
    for name, record in arrays.items():
        assert (raw[name].shape, list(raw[name].dims)) == (tuple(record["shape"]), record["names"])
        values = record["values"]
        if record["dtype"] != "str":
            values = np.frombuffer(b64decode(values), record["dtype"]).reshape(record["shape"])
        np.testing.assert_array_equal(raw[name].values, values)
    xr.testing.assert_equal(found["packed"] * 1, theirs(path)["packed"])


def test_group_that_the_consolidated_copy_does_not_know(tmp_path: Path) -> None:
    for path in ("a.zarr", "rootless/below"):
        CORPUS["bare"]().to_zarr(tmp_path / path, zarr_format=3)
    CORPUS["bare"]().to_zarr(tmp_path / "a.zarr", group="late", zarr_format=3, consolidated=False)
    for path, group in (("a.zarr", "late"), ("rootless", "below")):
        xr.testing.assert_identical(ours(tmp_path / path, group=group), CORPUS["bare"]())
    with pytest.raises(xzarr3.NodeNotFoundError, match="late"):
        ours(tmp_path / "a.zarr", group="late", consolidated=True)


def test_the_entry_point_takes_the_options_of_the_zarr_engine(corpus: dict[str, str]) -> None:
    engine = xr.backends.list_engines()["xzarr3"]
    assert isinstance(engine, Xzarr3BackendEntrypoint)
    assert "xzarr3" in repr(engine)
    xr.testing.assert_identical(xr.open_dataset(corpus["bare"], engine="xzarr3"), CORPUS["bare"]())
    zarr_engine = xr.backends.ZarrBackendEntrypoint
    theirs = set(inspect.signature(zarr_engine.open_dataset).parameters) - {"self", "engine"}
    assert theirs <= set(Xzarr3BackendEntrypoint.open_dataset_parameters or ())


def test_does_not_guess_where_zarr_python_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xzarr3.create_group(tmp_path / "store")
    for name in (".zgroup", ".zmetadata"):
        (tmp_path / name[1:]).mkdir()
        (tmp_path / name[1:] / name).write_text("{}")
    stores = ["a.zarr/", *(tmp_path / name for name in ("store", "zgroup", "zmetadata"))]
    engine = Xzarr3BackendEntrypoint()
    assert not any(map(engine.guess_can_open, stores))
    assert type(xr.backends.list_engines()["zarr"]) is xr.backends.ZarrBackendEntrypoint
    monkeypatch.setattr(backend, "find_spec", lambda name: None if name == "zarr" else importlib.util)
    assert all(map(engine.guess_can_open, stores))
    assert not any(map(engine.guess_can_open, (tmp_path, "a.nc", b"CDF")))


def test_opening_reads_only_what_indexes_need() -> None:
    store = recording()
    xzarr3.to_zarr(CORPUS["packed"](), store)
    with store.recorded() as made:
        dataset = ours(store)
    assert {request.key.partition("/")[0] for request in made} == {"time", "lat", "lon"}
    with store.recorded() as made:
        dataset["tas"].isel(time=slice(0, 8), lat=0, lon=slice(5, 7)).variable.load()
    assert [request.key for request in made] == ["tas/c/0/0/1"]


def _random_index(rng: np.random.Generator, size: int, common: tuple[int, ...]) -> Any:
    """One of each kind that xarray takes: a number, a slice, a list, or points of several dimensions."""
    kind = rng.integers(6)
    if kind == 0 and size:
        return int(rng.integers(-size, size))
    if kind == 1:
        start, stop = (int(n) for n in rng.integers(-size - 2, size + 3, 2))
        return slice(start, stop, int(rng.choice([1, 2, 3, -1, -2, -5])))
    if kind == 2 or not size:
        return slice(None)
    if kind == 3:
        return np.sort(rng.integers(0, size, rng.integers(0, 2 * size + 1)))
    if kind == 4:
        return rng.integers(-size, size, rng.integers(0, 9))
    return xr.Variable(tuple("pq"[: len(common)]), rng.integers(-size, size, common))


def _array(rng: np.random.Generator, seed: int) -> tuple[np.ndarray[Any, Any], LazyArray]:
    """An array in chunks, in shards, or in chunks of several lengths."""
    ndim = int(rng.integers(1, 4))
    chunks: tuple[Any, ...] = tuple(int(n) for n in rng.integers(1, 4, ndim))
    shards = tuple(n * int(rng.integers(1, 4)) for n in chunks) if seed % 3 == 0 else None
    values = rng.integers(0, 10**6, tuple(int(n) for n in rng.integers(1, 13, ndim)))
    if seed % 3 == 1:
        cuts = [np.unique([0, size, *rng.integers(0, size + 1, 3)]) for size in values.shape]
        chunks = tuple(np.diff(edges).tolist() if rng.random() < 0.7 else 4 for edges in cuts)
    if seed % 5 == 0:
        values = values.astype(str).astype(np.dtypes.StringDType())
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=values, chunks=chunks, shards=shards)
    return values, LazyArray(array)


def test_selections_of_selections() -> None:
    for seed in range(300):
        with case(seed):
            rng = np.random.default_rng(seed)
            values, lazy = _array(rng, seed)
            fewest, in_memory = 0 if seed % 10 == 0 else 1, indexing.NumpyIndexingAdapter(values)
            model, found = (
                xr.Variable(tuple("abcd"[: values.ndim]), indexing.LazilyIndexedArray(each))
                for each in (in_memory, lazy)
            )
            for _ in range(3):
                common = tuple(int(n) for n in rng.integers(fewest, 5, rng.integers(1, 3)))
                keys = {dim: _random_index(rng, size, common) for dim, size in model.sizes.items()}
                model, found = model.isel(keys), found.isel(keys)
                assert found.dims == model.dims
                renamed = [f"d{at}" for at in range(model.ndim)]
                model, found = (xr.Variable(renamed, each._data, fastpath=True) for each in (model, found))
                if model.ndim > 4:
                    break
            np.testing.assert_array_equal(found.values, model.values, strict=True)


def test_selections_read_no_chunk_twice_and_none_in_vain() -> None:
    store, values = recording(), np.arange(10_000).reshape(100, 100)
    lazy = LazyArray(xzarr3.create_array(store, data=values, chunks=(10, 10)))

    def read(indexer: Any) -> list[str]:
        with store.recorded() as made:
            lazy[indexer]
        return sorted(request.key for request in made)

    far = np.array([0, 95, 1])
    assert read(indexing.OuterIndexer((far, 5))) == ["c/0/0", "c/9/0"]
    assert read(indexing.OuterIndexer((far, far))) == ["c/0/0", "c/0/9", "c/9/0", "c/9/9"]
    assert len(read(indexing.OuterIndexer((np.arange(0, 100, 30), slice(0, 1))))) == 4
    assert read(indexing.VectorizedIndexer((far, far))) == ["c/0/0", "c/9/9"]
    every, near = np.arange(100)[:, None], np.array([[3, 7, 3]])
    assert read(indexing.VectorizedIndexer((every, near))) == sorted(f"c/{n}/0" for n in range(10))
    series = (np.broadcast_to(index, (100, 3)).copy() for index in (every, near))
    assert read(indexing.VectorizedIndexer(tuple(series))) == sorted(f"c/{n}/0" for n in range(10))


def test_series_at_stations_are_no_points_of_their_own() -> None:
    """xarray makes arrays of slices; thousands of times are not multiplied with the stations for that."""
    options: Any = {"shape": (2000, 300, 400), "chunks": (500, 10, 10), "dtype": "i1"}
    array = xzarr3.create_array(xzarr3.MemoryStore(), **options)
    array[:, 7, 9] = 3
    time, lat, lon = np.arange(2000)[:, None], np.array([[7, 100, 7]]), np.array([[9, 5, 9]])
    spread = [np.broadcast_to(index, (2000, 3)) for index in (time, lat, lon)]
    spied = xzarr3.Array.read_selected
    with mock.patch.object(xzarr3.Array, "read_selected", autospec=True, side_effect=spied) as read:
        found = LazyArray(array)[indexing.VectorizedIndexer(tuple(spread))]
    np.testing.assert_array_equal(found, np.tile(np.array([3, 0, 3], "i1"), (2000, 1)), strict=True)
    points = read.call_args.args[1]
    assert (points.axes, points.shape) == ((1, 2), (3,))
    far = np.array([1, 500])
    for indexer in (indexing.OuterIndexer((0, far, 0)), indexing.VectorizedIndexer((far, far, far))):
        with pytest.raises(IndexError, match=r"axis 1: index 500 is out of bounds for length 300"):
            LazyArray(array)[indexer]


@pytest.mark.parametrize(("kind", "where", "options", "message"), [
    *((FileNotFoundError, "nowhere", {"consolidated": each}, "no 'nowhere' in") for each in CONSOLIDATED),
    (KeyError, "packed", {"group": "none"}, "none"),
    (FileNotFoundError, "packed", {"group": "none", "consolidated": False}, "none"),
    (FileNotFoundError, "packed", {"zarr_format": 2, "consolidated": False}, "another format than 2"),
    (ValueError, "unconsolidated", {"consolidated": True}, "or leave consolidated=True out$"),
    (ValueError, "packed", {"chunks": "some"}, None),
    (ValueError, "packed", {"zarr_format": 4}, "zarr_format.*found 4; accepted: 3, 2"),
    (TypeError, "packed", {"storage_options": {"anon": True}}, "storage_options"),
    (TypeError, "packed", {"nonsense": 1}, "has no argument 'nonsense'"),
])  # fmt: skip
def test_errors_have_the_types_of_the_zarr_engine(
    corpus: dict[str, str], kind: type[Exception], where: str, options: dict[str, Any], message: str | None
) -> None:
    CORPUS["bare"]().to_zarr(f"{corpus['packed']}/unconsolidated", mode="w", consolidated=False)
    path = corpus.get(where, f"{corpus['packed']}/{where}")
    for engine in (Xzarr3BackendEntrypoint, "zarr"):
        with pytest.raises(kind, match=None if engine == "zarr" else message):
            xr.open_dataset(path, engine=engine, **options)


@pytest.mark.parametrize("consolidated", CONSOLIDATED)
def test_missing_nodes(corpus: dict[str, str], consolidated: bool | None) -> None:
    for place, options, error, message in (
        (corpus["bare"], {"group": "none"}, xzarr3.NodeNotFoundError, "none"),
        (corpus["bare"], {"group": "a"}, xzarr3.NodeTypeError, "/a.*is an array, not a group"),
        (f"{corpus['bare']}/a", {}, xzarr3.NodeTypeError, "is an array"),
        (corpus["bare"], {"mode": "w"}, ValueError, r"mode='w' cannot open a dataset.*'r', 'r\+'"),
        ("nosuch://bucket/a.zarr", {}, xzarr3.StoreError, "nosuch"),
    ):
        with pytest.raises(error, match=message):
            ours(place, consolidated=consolidated, **options)


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("open_it", [xzarr3.open_dataset, xzarr3.open_datatree])
def test_open_dataset_names_without_a_variable(tmp_path: Path, open_it: Any, consolidated: bool) -> None:
    xzarr3.to_zarr(CORPUS["bare"](), tmp_path, consolidated=consolidated)
    for name, near in (("aa", "did you mean 'a'? it has: 'a', 'b'"), ("x/y", "it has"), ("", "")):
        with pytest.raises(xzarr3.UnknownNameError, match="keep_variables: no variable") as caught:
            open_it(tmp_path, keep_variables=["b", name])
        assert near in str(caught.value)
        with pytest.warns(UserWarning, match="drop_variables: no variable") as told:
            found = open_it(tmp_path, drop_variables=iter(["unlike", name, "b"]))
        assert near in str(told[0].message)
        assert (told[0].filename, "a" in found, "b" in found) == (__file__, True, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "b" not in open_it(tmp_path, keep_variables=["a", "b"], drop_variables="b")


def test_names_of_dask_arrays_change_with_the_content_behind_a_path(tmp_path: Path) -> None:
    """As far as this process changes it; what another library writes into a chunk is not noticed."""
    path, names = tmp_path / "a b", set()
    xzarr3.to_zarr(CORPUS["bare"](), path)
    for form in (path, str(path), path.as_uri()):
        dataset = xzarr3.open_dataset(form, chunks={})
        assert dataset.encoding["source"] == str(path)
        names.add(dataset["a"].data.name)
    assert len(names) == 1
    assert "source" not in xzarr3.open_dataset(xzarr3.LocalStore(path)).encoding
    by_zarr_python = zarr.open_array(str(path), path="a", mode="r+")
    for number, change in ((2, xzarr3.open_array(path, "a", mode="r+")), (3, by_zarr_python)):
        before = (path / "a/c/0/0").stat().st_mtime_ns
        change[0, 0] = 100 * number
        while (path / "a/c/0/0").stat().st_mtime_ns == before:  # Clocks of file systems may be coarse.
            change[0, 0] = 100 * number
        found = xzarr3.open_dataset(path, chunks={})["a"]
        names.add(found.data.name)
        assert (len(names), found.compute()[0, 0]) == (2, 100 * number)


@pytest.mark.parametrize(("stored", "dtype", "value"), [
    ("AAAAAAAA+H8=", "f4", np.nan), ("AAAAAAAA8D8=", "f8", 1.0), (1.5, "f4", 1.5), (-999, "f4", -999.0),
    ("NaN", "f8", np.nan), ("-Infinity", "f8", -np.inf), ("0x7fc00000", "f4", np.nan),
    ("0x3ff0000000000000", "f8", 1.0), (-999, "i2", -999), (7.0, "u1", 7), (True, "?", True),
    (["AAAAAAAA8D8=", 2], "c8", 1 + 2j), ("YWI=", "S2", b"ab"), ("ab", "U2", "ab"),
    ("x", "f4", None), ("AAAA", "f8", None), (None, "f4", None), ([1], "c8", None), (1.5, "i4", None),
    ("1", "i4", None), ("?", "S1", None), (1, "V2", None),
    *((json.loads(json.dumps(encode_fill_value(value, np.dtype(dtype)))), dtype, value) for value, dtype in (
        (np.float32(-1e20), "f4"), (np.inf, "f8"), (2**63, "u8"), (1 - 2j, "c16"), (b"a", "S1"))),
])  # fmt: skip
def test_fill_value_attribute_is_read_in_any_form(stored: Any, dtype: str, value: Any) -> None:
    if value is None:
        refused(ValueError, "_FillValue", lambda: decode_fill_value(stored, np.dtype(dtype)))
    else:
        np.testing.assert_equal(decode_fill_value(stored, np.dtype(dtype)), value)


DOCUMENTS: dict[Any, str] = {3: "{}/zarr.json", 2: "{}/.zarray", "3-draft": "meta/{}.array.json"}
FORMATS = pytest.mark.parametrize("zarr_format", DOCUMENTS)
CHUNKS = pytest.mark.parametrize("chunks", [None, {}, "grouped"])


def data() -> xr.Dataset:
    values = np.arange(20.0).reshape(4, 5)
    attrs = {"long_name": "a rate", "units": "hours since 2000-01-01"}
    return xr.Dataset(
        {"good": (("time", "x"), values), "bad": (("time", "x"), values, attrs)},
        {"time": np.arange(4), **{name: ("x", np.arange(5.0)) for name in ("x", "lat", "lon")}},
    )


def stored(*changes: tuple[str, Callable[[Any], object]], zarr_format: Any = 3) -> Any:
    """The data, and what is changed in the document of an array."""
    store = xzarr3.to_zarr(data(), zarr_format=zarr_format, consolidated=False).store
    for name, change in changes:
        key = DOCUMENTS[zarr_format].format(name)
        changed = document(store, key)
        change(changed)
        edit(store, key, **changed)
    return store


def of_unknown_codec(document: dict[str, Any]) -> None:
    if "extensions" in document:
        document["codecs"].append({"type": "https://example.org/codecs/jpeg2k/1.0", "configuration": {}})
    elif "codecs" in document:
        document["codecs"].append({"name": "jpeg2k"})
    else:
        document["compressor"] = {"id": "jpeg2k"}


def opened(store: object, **options: Any) -> xr.Dataset:
    with pytest.warns(UserWarning, match="cannot be read|is left out"):
        return xzarr3.open_dataset(store, **options)  # type: ignore[arg-type]


@FORMATS
@CHUNKS
def test_open_dataset_beside_an_unknown_codec(zarr_format: Any, chunks: Any) -> None:
    found = opened(stored(("bad", of_unknown_codec), zarr_format=zarr_format), chunks=chunks)
    assert found.xzarr3.explain().requests == found.drop_vars("bad").xzarr3.explain().requests
    bad = found["bad"]
    assert (bad.dims, bad.shape, bad.dtype, bad.attrs["long_name"]) == (("time", "x"), (4, 5), "f8", "a rate")
    assert "unreadable: unknown codec" in repr(found)
    assert "jpeg2k" in found.xzarr3.unreadable["bad"]
    assert found.xzarr3.unreadable == found.isel(x=slice(1, 3)).xzarr3.unreadable
    xr.testing.assert_identical(found.drop_vars("bad").load(), data().drop_vars("bad"))
    part = pickle.loads(pickle.dumps(found.isel(time=1, x=[0, 2])))["bad"]
    assert part.shape == (2,)
    uses: list[Callable[[xr.DataArray], object]] = [
        lambda each: each.values, lambda each: each.load(), lambda each: each.compute(),
        lambda each: each.mean(), lambda each: each.chunk().compute(), lambda each: each.to_dataset().load(),
        lambda each: each.to_dataset().xzarr3.to_zarr(xzarr3.MemoryStore()),
    ]  # fmt: skip
    for use in uses:
        for each in (bad, part):
            with pytest.raises(UnknownExtensionError, match="jpeg2k"):
                use(each)


@FORMATS
def test_open_dataset_on_unreadable_raise(zarr_format: Any) -> None:
    store = stored(("bad", of_unknown_codec), zarr_format=zarr_format)
    with pytest.raises(UnknownExtensionError, match=r"drop_variables=\['bad'\]"):
        xzarr3.open_dataset(store, on_unreadable="raise")
    with pytest.raises(ValueError, match="accepted: 'keep', 'raise'"):
        xzarr3.open_dataset(store, on_unreadable="ignore")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert xzarr3.open_dataset(store, drop_variables="bad").xzarr3.unreadable == {}
    found = opened(store, keep_variables=["bad"])
    assert ({*found.variables}, found["bad"].shape) == ({"bad"}, (4, 5))


def test_open_dataset_with_unreadable_coordinates() -> None:
    decimal = lambda document: document.update(data_type="decimal")  # noqa: E731
    found = opened(stored(("lat", of_unknown_codec), ("time", decimal)))
    assert {"lat", "lon"} <= set(found.coords)
    assert found["lat"].dtype == np.dtype("f8")
    assert "time" not in found.variables, "xarray would read the coordinate of a dimension for its index"
    assert {*found.xzarr3.unreadable} == {"lat", "time"}
    np.testing.assert_array_equal(found["good"], data()["good"])


ROT13 = {"codecs": [{"name": "rot13"}]}
LEFT_OUT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no dimension names": ({"dimension_names": None}, KeyError, "'/bad', field 'dimension_names'"),
    "names that are none": ({"dimension_names": ["time", 5]}, MetadataError, "'/bad'"),
    "another length": ({"shape": [4, 6], **ROT13}, UnknownExtensionError, "'/bad'.*rot13"),
    "nameless": ({"dimension_names": None, **ROT13}, UnknownExtensionError, "'/bad'.*rot13"),
    "a negative length": ({"shape": [4, -1]}, MetadataError, "'/bad'"),
    "a length of text": ({"shape": [3, "4"]}, MetadataError, r"'/bad', field 'shape\[1\]'"),
    "no shape": ({"shape": "many"}, MetadataError, "'/bad'"),
    "data type": ({"data_type": "decimal"}, UnknownExtensionError, "'/bad'.*data_type.*decimal"),
    "grid": ({"chunk_grid": {"name": "hexagonal"}}, UnknownExtensionError, "'/bad'.*chunk_grid"),
    "fill value": ({"attributes": {"_FillValue": "x"}}, MetadataError, r"attributes\._FillValue.*'x'"),
}


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("case", LEFT_OUT)
def test_open_dataset_names_what_is_no_variable_and_leaves_it_out(case: str, consolidated: bool) -> None:
    change, error, message = LEFT_OUT[case]
    store = stored(("bad", lambda document: document.update(change)))
    if consolidated:
        names = [key.partition("/")[0] for key in store.list() if key.endswith("/zarr.json")]
        held = {name: document(store, f"{name}/zarr.json") for name in names}
        copies = {"kind": "inline", "must_understand": False, "metadata": held}
        edit(store, "zarr.json", consolidated_metadata=copies)
    with pytest.raises(error, match=message) as caught:
        xzarr3.open_dataset(store, on_unreadable="raise")
    if error is not KeyError:  # An array without names of dimensions can be read, but is no variable.
        assert "pass drop_variables=['bad']" in str(caught.value)
        found = opened(store)
        is_kept = case in ("data type", "grid", "fill value")
        assert ({*found.xzarr3.unreadable}, "bad" in found) == ({"bad"}, is_kept)
        np.testing.assert_array_equal(found["good"], data()["good"])
    xr.testing.assert_identical(xzarr3.open_dataset(store, drop_variables="bad"), data().drop_vars("bad"))


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b""])
def test_open_dataset_beside_a_broken_document(text: bytes) -> None:
    store = stored()
    store.set("bad/zarr.json", text)
    assert {*opened(store).xzarr3.unreadable} == {"bad"}
    for open_it, options in ((xzarr3.open_dataset, {"on_unreadable": "raise"}), (xzarr3.open_datatree, {})):
        with pytest.raises(MetadataError, match=r"'/bad'.*pass drop_variables=\['bad'\]"):
            open_it(store, **options)  # it may be a group with data below it
        assert "good" in open_it(store, drop_variables=["bad"])


def test_open_datatree_with_unreadable_variables() -> None:
    store = xzarr3.to_zarr(data(), consolidated=False).store
    for key, value in contents(stored(("bad", of_unknown_codec))).items():
        store.set(f"below/{key}", value)
    with pytest.warns(UserWarning, match="'bad' cannot be read"):
        tree = xzarr3.open_datatree(store)
    assert {*tree.xzarr3.unreadable} == {"below/bad"}
    np.testing.assert_array_equal(tree["good"], data()["good"])
    assert tree["bad"].load().dtype.kind == "M"


DATASET = "ds = xarray.Dataset({'t': ('x', [1.0, 2.0])})"
STORE = "store = xzarr3.MemoryStore(); xzarr3.create_array(store, 't', data=[1.0], dimension_names=['x'])"


@pytest.mark.slow
@pytest.mark.parametrize("way", [
    f"import xarray, xzarr3; {DATASET}", f"import xzarr3, xarray; {DATASET}",
    f"import xzarr3, importlib.util; importlib.util.find_spec('xarray'); import xarray; {DATASET}",
    f"import xzarr3; {STORE}; import xarray; ds = xarray.open_dataset(store, engine='xzarr3')",
    f"import xzarr3; {STORE}; ds = xzarr3.open_dataset(store)",
])  # fmt: skip
def test_the_accessor_is_there(way: str) -> None:
    each = "(ds.xzarr3, ds.t.xzarr3, xarray.DataTree(ds).xzarr3)"
    shown = f"import xarray; print(*(str(each).count('explain(), to_zarr()') for each in {each}))"
    assert printed_by(f"{way}\n{shown}") == ["1 1 1"]


@pytest.mark.slow
def test_xarray_imported_later_has_its_own_loader() -> None:
    code = "import xzarr3, xarray; print(xarray.__loader__ is xarray.__spec__.loader, xarray.__loader__)"
    assert "True <_frozen_importlib_external.SourceFileLoader" in printed_by(code)[0]


def test_importing_xzarr3_imports_neither_xarray_nor_what_draws() -> None:
    shown = "[name for name in sys.modules if name.startswith('xzarr3.display.')]"
    code = f"import sys, xzarr3; print('xarray' in sys.modules, 'html' in sys.modules, {shown})"
    assert printed_by(code) == ["False False []"]


def test_importing_the_engine_imports_neither_dask_nor_what_writes() -> None:
    modules = "{'dask', 'xzarr3.dask', 'xzarr3.xarray.plan'}"
    code = f"import sys, xarray, xzarr3; xzarr3.open_mfdataset; print({modules} & sys.modules.keys())"
    assert printed_by(code) == ["set()"]
