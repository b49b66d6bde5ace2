"""The commands of ``eaco-sim``. Each is a module that is imported only when it is called.

A command's module has ``add_arguments(parser)`` and ``execute(options) -> int``, which returns the exit code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command: where it is, and the line that ``--help`` shows."""

    module: str
    summary: str


COMMANDS: Mapping[str, Command] = {
    "run": Command(
        "airflow_provider_eaco.simulator.run_command",
        "replay a benchmark or a trace under one policy and ordering",
    ),
    "compare": Command(
        "airflow_provider_eaco.simulator.compare",
        "replay the same jobs under several policies and orderings, in parallel, in both accountings",
    ),
    "bounds": Command(
        "airflow_provider_eaco.simulator.bounds_command",
        "print what no schedule of the jobs can pass: energy by stretch, makespan, mean JCT",
    ),
    "explain": Command(
        "airflow_provider_eaco.simulator.explain_command",
        "tell in words what was decided about one job of a run, why, and what else there was",
    ),
    "report": Command(
        "airflow_provider_eaco.simulator.report_command",
        "make the page of one run, or one page of several runs of the same jobs",
    ),
    "figures": Command(
        "airflow_provider_eaco.simulator.figures",
        "print means and ranges over seeds of runs that are there, as Markdown or CSV",
    ),
    "convert": Command(
        "airflow_provider_eaco.simulator.convert",
        "make a trace of another project's log or of an Airflow database, or profiles of measurements",
    ),
}
