"""The reasons for which tests may be skipped; for any other it is a failure, so that nobody misses it."""

import re
from typing import Any

KNOWN = (
    # A package is not installed. Where one of the group `test` is absent, test_packaging.py fails.
    "could not import ", r"module '\w+' has __version__", r"[\w-]+ is not installed: ",
    "formats: icechunk and virtualizarr need Python 3.12",
    # A server or program is absent. The summary of a run names them; scripts of ci install them.
    ".* did not run: ", "there is no chromium here", "no GDAL here", "needs the program 'zip'",
    # Another library cannot do it, in any release or in the installed one.
    "(zarr-python|zarrs|tensorstore|GDAL) ", "older releases wrote base64 in whatever byte order",
    "the meanings are those of zarr-python 3.4",
    # A store does not promise it, as its conformance tests declare.
    "this store ",
    # The system lacks something, or the tests lack a right.
    "mounting a vfat image needs root", "a vfat image cannot be mounted here",
    "no file system can be mounted here", "only root has rights to give up",
    "making links needs a right there", "the file system of temporary files folds names",
    "this system has no locks of open files", "what Linux has is made less of",
    "other systems have no signal for the death of a parent",
    "the system does not tell which files are open", "this system does not tell the peak so",
    "a closed pipe is reported differently elsewhere",
    "process groups are interrupted as by a terminal only on POSIX",
    "what has no sign is in the order of the machine", "needs fork", "forks", "reads /proc",
    "this machine has no wider floats", "bash looks for its own version", "needs two cores",
    # A directory waits for the thread that cleans up, which is the one that runs the test.
    "it waits for the thread that cleans up",
)  # fmt: skip
_KNOWN = re.compile(f"(?:Skipped: )?(?:{'|'.join(KNOWN)})")


def fail_if_unknown(report: Any) -> None:
    """Make a report of pytest that a test or module was skipped a failure, unless the reason is known."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    path, line, reason = report.longrepr
    if "test_xarray_own.py" in report.nodeid:  # xarray's own tests, which say themselves what they skip
        return
    if _KNOWN.match(reason) is None:
        report.outcome = "failed"
        report.longrepr = (
            f"{path}:{line}: {reason}\nNo skip without a known reason: make it a test, leave the case out of "
            "the parameters, or add the reason to tests/_skips.py"
        )
