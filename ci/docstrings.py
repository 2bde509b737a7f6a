"""Turns signatures and docstrings in numpydoc's form into Markdown, for ``ci/reference.py``."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Never

Resolve = Callable[[str], str | None]
"""From a name in a docstring to the address of its entry, None where it has none."""

WIDTH = 100
_SECTION = re.compile(r"^([A-Z][\w ]+)\n-{3,}\n", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|attr|data|mod|exc):`(~?)([\w.]+)`")
_ITEMS = {"Parameters", "Returns", "Raises", "Attributes", "Yields", "Warns", "Other Parameters"}


def signature(name: str, thing: Any, *, typed: bool) -> str:
    """The call of a function, class or method, on one line or with one parameter a line."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [
        each if typed else each.replace(annotation=each.empty)
        for each in found.parameters.values()
        # What only exists to name unknown arguments is no parameter.
        if each.annotation not in ("Never", Never)
    ]
    shown = list(_parameters([each for each in parameters if each.name != "self"]))
    result = found.return_annotation
    gives = "" if inspect.isclass(thing) or result is found.empty else f" -> {_words(result)}"
    line = f"{name}({', '.join(shown)}){gives}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){gives}"


def result(thing: Any) -> str:
    """What a property gives, as ``: type``; empty where nothing says so."""
    annotation = inspect.get_annotations(thing).get("return") if inspect.isroutine(thing) else None
    return "" if annotation is None else f": {_words(annotation)}"


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for at, each in enumerate(parameters):
        if each.kind is each.VAR_POSITIONAL:
            starred = True
        elif each.kind is each.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        mark = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = "" if each.default is each.empty else f" = {_shown(each.default)}"
        annotation = "" if each.annotation is each.empty else f": {_words(each.annotation)}"
        yield f"{mark}{each.name}{annotation}{default if annotation else default.replace(' ', '', 2)}"
        positional = each.kind is each.POSITIONAL_ONLY
        if positional and (at + 1 == len(parameters) or parameters[at + 1].kind is not each.kind):
            yield "/"


def _shown(value: Any) -> str:
    """A default; an object that has no readable form is three dots."""
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    return getattr(value, "__name__", "...") if text.startswith("<") else text


def _words(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.strip("'").replace("'", '"')


def has_parameters(text: str) -> bool:
    """Whether a docstring describes parameters."""
    return re.search(r"^Parameters\n-+$", text, re.MULTILINE) is not None


def markdown(text: str, resolve: Resolve) -> str:
    """A docstring as Markdown: sections, lists of parameters, examples, links."""
    first, *parts = _SECTION.split(text)
    blocks = [_prose(first, resolve)]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        content = _items(body, resolve) if title in _ITEMS else _prose(body, resolve)
        blocks.append(f"**{title}**\n\n{content}")
    return "\n\n".join(block for block in blocks if block).strip()


def _prose(text: str, resolve: Resolve) -> str:
    """Paragraphs, and examples in fences."""
    blocks = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        cut = textwrap.dedent(paragraph)
        before, prompt, example = cut.partition(">>> ")
        if before.strip():
            blocks.append(_inline(before.rstrip(), resolve))
        if prompt:
            blocks.append(f"```pycon\n>>> {example}\n```")
    return "\n\n".join(blocks).replace("\n```\n\n```pycon\n", "\n")


def _items(text: str, resolve: Resolve) -> str:
    """The items of a section: a name or type a line, with its indented text below."""
    found: list[tuple[str, list[str]]] = []
    for line in text.strip("\n").splitlines():
        if line and not line.startswith(" "):
            found.append((line, []))
        elif found:
            found[-1][1].append(line)
    lines = []
    for head, body in found:
        names, colon, kind = head.partition(" : ")
        named = ", ".join(f"`{name.strip()}`" for name in names.split(","))
        shown = named if colon else _inline(head, resolve)
        shown += f" ({_inline(kind, resolve)})" if kind else ""
        told = _prose(textwrap.dedent("\n".join(body)), resolve)
        lines.append(f"- {shown}" + (f": {textwrap.indent(told, '  ').lstrip()}" if told else ""))
    return "\n".join(lines)


def _inline(text: str, resolve: Resolve) -> str:
    """Roles as links, literals as code."""

    def linked(match: re.Match[str]) -> str:
        short, name = match.groups()
        shown = name.rsplit(".", 1)[-1] if short else name
        where = resolve(name)
        return f"[`{shown}`]({where})" if where else f"`{shown}`"

    parts = re.split(r"(``.+?``)", text, flags=re.DOTALL)
    kept = (
        f"`{part[2:-2]}`" if part.startswith("``") else _ROLE.sub(linked, part).replace("<", "&lt;")
        for part in parts
    )
    return "".join(kept)
