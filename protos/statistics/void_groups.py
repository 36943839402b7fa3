"""Decides which groups of a table or of curves a site leaves out, because a cell of them has few rows.

A reader who knows a total, from another analysis of the plan or from another plan, subtracts the groups that are shown.
The rest is the sum of the groups that are not shown. So groups are left out together until no cell of their sum is
small, as if they were one group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def void_groups(rows: Sequence[int], is_small: Callable[[Sequence[int]], bool]) -> frozenset[int]:
    """Return the places of the groups to leave out, at least two if another group has rows.

    `rows` are those of each group, and `is_small` says whether some groups together have a small cell.
    """
    found = [place for place, number in enumerate(rows) if number and is_small([place])]
    others = sorted((place for place, number in enumerate(rows) if number and place not in found), key=rows.__getitem__)
    while found and others and (len(found) == 1 or is_small(found)):
        found.append(others.pop(0))
    return frozenset(found)
