"""The same drawings as PNG, for papers and slides; needs matplotlib (extra ``analysis``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_eaco.simulator.report.drawing import LIGHT, Dot, Drawing, Line, Rect, Shape, Text
from airflow_provider_eaco.simulator.whole_file import whole_file

_DPI = 200
# Points of a font for one pixel of the drawing at 100 pixels an inch.
_POINTS = 0.72
_ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def write_png(drawing: Drawing, path: Path) -> None:
    """Write the drawing in the light theme; equal drawings give equal files with one version of matplotlib.

    :raises ImportError: without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(drawing.width / 100, drawing.height / 100), facecolor=LIGHT["surface"])
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    for order, shape in enumerate(drawing.shapes):
        axes.add_artist(_artist(shape, order))
    with whole_file(path) as partial:
        figure.savefig(partial, format="png", dpi=_DPI, metadata={"Software": None})


def _artist(shape: Shape, order: int) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, Rectangle
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text as TextArtist

    colour = LIGHT[shape.role]
    match shape:
        case Rect(x, y, width, height):
            return Rectangle(
                (x, y), width, height, facecolor=colour, linewidth=0, alpha=shape.opacity, zorder=order
            )
        case Dot(x, y, radius):
            inner, edge = (LIGHT["surface"], colour) if shape.hollow else (colour, LIGHT["surface"])
            return Circle((x, y), radius, facecolor=inner, edgecolor=edge, linewidth=1.4, zorder=order)
        case Text(x, y, text):
            return TextArtist(
                x,
                y,
                text.replace("$", r"\$"),
                color=colour,
                fontsize=shape.size * _POINTS,
                fontweight="semibold" if shape.bold else "normal",
                ha=_ANCHORS[shape.anchor],
                va="baseline",
                path_effects=[withStroke(linewidth=3, foreground=LIGHT["surface"])],
                zorder=order,
            )
        case Line(points):
            across, down = zip(*points, strict=True)
            return Line2D(
                across,
                down,
                color=colour,
                linewidth=shape.width * _POINTS,
                linestyle=(0, (4, 4)) if shape.dashed else "solid",
                zorder=order,
            )
