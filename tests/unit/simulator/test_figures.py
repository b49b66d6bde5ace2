"""Figures: the summaries of several seeds as one table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.simulator.__main__ import main
from airflow_provider_eaco.simulator.figures import csv_of, markdown_of, rows_of
from airflow_provider_eaco.simulator.trace import TraceError
from tests.unit.simulator.run_folders import run_folder

PLAIN: dict[str, Any] = {
    "policy": "exclusive",
    "bounds": None,
    "stretch": {"mean": 1.0},
    "limit_misses": None,
}


def energy(total_mj: float) -> dict[str, float]:
    return {"total": total_mj * 1e6}


def experiment(folder: Path) -> Path:
    """Two seeds. FIFO exclusive takes 100 and 200 MJ, EaCO 80 and 150; with sleep 50 and 100, and 45."""
    for seed, plain, shared in ((1, 100, 80), (2, 200, 150)):
        on: dict[str, Any] = {"accounting": "always-on", "seed": seed}
        run_folder(folder / f"s{seed}" / "plain", **on, **PLAIN, energy_j=energy(plain))
        bounds = {"energy_j_at_stretch": plain * 0.7e6}
        run_folder(folder / f"s{seed}" / "eaco", **on, energy_j=energy(shared), bounds=bounds)
        run_folder(folder / f"s{seed}" / "asleep", seed=seed, **PLAIN, energy_j=energy(plain / 2))
    run_folder(folder / "s1" / "eaco-asleep", energy_j=energy(45))
    return folder


def test_a_run_is_held_against_fifo_exclusive_of_its_own_seed(tmp_path: Path) -> None:
    """Energy is in per cent of the same seed's baseline, first in the same accounting, then always on."""
    rows = {(row.label, row.accounting): row for row in rows_of(experiment(tmp_path))}
    on = rows["eaco \N{LESS-THAN OR EQUAL TO}2", "always-on"]
    assert on.seeds == (1, 2)
    saved = on.spreads["energy_pct"]
    assert saved is not None
    assert (saved.mean, saved.low, saved.high) == pytest.approx((-22.5, -25, -20))
    distance = on.spreads["distance_points"]
    assert distance is not None
    assert (distance.low, distance.high) == pytest.approx((5, 10))
    asleep = rows["eaco \N{LESS-THAN OR EQUAL TO}2", "sleep"].spreads
    assert asleep["energy_pct"] is not None
    assert asleep["energy_to_always_on_pct"] is not None
    assert asleep["energy_pct"].mean == pytest.approx(-10)
    assert asleep["energy_to_always_on_pct"].mean == pytest.approx(-55)


def test_the_table_shows_means_with_ranges_and_nothing_that_is_not_known(tmp_path: Path) -> None:
    """One seed has no range and is named; without bounds there is a dash, never a number."""
    text = markdown_of(tmp_path, rows_of(experiment(tmp_path)))
    assert text.startswith(f"`{tmp_path.name}`, seeds 1 to 2:\n\n| policy | accounting | energy, % |")
    lines = text.splitlines()
    cells = {
        (cell[1], cell[2]): cell
        for cell in ([part.strip() for part in line.split("|")] for line in lines[4:])
    }
    assert (
        cells["eaco \N{LESS-THAN OR EQUAL TO}2", "always-on"][3]
        == "\N{MINUS SIGN}22.5 (\N{MINUS SIGN}25.0 to \N{MINUS SIGN}20.0)"
    )
    assert cells["eaco \N{LESS-THAN OR EQUAL TO}2 (seed 1)", "sleep"][3] == "\N{MINUS SIGN}10.0"
    assert cells["exclusive", "always-on"][5:7] == ["\N{EN DASH}", "\N{EN DASH}"]


def test_csv_has_mean_lowest_and_highest(tmp_path: Path) -> None:
    """What a spreadsheet reads: three columns for each quantity, empty where it is not known."""
    rows = list(csv.DictReader(io.StringIO(csv_of(tmp_path, rows_of(experiment(tmp_path))))))
    shared = next(
        row for row in rows if row["policy"].startswith("eaco") and row["accounting"] == "always-on"
    )
    assert [shared[f"energy_pct{end}"] for end in ("", "_low", "_high")] == ["-22.5", "-25", "-20"]
    assert shared["seeds"] == "1;2"
    plain = next(row for row in rows if row["policy"] == "exclusive")
    assert plain["bound_pct"] == ""


def test_the_command_prints_a_table_for_each_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several folders are several tables, in the order in which they were given."""
    folders = [experiment(tmp_path / name) for name in ("b", "a")]
    assert main(["figures", *map(str, folders)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("`b`, seeds 1 to 2") < printed.index("`a`, seeds 1 to 2")


def _no_runs(folder: Path) -> None:
    folder.mkdir()


def _two_alike(folder: Path) -> None:
    run_folder(folder / "one", **PLAIN)
    run_folder(folder / "two", **PLAIN)


def _no_baseline(folder: Path) -> None:
    run_folder(folder / "eaco", seed=1)
    run_folder(folder / "plain", **{**PLAIN, "seed": 2})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_no_runs, "has no run"),
        (_two_alike, "is exclusive, sleep, seed 1, as"),
        (_no_baseline, "has no FIFO exclusive beside it, seed 1, accounting sleep"),
    ],
)
def test_runs_that_make_no_table_are_named(tmp_path: Path, make: Callable[[Path], None], says: str) -> None:
    """An empty folder, two runs that nothing tells apart and a run without its baseline are clear errors."""
    make(tmp_path / "runs")
    with pytest.raises(TraceError, match=says):
        rows_of(tmp_path / "runs")
