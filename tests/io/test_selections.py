"""Selections of every kind against numpy: reading, writing, and what is refused."""

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from _conformance import contents
from _large_as_small import large_as_small, python_executor
from _slow import slow
from _strategies import NUMERIC, arrays_of, layouts, native, selections, uneven_layouts, values
from _things import Thing, measured, refused, refuses
from hypothesis import given, settings
from hypothesis import strategies as st

import xzarr3
from xzarr3 import SelectionError
from xzarr3.dtypes import parse_dtype

THOROUGH = settings(max_examples=60)
every_way = pytest.mark.usefixtures("ways")
STRUCT = [("a", "<i2"), ("b", [("c", "<f4"), ("d", "u1")]), ("e", "S2")]
SMALL = ("int4", "uint2", "bfloat16") if find_spec("ml_dtypes") else ()
KINDS = ("core", "core", "rectilinear", "v2", "string", "bytes", "struct", "small", "bool")
FOLDER = ""
THREADS = st.sampled_from([1, 2, 5])


class Case(NamedTuple):
    """An array, and the same in numpy."""

    array: xzarr3.Array
    model: np.ndarray[Any, Any]
    name: Any
    """Its data type, as ``new_values`` takes it."""


@st.composite
def other_layouts(draw: st.DrawFn, kind: str, dtype: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Options for version 2, with orders of dimensions and of bytes, and for data types beyond the core."""
    chunks = tuple(draw(st.sampled_from([1, 2, 3, 11])) for _ in shape)
    options = {"dtype": dtype, "chunks": chunks, "compressors": draw(st.sampled_from([None, "zstd"]))}
    if kind == "v2":
        options["dtype"] = native(dtype).newbyteorder(draw(st.sampled_from("<>")))
        options["compressors"] = draw(st.sampled_from([None, "numcodecs.zlib", "zstd"]))
        options["order"] = draw(st.sampled_from("CF"))
        options["zarr_format"] = 2
    elif draw(st.booleans()):
        options["shards"] = tuple(n * draw(st.sampled_from([1, 3])) for n in chunks)
    return options


@st.composite
def shapes(draw: st.DrawFn, min_dims: int = 0) -> tuple[int, ...]:
    """Up to four dimensions, some of them empty; not very many elements."""
    number = draw(st.integers(min_dims, 4))
    lengths = st.sampled_from((0, 1, 2, 3, 5, 7, 9)[: 7 if number < 4 else 5])
    return tuple(draw(lengths) for _ in range(number))


def new_values(name: Any, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    if name in NUMERIC:
        return values(name, shape)
    return arrays_of(parse_dtype(name), shape)


@st.composite
def cases(draw: st.DrawFn, *, min_dims: int = 0, kinds: tuple[str, ...] = KINDS) -> Case:
    """An array of any shape, grid, codecs, data type, format and store, of which a part is written."""
    shape, kind = draw(shapes(min_dims)), draw(st.sampled_from(kinds))
    name: Any = draw(st.sampled_from(["int32", "float64", "uint8", "complex64", "int16"]))
    if kind not in ("core", "rectilinear", "v2"):
        small = draw(st.sampled_from(SMALL or ("uint8",)))
        name = {"struct": STRUCT, "small": small}.get(kind, kind)
    if kind in ("core", "bool"):
        options = draw(layouts(name, shape))
    elif kind == "rectilinear":
        options = draw(uneven_layouts(name, shape))
    else:
        options = draw(other_layouts(kind, name, shape))
    store: xzarr3.Store = xzarr3.MemoryStore()
    if draw(st.integers(0, 3)) == 0:
        store = xzarr3.LocalStore(tempfile.mkdtemp(dir=FOLDER))
    array = xzarr3.create_array(store, shape=shape, **options)
    model = array.get()
    if draw(st.integers(0, 4)):
        model = draw(new_values(name, shape)).astype(array.dtype)
        array[...] = model
        if draw(st.booleans()):  # Some chunks are absent.
            region = tuple(slice(0, draw(st.integers(0, size))) for size in shape)
            model[region] = np.full((), array.fill_value, array.dtype)
            array[region] = array.fill_value
    array = xzarr3.open_array(store, mode="r+", chunk_cache=draw(st.sampled_from([None, 600, 2**20])))
    return Case(array, np.array(model), name)


@pytest.fixture(scope="module", params=["small", slow("large"), slow("large by Python")])
def ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """The ways through the code that small arrays take, and those that large ones take."""
    large = large_as_small() if request.param != "small" else nullcontext()
    with large, python_executor() if request.param == "large by Python" else nullcontext():
        yield


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where directories are made that hypothesis does not know of."""
    global FOLDER
    FOLDER = str(tmp_path_factory.mktemp("stores"))


def same(found: Any, expected: Any) -> None:
    """The same data type, shape and values, to the bit where elements have a fixed size."""
    if isinstance(found, (str, bytes)) or isinstance(expected, (str, bytes)):  # They have no type of numpy's.
        assert np.ndim(found) == np.ndim(expected) == 0
        one, other = (each if isinstance(each, (str, bytes)) else each[()] for each in (found, expected))
        assert one == other
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if found.dtype.kind in "OT":
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()


def integers_of(size: int) -> st.SearchStrategy[int]:
    return st.integers(-size, size - 1)


@st.composite
def slices(draw: st.DrawFn, size: int) -> slice:
    bound = st.one_of(st.none(), st.integers(-size - 2, size + 2))
    return slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3, -1, -2, -5, 100])))


