"""``eaco-sim bounds``: what no schedule of the jobs can pass, before anything is simulated."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.simulator.bounds import BoundsOfJobs
from airflow_provider_eaco.simulator.report.scales import energy_text, percent_text, time_text
from airflow_provider_eaco.simulator.run_bounds import bounds_of_scenario
from airflow_provider_eaco.simulator.run_command import default_policy, number, whole
from airflow_provider_eaco.simulator.scenario import BENCHMARKS, Choices, from_trace


class NoSolverError(EacoError):
    """The bounds of energy need scipy, which is not installed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("benchmark", nargs="?", choices=sorted(BENCHMARKS), help="a published benchmark")
    what.add_argument("--trace", type=Path, metavar="FILE", help="a trace of your own, as CSV")
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of all draws (default: %(default)s)")
    parser.add_argument("--nodes", type=whole(1), help="number of nodes")
    parser.add_argument("--gpus-per-node", type=whole(1), help="GPUs of each node")
    parser.add_argument("--load", type=number(above=0), help="offered load; submissions are stretched to it")
    parser.add_argument("--jobs", type=whole(1), help="take only the first of the benchmark's jobs")
    parser.add_argument(
        "--power-levels",
        action="store_true",
        help="boards can be held to power limits as measured for ResNet-50 (eaco-nodes and traces)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in J and s, instead of a table")


def execute(options: argparse.Namespace) -> int:
    """Print the bounds; return the exit code."""
    choices = Choices(
        policy=default_policy(options.benchmark),
        seed=options.seed,
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        load=options.load,
        jobs=options.jobs,
        power_levels=options.power_levels,
    )
    scenario = from_trace(options.trace, choices) if options.trace else BENCHMARKS[options.benchmark](choices)
    try:
        limits = limits_of(bounds_of_scenario(scenario))
    except ImportError as error:
        raise NoSolverError("the energy bound needs scipy; install the extra 'analysis'") from error
    console = Console()
    if options.json:
        console.print_json(json.dumps(limits))
    else:
        _print(console, limits)
    return 0


def limits_of(bounds: BoundsOfJobs) -> dict[str, Any]:
    """Return the limits that hold for every schedule of the jobs, in J and s."""
    return {
        "exclusive_energy_j": bounds.exclusive_energy_j,
        "energy_j": bounds.energy_j(),
        "makespan_s": bounds.makespan_s,
        "jct_mean_s": bounds.jct_mean_s,
        "pareto": [
            {
                "mean_stretch": point.mean_stretch,
                "energy_j": point.energy_j,
                "energy_j_within_limits": bounds.energy_within_limits_j(point.mean_stretch),
            }
            for point in bounds.pareto_curve()
        ],
    }


def _print(console: Console, limits: Mapping[str, Any]) -> None:
    exclusive_j = limits["exclusive_energy_j"]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("mean stretch, at most", "least energy", "against running alone", "within job limits"):
        table.add_column(column, justify="right")
    for point in limits["pareto"]:
        change, within = (
            percent_text(point[name] / exclusive_j - 1) for name in ("energy_j", "energy_j_within_limits")
        )
        stretch = percent_text(point["mean_stretch"] - 1, 2)
        table.add_row(stretch, energy_text(point["energy_j"]), change, within)
    any_change = percent_text(limits["energy_j"] / exclusive_j - 1)
    table.add_row("any", energy_text(limits["energy_j"]), any_change, "")
    console.print(table)
    console.print(f"makespan at least {time_text(limits['makespan_s'])}")
    console.print(f"mean JCT at least {time_text(limits['jct_mean_s'])}")
