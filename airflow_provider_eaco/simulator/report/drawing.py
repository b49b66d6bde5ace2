"""Drawings: a few shapes with roles instead of colours, so that one chart is right in light, dark and print.

Coordinates are pixels from the upper left corner. What a role looks like is in ``assets/report.css`` for SVG
and in :data:`LIGHT` for PNG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

Anchor = Literal["start", "middle", "end"]

# The light theme; the dark one needs no other names, only other values (assets/report.css).
LIGHT: Mapping[str, str] = {
    "surface": "#fcfcfb",
    "ink": "#0b0b0b",
    "soft": "#52514e",
    "grid": "#e1e0d9",
    "active": "#2a78d6",
    "idle": "#eda100",
    "waking": "#eb6834",
    "asleep": "#b4b2a9",
    "bound": "#0b0b0b",
    "c1": "#2a78d6",
    "c2": "#1baf7a",
    "c3": "#eda100",
    "c4": "#4a3aa7",
    "c5": "#e34948",
    "c6": "#eb6834",
    "c7": "#e87ba4",
    "c8": "#008300",
    "other": "#8a8880",
}
SERIES = tuple(role for role in LIGHT if role.startswith("c"))


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle; ``title`` appears when a pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    role: str
    title: str = ""
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    points: Sequence[tuple[float, float]]
    role: str
    width: float = 1.0
    dashed: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Dot:
    """A point; a hollow one has the surface inside."""

    x: float
    y: float
    radius: float
    role: str
    hollow: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text at its baseline."""

    x: float
    y: float
    text: str
    role: str = "soft"
    anchor: Anchor = "start"
    size: float = 12.0
    bold: bool = False


Shape = Rect | Line | Dot | Text


@dataclass(slots=True)
class Drawing:
    """Shapes in the order in which they are painted; ``title`` tells a screen reader what is shown."""

    title: str
    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        self.shapes.extend(shapes)


def svg_of(drawing: Drawing) -> str:
    """Return the drawing as an SVG element for an HTML page."""
    size = f'viewBox="0 0 {_n(drawing.width)} {_n(drawing.height)}"'
    parts = [f'<svg {size} role="img" aria-label="{escape(drawing.title)}">']
    parts += [_element(shape) for shape in drawing.shapes]
    return "\n".join([*parts, "</svg>"])


def _element(shape: Shape) -> str:
    if isinstance(shape, Text):
        weight = ' font-weight="600"' if shape.bold else ""
        place = f'x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}"'
        return (
            f'<text class="f-{shape.role}" {place} text-anchor="{shape.anchor}"{weight}>'
            f"{escape(shape.text, quote=False)}</text>"
        )
    title = f"<title>{escape(shape.title, quote=False)}</title>" if shape.title else ""
    if isinstance(shape, Rect):
        faint = f' opacity="{_n(shape.opacity)}"' if shape.opacity < 1 else ""
        box = f'x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.width)}" height="{_n(shape.height)}"'
        return f'<rect class="f-{shape.role}" {box}{faint}>{title}</rect>'
    if isinstance(shape, Dot):
        look = f"f-surface s-{shape.role}" if shape.hollow else f"f-{shape.role} s-surface"
        circle = f'cx="{_n(shape.x)}" cy="{_n(shape.y)}" r="{_n(shape.radius)}" stroke-width="2"'
        return f'<circle class="{look}" {circle}>{title}</circle>'
    points = " ".join(f"{_n(x)},{_n(y)}" for x, y in shape.points)
    dashes = ' stroke-dasharray="4 4"' if shape.dashed else ""
    return (
        f'<polyline class="s-{shape.role}" fill="none" stroke-width="{_n(shape.width)}"{dashes} '
        f'points="{points}">{title}</polyline>'
    )


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
