"""Makes ``ci/pictures/array.png``, the picture of an array in README.md: what a notebook shows of it.

.venv-test/bin/python ci/pictures.py    (needs chromium: bash ci/browser.sh)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import xzarr3

PICTURE = Path(__file__).parent / "pictures" / "array.png"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

SST: dict[str, Any] = {
    "shape": (300, 180, 360),
    "chunks": (10, 45, 90),
    "shards": (100, 90, 180),
    "dtype": "float32",
    "fill_value": np.nan,
    "dimension_names": ("time", "lat", "lon"),
}
"""The layout of the array, which tests of what is shown use, too."""


def array(folder: Path) -> xzarr3.Array:
    """The array of the picture; a third of it is stored."""
    attributes = {"units": "degC", "long_name": "sea surface temperature"}
    sst = xzarr3.create_array(folder / "ocean.zarr", "surface/sst", **SST, attributes=attributes)
    sst[:100] = np.random.default_rng(0).normal(15, 5, (100, 180, 360)).round(1)
    sst.info_complete()
    return sst


def main() -> None:
    """Make the picture."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        sys.exit("there is no chromium here; bash ci/browser.sh installs it")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        page = folder / "page.html"
        shown = array(Path("."))._repr_html_().replace(name, "/data")
        page.write_text(f'<meta charset="utf-8"><body style="margin:6px">{shown}', "utf-8")
        as_root = ["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []
        command = [
            browser, "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", *as_root,
            "--blink-settings=preferredColorScheme=1", f"--user-data-dir={folder / 'profile'}",
            "--window-size=820,306", f"--screenshot={PICTURE}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