@st.composite
def index_arrays(draw: st.DrawFn, size: int, shape: tuple[int, ...]) -> Any:
    """Indices of any order, sign and number, as an array or a list."""
    drawn = [draw(integers_of(size)) for _ in range(math.prod(shape))] if size else []
    if draw(st.booleans()):
        drawn = sorted(drawn)
    array = np.array(drawn, draw(st.sampled_from([np.int64, np.int8, np.int32, ">i4"]))).reshape(shape)
    if array.size and array.min() >= 0 and draw(st.booleans()):
        array = array.astype(draw(st.sampled_from([np.uint8, np.uint64])))
    return array.tolist() if array.size and array.ndim and draw(st.integers(0, 3)) == 0 else array


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...], count: int | None = None) -> np.ndarray[Any, Any]:
    flat = np.zeros(math.prod(shape), bool)
    count = draw(st.integers(0, flat.size)) if count is None else count
    flat[draw(st.permutations(range(flat.size)))[:count]] = True
    return flat.reshape(shape)


@st.composite
def numpy_indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Integers, slices, an Ellipsis, index arrays that broadcast, and masks of several dimensions."""
    common = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    if 0 in shape and draw(st.booleans()):
        common = (*common[:-1], 0)
    found: list[Any] = []
    sizes = [*shape]
    while sizes:
        size = sizes.pop(0)
        kind = draw(st.sampled_from(["slice", "slice", "integer", "array", "array", "mask"]))
        if kind == "mask":
            extent = (size, *(sizes.pop(0) for _ in range(draw(st.integers(0, len(sizes))))))
            if common[-1] > math.prod(extent):
                found.extend([slice(None)] * len(extent))
                continue
            mask = draw(masks(extent, common[-1]))
            found.append(mask.tolist() if len(extent) == 1 and size and draw(st.booleans()) else mask)
        elif kind == "integer" and size:
            at = draw(integers_of(size))
            found.append(draw(st.sampled_from([at, np.int16(at), np.array(at)])))
        elif kind == "array" and (size or 0 in common):
            shape_of = common[draw(st.integers(0, len(common) - 1)) :]
            shape_of = tuple(1 if n and draw(st.integers(0, 3)) == 0 else n for n in shape_of)
            found.append(draw(index_arrays(size, shape_of)) if size or 0 in shape_of else slice(None))
        else:
            found.append(draw(slices(size)))
    first, last = sorted(draw(st.tuples(*[st.integers(0, len(found))] * 2)))
    if draw(st.booleans()):
        found[first:last] = [...]
    else:
        del found[last:]
    if len(found) == 1 and not isinstance(found[0], list) and draw(st.booleans()):
        return found[0]
    return tuple(found)


@st.composite
def indices_each(draw: st.DrawFn, shape: tuple[int, ...], common: Any = None) -> tuple[Any, ...]:
    """A slice, an integer or an array for each dimension: arrays of one shape, or of any length, or masks."""
    found: list[Any] = []
    for size in shape:
        kind = draw(st.sampled_from(["slice", "integer", "array", "array", *["mask"] * (common is None)]))
        if kind == "mask":
            found.append(draw(masks((size,))))
        elif kind == "integer" and size:
            found.append(draw(integers_of(size)))
        elif kind == "array" and (size or common is None or 0 in common):
            number = draw(st.integers(0, 6)) if size else 0
            found.append(draw(index_arrays(size, (number,) if common is None else common)))
        else:
            found.append(draw(slices(size)))
    return tuple(found)


@st.composite
def blocks_of(draw: st.DrawFn, array: xzarr3.Array) -> tuple[tuple[Any, ...], tuple[slice, ...]]:
    selection: list[Any] = []
    region: list[slice] = []
    for size, along in zip(array.shape, array.write_chunk_sizes, strict=True):
        ends = [0, *itertools.accumulate(along)]
        number = len(along) if size else 0
        first, last = sorted(draw(st.tuples(st.integers(0, number), st.integers(0, number))))
        selection.append(slice(first, last))
        if number and draw(st.booleans()):
            first = draw(st.integers(0, number - 1))
            selection[-1], last = draw(st.sampled_from([first, first - number])), first + 1
        region.append(slice(ends[first], ends[last]))
    return tuple(selection), tuple(region)


def each_index(selection: tuple[Any, ...], shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """The elements along each dimension that its own index selects."""
    return [np.atleast_1d(np.arange(size)[index]) for index, size in zip(selection, shape, strict=True)]


def mesh_shape(selection: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    each = zip(selection, each_index(selection, shape), strict=True)
    return tuple(len(along) for index, along in each if isinstance(index, slice) or np.ndim(index))


def points_first(model: np.ndarray[Any, Any], selection: tuple[Any, ...]) -> tuple[np.ndarray[Any, Any], Any]:
    """A view of the model with the dimensions of points first, and the index that selects from it."""
    pointed = [axis for axis, index in enumerate(selection) if not isinstance(index, slice)]
    sliced = [axis for axis in range(model.ndim) if axis not in pointed]
    points = [np.asarray(selection[axis], np.intp) for axis in pointed]
    return model.transpose(pointed + sliced), (*points, *(selection[axis] for axis in sliced))


def reader_of(array: xzarr3.Array, way: str) -> Any:
    return array if way == "get" else getattr(array, way)


class Chosen(NamedTuple):
    """A selection, and the same in numpy."""

    reader: Any
    selection: Any
    """What the reader is given."""
    view: np.ndarray[Any, Any]
    """A view of the model."""
    index: Any
    """What selects the same elements from the view."""
    shape: tuple[int, ...]

    def expected(self) -> Any:
        found = self.view[self.index]
        return found if np.shape(found) == self.shape else found.reshape(self.shape)

    def write(self, new: np.ndarray[Any, Any]) -> None:
        ours = np.empty(self.shape, self.view.dtype)
        ours[...] = new
        place = np.shape(self.view[self.index])
        self.view[self.index] = ours.reshape(place) if place else ours.reshape(())[()]


@st.composite
def chosen(draw: st.DrawFn, array: xzarr3.Array, model: np.ndarray[Any, Any], way: str) -> Chosen:
    reader, view = reader_of(array, "get" if way == "mask" else way), model
    if way == "oindex":
        selection = draw(indices_each(model.shape))
        index = np.ix_(*each_index(selection, model.shape)) or ...
        return Chosen(reader, selection, view, index, mesh_shape(selection, model.shape))
    if way == "vindex":
        common = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
        selection = draw(indices_each(model.shape, common))
        view, index = points_first(model, selection)
    elif way == "blocks":
        selection, index = draw(blocks_of(array))
    elif way == "mask":
        selection = index = draw(masks(model.shape))
        reader = draw(st.sampled_from([array, array.vindex]))
    else:
        selection = index = draw(st.one_of(numpy_indices(model.shape), selections(model.shape)))
    return Chosen(reader, selection, view, index, np.shape(view[index]))


def spread(data: st.DataObject, name: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Values for a selection: all of them, or fewer that are broadcast."""
    cut = data.draw(st.integers(0, len(shape)))
    given = tuple(1 if n and data.draw(st.integers(0, 3)) == 0 else n for n in shape[cut:])
    return data.draw(new_values(name, given))


