"""Plots as small SVG pictures, drawn with the page's own colours so that they follow its dark mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

COLOURS = 8
"""The page defines ``--c0`` to ``--c7``."""
Colours = Mapping[str, int]
"""Which colour a name has; others are coloured in the order they come."""
NO_COLOURS: Colours = {}
_WIDTH, _HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 12, 42
ACROSS = (_LEFT, _WIDTH - _RIGHT)
"""Where the x axis of `lines` begins and ends, for a page that moves a cursor over it."""


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale from data to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high, value = self._scaled(self.low), self._scaled(self.high), self._scaled(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round numbers inside the range.

        >>> Axis(0, 1, 0, 100).ticks()
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        >>> Axis(3, 900, 0, 100, log=True).ticks()
        [10.0, 100.0]
        """
        if self.log:
            exponents = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            found = [10.0**exponent for exponent in exponents]
            if len(found) >= 2:
                return found
        step = 10 ** math.floor(math.log10((self.high - self.low) / count))
        while (self.high - self.low) / step > count:
            step *= 2 if round(step / 10 ** math.floor(math.log10(step))) != 2 else 2.5
        first = math.ceil(self.low / step - 1e-9)
        return [round(number * step, 10) for number in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _scaled(self, value: float) -> float:
        return math.log(max(value, 1e-12)) if self.log else value


def axis(values: Sequence[float], start: float, end: float, log: bool = False, zero: bool = False) -> Axis:
    """An axis that holds all values with a little room."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if zero:
        low = min(low, 0.0)
    if log:
        return Axis(low / 1.15, high * 1.15 if high > low else low * 2, start, end, log=True)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return Axis(low if zero and low == 0 else low - room, high + room, start, end)


def scatter(
    points: Sequence[tuple[str, tuple[float, float, float], tuple[float, float, float]]],
    x_title: str,
    y_title: str,
    colours: Colours = NO_COLOURS,
) -> Markup:
    """One labelled dot a run with its intervals: (name, (x, low, high), (y, low, high))."""
    xs, ys = [value for _, x, _ in points for value in x], [value for _, _, y in points for value in y]
    wide = min(xs) > 0 and max(xs) / min(xs) > 20
    across = axis(xs, _LEFT, _WIDTH - _RIGHT, log=wide)
    up = axis(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [_frame(across, up, x_title, y_title)]
    for index, (name, x, y) in enumerate(points):
        cx, cy = across.at(x[0]), up.at(y[0])
        colour = _colour(colours.get(name, index))
        parts.append(_line(across.at(x[1]), cy, across.at(x[2]), cy, f'stroke="{colour}" class="whisker"'))
        parts.append(_line(cx, up.at(y[1]), cx, up.at(y[2]), f'stroke="{colour}" class="whisker"'))
        label = f"{name}: {x_title.lower()} {x[0]:.4g}, {y_title.lower()} {y[0]:.4g}"
        parts.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="5" fill="{colour}"><title>{escape(label)}</title></circle>'
        )
        right = cx < _WIDTH * 0.62
        anchor, shift = ("start", 9) if right else ("end", -9)
        parts.append(
            f'<text x="{cx + shift:.1f}" y="{cy - 7:.1f}" text-anchor="{anchor}" class="label">{escape(name)}</text>'
        )
    return _picture(parts, f"{y_title} against {x_title}")


def histograms(
    rows: Mapping[str, Sequence[float]],
    title: str,
    log: bool = False,
    bins: int = 40,
    colours: Colours = NO_COLOURS,
) -> Markup:
    """One histogram a run over a common axis, each scaled to its own peak; a line at the median."""
    values = [value for row in rows.values() for value in row]
    height = _TOP + 46 * len(rows) + _BOTTOM
    across = axis(_trimmed(values), 12, _WIDTH - _RIGHT, log=log)
    parts = [_x_axis(across, height - _BOTTOM, title)]
    for index, (name, row) in enumerate(rows.items()):
        base = _TOP + 46 * (index + 1) - 2
        counts = [0] * bins
        for value in row:
            place = (across.at(value) - across.start) / (across.end - across.start)
            counts[min(bins - 1, max(0, int(place * bins)))] += 1
        peak, width = max(counts) or 1, (across.end - across.start) / bins
        parts.append(_line(across.start, base, across.end, base, 'class="grid"'))
        for bin_, count in enumerate(counts):
            if count:
                tall = 26 * count / peak
                parts.append(
                    f'<rect x="{across.start + bin_ * width:.1f}" y="{base - tall:.1f}" width="{width - 0.6:.1f}" '
                    f'height="{tall:.1f}" fill="{_colour(colours.get(name, index))}"/>'
                )
        middle = across.at(sorted(row)[len(row) // 2]) if row else across.start
        parts.append(_line(middle, base + 3, middle, base - 28, 'class="median"'))
        parts.append(f'<text x="{across.start}" y="{base - 31}" class="label">{escape(name)}</text>')
    return _picture(parts, f"Distribution of {title}", height)


def shares(rows: Mapping[str, Mapping[str, int]], sources: Sequence[str]) -> Markup:
    """A bar a run, divided by source."""
    height = 6 + 46 * len(rows)
    parts = []
    for index, (name, row) in enumerate(rows.items()):
        top, left, total = 20 + 46 * index, 0.0, sum(row.values()) or 1
        parts.append(f'<text x="0" y="{top - 5}" class="label">{escape(name)}</text>')
        for number, source in enumerate(sources):
            width = _WIDTH * row.get(source, 0) / total
            if width:
                share = row[source] / total
                parts.append(
                    f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="18" fill="{_colour(number)}">'
                    f"<title>{escape(source)}: {share:.1%}</title></rect>"
                )
                label = f"{source} {share:.0%}"
                if width > 9 * len(label):  # else it would run out of its bar
                    parts.append(
                        f'<text x="{left + width / 2:.1f}" y="{top + 13}" class="inside">{escape(label)}</text>'
                    )
            left += width
    return _picture(parts, "Shares of sources", height) + _legend(sources)


def lines(
    rows: Mapping[str, Sequence[float]],
    x_title: str,
    y_title: str,
    zero: bool = False,
    colours: Colours = NO_COLOURS,
) -> Markup:
    """A curve a name over steps 0, 1, 2, ...; the names are in the legend below the picture."""
    values = [value for row in rows.values() for value in row]
    longest = max((len(row) for row in rows.values()), default=2)
    across = Axis(0, max(1, longest - 1), _LEFT, _WIDTH - _RIGHT)
    up = axis(values, _HEIGHT - _BOTTOM, _TOP, zero=zero)
    parts = [_frame(across, up, x_title, y_title)]
    for index, (name, row) in enumerate(rows.items()):
        drawn = [(step, value) for step, value in enumerate(row) if math.isfinite(value)]
        points = " ".join(f"{across.at(step):.1f},{up.at(value):.1f}" for step, value in drawn)
        colour = _colour(colours.get(name, index))
        parts.append(
            f'<polyline points="{points}" stroke="{colour}" class="curve"><title>{escape(name)}</title></polyline>'
        )
    return _picture(parts, f"{y_title} over {x_title}") + _legend(list(rows), colours)


def _colour(place: int) -> str:
    return f"var(--c{place % COLOURS})"


def _legend(names: Sequence[str], colours: Colours = NO_COLOURS) -> Markup:
    entries = "".join(
        f'<span><i style="background:{_colour(colours.get(name, index))}"></i>{escape(name)}</span>'
        for index, name in enumerate(names)
    )
    return Markup(f'<p class="legend">{entries}</p>')


def _trimmed(values: Sequence[float]) -> list[float]:
    """Without the outermost percent on each side, which would squeeze everything else; the end bins take it in."""
    ordered = sorted(values)
    cut = len(ordered) // 100
    return ordered[cut : len(ordered) - cut]


def _frame(across: Axis, up: Axis, x_title: str, y_title: str) -> str:
    parts = [_x_axis(across, up.start, x_title)]
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(_line(across.start, y, across.end, y, 'class="grid"'))
        parts.append(f'<text x="{across.start - 6}" y="{y + 4:.1f}" class="tick end">{tick:g}</text>')
    middle = (up.start + up.end) / 2
    parts.append(
        f'<text transform="translate(13 {middle:.1f}) rotate(-90)" class="title middle">{escape(y_title)}</text>'
    )
    return "".join(parts)


def _x_axis(across: Axis, y: float, title: str) -> str:
    parts = [_line(across.start, y, across.end, y, 'class="axis"')]
    for tick in across.ticks():
        x = across.at(tick)
        parts.append(_line(x, y, x, y + 4, 'class="axis"'))
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" class="tick middle">{tick:g}</text>')
    centre = (across.start + across.end) / 2
    parts.append(f'<text x="{centre:.1f}" y="{y + 34:.1f}" class="title middle">{escape(title)}</text>')
    return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, attributes: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {attributes}/>'


def _picture(parts: Sequence[str], title: str, height: float = _HEIGHT) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
