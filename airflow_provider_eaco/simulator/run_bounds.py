"""What a run is held against: its bounds, how far it is from them, and the Pareto curve."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from airflow_provider_eaco.core.ports import EnergySolver
from airflow_provider_eaco.simulator.bounds import Achieved, Bounds, BoundsOfJobs, gaps, performance_of_truth
from airflow_provider_eaco.simulator.recording import RunInterval
from airflow_provider_eaco.simulator.scenario import Scenario
from airflow_provider_eaco.simulator.trace import TraceJob
from airflow_provider_eaco.solver.energy_lp import HighsEnergySolver

log = logging.getLogger(__name__)

# What may share GPUs at all: the paper measured up to four. A policy that allows fewer is held against the
# same limit, since what it leaves out is its choice.
MOST_RESIDENTS = 4


def energy_solver() -> EnergySolver:
    """Return the solver of the energy program; the one place of the simulator that names it."""
    return HighsEnergySolver()


def bounds_of_scenario(
    scenario: Scenario, jobs: Sequence[TraceJob] | None = None, *, levels: bool = True
) -> BoundsOfJobs:
    """Return the bounds of the scenario's jobs on its cluster, whatever its policy.

    :param jobs: those of them that count; all by default.
    :param levels: whether boards may be held to the power limits that they know.
    """
    return BoundsOfJobs(
        scenario.jobs if jobs is None else jobs,
        scenario.nodes * scenario.gpus_per_node,
        performance_of_truth(scenario.truth, scenario.gpus_per_node, levels=levels),
        max(MOST_RESIDENTS, scenario.settings.max_residents),
        energy_solver(),
    )


def bounds_in_summary(
    scenario: Scenario, runs: Sequence[RunInterval], measured: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``bounds``, ``gaps``, ``further_bounds`` and ``pareto`` for ``summary.json``.

    All are of the work that the run did: of the jobs that ran, as are its energy, stretch and JCT. Jobs that
    never started (beside real-time inference they may wait for ever) have no part in them, so that a run is
    no better for what it left undone. Where none ran they are ``None``, and the curve is empty.

    Further bounds are of energy at the run's stretch: if all jobs keep their limits (a run that misses some
    may be below), and if no power limit is set. Without scipy (extra ``analysis``) their values are ``None``,
    and a warning says so.

    :param measured: what the run achieved, as :func:`.metrics.measures` says it.
    """
    achieved = _achieved(runs, measured)
    started = {run.job_id for run in runs}
    jobs = [job for job in scenario.jobs if job.job_id in started]
    if not jobs:
        return _unknown()
    limits = bounds_of_scenario(scenario, jobs)
    try:
        bounds = limits.of_run(achieved)
        further_j = {
            "energy_j_at_stretch_within_limits": limits.energy_within_limits_j(achieved.mean_stretch)
        }
        if scenario.truth.limits_w:
            at_full_power = bounds_of_scenario(scenario, jobs, levels=False)
            further_j["energy_j_at_stretch_at_full_power"] = at_full_power.energy_j(achieved.mean_stretch)
        curve = [asdict(point) for point in limits.pareto_curve()]
    except ImportError:
        log.warning("no bounds: scipy is not installed (extra 'analysis')")
        return _unknown()
    return {
        "bounds": asdict(bounds),
        "gaps": dict(gaps(achieved, bounds)),
        "further_bounds": {name: least_j + achieved.asleep_j for name, least_j in further_j.items()},
        "pareto": curve,
    }


def _achieved(runs: Sequence[RunInterval], measured: Mapping[str, Any]) -> Achieved:
    return Achieved(
        energy_j=measured["energy_j"]["total"],
        asleep_j=measured["energy_j"]["asleep"],
        mean_stretch=measured["stretch"]["mean"],
        makespan_s=measured["makespan_s"],
        jct_mean_s=measured["jct_s"]["mean"],
        allocated_utilisation=measured["allocated_utilisation"],
        lost_gpu_s=math.fsum(len(run.gpus) * (run.end_s - run.start_s) for run in runs if run.rate == 0),
    )


def _unknown() -> dict[str, Any]:
    unknown = dict.fromkeys(field.name for field in fields(Bounds))
    return {"bounds": unknown, "gaps": unknown, "further_bounds": {}, "pareto": []}
