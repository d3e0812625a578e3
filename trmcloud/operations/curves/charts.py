"""Charts of lines, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from trmcloud.core.values import Value

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 280, 58, 18, 18, 40
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
"""Beside its colour each series has its own, for who cannot tell the colours."""


class Series(Value):
    """A line through (x, y); ``dots``: each point is drawn, too."""

    name: str
    points: tuple[tuple[float, float], ...]
    dots: bool = False


class Mark(Value):
    """Something that happened at ``x``."""

    x: float
    name: str


def line_chart(
    title: str,
    series: Sequence[Series],
    marks: Sequence[Mark] = (),
    *,
    x_words: Callable[[float], str],
    y_words: Callable[[float], str] = lambda y: f"{y:g}",
    x_title: str,
    x_from: float | None = None,
) -> str:
    """The chart, from ``x_from`` on; its classes are named in the page's style. Empty
    where there is nothing to draw."""
    drawn = [each for each in series if each.points]
    if not drawn:
        return ""
    xs = [x for each in drawn for x, _ in each.points] + [mark.x for mark in marks]
    ys = [y for each in drawn for _, y in each.points]
    low_x, high_x = min([*xs, *([] if x_from is None else [x_from])]), max(xs)
    low, high = min(ys), max(ys)
    room = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    low, high = low - room, high + room

    def at(x: float, y: float) -> tuple[float, float]:
        along = (x - low_x) / ((high_x - low_x) or 1.0)
        up = (y - low) / (high - low)
        return (
            _LEFT + along * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for y in ticks(low, high):
        _, height = at(low_x, y)
        parts.append(f'<path class="grid" d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">'
            f"{escape(y_words(y))}</text>"
        )
    for x in ticks(low_x, high_x):
        along, _ = at(x, low)
        parts.append(
            f'<text x="{along:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{escape(x_words(x))}</text>"
        )
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{escape(x_title)}</text>'
    )
    places = [at(mark.x, low)[0] for mark in marks]
    for along in places:
        parts.append(f'<path class="mark" d="M{along:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
    for number, (mark, along) in enumerate(zip(marks, places, strict=True)):
        # Names of things that happened together stand below one another.
        at_y = _TOP + 10 + 13 * (number % 4)
        anchor = "end" if along > _WIDTH * 0.75 else "start"
        shift = -4 if anchor == "end" else 4
        parts.append(
            f'<text class="word" x="{along + shift:.1f}" y="{at_y}" text-anchor="{anchor}">'
            f"{escape(mark.name)}</text>"
        )
    for number, each in enumerate(drawn):
        parts += _line(each, number, at)
    return "\n".join([*parts, "</svg>"])


def _line(
    series: Series, number: int, at: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    """One series, in the style of its number: ``s0``, ``s1``, …"""
    style = _style(number)
    placed = [at(x, y) for x, y in series.points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    dashed, name = _dashed(number), escape(series.name)
    parts = [f'<polyline class="{style}" points="{line}"{dashed}><title>{name}</title></polyline>']
    if series.dots:
        parts += [f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in placed]
    return parts


def legend(series: Sequence[Series]) -> str:
    """Return the legend: a row with a piece of each line and its name."""
    named = [each for each in series if each.points]
    rows = [
        f'<span class="key"><svg viewBox="0 0 30 4" aria-hidden="true">'
        f'<path class="{_style(number)}" d="M0 2H30"{_dashed(number)}/></svg> '
        f"{escape(each.name)}</span>"
        for number, each in enumerate(named)
    ]
    return f'<p class="legend">{" ".join(rows)}</p>' if len(named) > 1 else ""


def _style(number: int) -> str:
    return f"s{number % len(_DASHES)}"


def _dashed(number: int) -> str:
    dashes = _DASHES[number % len(_DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``; ``low`` alone where the two are one."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    stride = 10.0 ** math.floor(math.log10(raw))
    stride *= next(factor for factor in (1, 2, 5, 10) if factor * stride >= raw)
    first = math.ceil(low / stride)
    return [round(n * stride, 12) for n in range(first, math.floor(high / stride) + 1)]
