"""Builds a page that updates itself, for people on this computer: style, refresh script and curves.

The page's policy forbids fonts, pictures, styles and scripts from elsewhere. The script replaces each section that has
changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from html import escape
from typing import Final, TypeAlias

from host.http_answers import Page, answer, is_asked_here, source_digest, text

REFRESH_SECONDS: Final = 2
_HTML: Final = "text/html; charset=utf-8"
Points: TypeAlias = Sequence[tuple[int, float]]  # round and value
_MOST_DOTS: Final = 40
# The size of a curve's drawing and of its margins, in its own units.
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640.0, 200.0, 76.0, 24.0, 10.0, 12.0
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--ground:#fff;--card:#f6f8fa;--rule:#d0d7de;--line:#0072b2;
--other:#b34700;--good:#116329;--bad:#a40e26}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b1;--ground:#0d1117;--card:#161b22;--rule:#30363d;
--line:#56b4e9;--other:#f0883e;--good:#56d364;--bad:#ff9492}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:68rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--ground)}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:0 0 .4rem}p{margin:.3rem 0}
.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}
section{background:var(--card);border:1px solid var(--rule);border-radius:.5rem;padding:.8rem 1rem;margin:.8rem 0}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.95rem}
caption{text-align:left;color:var(--soft);padding-bottom:.3rem}
th,td{padding:.3rem .8rem .3rem 0;text-align:left;border-bottom:1px solid var(--rule);white-space:nowrap}
td.number+td,th.number+td,th.number+th:not(.number){padding-left:1.2rem}
th{font-weight:600}td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.6rem 1rem;margin:0}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-size:1.1rem;overflow-wrap:anywhere}
progress{width:100%;height:.8rem;accent-color:var(--line)}
svg{width:100%;max-width:46rem;height:auto;display:block}svg text{fill:var(--soft);font:13px system-ui,sans-serif}
@media(max-width:40rem){svg text{font-size:20px}}
.curve{fill:none;stroke:var(--line);stroke-width:2}.curve.second{stroke:var(--other);stroke-dasharray:6 4}
.best,.point{fill:var(--line)}.point.second{fill:var(--other)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.85rem;color:var(--soft);margin:.2rem 0 0}
.key::before{content:"";display:inline-block;width:1.8em;border-top:3px solid var(--line);margin-right:.4em;
vertical-align:middle}.key.second::before{border-top:3px dashed var(--other)}
.axis{stroke:var(--rule);fill:none}
"""
_SCRIPT: Final = """
"use strict";
const live=document.getElementById("live");
function say(words,kind){if(live.textContent!==words){live.textContent=words;live.className=kind}}
async function look(){
 try{
  const answer=await fetch("main",{cache:"no-store"});
  if(!answer.ok)throw new Error(answer.status);
  const fresh=document.createElement("template");fresh.innerHTML=await answer.text();
  const main=document.querySelector("main");
  const names=list=>[...list].map(part=>part.id).join();
  if(names(main.children)!==names(fresh.content.children))main.replaceChildren(fresh.content);
  else for(const part of [...fresh.content.children]){
   const old=document.getElementById(part.id);
   if(!old.isEqualNode(part))old.replaceWith(part);
  }
  say("Live","good");
 }catch(error){say("Not live: the program that serves this page does not answer.","bad")}
 setTimeout(look,REFRESH);
}
setTimeout(look,REFRESH);
"""


async def live_answer(request: bytes, title: str, main: Callable[[], Awaitable[str]]) -> bytes:
    """Return the whole response to a request: the page, its live part at /main, and /health.

    Args:
        request: the received request. If it names another host, it gets no page (see is_asked_here).
        title: plain text.
        main: a function that returns the live part, as escaped HTML. It is called only if the part is shown.
    """
    if not is_asked_here(request):
        return answer(b"", {})
    live = await main() if request.split(b" ", 2)[1:2] in ([b"/"], [b"/main"]) else ""
    return answer(
        request,
        {
            "/": lambda: Page(200, _HTML, document(title, live)),
            "/main": lambda: Page(200, _HTML, live.encode()),
            "/health": lambda: text(200, "The program serves this page."),
        },
    )


