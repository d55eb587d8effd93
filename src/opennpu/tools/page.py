"""HTML reports that need nothing but themselves: no script, no style sheet, no font of others."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1100px; padding: 0 1rem;
  color: #1c2430; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.bad { color: #a3151b; font-weight: 600 } .note { color: #5a6472 }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th { text-align: left; border-bottom: 2px solid #c9d0d9; padding: 4px 10px 4px 0 }
td { border-bottom: 1px solid #e6e9ee; padding: 3px 10px 3px 0; white-space: nowrap }
td.n, th.n { text-align: right } tr.bad td { background: #fdecec }
svg { display: block; max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif }
"""
COLOURS = ("#2f6db5", "#e08a1e", "#3f9a5a", "#8a5bb0", "#7a8594", "#c23b4b")
WIDTH, ROW, LABEL = 1060, 18, 300


def page(title: str, parts: Iterable[str]) -> str:
    """A whole HTML document."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def heading(text: str) -> str:
    """A heading of a part."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; kind: "bad" or "note"."""
    return f'<p class="{kind}">{escape(text)}</p>'


def facts(found: Mapping[str, str]) -> str:
    """Name and value, one a row."""
    rows = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in found.items())
    return f'<div class="wide"><table>{rows}</table></div>'


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Collection[str] = (),
    bad: Collection[int] = (),
) -> str:
    """A table; ``bad``: numbers of the rows to mark."""
    cls = ["n" if c in numeric else "t" for c in columns]
    head = "".join(f'<th class="{k}">{escape(c)}</th>' for k, c in zip(cls, columns, strict=True))
    body = []
    for i, row in enumerate(rows):
        cells = "".join(f'<td class="{k}">{escape(c)}</td>' for k, c in zip(cls, row, strict=True))
        body.append(f'<tr class="{"bad" if i in bad else "ok"}">{cells}</tr>')
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of `bars`: pieces side by side, each (length, index of its legend entry)."""

    label: str
    pieces: tuple[tuple[float, int], ...]
    text: str  # behind the bar
    bad: bool = False


def _text(x: float, y: float, text: str, fill: str = "#1c2430", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _rect(x: float, y: float, w: float, h: float, fill: str, tip: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(0.5, w):.2f}" height="{h:.1f}" fill="{fill}">'
        f"<title>{escape(tip)}</title></rect>"
    )


def _svg(height: float, body: Iterable[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(body)}</svg>"
    )


def _legend(names: Sequence[str], y: float) -> Iterable[str]:
    x = float(LABEL)
    for i, name in enumerate(names):
        yield _rect(x, y - 10, 11, 11, COLOURS[i % len(COLOURS)], name)
        yield _text(x + 16, y, name)
        x += 34 + 7.2 * len(name)


def _shortened(label: str, letters: int = 42) -> str:
    return label if len(label) <= letters else f"…{label[1 - letters :]}"


def bars(title: str, rows: Sequence[Bar], legend: Sequence[str] = ()) -> str:
    """Horizontal stacked bars, one a row, to one scale."""
    top = 26 if legend else 6
    most = max((sum(max(0.0, n) for n, _ in r.pieces) for r in rows), default=0.0) or 1.0
    room = WIDTH - LABEL - 130
    body = list(_legend(legend, 14)) if legend else []
    for i, r in enumerate(rows):
        y, x = top + i * ROW, float(LABEL)
        body.append(
            _text(LABEL - 8, y + 12, _shortened(r.label), "#a3151b" if r.bad else "#1c2430", "end")
        )
        for length, kind in r.pieces:
            w = room * max(0.0, length) / most
            if w > 0:
                fill = COLOURS[kind % len(COLOURS)]
                body.append(_rect(x, y + 2, w, ROW - 5, fill, f"{r.label}: {r.text}"))
                x += w
        body.append(_text(x + 6, y + 12, r.text, "#5a6472"))
    return _svg(top + len(rows) * ROW + 6, body, title)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of `timeline`."""

    lane: str
    label: str
    start: float
    length: float
    kind: int  # index of the legend entry


