"""Reports: the page is whole and alone, its charts say what the files say, and bad files are named."""

from __future__ import annotations

import logging
import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from airflow_provider_eaco.simulator.report import write_report
from airflow_provider_eaco.simulator.report.charts import energy_chart, pareto_chart, wait_chart
from airflow_provider_eaco.simulator.report.drawing import Dot, Drawing, Line, Rect, Text
from airflow_provider_eaco.simulator.report.page import UNKNOWN, table_rows
from airflow_provider_eaco.simulator.report.results import read_run
from airflow_provider_eaco.simulator.report.scales import (
    Axis,
    energy_text,
    logarithmic,
    percent_text,
    round_ticks,
    time_text,
)
from airflow_provider_eaco.simulator.report.timeline import MOST_BARS, timeline_of
from airflow_provider_eaco.simulator.trace import TraceError
from tests.unit.simulator.run_folders import ENERGY_J, SCHEDULE, exclusive_folder, many_jobs, run_folder

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Balanced(HTMLParser):
    """Counts what is open; collects every address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "action", "data"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(tmp_path: Path, *runs: Path) -> str:
    return write_report(tmp_path / "report", runs, "eaco-sim run x", images=False).read_text()


def both(tmp_path: Path) -> list[Path]:
    return [exclusive_folder(tmp_path / "exclusive"), run_folder(tmp_path / "eaco")]


def shapes(drawing: Drawing, kind: type) -> list:
    return [shape for shape in drawing.shapes if isinstance(shape, kind)]


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    """The page is well-formed and loads nothing: no script, no font, no image from elsewhere."""
    page = page_of(tmp_path, *both(tmp_path))
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.addresses == []
    assert not re.search(r"https?:|<script|@import|url\(", page)
    assert "prefers-color-scheme: dark" in page
    svgs = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(svgs) == 5
    for svg in svgs:
        assert ET.fromstring(svg).get("aria-label")


def test_names_of_users_do_no_harm(tmp_path: Path) -> None:
    """A family or job with markup in its name is shown as text."""
    page = page_of(tmp_path, run_folder(tmp_path / "eaco"))
    assert "<J3>" not in page
    assert "&lt;J3&gt;" in page


def test_every_colour_has_a_light_and_a_dark_value(tmp_path: Path) -> None:
    """Every role that a chart uses is defined for both themes."""
    page = page_of(tmp_path, *both(tmp_path))
    used = set(re.findall(r"(?<=[\" ][fs]-)[a-z0-9]+", " ".join(re.findall(r'class="[^"]+"', page))))
    light, dark = page.split("prefers-color-scheme: dark")
    assert used
    for role in used:
        assert f"--{role}: #" in light
        assert f"--{role}: #" in dark


def test_bars_are_as_long_as_their_energy(tmp_path: Path) -> None:
    """Each state's bar starts where the last ended, in proportion to its energy; the mark is the bound."""
    run = read_run(run_folder(tmp_path / "eaco"))
    chart = energy_chart([run])
    bars = [bar for bar in shapes(chart, Rect) if bar.title]
    assert [bar.role for bar in bars] == ["active", "asleep", "idle", "waking"]
    active, asleep, idle, waking = bars
    px_per_j = (asleep.x - active.x) / ENERGY_J["active"]
    assert idle.x - asleep.x == pytest.approx(px_per_j * ENERGY_J["asleep"])
    assert waking.x - idle.x == pytest.approx(px_per_j * ENERGY_J["idle"])
    mark = next(line for line in shapes(chart, Line) if line.title)
    assert mark.points[0][0] - active.x == pytest.approx(px_per_j * 7.5e6)
    assert "7.5e6" not in mark.title
    assert energy_text(7.5e6) in mark.title


def test_rings_lie_where_energy_and_stretch_say(tmp_path: Path) -> None:
    """All energy is the ring, energy of running jobs the dot below it, both at the run's mean stretch."""
    runs = [read_run(folder) for folder in both(tmp_path)]
    chart = pareto_chart(runs, 2e7)
    exclusive, eaco = [dot for dot in shapes(chart, Dot) if dot.hollow and dot.title]
    exclusive_dot, eaco_dot = [dot for dot in shapes(chart, Dot) if not dot.hollow and dot.title]
    assert exclusive.x == exclusive_dot.x < eaco.x == eaco_dot.x
    px_per_share = (exclusive_dot.y - exclusive.y) / (5e6 / 2e7)
    rest_j = sum(ENERGY_J.values()) - ENERGY_J["active"]
    assert eaco_dot.y - eaco.y == pytest.approx(px_per_share * rest_j / 2e7)
    curve = max(shapes(chart, Line), key=lambda line: line.width * (line.role == "bound") * len(line.points))
    assert curve.points[0] == (exclusive.x, pytest.approx(exclusive.y + px_per_share * 0.5))


