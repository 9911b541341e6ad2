"""Parts of an HTML page that is complete in itself: pictures embedded, nothing fetched, light or dark."""

import base64
from collections.abc import Iterable
from html import escape

# Figures are drawn for a light page. On a dark one they are turned inside out, all colours but for their hue, and
# black, where they were white, lets the page's ground through.
STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #667085; --ground: #ffffff; --card: #f4f6f9;
  --line: #dde2ea; --main: #2563c9; --accent: #d4691e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --soft: #98a2b3; --ground: #161a21; --card: #1f252f;
  --line: #313a48; --main: #7fb0ff; --accent: #ffab66; }
  .chart { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen; } }
html { background: var(--ground); }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.7rem; } h2 { margin: 2.8rem 0 .4rem; font-size: 1.2rem; }
p { margin: .4rem 0 .9rem; max-width: 46rem; } .soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .7rem;
  margin: 1.4rem 0; }
.card { background: var(--card); border-radius: .6rem; padding: .8rem 1rem; }
.card b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; color: var(--main); }
.card span { color: var(--soft); font-size: .82rem; line-height: 1.3; display: block; }
img { max-width: 100%; height: auto; } .wide { overflow-x: auto; overflow-y: hidden; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.4rem, 1fr)); gap: .9rem .7rem; }
figure { margin: 0; font-size: .78rem; line-height: 1.35; text-align: center; } figure img { width: 100%; }
.wrong { color: var(--accent); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .28rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); } td:first-child, th:first-child { text-align: left; }
.confusion td { text-align: center; min-width: 1.9rem; } .confusion th { text-align: center; }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """The whole page around its parts."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def section(title: str, text: str, *content: str) -> str:
    paragraph = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{paragraph}{''.join(content)}</section>"


def cards(values: Iterable[tuple[str, str]]) -> str:
    """Large numbers, each below it what it is."""
    body = (
        f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for label, value in values
    )
    return f'<div class="cards">{"".join(body)}</div>'


def table(heads: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f'<div class="wide"><table><tr>{head}</tr>{lines}</table></div>'


def confusion_table(names: Iterable[str], confusion: list[list[int]]) -> str:
    """Shaded by the share of each truth's images. Errors are few: at 5 % their shade is full already."""
    lines = ["<tr><th></th>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"]
    for truth, (name, counts) in enumerate(zip(names, confusion, strict=True)):
        lines.append(f"<tr><th>{escape(name)}</th>")
        for answer, count in enumerate(counts):
            colour, gain = ("main", 1) if answer == truth else ("accent", 20)
            strength = 45 * min(1.0, gain * count / max(sum(counts), 1))
            shade = f"background: color-mix(in srgb, var(--{colour}) {strength:.0f}%, transparent)"
            lines.append(f'<td style="{shade}">{count or "·"}</td>')
        lines.append("</tr>")
    return f'<div class="wide"><table class="confusion">{"".join(lines)}</table></div>'


def image(png: bytes, alt: str, chart: bool = False) -> str:
    """At its own size, which is in the file's header; a chart is drawn with 1.5 times the pixels."""
    width = round(int.from_bytes(png[16:20], "big") / (1.5 if chart else 1))
    kind = ' class="chart"' if chart else ""
    return f'<div class="wide"><img{kind} src="{address(png)}" width="{width}" alt="{escape(alt)}"></div>'


def address(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
