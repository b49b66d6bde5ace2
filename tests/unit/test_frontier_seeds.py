"""The table of frontier's page over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.simulator.trace import TraceError
from bench.frontier_seeds import table_of
from tests.unit.simulator.run_folders import run_folder

HOUR_S = 3600.0


def _run(folder: Path, seed: int, policy: str, total_mj: float, **changed: Any) -> None:
    energy = {"total": total_mj * 1e6}
    run_folder(folder / f"{seed}-{policy}", seed=seed, policy=policy, energy_j=energy, oom=0, **changed)


def _cells(table: str, policy: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {policy}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_runs_of_several_seeds_make_one_row_with_mean_lowest_and_highest(tmp_path: Path) -> None:
    """Energy and distance are in per cent of FIFO exclusive of the same seed, the latter within limits."""
    for seed, energy_mj in ((1, 80), (2, 60)):
        within = {"energy_j_at_stretch_within_limits": 50e6}
        _run(tmp_path, seed, "exclusive", 100 * seed)
        _run(
            tmp_path,
            seed,
            "frontier",
            energy_mj * seed,
            further_bounds=within,
            stretch={"mean": 1.03},
            wait_s={"mean": seed * HOUR_S},
            jct_s={"mean": 5 * HOUR_S},
            limit_misses=seed - 1,
        )
    run_folder(tmp_path / "on", policy="exclusive", accounting="always-on", energy_j={"total": 160e6}, oom=0)
    cells = _cells(table_of(tmp_path), "frontier")
    assert cells[2:6] == ["1, 2", "3.00", "32.50 (30.00 to 35.00)", "−30.0 (−40.0 to −20.0)"]  # noqa: RUF001
    # FIFO exclusive with nodes that are always on is there for one seed of two.
    assert cells[6:] == ["–", "1.50 (1.00 to 2.00)", "5.00", "0 (0 to 1)", "0", "0", "0.00", "0.00"]  # noqa: RUF001


def test_energy_is_also_held_against_nodes_that_are_always_on(tmp_path: Path) -> None:
    """FIFO exclusive of the same seed with nodes always on is the second yardstick, where it is there."""
    _run(tmp_path, 1, "exclusive", 100)
    _run(tmp_path, 1, "frontier", 80)
    run_folder(tmp_path / "on", policy="exclusive", accounting="always-on", energy_j={"total": 160e6}, oom=0)
    assert _cells(table_of(tmp_path), "frontier")[6] == "−50.0"  # noqa: RUF001


def test_sets_that_somebody_was_made_to_leave_count_after_the_first_day(tmp_path: Path) -> None:
    """Of 400 s a and b share 100 s at two fifths each, until b goes elsewhere: a twentieth is lost."""
    gpus = "0;1;2;3;4;5;6;7"
    schedule = [
        "job_id,start_s,end_s,node,gpus,residents,rate",
        # The first day does not count.
        f"c,0,100,node-1,{gpus},c,1",
        f"c,200,300,node-0,{gpus},c,1",
        f"a,90000,90100,node-0,{gpus},a;b,0.4",
        f"b,90000,90100,node-0,{gpus},a;b,0.4",
        f"a,90100,90200,node-0,{gpus},a,1",
        f"b,90100,90300,node-1,{gpus},b,1",
    ]
    run_folder(tmp_path / "plain", schedule="\n".join(schedule) + "\n", policy="exclusive", oom=0)
    assert _cells(table_of(tmp_path), "exclusive")[-2:] == ["25.00", "5.00"]


def test_runs_without_their_baseline_or_no_runs_at_all_make_no_table(tmp_path: Path) -> None:
    """The error names the folder that lacks something."""
    with pytest.raises(TraceError, match="has no run"):
        table_of(tmp_path)
    _run(tmp_path, 1, "exclusive", 100)
    _run(tmp_path, 2, "frontier", 80)
    with pytest.raises(TraceError, match=r"2-frontier.*no FIFO exclusive"):
        table_of(tmp_path)