def test_the_curve_ends_with_the_axis(tmp_path: Path) -> None:
    """The bound is drawn up to the right end of the axis, between two known points if need be."""
    chart = pareto_chart([read_run(run_folder(tmp_path / "eaco"))], 1e7)
    grid = next(line for line in shapes(chart, Line) if line.role == "grid")
    curve = next(line for line in shapes(chart, Line) if line.role == "bound" and len(line.points) > 2)
    assert curve.points[-1][0] == pytest.approx(grid.points[1][0])


def test_waits_are_shares_of_the_jobs(tmp_path: Path) -> None:
    """Two of three jobs start at once, the third after two minutes: one step, to all."""
    run = read_run(run_folder(tmp_path / "eaco"))
    assert run.waits_s == [0.0, 0.0, 120.0]
    chart = wait_chart([run])
    line = next(line for line in shapes(chart, Line) if line.title)
    levels = sorted({y for _, y in line.points})
    top, bottom = levels[0], 360.0
    assert (bottom - levels[1]) / (bottom - top) == pytest.approx(2 / 3)


def test_jobs_that_never_wait_are_seen(tmp_path: Path) -> None:
    """Where nobody waits the line runs along the top, over the whole width."""
    jobs, schedule = many_jobs(3)
    chart = wait_chart([read_run(run_folder(tmp_path / "eaco", jobs=jobs, schedule=schedule))])
    line = next(line for line in shapes(chart, Line) if line.title)
    grid = next(line for line in shapes(chart, Line) if line.role == "grid" and line.points[0][1] < 100)
    assert [tuple(point) for point in line.points] == [tuple(point) for point in grid.points]


def test_residents_split_their_row(tmp_path: Path) -> None:
    """Jobs that share lie above each other in one row, one that is alone fills its own."""
    timeline = timeline_of(read_run(run_folder(tmp_path / "eaco")))
    assert timeline.left_out == ""
    bars = {
        bar.title.split(" ")[0] + bar.title.split("(")[1][0]: bar
        for bar in shapes(timeline.drawing, Rect)
        if " at " in bar.title
    }
    first, second, alone = bars["J1a"], bars["J4b"], bars["<J3>c"]
    assert first.x == second.x
    assert second.y == pytest.approx(first.y + alone.height / 2)
    assert alone.y > second.y
    assert "with J4 (b), at 90.0 % of its speed" in first.title
    assert "alone" in alone.title
    assert sum(bar.title == "node-1 asleep" for bar in shapes(timeline.drawing, Rect)) == 2


def test_single_gpus_have_rows_of_their_own(tmp_path: Path) -> None:
    """Where jobs take different GPUs of a node, each GPU has its row, in the order of their numbers."""
    schedule = SCHEDULE.replace("node-1,0;1;2;3;4;5;6;7", "node-0,10")
    timeline = timeline_of(read_run(run_folder(tmp_path / "eaco", schedule=schedule)))
    labels = [
        text.text for text in shapes(timeline.drawing, Text) if "node" in text.text and "GPU" in text.text
    ]
    assert labels == [*(f"node-0 GPU {gpu}" for gpu in range(8)), "node-0 GPU 10"]


def test_a_large_run_says_what_it_leaves_out(tmp_path: Path) -> None:
    """A page holds so many bars; what comes later is left out in words, and the page stays small."""
    jobs, schedule = many_jobs(MOST_BARS + 100)
    folder = run_folder(tmp_path / "eaco", jobs=jobs, schedule=schedule)
    timeline = timeline_of(read_run(folder))
    assert timeline.left_out.startswith("all after ")
    page = page_of(tmp_path, folder)
    assert "Left out: all after" in page
    assert "4 other families" in page
    assert len(page) < 1_500_000


def test_the_table_has_the_distances(tmp_path: Path) -> None:
    """Energy is held against FIFO exclusive, and its distance to the bound is a share of that."""
    exclusive, eaco = table_rows([read_run(folder) for folder in both(tmp_path)])
    total_j = sum(ENERGY_J.values())
    assert exclusive[3:5] == ("0 %", "50.0 points")
    assert eaco[0] == "eaco ≤2"
    assert eaco[3] == percent_text(total_j / 2e7 - 1)
    assert eaco[4] == f"{100 * (total_j - 7.5e6) / 2e7:.1f} points"


def test_without_the_baseline_nothing_is_claimed(tmp_path: Path) -> None:
    """Without FIFO exclusive in the same accounting there is no saving and no distance."""
    folders = [
        exclusive_folder(tmp_path / "exclusive", accounting="always-on"),
        run_folder(tmp_path / "eaco"),
    ]
    rows = {row[1]: row for row in table_rows([read_run(folder) for folder in folders])}
    assert rows["sleep"][3:5] == (UNKNOWN, UNKNOWN)


