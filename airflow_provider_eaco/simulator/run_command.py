"""``eaco-sim run``: one benchmark or trace, one policy, one ordering, and the files of the run."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import cast

from airflow_provider_eaco import __version__
from airflow_provider_eaco.core.model.energy_budget import BudgetAction, EnergyBudget
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.pool import PredictorName
from airflow_provider_eaco.simulator.again import made_from
from airflow_provider_eaco.simulator.beliefs import Belief
from airflow_provider_eaco.simulator.metrics import decision_ms, measures
from airflow_provider_eaco.simulator.order_benchmark import order_figures
from airflow_provider_eaco.simulator.order_workload import (
    GPUS_PER_NODE,
    DayChoices,
    DayKind,
    DemandKept,
    Oversized,
)
from airflow_provider_eaco.simulator.out_option import check_out_folder, out_path, writing_to
from airflow_provider_eaco.simulator.recording import Recording
from airflow_provider_eaco.simulator.report import write_report
from airflow_provider_eaco.simulator.run_bounds import bounds_in_summary
from airflow_provider_eaco.simulator.run_files import write_run
from airflow_provider_eaco.simulator.runner import Simulation
from airflow_provider_eaco.simulator.scenario import (
    BENCHMARKS,
    EXCLUSIVE,
    Accounting,
    Choices,
    Scenario,
    SleepBy,
    from_trace,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_scenario_arguments(parser)
    add_output_arguments(parser)
    parser.add_argument(
        "--policy", help="who may run where (default: eaco; in the benchmark order exclusive)"
    )
    parser.add_argument("--order", default="fifo", help="which job is looked at first (default: %(default)s)")
    parser.add_argument("--max-residents", type=whole(1), help="how many jobs may share GPUs")
    parser.add_argument(
        "--accounting",
        type=Accounting,
        choices=list(Accounting),
        default=Accounting.ALWAYS_ON,
        help="whether idle nodes sleep (default: %(default)s)",
    )
    parser.add_argument(
        "--sleep",
        type=SleepBy,
        choices=list(SleepBy),
        default=SleepBy.RULE,
        help="who puts nodes to sleep and wakes them, with --accounting sleep (default: %(default)s)",
    )
    parser.add_argument(
        "--mean-stretch",
        type=number(at_least=1),
        metavar="LIMIT",
        help="of all jobs, by work, for a policy that bounds it: run time / exclusive run time",
    )
    add_budget_arguments(parser)


def add_budget_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the cluster may draw, and its jobs may use in a day."""
    budget = parser.add_argument_group("energy budget")
    budget.add_argument("--power-budget", type=number(above=0), metavar="W", help="what the cluster may draw")
    budget.add_argument(
        "--energy-budget", type=number(above=0), metavar="KWH", help="what jobs may use in 24 h from 0 on"
    )
    budget.add_argument(
        "--over-budget",
        type=BudgetAction,
        choices=list(BudgetAction),
        default=BudgetAction.HOLD,
        help="whether a job that would exceed them waits (default: %(default)s)",
    )


def energy_budget_of(options: argparse.Namespace) -> EnergyBudget | None:
    """Return the budget, ``None`` where neither watts nor kilowatt-hours are named."""
    if options.power_budget is None and options.energy_budget is None:
        return None
    return EnergyBudget(options.power_budget, options.energy_budget, options.over_budget)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the files go."""
    parser.add_argument("--out", type=out_path, required=True, metavar="DIR", help="folder for the files")
    parser.add_argument(
        "--no-report", dest="report", action="store_false", help="leave report.html and the plots out"
    )


def default_policy(benchmark: str | None) -> str:
    """Return the policy where none is named."""
    return EXCLUSIVE if benchmark == "order" else "eaco"


def add_day_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the benchmark ``order`` offers beside the others."""
    day = parser.add_argument_group("benchmark order")
    day.add_argument(
        "--scenario",
        type=DayKind,
        choices=list(DayKind),
        default=DayKind.BATCH,
        help="training alone, with real-time inference beside it, or a day of a real trace, the seed being "
        "its number (default: %(default)s)",
    )
    day.add_argument(
        "--gpus", type=whole(GPUS_PER_NODE), help="GPUs of the cluster, in nodes of 8 (default: 8)"
    )
    day.add_argument(
        "--demand",
        type=DemandKept,
        choices=list(DemandKept),
        default=DemandKept.CURVE,
        help="what is kept for inference: its demand by the hour, or its peak (default: %(default)s)",
    )
    day.add_argument(
        "--oversized",
        type=Oversized,
        choices=list(Oversized),
        default=Oversized.LEAVE_OUT,
        help="jobs that fit no node beside inference do not come, or wait for ever (default: %(default)s)",
    )


