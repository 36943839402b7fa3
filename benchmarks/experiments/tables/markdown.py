"""Writes the parts that all pages of results have: the source of the values, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.experiments.store import Cost, costs_beside, read_costs


def begin_page(title: str, table: str, path: Path) -> list[str]:
    """Return a page's first lines: title, command, date, libraries, and cost of the computation.

    Args:
        title: the title of the page.
        table: the command's argument.
        path: of the page; the costs stand beside it.
    """
    costs = read_costs(costs_beside(path))
    days = sorted({cost.day for cost in costs})
    libraries = "; ".join(dict.fromkeys(cost.libraries for cost in costs))
    when = f" on {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "") if days else ""
    lines = [f"# {title}", "", f"`python -m benchmarks.papers {table} --data FOLDER`{when}; {libraries or 'unknown'}."]
    seconds = sum(cost.processor_seconds for cost in costs)
    lines += [f"{seconds:,.0f} processor seconds in all, on one thread. Means over runs with 95% intervals (Student)."]
    return [*lines, "", f"![the same as a plot]({path.stem}.svg)", ""]


def seconds_for(costs: Iterable[Cost], variant: str) -> tuple[float, int]:
    """Return the processor seconds and the number of seeds that a variant has taken so far."""
    own = [cost for cost in costs if cost.variant == variant]
    return sum(cost.processor_seconds for cost in own), sum(cost.seeds for cost in own)


def table_lines(header: Iterable[str], body: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown, with an empty line at the end."""
    head = list(header)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in body), ""]


def write_page(path: Path, lines: Iterable[str]) -> None:
    """Write a page."""
    path.write_text("\n".join(lines).rstrip() + "\n")
