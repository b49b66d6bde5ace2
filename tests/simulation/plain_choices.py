"""What each open point of the paper is worth on ``eaco-nodes``, by the plain program.

``python -m tests.simulation.plain_choices policies choices --seeds 1 2`` prints energy against FIFO exclusive
in the same accounting and the mean stretch, for each policy and with one choice after the other changed; the
published data has to be in the folder ``EACO_DATA``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean

from airflow_provider_eaco.simulator.workload import eaco_nodes_jobs
from tests.simulation.paper_rules import ALONE
from tests.simulation.plain_program import Choices, Outcome, PlainJob, simulate

LOADS = {28: 1.3, 64: 0.55}
CELLS = ((28, False), (28, True), (64, False), (64, True))
# Where a choice does most: what runs when everything is on, and what is asleep when little is to do.
TWO_CELLS = ((28, False), (64, True))

CHOICES: dict[str, Choices] = {
    "as decided": Choices(),
    "known sets take nobody in trial": Choices(trials_close=True),
    "threshold on what sets were seen to take": Choices(asked=False),
    "both": Choices(trials_close=True, asked=False),
    "no threshold": Choices(threshold_pct=math.inf),
    "limits without credit": Choices(credit=False),
    "nobody passes who waits": Choices(passing=False),
    "most power first": Choices(by_power=True),
    "no energy rule": Choices(gain=False),
}
POLICIES: dict[str, Choices] = {
    "fifo_packed": Choices(policy="fifo_packed", max_residents=2),
    "eaco, up to 2": Choices(max_residents=2),
    "eaco, up to 3": Choices(max_residents=3),
    "eaco, up to 4": Choices(),
}


@cache
def jobs_of(nodes: int, seed: int) -> tuple[PlainJob, ...]:
    """Return the jobs of the benchmark, drawn as the simulator draws them."""
    drawn = eaco_nodes_jobs(sorted(ALONE), nodes, LOADS[nodes], seed).jobs
    return tuple(PlainJob(job.family, job.submit_s, job.work_s, job.stretch_limit) for job in drawn)


@cache
def outcome(choices: Choices, nodes: int, seed: int) -> Outcome:
    """Return the outcome of one run."""
    return simulate(jobs_of(nodes, seed), nodes, choices)


def figures(choices: Choices, nodes: int, sleep: bool, seed: int) -> tuple[float, float]:
    """Return energy against FIFO exclusive and the mean stretch, both in per cent."""
    run = outcome(replace(choices, sleep=sleep), nodes, seed)
    plain = outcome(Choices(policy="exclusive", max_residents=1, sleep=sleep), nodes, seed)
    return 100 * (run.energy_j / plain.energy_j - 1), 100 * (run.mean_stretch - 1)


def main() -> None:
    """Print the tables in Markdown: of policies, and of choices for up to three and up to four residents."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("tables", choices=("policies", "choices"), nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    if "policies" in options.tables:
        table("policies", POLICIES, options.seeds, CELLS)
    if "choices" in options.tables:
        for residents in (4, 3):
            rows = {name: replace(c, max_residents=residents) for name, c in CHOICES.items()}
            table(f"choices, up to {residents} residents", rows, options.seeds, TWO_CELLS)


def table(title: str, rows: dict[str, Choices], seeds: list[int], cells: Sequence[tuple[int, bool]]) -> None:
    """Write a table: in each cell energy and mean stretch, means over the seeds."""
    head = [f"{nodes} {'sleep' if sleep else 'always-on'}" for nodes, sleep in cells]
    write = sys.stdout.write
    write(f"\n{title}, seeds {', '.join(map(str, seeds))}\n\n")
    write(f"| | {' | '.join(head)} |\n| --- |{' ---: |' * len(cells)}\n")
    for name, choices in rows.items():
        shown = []
        for nodes, sleep in cells:
            found = [figures(choices, nodes, sleep, seed) for seed in seeds]
            energies, stretches = zip(*found, strict=True)
            shown.append(f"{spread(energies, 1)} / {spread(stretches, 2)}")
        write(f"| {name} | {' | '.join(shown)} |\n")
        sys.stdout.flush()


def spread(values: Sequence[float], digits: int) -> str:
    """Return the mean with its sign, and the range where there are several values."""
    shown = [f"{value:+.{digits}f}" for value in (fmean(values), min(values), max(values))]
    mean, low, high = (text.replace("-", "\N{MINUS SIGN}") for text in shown)
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


if __name__ == "__main__":
    main()
