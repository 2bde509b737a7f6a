"""The pages of the documentation: their parts that scripts make, their headings and their links."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
REFERENCE = ROOT / "notebooks" / "reference"

_PART = re.compile(
    r"(<!-- Made by ci/reference\.py: (\w[\w-]*)((?:(?!-->).)*)-->\n).*?"
    r"(<!-- End of what ci/reference\.py makes -->\n)",
    re.DOTALL,
)
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^)\s]+)\)")

Make = Callable[[list[str]], str]
"""From the words of a marker to the Markdown of its part."""


def pages() -> list[Path]:
    """README and the pages of the reference."""
    return [README, *sorted(REFERENCE.glob("*.md"))]


def parts(text: str) -> list[tuple[str, list[str]]]:
    """The parts of a page that the script makes: kind and words of each."""
    return [(match[2], match[3].split()) for match in _PART.finditer(text)]


def filled(text: str, makers: dict[str, Make]) -> str:
    """A page with its parts made anew; parts of other kinds stay as they are."""

    def part(match: re.Match[str]) -> str:
        if match[2] not in makers:
            return match[0]
        return f"{match[1]}\n{makers[match[2]](match[3].split()).strip()}\n\n{match[4]}"

    return _PART.sub(part, text)


def by_hand(text: str) -> str:
    """A page without the parts that the script makes."""
    return _PART.sub("", text)


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
