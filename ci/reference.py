"""The parts of the reference in notebooks/reference that are made from the code.

    python ci/reference.py            prints what is wrong: stale parts, dead links, names without an entry
    python ci/reference.py --write    brings the parts up to date first

A page is written by hand, but for its parts between ``<!-- Made by ci/reference.py: KIND WORDS -->`` and
``<!-- End of what ci/reference.py makes -->``. The words of a part ``api`` are the public names that the page
describes, with their signatures and docstrings; ``xzarr3.codecs.*`` stands for all names of a module that no
page names. So the pages say where a name is, and the part ``names`` is the index of them.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import layers
import names_table
import support_table
from docstrings import has_parameters, markdown, result, signature
from pages import REFERENCE, ROOT, Make, dead, filled, pages, parts, slug

from xzarr3.options import Config

PACKAGE = "xzarr3"
PUBLIC = (
    PACKAGE,
    *(f"{PACKAGE}.{name}" for name in ("stores", "codecs", "dtypes", "checks", "differences", "advice")),
)
"""The modules whose ``__all__`` is public, the one to import from first."""


@dataclass(frozen=True)
class Entry:
    """One public name with its place in the reference."""

    name: str
    """As one writes it after the import of its module, such as ``xzarr3.Array.append``."""
    thing: Any
    page: str
    owner: str | None = None
    """The class that has it, if it is a member."""

    @property
    def heading(self) -> str:
        return self.name.rpartition(".")[2] if self.owner is None else ".".join(self.name.split(".")[-2:])

    @property
    def address(self) -> str:
        return f"{self.page}#{slug(self.heading)}"

    @property
    def is_constant(self) -> bool:
        """Whether it is a value, or an alias of a type."""
        if self.thing is Any:
            return True
        own = inspect.isclass(self.thing) or inspect.isroutine(self.thing) or self.owner is not None
        return not own and not isinstance(self.thing, Config)

    @property
    def text(self) -> str:
        """The docstring, or the text below a constant; empty where another package or Python made it."""
        if self.is_constant:
            return assignments().get(self.heading, ("", ""))[1]
        thing = inspect.unwrap(self.thing) if callable(self.thing) else self.thing
        module = getattr(thing, "__module__", None) or getattr(getattr(thing, "fget", None), "__module__", "")
        text = inspect.getdoc(thing) or ""
        ours = (module or PACKAGE).startswith(PACKAGE)
        return text if ours and not text.startswith(f"{getattr(thing, '__name__', '')}(") else ""


def look_up(name: str) -> Any:
    """The object of a full name."""
    found: Any = importlib.import_module(PACKAGE)
    at = PACKAGE
    for word in name.split(".")[1:]:
        at += f".{word}"
        try:
            found = getattr(found, word)
        except AttributeError:
            found = importlib.import_module(at)
    return found


def public() -> dict[str, Any]:
    """The public names of the modules; what several modules have is under the first of them."""
    found: dict[str, Any] = {}
    known: set[tuple[str, int]] = set()
    for module in PUBLIC:
        there = importlib.import_module(module)
        for name in sorted(each for each in there.__all__ if each[0] != "_"):
            thing = getattr(there, name)
            if (name, id(thing)) not in known:
                known.add((name, id(thing)))
                found[f"{module}.{name}"] = thing
    return found


def members(thing: type) -> dict[str, Any]:
    """The public members of a class that the public classes it extends do not have."""
    classes = {each for each in public().values() if inspect.isclass(each)} - {thing}
    above = {name for base in thing.__mro__[1:] if base in classes for name in dir(base)}
    found = {}
    for name in sorted(dir(thing)):
        member = inspect.getattr_static(thing, name)
        if name.startswith("_") or name in above or type(member).__name__ == "Absent":
            continue
        own = [base for base in thing.__mro__ if name in vars(base)]
        is_property = isinstance(member, (property, functools.cached_property))
        is_method = is_property or inspect.isroutine(getattr(thing, name, None))
        if own[0].__module__.startswith(PACKAGE) and is_method:
            found[name] = member
    return found


@functools.cache
def asked() -> list[tuple[str, str]]:
    """The words of all ``api`` parts, each with its page."""
    return [
        (page.name, word)
        for page in pages()
        for kind, words in parts(page.read_text("utf-8"))
        if kind == "api"
        for word in words
    ]


@functools.cache
def entries() -> dict[str, Entry]:
    """Every entry of the reference by its full name, in the order of the pages."""
    named = {word for _, word in asked()}
    found: dict[str, Entry] = {}
    for page, word in asked():
        chosen = [word]
        if word.endswith(".*"):
            chosen = [n for n in public() if n.rpartition(".")[0] == word[:-2] and n not in named]
        for name in chosen:
            thing = look_up(name)
            found[name] = Entry(name, thing, page)
            shown = Config if isinstance(thing, Config) else thing
            if inspect.isclass(shown):
                for member, value in members(shown).items():
                    found[f"{name}.{member}"] = Entry(f"{name}.{member}", value, page, name)
    return found


def missing() -> list[str]:
    """Public names without an entry, and names that have two."""
    words = [word for _, word in asked()]
    twice = {word for word in words if words.count(word) > 1}
    return [f"{name} is on no page" for name in public() if name not in entries()] + [
        f"{name} is there twice" for name in sorted(twice)
    ]


def address(name: str, entry: Entry) -> str | None:
    """Where a name of a docstring is described, seen from the page of an entry."""
    owner = entry.owner or entry.name
    near = [name, f"{PACKAGE}.{name}", f"{owner}.{name}", *(f"{module}.{name}" for module in PUBLIC)]
    for each in near:
        if (there := entries().get(each)) is not None:
            return there.address.removeprefix(entry.page)
    same = [each for each in entries().values() if each.name.rpartition(".")[2] == name.rpartition(".")[2]]
    if "." in name and len(same) == 1 and same[0].owner is None:  # A name by the module that defines it.
        return same[0].address.removeprefix(entry.page)
    return None


@functools.cache
def assignments() -> dict[str, tuple[str, str]]:
    """What modules assign: by name the code and the text below it."""
    found: dict[str, tuple[str, str]] = {}
    for path in layers.modules().values():
        body = ast.parse(path.read_text("utf-8")).body
        for at, node in enumerate(body):
            target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
                after = body[at + 1] if at + 1 < len(body) else None
                text = ""
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    text = inspect.cleandoc(str(after.value.value))
                if target.id not in found or text:
                    found[target.id] = (ast.unparse(node.value), text)
    return found


def call(entry: Entry) -> str:
    """How one writes the name: the signature, or the value of a constant."""
    thing, text = entry.thing, entry.text
    name = entry.name if entry.owner is None else entry.heading
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__get__(None, look_up(entry.owner))
    if not entry.is_constant and (inspect.isclass(thing) or inspect.isroutine(thing)):
        typed = not has_parameters(text)
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            return f"class {name}({', '.join(base.__name__ for base in thing.__bases__)})"
        return ("class " if inspect.isclass(thing) else "") + signature(name, thing, typed=typed)
    if entry.owner is not None:
        return name + result(getattr(thing, "fget", None) or getattr(thing, "func", None))
    if isinstance(thing, dict):
        return f"{name} = {{\n" + "".join(f"    {key!r}: {value!r},\n" for key, value in thing.items()) + "}"
    code, _ = assignments().get(entry.heading, ("", ""))
    return f"{name} = {code}" if entry.is_constant and code and code != "Any" else name


def described(entry: Entry) -> str:
    """An entry: heading, signature, docstring."""
    level = "###" if entry.owner is None else "####"
    shown = markdown(entry.text, lambda name: address(name, entry))
    return f"{level} {entry.heading}\n\n```python\n{call(entry)}\n```\n\n{shown}".strip()


def api(words: list[str]) -> str:
    """The entries of names, each class with its members."""
    others = {word for _, word in asked()}
    found = []
    for name, entry in entries().items():
        top = entry.owner or name
        if top in words or (f"{top.rpartition('.')[0]}.*" in words and top not in others):
            found.append(described(entry))
    return "\n\n".join(found)


def names(_: list[str]) -> str:
    """The index: every name, sorted, with the first sentence about it."""
    lines = ["| Name | In one sentence |", "|---|---|"]
    for entry in sorted(entries().values(), key=lambda each: (each.heading.lower(), each.name)):
        first = " ".join(entry.text.partition("\n\n")[0].split())
        sentence = markdown(re.split(r"(?<=\.) (?=[A-Z])", first)[0], lambda _: None).replace("|", "\\|")
        lines.append(f"| [`{entry.heading}`]({entry.address}) | {sentence} |")
    return "\n".join(lines)


def command_line(_: list[str]) -> str:
    """What each command says of itself."""
    texts = []
    for command in ([], *([name] for name in commands())):
        title = " ".join(["xzarr3", *command])
        texts.append(f"## {title}\n\n```text\n{help_of(command)}\n```")
    return "\n\n".join(texts)


def help_of(command: list[str]) -> str:
    """The help of a command, of a fixed width and without colours."""
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", PACKAGE, *command, "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def commands() -> list[str]:
    """The names of the commands, as the help of the program lists them."""
    return list(dict.fromkeys(re.findall(r"^ {2,4}([a-z]+) {2,}\S", help_of([]), re.MULTILINE)))


MAKERS: dict[str, Make] = {
    "api": api,
    "names": names,
    "layers": lambda _: layers.table(),
    "zarr-python": lambda _: names_table.table(),
    "support": lambda _: support_table.table(),
    "command-line": command_line,
}


def stale(makers: dict[str, Make] | None = None) -> list[str]:
    """The pages whose made parts are not those that the code gives now."""
    found = {page: page.read_text("utf-8") for page in pages()}
    return [page.name for page, text in found.items() if filled(text, makers or MAKERS) != text]


def write() -> None:
    """Bring all parts up to date."""
    for page in pages():
        text = page.read_text("utf-8")
        if (made := filled(text, MAKERS)) != text:
            page.write_text(made, "utf-8")


def main() -> int:
    """Check, or write and check."""
    parser = argparse.ArgumentParser(description="Make the reference from the code.")
    parser.add_argument("--write", action="store_true", help="bring the pages up to date first")
    if parser.parse_args().write:
        write()
    wrong = [f"stale: {name}; run: python ci/reference.py --write" for name in stale()] + missing()
    wrong += [f"{page.name}: {each}" for page in pages() for each in dead(page)]
    print("\n".join(wrong) or f"{len(entries())} names on {len(list(REFERENCE.glob('*.md')))} pages")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
