"""What the package is to do on any system; on Linux, without all that only POSIX systems have.

What is left there behaves as on Windows as far as that can be pretended: there are no descriptors of
directories, and a file that this process has open can neither be moved nor replaced nor removed. Locks are
those of ``msvcrt``, made of locks of the system, which keep apart processes and what is open within one.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array
import distributed
import numpy as np
import psutil
import pytest
import xarray

BEFORE = dask, distributed, psutil, xarray, contextlib, subprocess
"""What has to be imported before, as it takes what the system has."""

_GONE = """
    pread preadv readv pwrite pwritev writev posix_fadvise posix_fallocate copy_file_range sendfile splice
    O_DIRECTORY O_NOFOLLOW O_CLOEXEC O_NONBLOCK O_PATH O_SYNC O_DIRECT O_TMPFILE fdatasync
    link fchmod fchown chown lchown fchdir chroot statvfs fstatvfs mkfifo mknod memfd_create
    fork forkpty register_at_fork wait waitid killpg getpgid setsid nice getloadavg uname sysconf
    sysconf_names sched_getaffinity sched_setaffinity getuid geteuid getgid getegid getgroups
"""
_CHECKED = """
    open stat lstat unlink remove mkdir rmdir rename replace readlink symlink chmod utime access scandir
    listdir fsync kill