def timeline(title: str, spans: Sequence[Span], legend: Sequence[str], unit: str) -> str:
    """Lanes under one another over one axis of time."""
    lanes = list(dict.fromkeys(s.lane for s in spans))
    end = max((s.start + s.length for s in spans), default=0.0) or 1.0
    left, high = 110, 30
    room = WIDTH - left - 20
    body = list(_legend(legend, 14))
    for i, lane in enumerate(lanes):
        body.append(_text(left - 10, 44 + i * high, lane, anchor="end"))
    for s in spans:
        y = 28 + lanes.index(s.lane) * high
        tip = f"{s.label}: {s.length:.4g} {unit} from {s.start:.4g} {unit}"
        x = left + room * s.start / end
        body.append(
            _rect(x, y, room * s.length / end, high - 8, COLOURS[s.kind % len(COLOURS)], tip)
        )
    bottom = 34 + len(lanes) * high
    body.append(f'<path d="M{left} {bottom}H{left + room}" stroke="#7a8594"/>')
    for k in range(6):
        x = left + room * k / 5
        body.append(f'<path d="M{x:.1f} {bottom}v5" stroke="#7a8594"/>')
        anchor = "end" if k == 5 else "middle"
        body.append(_text(x, bottom + 19, f"{end * k / 5:.3g} {unit}", "#5a6472", anchor))
    return _svg(bottom + 28, body, title)


@dataclass(frozen=True, slots=True)
class Point:
    """A layer in `roofline`."""

    label: str
    intensity: float  # multiply-accumulates for each byte moved
    rate: float  # multiply-accumulates a second
    kind: int


def roofline(
    title: str, points: Sequence[Point], legend: Sequence[str], peak: float, bandwidth: float
) -> str:
    """Rate over intensity, both logarithmic, under bandwidth and peak."""
    points = [p for p in points if p.intensity > 0 and p.rate > 0]
    ridge = peak / bandwidth
    xs = [ridge, *(p.intensity for p in points)]
    ys = [peak, *(p.rate for p in points)]
    x0, x1 = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)) + 0.1)
    y0, y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(peak) + 0.1)
    left, top, room, high = 110, 30, WIDTH - 150, 330

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + room * (math.log10(x) - x0) / (x1 - x0),
            top + high * (y1 - math.log10(y)) / (y1 - y0),
        )

    body = list(_legend(legend, 14))
    for k in range(x0, x1 + 1):
        x, _ = at(10.0**k, 10.0**y0)
        body.append(f'<path d="M{x:.1f} {top}v{high}" stroke="#e6e9ee"/>')
        body.append(_text(x, top + high + 18, f"{10.0**k:g}", "#5a6472", "middle"))
    for k in range(y0, y1 + 1):
        _, y = at(10.0**x0, 10.0**k)
        body.append(f'<path d="M{left} {y:.1f}h{room}" stroke="#e6e9ee"/>')
        body.append(_text(left - 8, y + 4, f"{10.0 ** (k - 9):g}", "#5a6472", "end"))
    low = max(10.0**x0, 10.0**y0 / bandwidth)
    (ax, ay), (bx, by), (cx, cy) = at(low, low * bandwidth), at(ridge, peak), at(10.0**x1, peak)
    body.append(
        f'<path d="M{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}L{cx:.1f} {cy:.1f}" fill="none" '
        'stroke="#1c2430" stroke-width="1.5"/>'
    )
    for p in points:
        x, y = at(p.intensity, p.rate)
        body.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[p.kind % len(COLOURS)]}" '
            f'fill-opacity="0.75"><title>{escape(p.label)}: {p.rate / 1e9:.4g} GMAC/s at '
            f"{p.intensity:.3g} MAC/byte</title></circle>"
        )
    body.append(
        _text(left + room / 2, top + high + 38, "MACs for each byte moved", "#5a6472", "middle")
    )
    body.append(_text(8, top + 12, "GMAC/s", "#5a6472"))
    return _svg(top + high + 48, body, title)
