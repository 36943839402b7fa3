"""Builds one self-contained HTML page with text, tables and plots, for screens, phones and paper.

The page's policy forbids every request: no script, font, picture or style from elsewhere. Every text from a table, a
log or a contract is escaped here. For a screen reader each table has a name and head cells, each section a heading, and
each scrolling box can be reached with the keyboard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, TypeAlias, assert_never

STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--ground:#fff;--rule:#d0d7de;--card:#f6f8fa;--warn:#8a4600;
--c0:#0072b2}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b1;--ground:#0d1117;--rule:#30363d;
--card:#161b22;--warn:#f0b072;--c0:#56b4e9}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem;max-width:72rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--ground)}
h1{font-size:1.6rem;margin:0 0 .3rem;overflow-wrap:anywhere}
h2{overflow-wrap:anywhere;font-size:1.2rem;margin:2rem 0 .5rem;border-top:1px solid var(--rule);
padding-top:1rem}
p{max-width:46rem;margin:.4rem 0;overflow-wrap:anywhere}.soft{color:var(--soft);font-size:.9rem}
.lead{font-size:1.1rem;background:var(--card);border-left:4px solid var(--c0);padding:.7rem 1rem;margin:1rem 0}
.warning{color:var(--warn);border-left:4px solid var(--warn);padding:.2rem .8rem;margin:.5rem 0}
.warning::before{content:"Warning: ";font-weight:600}
.plots{display:flex;flex-wrap:wrap;gap:1.2rem}figure{margin:0;flex:0 1 auto;max-width:100%}
figcaption{font-weight:600;margin:.3rem 0}img.plot{max-width:100%;height:auto;display:block;background:#fff}
.scroll{overflow-x:auto;max-width:100%}.scroll:focus-visible{outline:2px solid var(--c0)}
table{border-collapse:collapse;font-size:.9rem;margin:.6rem 0}caption{text-align:left;font-weight:600}
th,td{padding:.25rem .7rem;text-align:left;border-bottom:1px solid var(--rule);vertical-align:top;max-width:36rem}
tbody th{font-weight:400}.pairs th{font-weight:600;white-space:nowrap}.pairs td{overflow-wrap:anywhere;min-width:12rem}
td.number,tbody th.number{font-variant-numeric:tabular-nums;white-space:nowrap}td.number,th.number{text-align:right}
td ul{margin:0;padding-left:1.1rem}td:has(ul){min-width:15rem}
.figures td{white-space:nowrap;font-variant-numeric:tabular-nums}.figures tbody th{min-width:7rem}
.sign{width:100%}.sign td{height:3em;width:33%}
@media screen and (max-width:40rem){body{padding:.9rem}h1{font-size:1.35rem}.plots{gap:.8rem}
th,td{padding:.25rem .5rem}.pairs th{white-space:normal}}
a{color:var(--c0)}form{margin:.8rem 0}label{display:block;margin:.4rem 0}
input,select,button{font:inherit;max-width:100%;padding:.3rem .6rem}
@media print{body{max-width:none;padding:0;font-size:10.5pt}h2,section>p:first-of-type{break-after:avoid}
figure,tr,p{break-inside:avoid}.scroll{overflow:visible}@page{size:A4;margin:14mm}
.plots{gap:5mm}figure{width:86mm}img.plot{width:100%}table{font-size:8pt}
th,td{padding:.15rem .4rem}}
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


Cell: TypeAlias = str | float | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and its content, as markup from the functions of this module and of `plots`."""

    heading: str
    parts: Sequence[str]


def page(title: str, opening: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the whole HTML document.

    Args:
        opening: markup between the title and the first section.
        sections: sections without parts are not shown.
    """
    body = [f"<header><h1>{escape(title)}</h1>", *opening, "</header><main>"]
    for number, section in enumerate(sections):
        if section.parts:
            heading = f'<h2 id="h{number}">{escape(section.heading)}</h2>'
            body.append(f'<section aria-labelledby="h{number}">{heading}{"".join(section.parts)}</section>')
    body.append("</main>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def paragraph(text: str, style: str = "") -> str:
    """Return a paragraph of plain text. `style` is one of soft, lead, warning, or empty."""
    return f'<p class="{style}">{escape(text)}</p>' if style else f"<p>{escape(text)}</p>"


def table(name: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], *, style: str = "") -> str:
    """Return a table that scrolls in its own box on a narrow screen.

    Args:
        name: of the table, for a screen reader.
        head: of the columns, none of them empty.
        rows: the first cell is the head of its row. Numbers are aligned to the right with three digits after the point.
            None is a dash, and a tuple is a list.
    """
    titles = "".join(f'<th scope="col"{_right(rows, place)}>{escape(text)}</th>' for place, text in enumerate(head))
    lines = "".join(
        f"<tr>{''.join(_cell(one, is_head=not place) for place, one in enumerate(row))}</tr>" for row in rows
    )
    drawn = f' class="{style}"' if style else ""
    inside = f"<table{drawn}><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"
    return _scrolling(name, inside)


def pairs(name: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return an HTML table with a name and a text in each row, without a header."""
    lines = "".join(f'<tr><th scope="row">{escape(key)}</th><td>{escape(text)}</td></tr>' for key, text in rows)
    return _scrolling(name, f'<table class="pairs"><tbody>{lines}</tbody></table>')


def figure(caption: str, drawing: str) -> str:
    """Return a plot with its caption."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"


def figures(*drawn: str) -> str:
    """Return several plots, side by side if there is space."""
    return f'<div class="plots">{"".join(drawn)}</div>'


def _scrolling(name: str, inside: str) -> str:
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(name)}">{inside}</div>'


def _cell(value: Cell, *, is_head: bool) -> str:
    tag, scope = ("th", ' scope="row"') if is_head else ("td", "")
    match value:
        case str():
            return f"<{tag}{scope}>{escape(value)}</{tag}>"
        case tuple():
            return f"<{tag}{scope}><ul>{''.join(f'<li>{escape(text)}</li>' for text in value)}</ul></{tag}>"
        case None:
            text = "–"
        case int():
            text = str(value)
        case float():
            text = f"{value:.3f}"
        case _:
            assert_never(value)
    return f'<{tag}{scope} class="number">{text}</{tag}>'


def _right(rows: Sequence[Sequence[Cell]], place: int) -> str:
    cells = [row[place] for row in rows]
    is_number = any(isinstance(cell, int | float) for cell in cells)
    return ' class="number"' if is_number and not any(isinstance(cell, str | tuple) for cell in cells) else ""
