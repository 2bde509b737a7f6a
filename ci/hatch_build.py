"""Compiles ``xzarr3/io/_native.c``: the build hook of hatchling, and a command for a checkout.

    python ci/hatch_build.py            compiles it into the checkout, after a change of the file
    python ci/hatch_build.py --check    compiles it to CHECKED, with sanitizers and with warnings as errors

The compiler is the ``cc`` that is there (``CC`` names another one), or else that of the package ziglang.
Without either, xzarr3 is installed all the same, and Python does all work: ``xzarr3.show_versions()`` tells.
``XZARR3_TARGET`` names one of TAGS, such as ``aarch64-linux-gnu.2.17``, to make the wheel of that platform
with ziglang; ``any`` makes one without native code, and needs neither compiler nor ziglang.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # Run as a command in an environment without hatchling.
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "xzarr3" / "io" / "_native.c"
LIBRARY = SOURCE.with_suffix(".so.1")
CHECKED = ROOT / "build" / "checked" / LIBRARY.name
FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-pthread")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
STRICT = ("-Wall", "-Wextra", "-Werror", "-g", *SANITIZERS)
TAGS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64",
    "x86_64-linux-musl": "musllinux_1_1_x86_64",
    "aarch64-linux-musl": "musllinux_1_1_aarch64",
    "x86_64-macos.11.0": "macosx_11_0_x86_64",
    "aarch64-macos.11.0": "macosx_11_0_arm64",
}
"""The targets of zig for which wheels are made, and the platforms of these wheels."""
ZIG = (
    "ziglang; (sys_platform == 'linux' and platform_machine in 'x86_64 aarch64') "
    "or (sys_platform == 'darwin' and platform_machine in 'x86_64 arm64')"
)


def system_compiler() -> list[str]:
    """The command of a C compiler that works here; empty if there is none."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        command = shlex.split(name)
        if command and shutil.which(command[0]) and _works(command):
            return command
    return []


def _works(command: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "try.c"
        source.write_text(
            "#include <pthread.h>\n#include <stdint.h>\nint64_t one(void) { return 1; }\n", "ascii"
        )
        return _run([*command, *FLAGS, source.name, "-o", LIBRARY.name], folder)


def _run(command: list[str], folder: str) -> bool:
    environment = {"ZIG_GLOBAL_CACHE_DIR": folder, **os.environ}  # An installation leaves no cache behind.
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(shlex.join(command), done.stderr, sep="\n", file=sys.stderr)
    return done.returncode == 0


def compile_to(library: Path, *flags: str, target: str = "") -> bool:
    """Compile the source to a shared library; returns whether that worked."""
    command = [] if target else system_compiler()
    if not command and importlib.util.find_spec("ziglang") is not None:
        # By default zig makes code for the very processor here, which another machine may lack.
        machine = ("-target", target) if target else ("-mcpu=baseline",)
        command = [sys.executable, "-m", "ziglang", "cc", "-s", *machine]
    if not command:
        return False
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{library.name}-", dir=library.parent) as folder:
            # The name of the output has no path, as systems such as macOS note it in the library.
            if not _run([*command, *FLAGS, *flags, str(SOURCE), "-o", library.name], folder):
                return False
            # Not written in place, as a process may have the old one loaded.
            Path(folder, library.name).replace(library)
    except OSError as error:  # A checkout that only others may write.
        print(error, file=sys.stderr)
        return False
    return True


def platform_tag(target: str = "") -> str:
    """The platform of a wheel whose library was made for a target, or by the compiler of this system."""
    if target:
        return TAGS[target]
    if sys.platform == "darwin":  # Python may be made for older systems and other processors as well.
        from packaging.tags import platform_tags  # A dependency of hatchling.

        return next(iter(platform_tags()))
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library of native rows to a wheel, or puts it into the checkout of an editable install."""

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling."""
        target = os.environ.get("XZARR3_TARGET", "")
        if self.target_name != "wheel" or target == "any":
            return []
        return ["ziglang"] if target else [] if system_compiler() else [ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the files of the wheel are collected."""
        target = os.environ.get("XZARR3_TARGET", "")
        if self.target_name != "wheel" or target == "any":
            return
        if target and target not in TAGS:
            raise ValueError(f"XZARR3_TARGET is {target!r}; accepted: {', '.join(TAGS)}, any")
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        library = LIBRARY if version == "editable" else Path(folder) / LIBRARY.name
        if not compile_to(library, target=target):
            if target:
                raise RuntimeError(f"cannot compile {SOURCE} for {target}")
            self.app.display_warning("xzarr3 is installed without native code: no C compiler works here")
            return
        if version != "editable":
            build_data["force_include"][str(library)] = LIBRARY.relative_to(ROOT).as_posix()
        build_data |= {"pure_python": False, "tag": f"py3-none-{platform_tag(target)}"}


if __name__ == "__main__":
    is_check = "--check" in sys.argv[1:]
    sys.exit(not compile_to(CHECKED if is_check else LIBRARY, *(STRICT if is_check else ())))