"""
GONE, CHECKED = _GONE.split(), _CHECKED.split()
NOBODY = 65534
MODULES = ("fcntl", "resource", "pwd", "grp", "termios")


def remove() -> None:
    """Take it away. What was imported before keeps what it has."""
    sys.modules["msvcrt"] = _locks_of_windows()
    shutil._use_fd_functions = False
    _refuse_modules()
    for name in GONE:
        if hasattr(os, name):
            delattr(os, name)
    os.supports_dir_fd = set()
    os.supports_fd = {os.stat, os.truncate}
    os.supports_follow_symlinks = {os.stat}
    for name in CHECKED:
        _without_folders(name)


def _refuse_modules() -> None:
    real = builtins.__import__

    def find(name: str, named: Any = None, *args: Any, **options: Any) -> Any:
        if name in MODULES and named is not None and str(named.get("__name__")).startswith("xzarr3"):
            raise ImportError(f"there is no {name}")
        return real(name, named, *args, **options)

    builtins.__import__ = find

    class Refusing:
        """What imports by name asks here."""

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name in MODULES:
                raise ImportError(f"there is no {name}")

    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Refusing())  # type: ignore[arg-type]


def _without_folders(name: str) -> None:
    real: Callable[..., Any] = getattr(os, name)

    def call(*args: Any, **options: Any) -> Any:
        for option in ("dir_fd", "src_dir_fd", "dst_dir_fd"):
            if options.get(option) is not None:
                raise NotImplementedError(f"{option} unavailable on this platform")
        first = args[0] if args else options.get("path")
        if name in ("chmod", "utime", "scandir", "listdir") and isinstance(first, int):
            raise TypeError(f"{name}: path should be string, bytes or os.PathLike, not int")
        if name in ("chmod", "utime") and not options.get("follow_symlinks", True):
            raise NotImplementedError(f"{name}: follow_symlinks unavailable on this platform")
        if name == "kill" and sys._getframe(1).f_globals["__name__"].startswith("xzarr3"):
            raise AssertionError("this ends a process, or interrupts all of the console")
        if name == "fsync" and not _may_write(args[0]):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if name == "open" and os.path.isdir(first):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), first)
        if name in ("unlink", "remove", "rename", "replace"):
            for path in args:
                _check_closed(path, within=name == "rename")
        if name == "rename" and os.path.lexists(args[1]):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), args[1])
        if name == "replace" and os.path.isdir(args[1]):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), args[1])
        return real(*args, **options)

    if name in ("open", "unlink", "remove", "rename", "replace"):  # Each in one step, as in the system.
        call = _one_at_a_time(call)
    setattr(os, name, call)


_steps = threading.RLock()
_TOGETHER = os.environ.get("XZARR3_TOGETHER")  # A file: processes that know it see what others have open.
_among_siblings: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


def _one_at_a_time(act: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        with _steps, _among_siblings():
            return act(*args, **options)

    return call


def _may_write(descriptor: int) -> bool:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags"))
    return flags & os.O_ACCMODE != os.O_RDONLY


def _check_closed(path: Any, *, within: bool) -> None:
    """Refuse what this process has open, or what is in a directory that is renamed."""
    path = os.path.realpath(os.path.dirname(os.path.abspath(path))) + os.sep + os.path.basename(path)
    for place in itertools.chain.from_iterable(map(_open_in, _siblings())):
        try:
            opened = os.readlink(place)
        except OSError:  # It was closed just now.
            continue
        if opened == path or (within and opened.startswith(path + os.sep)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _siblings() -> list[int]:
    if _TOGETHER is None:
        return [os.getpid()]
    return [each.pid for each in psutil.Process(os.getppid()).children()]


def _open_in(process: int) -> list[str]:
    folder = f"/proc/{process}/fd"
    try:
        return [f"{folder}/{number}" for number in os.listdir(folder)]
    except OSError:  # It has ended.
        return []


def _locks_of_windows() -> types.ModuleType:
    import fcntl

    module: Any = types.ModuleType("msvcrt")
    module.LK_UNLCK, module.LK_NBLCK = 0, 2
    packed = struct.Struct("hhqqi0q")
    control, command = fcntl.fcntl, fcntl.F_OFD_SETLK
    kinds = {module.LK_UNLCK: fcntl.F_UNLCK, module.LK_NBLCK: fcntl.F_WRLCK}

    def locking(descriptor: int, mode: int, length: int) -> None:
        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        if not 0 <= start < 2**31 or not 0 < length < 2**31:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        try:
            control(descriptor, command, packed.pack(kinds[mode], os.SEEK_SET, start, length, 0))
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error

    if _TOGETHER is not None:
        global _among_siblings
        descriptor, flock = os.open(_TOGETHER, os.O_RDWR | os.O_CREAT), fcntl.flock

        @contextlib.contextmanager
        def alone() -> Iterator[None]:
            flock(descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                flock(descriptor, fcntl.LOCK_UN)

        _among_siblings = alone
    module.locking = locking
    return module  # type: ignore[no-any-return]


# What is done then. Each gets a directory that is not there yet.


def imports(place: Path) -> None:
    """All modules can be imported."""
    import importlib
    import pkgutil

    import xzarr3
    from xzarr3.stores.local import platform

    for module in pkgutil.walk_packages(xzarr3.__path__, "xzarr3."):
        importlib.import_module(module.name)
    assert (sys.platform == "darwin") == platform.POSIX
    assert platform.POSIX or platform.pread is platform._seek_read


def arrays(place: Path) -> None:
    """Whole chunks, parts of them, shards, attributes and shapes are read as they were written."""
    import xzarr3

    root = xzarr3.create_group(place)
    values = np.arange(600.0).reshape(20, 30)
    layouts = {"chunks": {"chunks": (7, 8)}, "shards": {"chunks": (5, 5), "shards": (10, 15)}}
    for name, options in layouts.items():
        array = root.create_array(name, data=values, **options)
        np.testing.assert_array_equal(array[...], values)
        np.testing.assert_array_equal(array[3:11:2, ::7], values[3:11:2, ::7])
        array[2:9, 4] = -1
        expected = values.copy()
        expected[2:9, 4] = -1
        np.testing.assert_array_equal(xzarr3.open_array(place, name)[...], expected)
        array.attrs["unit"] = "m"
        array.resize((25, 30))
        array.append(np.ones((3, 30)))
        assert xzarr3.open_array(place, name).shape == (28, 30)
        assert array[-1, -1] == 1
        assert xzarr3.open_array(place, name).attrs["unit"] == "m"
    assert sorted(root) == ["chunks", "shards"]
    del root["chunks"]
    assert sorted(xzarr3.open_group(place)) == ["shards"]
    assert not list(place.rglob(".xzarr3*"))


def values(place: Path) -> None:
    """A store keeps, finds, lists and erases values, and tells absence from failure."""
    from xzarr3 import LocalStore, StoreError
    from xzarr3.stores.local import platform

    for options in ({}, {"follow_links": False}, {"fsync": True}, {"locks": False}):
        store = LocalStore(place, **options)
        store.set("a/b", b"0123456789")
        store.set("a/c/d", b"x")
        store.set("a/b", b"9876543210")
        assert bytes(store.get("a/b") or b"") == b"9876543210"
        assert store.get("a") is None, "a directory is no value"
        assert store.get("a/b/c") is None
        assert store.get("e") is None
        assert not store.exists("a")
        found = store.get_partial_values(
            [("a/b", (2, 3)), ("a/b", (-2, None)), ("a/b", (2**62, 1)), ("e", (0, 1))]
        )
        assert [None if each is None else bytes(each) for each in found] == [b"765", b"10", b"", None]
        assert store.list_dir("a/") == ({"a/b"}, {"a/c/"})
        assert sorted(store.list()) == ["a/b", "a/c/d"]
        store.update("a/b", lambda stored: [b"new"])
        version = store.get_versioned("a/b")[1]
        assert store.compare_and_set("a/b", version, b"newer")
        assert not store.compare_and_set("a/b", version, b"newest")
        store.erase("a/c/d")
        store.erase_prefix("a/")
        assert list(store.list()) == []
        assert os.listdir(place) == []
    if platform.POSIX:
        return
    platform._takes_long_paths = lambda: False
    store = LocalStore(place)
    with pytest.raises(StoreError, match="cannot read key 'xxx"):  # What cannot be reached is no absence.
        store.get("x" * 100 + "/" + "y" * 150 + "/z")
    store.set("open", b"old")
    with open(place / "open", "rb"), pytest.raises(StoreError, match="cannot write key 'open'"):
        store.set("open", b"new")
    assert bytes(store.get("open") or b"") == b"old"
    assert os.listdir(place) == ["open"]


def threads(place: Path) -> None:
    """No change gets lost, and the lock file is gone in the end."""
    from xzarr3 import LocalStore
    from xzarr3.stores.local import platform

    def count(_: int) -> None:
        store = LocalStore(place)
        for at in range(40):
            store.update(f"c/{at % 3}", lambda stored: [b"%d" % (int(bytes(stored or b"0")) + 1)])
            store.get(f"c/{(at + 1) % 3}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    store = LocalStore(place)
    assert sum(int(bytes(store.get(f"c/{at}") or b"")) for at in range(3)) == 160
    assert sorted(os.listdir(place / "c")) == ["0", "1", "2"]
    with open(place / "c" / "0", "rb") as file, ThreadPoolExecutor(4) as pool:
        parts = [file.read(1), file.read(1)]

        def read(at: int) -> bool:
            return all(platform.pread(file.fileno(), 1, at % 2) == parts[at % 2] for _ in range(2000))

        assert all(pool.map(read, range(4))), "read at another place"


def siblings(place: Path) -> None:
    """No change of several processes gets lost, though one of them is killed while it has the lock."""
    place.mkdir()
    command = [sys.executable, __file__, str(place)]
    environment = os.environ | {"XZARR3_TOGETHER": str(place.parent / "steps")}

    def begun(name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, name], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    with begun("hold") as holder:
        counters = [begun("count") for _ in range(3)]
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        printed = [counter.communicate()[0] for counter in counters]
    assert printed == ['{"count": ""}'] * 3, printed
    from xzarr3 import LocalStore

    assert bytes(LocalStore(place / "values").get("c/0") or b"") == b"60"
    assert os.listdir(place / "values" / "c") == ["0"]


def count(place: Path) -> None:
    """Add to a value."""
    from xzarr3 import LocalStore

    store = LocalStore(place.parent / "values")
    for _ in range(20):
        store.update("c/0", lambda stored: [b"%d" % (int(bytes(stored or b"0")) + 1)])


def hold(place: Path) -> None:
    """Be killed with a lock."""
    from xzarr3 import LocalStore

    def change(stored: object) -> Any:
        sys.stdout.write("held\n")
        sys.stdout.flush()
        sys.stdin.read()

    LocalStore(place.parent / "values").update("c/0", change)


def datasets(place: Path) -> None:
    """Datasets are written, appended to, replaced beside foreign files, and read; dask arrays as well."""
    import xzarr3

    def made(value: float, size: int = 6) -> xarray.Dataset:
        return xarray.Dataset(
            {"t": (("time", "x"), np.full((size, 4), value)), "u": ("x", np.arange(4.0))},
            coords={"time": np.arange(size)},
        )

    def found() -> xarray.Dataset:
        with xarray.open_dataset(place, engine="xzarr3") as opened:
            return opened.load()

    xzarr3.to_zarr(made(1), place)
    assert found().equals(made(1))
    (place / "t" / "notes.txt").write_text("mine")
    for _ in range(2):
        xzarr3.to_zarr(made(2).chunk({"time": 2}), place, mode="w")
    assert found().equals(made(2))
    assert (place / "t" / "notes.txt").read_text() == "mine"
    more = made(3).assign_coords(time=np.arange(6, 12))
    xzarr3.to_zarr(more, xzarr3.LocalStore(place, fsync=True), append_dim="time")
    assert found().sizes["time"] == 12
    assert float(found()["t"].sum()) == 6 * 4 * 2 + 6 * 4 * 3
    xzarr3.to_zarr(made(4, 2)[["t"]].drop_vars("time"), place, region={"time": slice(1, 3)})
    assert found()["t"].values[:4, 0].tolist() == [2, 4, 4, 2]
    array = xzarr3.from_zarr(place, "t")
    assert float(array.sum().compute(scheduler="threads")) == 6 * 4 * 2 + 6 * 4 * 3 + 2 * 4 * 2
    assert {path.name for path in place.iterdir()} == {"zarr.json", "t", "u", "time"}


def zips(place: Path) -> None:
    """A zip is written, added to and read; one writer at a time."""
    import xzarr3
    from xzarr3 import LocalStore, StoreError, ZipStore

    path = place / "x.zip"
    numbers = np.arange(100.0)
    with ZipStore(path, mode="w") as store:
        xzarr3.create_group(store).create_array("a", data=numbers, chunks=(10,))
        with pytest.raises(StoreError, match="another ZipStore"):
            ZipStore(path, mode="a")
        np.testing.assert_array_equal(xzarr3.open_array(store, "a")[5:25], numbers[5:25])
        store.flush()
        store.set("more", b"1")
    with ZipStore(path, mode="a") as store:
        store.set("b", b"value")
    with ZipStore(path) as store:
        np.testing.assert_array_equal(xzarr3.open_array(store, "a")[...], numbers)
        assert bytes(store.get("b") or b"") == b"value"
        assert bytes(store.get("more") or b"") == b"1"
    with ZipStore(path, mode="w") as store:
        store.set("c", b"other")
        store.discard()
    assert os.listdir(place) == ["x.zip"]
    inner = LocalStore(place / "inner")
    for mode in ("w", "a"):
        with ZipStore(inner, "y.zip", mode=mode) as store:
            store.set(mode, b"value")
    with ZipStore(inner, "y.zip") as store:
        assert sorted(store.list()) == ["a", "w"]
    assert os.listdir(place / "inner") == ["y.zip"]


def caches(place: Path) -> None:
    """What was read is found in the directory, until it is written, or until others need the room."""
    from xzarr3 import CacheStore, LocalStore

    inner = LocalStore(place / "inner")
    for at in range(20):
        inner.set(f"k/{at}", bytes([at]) * 9000)
    cache = CacheStore(inner, directory=place / "cache", max_bytes=100_000)
    for _ in range(2):
        for at in range(20):
            assert bytes(cache.get(f"k/{at}") or b"") == bytes([at]) * 9000
    assert bytes(cache.get("k/19") or b"") == bytes([19]) * 9000
    assert cache.hits
    assert 0 < cache.size <= 100_000
    cache.set("k/19", b"new")
    assert bytes(cache.get("k/19") or b"") == b"new"
    cache.erase_prefix("k/")
    assert cache.get("k/19") is None
    cache.clear()
    assert not list((place / "cache").rglob("t-new"))


def processes(place: Path) -> None:
    """Whether the holder of a lease runs is asked without a signal."""
    import uuid

    from xzarr3.commit import lease
    from xzarr3.stores.local import platform

    platform._PROC = "/nonexistent"
    platform.machine.cache_clear()
    assert platform.machine() == "" or sys.platform != "linux", "no containers are taken for each other"
    platform.sys = types.SimpleNamespace(platform="win32")
    uuid.getnode = lambda: 0x0042AC110002
    platform.machine.cache_clear()
    lease.boot.cache_clear()
    here = lease.here()
    assert (here.boot, here.processes) == ("0042ac110002", "")

    def holder(pid: int) -> lease.Holder:
        return lease.Holder("owner", here.host, here.boot, here.processes, pid, platform.process_start(pid))

    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(wait, stdin=subprocess.PIPE) as child:
        other = holder(child.pid)
        assert other.started
        assert other.is_dead is False
        assert lease.replace(other, started="1.0").is_dead is True, "another one has its number"
        child.kill()
        child.wait()
    assert other.is_dead is True
    assert holder(os.getpid()).is_dead is True, "of this process, but not in use"
    assert lease.replace(holder(os.getppid()), host="elsewhere").is_dead is None
    for drawn in (0x0142AC110002, 0x0242AC110002):
        uuid.getnode = lambda drawn=drawn: drawn
        platform.machine.cache_clear()
        assert platform.machine() == "", "drawn by chance, or given to others as well"


def names(place: Path) -> None:
    """Keys that name something else on Windows are refused."""
    from xzarr3 import InvalidKeyError, LocalStore
    from xzarr3.stores.local import platform

    if platform.POSIX:
        return
    store = LocalStore(place)
    for key in ("a\\b", "..\\x", "C:", "a:b", "con", "a/NUL.txt", "com1", "a.", "a /b", "a?", "a*", "\x07"):
        with pytest.raises(InvalidKeyError):
            store.get(key)
        with pytest.raises(InvalidKeyError):
            store.set(key, b"")
    for key in ("c/0/1", "zarr.json", "a.b", "console", "nulls/x", ".zattrs", "é", "com10"):
        store.set(key, b"1")
        assert bytes(store.get(key) or b"") == b"1"


def links(place: Path) -> None:
    """Nothing is written or erased through a link out of the root."""
    from xzarr3 import InvalidKeyError, LocalStore

    store = LocalStore(place)
    store.set("in/x", b"1")
    os.symlink(place.parent / "outside", place / "out")
    os.symlink(place / "in", place / "within")
    for ask in (
        lambda: store.set("out/deep/data.bin", b""),
        lambda: store.update("out/deep/data.bin", lambda stored: [b""]),
        lambda: store.erase("out/deep/data.bin"),
        lambda: store.erase_prefix("out/deep/"),
        lambda: LocalStore(place, follow_links=False).get("out/deep/data.bin"),
    ):
        with pytest.raises(InvalidKeyError):
            ask()
    store.set("within/y", b"2")
    assert bytes(store.get("in/y") or b"") == b"2"
    store.erase_prefix("out/")
    assert sorted(os.listdir(place)) == ["in", "within"]


SCENARIOS = {
    act.__name__: act
    for act in (imports, arrays, values, threads, siblings, datasets, zips, caches, names, links, processes)
}
HELPERS = {"count": count, "hold": hold}


def main(names: list[str], base: Path) -> None:
    """Do it, and print what went wrong."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if sys.platform == "linux":
        remove()
    outcomes = {}
    for name in names:
        try:
            if name == "links" and is_root:  # A path that leads out is not for this user to follow.
                imports(base)
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            {**SCENARIOS, **HELPERS}[name](base / name if name != "links" else base / "store")
        except BaseException:  # noqa: BLE001 - the test shows it
            outcomes[name] = traceback.format_exc()
        else:
            outcomes[name] = ""
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[2:], Path(sys.argv[1]))
