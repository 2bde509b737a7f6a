"""The versions of xzarr3 and of the packages that it uses, for reports of errors."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO

from xzarr3.io import native

_PACKAGES = (
    *("xzarr3", "numpy", "dask", "distributed", "xarray", "fsspec", "numcodecs", "zstandard", "isal"),
    *("zlib-ng", "google-crc32c", "msgspec", "click", "obstore", "ml_dtypes", "zarr"),
)


def versions() -> dict[str, str]:
    """What :func:`show_versions` prints, by name.

    Examples
    --------
    >>> versions()["python"]
    'CPython ...'
    """
    rows = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}, {sys.byteorder} endian",
        "cores": str(os.cpu_count() or 1),
    }
    rows["native rows"] = native.report()
    for name in _PACKAGES:
        try:
            rows[name] = version(name)
        except PackageNotFoundError:
            rows[name] = "not installed"
    from xzarr3.codecs.foreign import registered  # late, as it reads all packages that are installed

    rows["codecs of other packages"] = ", ".join(registered()) or "none"
    return rows


def show_versions(file: TextIO | None = None) -> None:
    """Print the versions of Python, of xzarr3 and of the packages that it uses, and what of them is in use.

    Parameters
    ----------
    file : text file, optional
        By default standard output.

    Examples
    --------
    >>> import xzarr3
    >>> xzarr3.show_versions()  # doctest: +ELLIPSIS
    python: ...
    """
    print("\n".join(f"{name}: {text}" for name, text in versions().items()), file=file)