@every_way
@pytest.mark.parametrize("way", [slow("get"), slow("oindex"), slow("vindex"), "mask", "blocks"])
@THOROUGH
@given(data=st.data())
def test_selections_are_numpys(way: str, data: st.DataObject) -> None:
    array, model, name = data.draw(cases(min_dims=int(way == "mask")))
    for _ in range(2):
        at = data.draw(chosen(array, model, way))
        same(at.reader[at.selection], at.expected())
        assert at.reader.plan(at.selection).shape == at.shape
        if way == "get":
            threads, out = data.draw(THREADS), np.empty(at.shape, array.dtype)
            assert array.get(at.selection, out=out, threads=threads) is out
            same(out, at.expected())
    new = spread(data, name, at.shape)
    at.write(new)
    if way == "get":
        array.set(at.selection, new, threads=data.draw(THREADS))
    else:
        at.reader[at.selection] = new
    same(array.get(), model)
    same(xzarr3.open_array(array.store).get(threads=3), model)


@every_way
@settings(THOROUGH, max_examples=40)
@given(st.data())
def test_fields(data: st.DataObject) -> None:
    array, model, _ = data.draw(cases(kinds=("struct",)))
    fields: Any = data.draw(st.sampled_from(["a", "b", "e", ["a"], ["e", "a"], ["b", "e"]]))
    way = data.draw(st.sampled_from(["get", "oindex", "vindex", "blocks"]))
    at = data.draw(chosen(array, model, way))
    selection = at.selection if isinstance(at.selection, tuple) else (at.selection,)
    place = data.draw(st.integers(0, len(selection)))
    asked = (*selection[:place], fields, *selection[place:])
    expected, found = at.expected()[fields], at.reader[asked]
    assert np.shape(found) == at.shape
    assert found.dtype == expected.dtype or not at.shape  # A scalar of text has its own length.
    assert repr(found.tolist()) == repr(expected.tolist())  # A NaN is itself.
    kinds = [fields] if isinstance(fields, str) else fields
    new = data.draw(arrays_of(parse_dtype([(name, model.dtype[name]) for name in kinds]), at.shape))
    for name in kinds:
        at.view[name][at.index] = new[name].reshape(np.shape(at.view[name][at.index]))
    at.reader[asked] = new[fields] if isinstance(fields, str) else new
    same(array.get(), model)