def test_a_run_without_bounds_has_a_report(tmp_path: Path) -> None:
    """A run without a linear program (no scipy) shows energy and waits, and no curve."""
    page = page_of(tmp_path, run_folder(tmp_path / "eaco", bounds=None, gaps=None, pareto=None))
    assert "Energy by state" in page
    assert "Energy against stretch" not in page


def test_the_images_are_there(tmp_path: Path) -> None:
    """The charts lie beside the page as PNG, the same from the same files."""
    folder = run_folder(tmp_path / "eaco")
    write_report(folder, [folder])
    names = ["energy.png", "pareto.png", "timeline.png", "wait.png"]
    assert sorted(path.name for path in folder.glob("*.png")) == names
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert first["energy.png"].startswith(b"\x89PNG")
    write_report(folder, [folder])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_without_matplotlib_there_is_still_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the extra the page is written, and a warning tells why there are no images."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    folder = run_folder(tmp_path / "eaco")
    with caplog.at_level(logging.WARNING):
        assert write_report(folder, [folder]).exists()
    assert not list(folder.glob("*.png"))
    assert "matplotlib is not installed" in caplog.text


BAD = {
    "a-missing-file": ("schedule.csv", None, r"schedule\.csv: cannot be read: No such file"),
    "an-empty-file": ("nodes.csv", "", r"nodes\.csv: the file is empty; expected a header with node"),
    "a-summary-that-is-cut": (
        "summary.json",
        '{"policy":',
        r"summary\.json, line 1, column 11: not JSON.*was it cut",
    ),
    "a-summary-that-is-a-list": ("summary.json", "[]", r"summary\.json, line 1: a JSON list; expected an"),
    "a-summary-without-policy": ("summary.json", '{"benchmark": "x"}', r"column policy: is missing"),
    "an-unknown-state": (
        "nodes.csv",
        "node,start_s,end_s,state,power_w\nn,0,1,dreaming,1\n",
        r"line 2, column state: 'dreaming'; expected active, idle, waking, asleep",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_of_a_run_is_named(name: str, tmp_path: Path) -> None:
    """A file of a run that is missing or broken gets one message, and no page is written."""
    file, text, message = BAD[name]
    folder = run_folder(tmp_path / "eaco")
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(TraceError, match=message):
        write_report(folder, [folder], images=False)
    assert not (folder / "report.html").exists()


def test_runs_of_different_jobs_are_not_compared(tmp_path: Path) -> None:
    """Runs of different seeds or benchmarks do not go into one report."""
    folders = [run_folder(tmp_path / "one"), run_folder(tmp_path / "two", seed=2)]
    with pytest.raises(TraceError, match=r"two.summary\.json, column seed: 2, but .*one has 1"):
        write_report(tmp_path, folders)
    with pytest.raises(TraceError, match="no run"):
        write_report(tmp_path, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(energy_text(3.6e6), "1.00 kWh", id="kwh"),
        pytest.param(energy_text(3.6e9 * 12.34), "12.3 MWh", id="mwh"),
        pytest.param(energy_text(3.6e12 * 1.5), "1.50 GWh", id="gwh"),
        pytest.param(energy_text(5000), "5.00 kJ", id="kj"),
        pytest.param(energy_text(0), "0", id="nothing"),
        pytest.param(time_text(0), "0 s", id="no-time"),
        pytest.param(time_text(90), "90.0 s", id="seconds"),
        pytest.param(time_text(7200), "2.00 h", id="hours"),
        pytest.param(time_text(86400 * 20), "20.0 d", id="days"),
        pytest.param(percent_text(-0.3126), "\N{MINUS SIGN}31.3 %", id="less"),
        pytest.param(percent_text(0.0323, 2), "+3.23 %", id="more"),
        pytest.param(percent_text(-0.0001), "0 %", id="the-same"),
    ],
)
def test_quantities_are_readable(text: str, expected: str) -> None:
    """Quantities have three digits in the unit that fits."""
    assert text == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 787, [0, 200, 400, 600]),
        (40, 103, [40, 60, 80, 100]),
        (0, 0, [0]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    """Ticks are round numbers inside the range."""
    assert round_ticks(low, high, 5) == pytest.approx(expected)


def test_axes_keep_to_their_pixels() -> None:
    """Values outside of an axis lie on its ends, also on a logarithmic one."""
    axis = Axis(0, 10, 100, 200)
    assert [axis.at(value) for value in (-5, 0, 5, 50)] == [100, 100, 150, 200]
    assert logarithmic(1, 100, 0, 200).at(10) == pytest.approx(100)