def nodes_of(options: argparse.Namespace) -> int | None:
    """Return the number of nodes, which ``order`` also takes as a number of GPUs.

    :raises InvalidSettingError: if the GPUs are no whole nodes, or both are given, or another is asked.
    """
    if options.gpus is None:
        return cast("int | None", options.nodes)
    if options.benchmark != "order":
        raise InvalidSettingError("--gpus", "belongs to the benchmark order; the others have --nodes")
    if options.nodes is not None or options.gpus % GPUS_PER_NODE:
        raise InvalidSettingError(
            "--gpus", f"is {options.gpus}; expected a multiple of 8, and no --nodes beside"
        )
    return int(options.gpus) // GPUS_PER_NODE


def scenario_of(options: argparse.Namespace, choices: Choices) -> Scenario:
    """Return the scenario of the benchmark or the trace."""
    return from_trace(options.trace, choices) if options.trace else BENCHMARKS[options.benchmark](choices)


def add_scenario_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is simulated, whoever decides."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("benchmark", nargs="?", choices=sorted(BENCHMARKS), help="a published benchmark")
    what.add_argument("--trace", type=Path, metavar="FILE", help="a trace of your own, as CSV")
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="NAME",
        help="a rule that bounds the ordering; repeatable",
    )
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of all draws (default: %(default)s)")
    add_day_arguments(parser)
    parser.add_argument("--nodes", type=whole(1), help="number of nodes")
    parser.add_argument("--gpus-per-node", type=whole(1), help="GPUs of each node")
    parser.add_argument("--load", type=number(above=0), help="offered load; submissions are stretched to it")
    parser.add_argument("--jobs", type=whole(1), help="take only the first of the benchmark's jobs")
    add_belief_arguments(parser)
    parser.add_argument(
        "--power-levels",
        action="store_true",
        help="boards can be held to power limits as measured for ResNet-50 (eaco-nodes and traces)",
    )
    parser.add_argument(
        "--power-scale", type=number(above=0), default=1.0, help="factor on gavel-gpus' solo powers"
    )


