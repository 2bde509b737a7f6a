"""Settings of Sphinx for the site, which ``bash ci/docs.sh`` builds.

Tables that only the code knows (what a format supports, the names of zarr-python, the help of commands) are
made anew by each build, in ``_made``, where pages include them.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import xzarr3

HERE = Path(__file__).resolve().parent
MADE = HERE / "_made"

project = "xzarr3"
author = "xzarr3 developers"
version = release = xzarr3.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
]
exclude_patterns = ["_made", "_templates", "**.ipynb_checkpoints"]
templates_path = ["_templates"]
default_role = "code"

autosummary_generate = True
_SAME = ("array", "group", "store")  # But for the case names of classes, and so of files.
autosummary_filename_map = {f"xzarr3.{name}": f"xzarr3.{name}-function" for name in _SAME}
autodoc_typehints = "none"  # Docstrings tell the types, in words.
autodoc_preserve_defaults = True
autodoc_member_order = "alphabetical"
numpydoc_show_class_members = False  # The template of a class lists them.
maximum_signature_line_length = 90

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # Outputs are stored; tests compare them with a new run.

html_theme = "pydata_sphinx_theme"
html_title = f"xzarr3 {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "logo": {"text": "xzarr3"},
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 5,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
html_sidebars: dict[str, list[str]] = {"index": []}
copyright = "xzarr3 developers, MIT license"

ELSEWHERE = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "xarray": "https://docs.xarray.dev/en/stable/",
    "dask": "https://docs.dask.org/en/stable/",
    "zarr": "https://zarr.readthedocs.io/en/stable/",
}
"""The sites that names of other packages lead to."""


def fetch_inventories(app: Any, config: Any) -> None:
    """Link to the sites whose lists of names can be fetched; without a network there are no such links."""
    folder = Path(app.doctreedir) / "inventories"
    folder.mkdir(parents=True, exist_ok=True)

    def fetch(item: tuple[str, str]) -> tuple[str, tuple[str, str]] | None:
        name, url = item
        try:
            with urllib.request.urlopen(f"{url}objects.inv", timeout=10) as answer:
                value = answer.read(2**24)
        except OSError:
            return None
        if not value.startswith(b"# Sphinx inventory version 2"):
            return None
        file = folder / f"{name}.inv"
        file.write_bytes(value)
        return name, (url, str(file))

    with ThreadPoolExecutor() as pool:
        config.intersphinx_mapping = dict(each for each in pool.map(fetch, ELSEWHERE.items()) if each)


def commands() -> str:
    """What each command says of itself."""
    import click

    from xzarr3.cli import commands as program

    top = click.Context(program, info_name="xzarr3", terminal_width=90, **program.context_settings)

    def text(title: str, context: click.Context) -> str:
        return f"## {title}\n\n```text\n{context.command.get_help(context)}\n```"

    texts = [text("xzarr3", top)]
    for name, command in sorted(program.commands.items()):
        texts.append(text(f"xzarr3 {name}", click.Context(command, info_name=name, parent=top)))
    return "\n\n".join(texts)


def make_tables(*_: Any) -> None:
    """Write what pages include, where it has changed."""
    sys.path.insert(0, str(HERE.parent / "ci"))
    tables = {name: importlib.import_module(f"{name}_table").table for name in ("support", "names")}
    MADE.mkdir(exist_ok=True)
    for name, make in {**tables, "commands": commands}.items():
        file, made = MADE / f"{name}.md", make()
        if not file.exists() or file.read_text("utf-8") != made:
            file.write_text(made, "utf-8")


def resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Find names as docstrings have them: without the module, or by the module that defines them."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target:
        return None
    domain = env.get_domain("py")
    words = target.removeprefix("xzarr3.").split(".")
    for at in range(len(words) if target.startswith("xzarr3.") else 1):
        ending = "." + ".".join(words[at:])
        found = sorted((name for name in domain.objects if name.endswith(ending)), key=len)
        if found:
            place = node.get("refdoc", env.docname), app.builder, node["reftype"]
            return domain.resolve_xref(env, *place, found[0], node, content)
    return None


@functools.cache
def texts() -> dict[str, str]:
    """The texts below what modules assign, by name."""
    found = {}
    for file in sorted((HERE.parent / "xzarr3").rglob("*.py")):
        for above, below in pairwise(ast.parse(file.read_text("utf-8")).body):
            target = above.targets[0] if isinstance(above, ast.Assign) else getattr(above, "target", None)
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(target, ast.Name):
                found[target.id] = inspect.cleandoc(str(text.value))
    return found


def describe(_app: Any, what: str, name: str, thing: Any, _options: Any, lines: list[str]) -> None:
    """Give a constant the text below it, where Python only knows that of its type."""
    text = texts().get(name.rpartition(".")[2])
    if what == "data" and text and inspect.getdoc(thing) in (None, inspect.getdoc(type(thing))):
        lines[:] = [*text.splitlines(), ""]


def leave_out(_app: Any, _what: str, _name: str, thing: Any, _skip: bool, _options: Any) -> bool | None:
    """Leave out names of zarr-python that only say what to use instead."""
    return True if type(thing).__name__ == "Absent" else None


def setup(app: Any) -> None:
    """Connect these functions."""
    app.connect("config-inited", fetch_inventories)
    app.connect("config-inited", make_tables)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", describe)
    app.connect("autodoc-skip-member", leave_out)
