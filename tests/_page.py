"""Parses HTML with Python's parser: every tag closed in order, nothing but what our pages are made of."""

from html.parser import HTMLParser

from xzarr3.display import html

_TAGS = "div style span code details summary dl dt dd table thead tbody tr th td svg path rect text progress"
_ATTRIBUTES = "class open xmlns width height viewbox role fill stroke stroke-width d x y text-anchor"
TAGS, ATTRIBUTES = frozenset(_TAGS.split()), frozenset([*_ATTRIBUTES.split(), "fill-opacity", "max", "value"])


class Page(HTMLParser):
    """Reads a page; fails on a tag that is not closed, or that is none of ours."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self.texts: list[str] = []
        """All pieces of text, styles left out."""
        self.tags: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open, f"not closed: {self._open}"
        assert f"<style>{self.style}</style>" == html.style()

    style = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        assert {name for name, _ in attrs} <= ATTRIBUTES, attrs
        self.tags.append(tag)
        self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["style"]:
            self.style += data
        else:
            self.texts[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")

    @property
    def text(self) -> str:
        """All text, pieces separated by line ends."""
        return "\n".join(filter(None, self.texts))
