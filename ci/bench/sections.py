"""The sections of RESULTS.md that runs of their own make, each between two marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from peers import Library
from report import Figures, conditions, failures, filled, markdown
from run import Bench
from timing import Figure

BEGIN = "<!-- Made by ci/bench: {} -->\n"
END = "<!-- End of what ci/bench makes: {} -->\n"

Rows: TypeAlias = Callable[[Bench], Iterator[Figure]]
Table: TypeAlias = list[list[str]]


@dataclass(frozen=True)
class Section:
    """What `--only NAME` measures, and how its section of RESULTS.md shows it.

    Attributes
    ----------
    name, heading : str
        The word after `--only`, and the heading of the section.
    libraries : tuple of type
        The libraries compared.
    size_mib : int
        Size of the field in MiB, unless `--mib` gives another one.
    rows : callable
        From the numbers of threads to what measures the rows.
    tables : callable
        From the run, its figures and the labels of its libraries to the tables, each with its header first.
    explanation : str
        What is measured and how, in paragraphs.
    least_cores : int
        Number of cores without which nothing can be measured.
    """

    name: str
    heading: str
    libraries: tuple[type[Library], ...]
    size_mib: int
    rows: Callable[[Sequence[int]], Sequence[Rows]]
    tables: Callable[[Bench, Figures, Sequence[str]], list[Table]]
    explanation: str
    least_cores: int = 1

    def text(
        self,
        bench: Bench,
        figures: Figures,
        absent: dict[str, str],
        seconds: float,
        loads: Sequence[float],
    ) -> str:
        """Return the section in Markdown; the parameters are those of `report.page`."""
        labels = [library.label for library in bench.libraries]
        failed = failures(figures)
        parts = [
            f"## {self.heading}",
            f"Written by `bash ci/bench.sh --only {self.name}`; every figure of this section was computed in "
            "that run.",
            markdown(conditions(bench, figures, absent, seconds, loads), words=True),
            filled(self.explanation),
            *(markdown(table) for table in self.tables(bench, figures, labels)),
            *(["### Failed here", "\n".join(failed)] if failed else []),
        ]
        return "\n\n".join(parts)

    def put(self, page: str, text: str) -> str:
        """Return `page` with `text` in the place of the section, or at the end if it has none."""
        begin, end = BEGIN.format(self.name), END.format(self.name)
        before, marked, rest = page.partition(begin)
        after = rest.partition(end)[2]
        if not marked and before:
            before = before.rstrip("\n") + "\n\n"
        return f"{before}{begin}\n{text}\n\n{end}{after}"

    def carry(self, old: str, new: str) -> str:
        """Return the page `new` with the section of the page `old`, if that has one."""
        _, marked, rest = old.partition(BEGIN.format(self.name))
        text = rest.partition(END.format(self.name))[0].strip("\n")
        return self.put(new, text) if marked else new