@every_way
@pytest.mark.parametrize("way", ["get", "oindex", "vindex"])
def test_the_last_of_many_values_stays(way: str) -> None:
    at = np.random.default_rng(0).integers(-80, 80, 5000)
    model = np.zeros(80, "i4")
    model[at] = np.arange(5000)
    for options in ({}, {"shards": 40}, {"shards": 40, "compressors": None}):
        array = xzarr3.create_array(xzarr3.MemoryStore(), shape=80, chunks=20, dtype="i4", **options)
        reader_of(array, way)[at] = np.arange(5000)
        same(array.get(), model)


@every_way
@pytest.mark.parametrize("options", [
    {"compressors": None}, {"compressors": "zstd"}, {"compressors": "blosc"},
    {"compressors": None, "shards": 12}, {"compressors": "zstd", "shards": 12},
], ids=repr)  # fmt: skip
def test_as_many_elements_as_a_chunk_has_are_not_the_chunk(options: dict[str, Any]) -> None:
    model = np.arange(12, dtype="i4")
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=model, chunks=3, **options)
    number = itertools.count(100)
    for at in (
        [0, 0, 2], [1, 0, 2], [2, 2, 2], [3, 5, 4], [0, 2, 2, 9, 9, 11], [5, 0, 1, 2, 3, 4], [8, 6, 8, 6],
        [0, 0, 1, 1, 2, 2, 3, 4, 5, 5],
    ):  # fmt: skip
        column = (np.array(at)[:, np.newaxis],)
        for reader, index in (
            (array, at), (array, np.array(at)), (array, column), (array.oindex, at), (array.vindex, at)
        ):  # fmt: skip
            same(reader[index], model[index])
            new = np.array([next(number) for _ in at]).reshape(model[index].shape)
            reader[index] = new
            model[index] = new
            same(array.get(), model)


