"""Objects that show themselves: one text for terminals and logs, and one HTML for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Description(str):
    """A text that notebooks show as HTML.

    It is a plain string in all other respects, and pickles as one.

    Parameters
    ----------
    text : str
    html : callable
        Returns the HTML, when a notebook asks for it.

    Examples
    --------
    >>> found = Description("2 chunks", lambda: "<b>2 chunks</b>")
    >>> found, found._repr_html_()
    (2 chunks, '<b>2 chunks</b>')
    """

    __slots__ = ("_html",)

    _html: Callable[[], str]

    def __new__(cls, text: str, html: Callable[[], str]) -> Description:
        made = super().__new__(cls, text)
        made._html = html
        return made

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[object, ...]:
        return str, (str(self),)

    def _repr_html_(self) -> str:
        return self._html()


class Shown:
    """Mixin of objects that describe themselves in notebooks and in IPython.

    Notebooks ask for text and HTML together. Both come from one description, so the object collects what is
    shown only once.
    """

    __slots__ = ()

    def _describe(self) -> Description:
        """The description of this object."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self._describe()._repr_html_()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        found = self._describe()
        return {"text/plain": str(found), "text/html": found._repr_html_()}
