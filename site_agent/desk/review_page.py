"""The review as one HTML file to print and to sign: no script, no link, nothing that is fetched.

Whatever a plan says is text here: every word goes through `escape`, and the page forbids everything active.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from site_agent.desk.plan_review import Section, Table

_STYLE: Final = """
body { font: 11pt/1.4 serif; max-width: 54em; margin: 2em auto; padding: 0 1em; color: #111; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin: 1.6em 0 .3em; border-bottom: 1px solid #999; }
p { margin: .2em 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: .85em; margin: .5em 0; }
th, td { border: 1px solid #bbb; padding: .2em .4em; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
th { background: #eee; } tr { break-inside: avoid; }
.sign td { height: 3em; width: 33%; }
"""


def review_page(title: str, sections: Iterable[Section], *, signatures: int) -> str:
    """A complete document.

    Args:
        title: shown at the top.
        sections: as the terminal shows them.
        signatures: how many lines to sign on.
    """
    return "\n".join(_document(title, sections, signatures)) + "\n"


def _document(title: str, sections: Iterable[Section], signatures: int) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
    yield f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{escape(title)}</h1>"
    for section in sections:
        yield f"<h2>{escape(section.heading)}</h2>"
        yield from (f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
        if section.table is not None:
            yield from _table(section.table)
    yield "<h2>Signatures</h2>"
    yield from _table(Table(("name", "date", "signature"), (("", "", ""),) * signatures), kind=' class="sign"')
    yield "</body>\n</html>"


def _table(table: Table, kind: str = "") -> Iterator[str]:
    yield f"<table{kind}>"
    yield f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in table.head)}</tr>"
    for row in table.rows:
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    yield "</table>"
