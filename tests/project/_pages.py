"""The pages of the documentation: their blocks of code, their headings and their links."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "notebooks"
FORGE = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / ".github").glob("*.md"))]
"""Pages that are read on the forge. Sphinx checks the links of the others."""

_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^)\s]+)\)")


def pages() -> dict[str, str]:
    """The texts of README and of the pages of the site, by their paths without the suffix."""
    made = {SITE / "_made", SITE / "api" / "generated"}
    found = [each for each in sorted(SITE.rglob("*.md")) if not made & set(each.parents)]
    names = {each: each.relative_to(SITE).with_suffix("").as_posix() for each in found}
    return {each.stem: each.read_text("utf-8") for each in FORGE} | {
        name: each.read_text("utf-8") for each, name in names.items()
    }


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks: language and text of each."""
    return [(match[2].strip(), match[3]) for match in _FENCE.finditer(text)]


def slug(heading: str) -> str:
    """The anchor that a heading has, as GitHub makes it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a page; a heading that is there again has a number."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} (.+)$", _FENCE.sub("", text), re.MULTILINE):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def links(text: str) -> list[str]:
    """The addresses of all links and pictures outside fences and code."""
    bare = re.sub(r"(?<!`)`[^`\n]+`(?!`)", "code", _FENCE.sub("", text))
    return _LINK.findall(bare) + re.findall(r'(?:src|href)="([^"]+)"', bare)


def dead(page: Path) -> list[str]:
    """The links of a page that lead to no file or no heading."""
    wrong = []
    for link in links(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            wrong.append(f"{link}: no file {name}")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")):
            wrong.append(f"{link}: no heading for #{anchor} in {target.name}")
    return wrong