BASIC: list[Any] = [
    0, -1, np.int8(2), np.array(1), np.uint64(3), (), ..., (...,), (0, ...), (..., 0), (0, 1, ...),
    (0, ..., 1), slice(2, 100), slice(-100, 2), slice(3, 1), slice(1, 3, -1), slice(None, None, -1),
    slice(5, None, -2), (slice(0), 0), (slice(None, None, 2**70), -1), slice(-(2**70), 2**70),
    slice(np.int64(1), np.int64(3)), slice(True, None), (slice(None, None, -100), slice(None, None, 100)),
]  # fmt: skip
POINTS: list[Any] = [
    (slice(None), [0], ..., [0]), ([0], ..., 0, slice(None)), (..., [0], slice(None), 0),
    (0, slice(None), [0, 1]), (slice(None), 0, [0, 1]), (slice(None), [0, 1], 0), ([0, 1], 0),
    (0, ..., [0, 1], slice(None)), (slice(None), np.array(0), [[0, 1]]),
    (np.ones((2, 3), bool), ..., [1]), (np.ones((2, 3), bool), [1]),
    (slice(None), np.ones((3, 4), bool)), ([[1], [0]], slice(None), [2, 3, 0]),
    (..., np.ones(4, bool)), ([], ..., 0), (0, 0, [1, 2]), (0, [1, 2], 0), ([True, False], ..., [1, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "selection"), [
    *(((4, 6), each) for each in BASIC), *(((2, 3, 4), each) for each in POINTS),
], ids=range(len(BASIC) + len(POINTS)))  # fmt: skip
def test_elements_go_where_numpy_puts_them(shape: tuple[int, ...], selection: Any) -> None:
    model = np.arange(24).reshape(shape)
    array = xzarr3.create_array(xzarr3.MemoryStore(), data=model, chunks=(1, 2, 3)[-len(shape) :])
    same(array[selection], model[selection])
    new = np.arange(np.size(model[selection])).reshape(np.shape(model[selection])) + 100
    array[selection] = new
    model[selection] = new
    same(array.get(), model)


def array_to_refuse() -> xzarr3.Array:
    return xzarr3.create_array(xzarr3.MemoryStore(), data=np.arange(24).reshape(4, 6), chunks=(2, 3))


REFUSED: list[tuple[str, Any, str]] = [
    ("get", ([0, 4],), r"axis 0: index 4 is out of bounds for length 4"),
    ("get", (slice(None), [-7, 0]), r"axis 1: index -7 is out of bounds for length 6"),
    ("get", (np.array([2**63], "u8"),), r"axis 0: index 9223372036854775808 is out of bounds"),
    ("get", ([0, 1], [0, 1, 2]), r"index arrays of shapes \[\(2,\), \(3,\)\] cannot be broadcast"),
    ("get", (np.ones((4, 5), bool),), r"axis 0: a mask of shape \(4, 5\) does not fit .* of shape \(4, 6\)"),
    ("get", (0, np.ones(4, bool)), r"axis 1: a mask of shape \(4,\) does not fit dimensions of shape \(6,\)"),
    ("get", ([0.5],), r"index 0: not an index: an array of float64; accepted: integers, slices"),
    ("get", (["2020"],), r"index 0: not an index: an array of <U4; accepted"),
    ("get", ([[0], [1, 2]],), r"not an index: \[\[0\], \[1, 2\]\]; accepted"),
    ("get", (0, [None]), r"index 1: not an index: an array of object; accepted"),
    ("get", (None, [0]), r"not a selection: None; accepted"),
    ("get", ([0], True), r"not a selection: True; accepted"),
    ("get", ([0], ..., ...), r"only one Ellipsis"),
    ("get", ([0], 0, 0), r"too many indices: 3 for an array of 2 dimensions"),
    ("get", (np.ones((4, 6), bool), 0), r"too many indices: 3 for an array of 2 dimensions"),
    ("get", ([0], 1.5), r"axis 1: .*float"),
    ("oindex", (np.zeros((2, 2), int),), r"axis 0: not an orthogonal selection: an array of 2 dimensions"),
    ("oindex", (np.ones((4, 6), bool),), r"axis 0: not an orthogonal selection: an array of 2 dimensions"),
    ("oindex", ([4], 0), r"axis 0: index 4 is out of bounds for length 4"),
    ("oindex", (0, [0], [0]), r"too many indices"),
    ("oindex", ("x",), r"axis 0: not a basic selection: str|not an index"),
    ("vindex", ([0, 1], [0, 1, 2]), r"cannot be broadcast together"),
    ("vindex", ([0, 4], [0, 1]), r"axis 0: index 4 is out of bounds"),
    ("vindex", (np.ones((4, 5), bool),), r"a mask of shape"),
    ("vindex", (slice(None, None, 0), [1]), r"axis 0: slice step cannot be zero"),
    ("blocks", (2,), r"axis 0: index 2 is out of bounds for length 2"),
    ("blocks", (slice(None, None, -1),), r"axis 0: blocks can be selected with a step of 1 only"),
    ("blocks", ([0],), r"axis 0: not a basic selection: list; accepted: integers, slices and one Ellipsis"),
    ("blocks", (0, 0, 0), r"too many indices"),
]
NO_SELECTIONS: list[Any] = [
    "x", 1.0, [True], False, np.True_, np.array([0, -5]), np.array([True] * 5), (0, None), (0, [6]),
    (..., ...), (0, 0, 0), (0, 0, 0, ...), 4, -5, (0, 6), (0, -7), slice("a"), slice(0.5),
    (slice(None), "x"), {}, Thing(), np.array(1.0), 2**70, b"x", slice(None, None, 1.0), ((0, 7),),
    np.datetime64("2000"), 0j, np.array(True), [None], ["x"],
]  # fmt: skip


@pytest.mark.parametrize(("way", "selection", "message"), [
    *REFUSED, *(("get", selection, None) for selection in NO_SELECTIONS),
], ids=range(len(REFUSED) + len(NO_SELECTIONS)))  # fmt: skip
def test_what_is_no_selection_is_refused_and_nothing_written(way: str, selection: Any, message: Any) -> None:
    array = array_to_refuse()
    before, reader = array.get(), reader_of(array, way)
    calls: list[Callable[[], object]] = [
        lambda: reader[selection], lambda: reader.__setitem__(selection, 1), lambda: reader.plan(selection),
        lambda: reader.explain(selection),
    ]  # fmt: skip
    if way == "get":
        calls += [lambda: list(array.chunk_tasks(selection)), lambda: array.set(selection, 1)]
    for error in refused(SelectionError, message, *calls):
        assert isinstance(error, IndexError)
    same(array.get(), before)


def test_lists_of_unequal_lengths_are_no_mask() -> None:
    array = array_to_refuse()
    mask, words = [[True], [True, False]], r"not a mask of the array: .*; accepted"
    read, write = partial(array.get_mask_selection, mask), partial(array.set_mask_selection, mask, 1)
    refused(SelectionError, words, read, write)


JUNK = st.one_of(st.integers(-9, 9), st.floats(), st.text(max_size=2), st.none(), st.booleans())
OBJECTS = [
    ..., Thing(), {}, np.zeros((2, 2, 2), bool), np.array(["x"]), np.array([None]), np.datetime64("2000"),
    range(3), {0},
]  # fmt: skip
ANYTHING = st.one_of(
    JUNK, st.integers(), st.binary(max_size=3), st.lists(JUNK, max_size=3), st.sampled_from(OBJECTS),
    st.lists(st.lists(st.integers(-9, 9), max_size=3), max_size=3), st.builds(
        slice, st.one_of(st.none(), st.integers(), st.text(max_size=1)), st.none(), st.sampled_from([None, 0])
    ),
)  # fmt: skip


@pytest.mark.slow
@settings(THOROUGH, max_examples=400)
@given(st.one_of(ANYTHING, st.lists(ANYTHING, max_size=4).map(tuple)))
def test_anything_else_is_a_selection_error(selection: Any) -> None:
    array = array_to_refuse()
    model = array.get()
    for reader in (array, array.oindex, array.vindex, array.blocks):
        try:
            found = reader[selection]
        except SelectionError as error:
            assert str(error)  # noqa: PT017 - that it is raised is not demanded
            with pytest.raises(SelectionError):
                reader[selection] = 1
        else:
            if reader is array:
                same(found, model[selection])
    same(array.get(), model)


@pytest.mark.parametrize("way", ["get", "oindex", "vindex", "blocks"])
def test_values_that_do_not_fit_are_refused_and_nothing_written(way: str) -> None:
    array = array_to_refuse()
    before = array.get()
    selection = (slice(0, 2), 1) if way == "blocks" else ([0, 3, 1], slice(0, 2))
    shape = r"\(4, 3\)" if way == "blocks" else r"\(3, 2\)"
    write = partial(reader_of(array, way).__setitem__, selection)
    refuses(write, [np.arange(5)], SelectionError, rf"values of shape \(5,\) to a selection of shape {shape}")
    refuses(write, [np.nan], xzarr3.DataTypeValidationError)
    same(array.get(), before)


@pytest.mark.parametrize("way", ["get", "oindex", "vindex", "blocks"])
def test_fields_that_there_are_not_are_refused_and_nothing_written(way: str) -> None:
    selections = ("x", ["x"], ([0], "x"), (slice(None), "x"))
    refuses(reader_of(array_to_refuse(), way).__getitem__, selections, SelectionError)
    array = xzarr3.create_array(xzarr3.MemoryStore(), shape=4, chunks=2, dtype=STRUCT)
    reader, before = reader_of(array, way), contents(array.store)
    unknown = partial(reader.__setitem__, (["a", "z"], 0), 1), partial(reader.explain, ["a", "z"])
    words = "has no field 'z'; accepted: 'a', 'b', 'e'"
    refused(SelectionError, words, lambda: reader["z"], *unknown)
    twice = partial(reader.__setitem__, (["e", "e"],), 1), partial(reader.explain, (["a", "a"],))
    refused(SelectionError, "named twice", lambda: reader[["a", "a"]], *twice)
    assert contents(array.store) == before


@pytest.mark.slow
@pytest.mark.parametrize("executor", [nullcontext, python_executor])
@pytest.mark.parametrize("options", [{"chunks": 100_000}, {"chunks": 10_000, "shards": 1_000_000}], ids=repr)
def test_masks_and_indices_take_little_memory(tmp_path: Path, options: Any, executor: Any) -> None:
    number = 2 * 10**6
    model = np.arange(number, dtype="i4")
    array = xzarr3.create_array(tmp_path / "a", data=model, compressors=None, **options)
    rng = np.random.default_rng(0)
    mask, few = rng.random(number) < 0.5, rng.random(number) < 5e-4
    at = rng.integers(-number, number, number // 5)
    with executor():
        for reader, index, most in (
            (array, mask, 64 * mask.sum()), (array.vindex, mask, 64 * mask.sum()), (array, few, 4 * 2**20),
            (array, at, 100 * len(at)), (array.oindex, at, 100 * len(at)), (array.vindex, at, 100 * len(at)),
            (array.oindex, np.sort(at % number), 50 * len(at)),
        ):  # fmt: skip
            with measured() as peak:
                found = reader[index]
            assert np.array_equal(found, model[index])
            assert peak[0] < most


@pytest.mark.slow
def test_slices_beside_points_are_not_multiplied_with_them() -> None:
    array = xzarr3.create_array(xzarr3.MemoryStore(), shape=(10**6,) * 3, chunks=(100,) * 3, dtype="u1")
    with measured() as peak:
        found = array.vindex[[1, 500_000], [1, 500_000], :]
    assert found.shape == (2, 10**6)
    assert peak[0] < 32 * 2**20
    with measured() as peak:
        planned = array.oindex.plan((np.arange(10**6), slice(None), [5, 3]))
    assert (planned.shape, planned.number) == ((10**6, 10**6, 2), 10**8)
    assert peak[0] < 64 * 2**20