def add_belief_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is believed at the start, how wrong it is, and how the rest is predicted."""
    parser.add_argument(
        "--belief", type=Belief, choices=list(Belief), help="what is known of the families at the start"
    )
    parser.add_argument(
        "--predictor",
        type=PredictorName,
        choices=list(PredictorName),
        help="by what sets are predicted that nobody has measured (default: the policy's own)",
    )
    parser.add_argument(
        "--belief-error",
        type=number(),
        default=0.0,
        metavar="SIGMA",
        help="of believed slowdowns and powers",
    )
    parser.add_argument(
        "--duration-error",
        type=number(),
        default=0.0,
        metavar="SIGMA",
        help="of the run times that jobs tell",
    )


def execute(options: argparse.Namespace) -> int:
    """Check where the files go, then do what :func:`carry_out` does; return the exit code."""
    check_out_folder(options.out)
    return carry_out(options)


def carry_out(options: argparse.Namespace) -> int:
    """Simulate, write the files, print the headline; return the exit code."""
    choices = Choices(
        policy=options.policy or default_policy(options.benchmark),
        order=options.order,
        rules=tuple(options.rule),
        seed=options.seed,
        nodes=nodes_of(options),
        gpus_per_node=options.gpus_per_node,
        load=options.load,
        jobs=options.jobs,
        max_residents=options.max_residents,
        accounting=options.accounting,
        sleep=options.sleep,
        mean_stretch=options.mean_stretch,
        power_levels=options.power_levels,
        predictor=options.predictor,
        belief=options.belief,
        belief_error=options.belief_error,
        duration_error=options.duration_error,
        power_scale=options.power_scale,
        energy_budget=energy_budget_of(options),
        day=DayChoices(options.scenario, options.demand, options.oversized),
    )
    scenario = scenario_of(options, choices)
    summary = run_and_write(scenario, options.out)
    if options.report:
        with writing_to(options.out):
            write_report(options.out, [options.out])
    print(headline(summary))  # noqa: T201 - the answer of the command
    return 0


def run_and_write(scenario: Scenario, folder: Path) -> dict[str, object]:
    """Simulate the scenario, leave its files in ``folder`` and return the summary."""
    began = time.perf_counter()
    simulation = Simulation(scenario)
    recording = simulation.run()
    wall_s = time.perf_counter() - began
    measured = measures(scenario.jobs, recording, scenario.nodes, scenario.gpus_per_node)
    summary: dict[str, object] = {
        "benchmark": scenario.benchmark,
        "policy": scenario.settings.policy,
        "order": scenario.settings.ordering,
        "accounting": scenario.accounting.value,
        "sleep": scenario.sleep_by.value,
        "seed": scenario.seed,
        "nodes": scenario.nodes,
        "gpus_per_node": scenario.gpus_per_node,
        "version": __version__,
        "max_residents": scenario.settings.max_residents,
        "mean_stretch_limit": scenario.mean_stretch_limit,
        "power_levels_w": list(scenario.truth.limits_w),
        "predictor": scenario.settings.predictor,
        **_of_the_budget(scenario),
        **measured,
        **bounds_in_summary(scenario, recording.runs, measured),
        **_of_the_day(scenario, recording),
        "made_from": made_from(scenario),
        "wall_s": round(wall_s, 3),
        "decision_ms": decision_ms(recording.decision_s),
    }
    with writing_to(folder):
        write_run(folder, scenario.jobs, recording, summary)
    return summary


def _of_the_budget(scenario: Scenario) -> dict[str, object]:
    budget = scenario.settings.energy_budget
    return {} if budget is None else {"energy_budget": asdict(budget)}


def _of_the_day(scenario: Scenario, recording: Recording) -> dict[str, object]:
    if scenario.day is None:
        return {}
    first_node = scenario.node_names[0]
    queued = len(scenario.jobs)
    figures = order_figures(scenario.day, scenario.day_choices, recording.runs, first_node, queued)
    return {"order_day": figures}


def headline(summary: Mapping[str, object]) -> str:
    """Return the few numbers that a reader looks for first."""
    energy, stretch, wait = summary["energy_j"], summary["stretch"], summary["wait_s"]
    if not isinstance(energy, dict) or not isinstance(stretch, dict) or not isinstance(wait, dict):
        raise TypeError("the summary has no energy, stretch or wait")
    day = summary.get("order_day")
    of_the_day = ""
    if isinstance(day, dict):
        of_the_day = f" {100 * day['used']:.1f} % used in 24 h, at most {100 * day['bound']:.1f} %;"
    return (
        f"{summary['benchmark']}, {summary['policy']}, {summary['order']}, {summary['accounting']}:"
        f"{of_the_day}"
        f" {energy['total'] / 3.6e6:.1f} kWh, mean stretch {stretch['mean']:.4f},"
        f" mean wait {wait['mean'] / 3600:.2f} h, makespan {float(str(summary['makespan_s'])) / 3600:.2f} h,"
        f" {summary['limit_misses']} limits missed, {summary['wall_s']} s"
    )


def whole(at_least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers of at least that much, for argparse."""

    def read(text: str) -> int:
        value = int(text)
        if value < at_least:
            raise ValueError
        return value

    read.__name__ = f"whole number of at least {at_least}"
    return read


def number(above: float | None = None, at_least: float = 0.0) -> Callable[[str], float]:
    """Return a reader of finite numbers of at least ``at_least``, or above ``above``, for argparse."""

    def read(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or value < at_least or (above is not None and value <= above):
            raise ValueError
        return value

    read.__name__ = f"number of at least {at_least:g}" if above is None else f"number above {above:g}"
    return read