def document(title: str, main: str) -> bytes:
    """Return the page with a plain title and sections, each with an `id`, as escaped HTML."""
    script = _SCRIPT.replace("REFRESH", str(REFRESH_SECONDS * 1000))
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src '{source_digest(_STYLE)}'; "
        f"script-src '{source_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>"
        '<p id="live" role="status" class="soft">As of the time it was loaded</p></header>'
        f"<main>{main}</main><script>{script}</script></body></html>"
    )
    return text.encode()


def curve(points: Points, *, what: str) -> str:
    """Draw a curve over rounds as SVG, with its lowest point marked. `what` describes it. Empty without points."""
    return curves({"": points}, what=what, lowest_is_best=True)


def curves(lines: Mapping[str, Points], *, what: str, lowest_is_best: bool) -> str:
    """Draw one or two curves over the same rounds as SVG, with a legend and the best point of the first curve.

    A line has round and value, in the order of rounds. Few points have dots. A line without points is not drawn, and
    without a line the markup is empty. `what` is a description in words.
    """
    drawn = [(name, points) for name, points in lines.items() if points]
    if not drawn:
        return ""
    first = min(points[0][0] for _, points in drawn)
    last = max(points[-1][0] for _, points in drawn)
    values = [value for _, points in drawn for _, value in points]
    low, high = min(values), max(values)
    if low == high:  # a single height is in the middle
        low, high = low - (0.1 * abs(low) or 1.0), high + (0.1 * abs(high) or 1.0)
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(point: tuple[int, float]) -> tuple[float, float]:
        number, value = point
        down = tall * (high - value) / (high - low)
        return _LEFT + wide * (number - first) / max(1, last - first), _TOP + down

    parts, words = [], []
    for (name, points), style in zip(drawn, ("", " second"), strict=False):
        best = (min if lowest_is_best else max)(points, key=lambda point: point[1])
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, points))
        parts.append(f'<polyline class="curve{style}" points="{line}"/>')
        shown = points if len(points) <= _MOST_DOTS else []
        parts += [f'<circle class="point{style}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in map(place, shown)]
        if not style:
            x, y = place(best)
            parts.append(f'<circle class="best" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        words.append(f"{f'{what}, {name}' if name else what}: {_in_words(points, best, lowest_is_best)}")
    axes = _axes((low, high), (first, last))
    names = [name for name, _ in drawn if name]
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(" ".join(words))}">'
        f"{axes}{''.join(parts)}</svg>{_legend(names)}"
    )


def _in_words(points: Points, best: tuple[int, float], lowest_is_best: bool) -> str:
    if len(points) == 1:
        return f"{best[1]:.4g} after round {best[0]}."
    first, last, kind = points[0], points[-1], "lowest" if lowest_is_best else "highest"
    return (
        f"from {first[1]:.4g} after round {first[0]} to {last[1]:.4g} after round {last[0]}; "
        f"{kind} {best[1]:.4g} after round {best[0]}."
    )


def _axes(values: tuple[float, float], rounds: tuple[int, int]) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    last = f'<text x="{right:g}" y="{_HEIGHT - 6:g}" text-anchor="end">after round {rounds[1]}</text>'
    last = last if rounds[1] > rounds[0] else ""
    return (
        f'<path class="axis" d="M{_LEFT:g} {_TOP:g}V{bottom:g}H{right:g}"/>'
        f'<text x="{_LEFT - 6:g}" y="{_TOP + 10:g}" text-anchor="end">{values[1]:.3g}</text>'
        f'<text x="{_LEFT - 6:g}" y="{bottom:g}" text-anchor="end">{values[0]:.3g}</text>'
        f'<text x="{_LEFT:g}" y="{_HEIGHT - 6:g}">after round {rounds[0]}</text>{last}'
    )


def _legend(names: Sequence[str]) -> str:
    if not names:
        return ""
    styled = zip(names, ("first", "second"), strict=False)
    keys = (f'<span class="key {style}">{escape(name)}</span>' for name, style in styled)
    return f'<p class="legend">{"".join(keys)}</p>'
