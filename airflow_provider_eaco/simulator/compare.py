"""``eaco-sim compare``: policies, orderings and numbers of residents side by side, in both accountings.

Each run is a process of its own and leaves its files in a folder of its own; FIFO exclusive, against which
the others are held, is always among them. With ``--seeds`` everything is run once for each seed, and a table
of means is printed. An option that only some policies use (``--mean-stretch``,
``--sleep policy``) makes further runs of those alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from airflow_provider_eaco.core.model.errors import EacoError, InvalidSettingError
from airflow_provider_eaco.core.policy.base import Lever
from airflow_provider_eaco.simulator import run_command
from airflow_provider_eaco.simulator.figures import markdown_of, rows_of
from airflow_provider_eaco.simulator.order_table import table_of
from airflow_provider_eaco.simulator.order_workload import (
    USUAL_DAY,
    DayChoices,
    DayKind,
    DemandKept,
    Oversized,
)
from airflow_provider_eaco.simulator.out_option import check_out_folder, writing_to
from airflow_provider_eaco.simulator.report import write_report
from airflow_provider_eaco.simulator.report.page import COLUMNS, table_rows
from airflow_provider_eaco.simulator.report.results import RunResult, read_run, read_summary
from airflow_provider_eaco.simulator.scenario import EXCLUSIVE, Accounting, SleepBy, levers_by_name

BASELINE_ORDER = "fifo"
ORDERS_OF_A_DAY = ("fifo", "greedy", "largest", "backfill", "horizon")


class RunFailedError(EacoError):
    """One of the runs could not be made; the message names it and its cause."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the runs to compare."""

    policy: str
    order: str
    accounting: Accounting
    max_residents: int | None = None
    mean_stretch: float | None = None
    sleep: SleepBy = SleepBy.RULE
    day: DayChoices = USUAL_DAY

    @property
    def name(self) -> str:
        """The folder of its files."""
        peak = "_peak" if self.day.demand is DemandKept.PEAK else ""
        waits = "_wait" if self.day.oversized is Oversized.WAIT else ""
        residents = "" if self.max_residents is None else f"-{self.max_residents}"
        stretch = "" if self.mean_stretch is None else f"-{self.mean_stretch:g}"
        by_policy = "-by-policy" if self.sleep is SleepBy.POLICY else ""
        return (
            f"{self.policy}{residents}{stretch}_{self.order}_{self.accounting.value}{by_policy}{peak}{waits}"
        )


# A variant with the seed that it is run under.
Run = tuple[Variant, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: those of ``run``, some of which take several values here."""
    run_command.add_scenario_arguments(parser)
    run_command.add_output_arguments(parser)
    run_command.add_budget_arguments(parser)
    parser.add_argument(
        "--policy",
        nargs="+",
        type=policy_of,
        metavar="POLICY[:N]",
        help="policies, each with the number of jobs that may share GPUs (default: exclusive eaco)",
    )
    parser.add_argument(
        "--order",
        nargs="+",
        help=f"orderings (default: fifo; in the benchmark order {' '.join(ORDERS_OF_A_DAY)})",
    )
    parser.add_argument(
        "--seeds",
        type=seeds_of,
        metavar="SEEDS",
        help="run everything under each of these seeds, as in 0-19 or 1,2,5",
    )
    parser.add_argument(
        "--accounting",
        nargs="+",
        type=Accounting,
        choices=list(Accounting),
        help="default: both; in the benchmark order always-on",
    )
    _add_levers(parser)
    parser.add_argument(
        "--processes",
        type=run_command.whole(1),
        default=len(os.sched_getaffinity(0)),
        help="runs at one time (default: the processors of this machine, %(default)s)",
    )


def _add_levers(parser: argparse.ArgumentParser) -> None:
    """Declare what only some policies use."""
    parser.add_argument(
        "--sleep",
        nargs="+",
        type=SleepBy,
        choices=list(SleepBy),
        default=[SleepBy.RULE],
        help="who puts nodes to sleep, with --accounting sleep; each makes runs of its own (default: rule)",
    )
    parser.add_argument(
        "--mean-stretch",
        nargs="+",
        type=run_command.number(at_least=1),
        default=[None],
        metavar="LIMIT",
        help="of all jobs, by work; each makes a run of every policy that bounds it",
    )


def execute(options: argparse.Namespace) -> int:
    """Make the runs, write their report, print the figures; return the exit code."""
    set_defaults(options)
    variants = variants_of(options)
    seeds = options.seeds or (options.seed,)
    runs = [(variant, seed) for seed in seeds for variant in variants]
    folder: Path = options.out
    # Not in the runs, which go on beside each other: looking makes missing folders and takes them away again.
    for place in (folder, *(folder_of(options, run) for run in runs)):
        check_out_folder(place)
    run_all(options, runs)
    if options.report:
        # Runs of other jobs are not to be shown on one page: it is that of the first seed.
        first = [read_summary(folder_of(options, run)) for run in runs[: len(variants)]]
        # Where inference keeps everybody waiting for ever there is nothing to show.
        shown = [run.folder for run in first if run.summary.get("makespan_s")]
        with writing_to(folder):
            write_report(folder, shown, command_of(options))
    if options.benchmark == "order":
        print(table_of([read_summary(folder_of(options, run)) for run in runs]), end="")  # noqa: T201 - the answer
    elif options.seeds:
        print(markdown_of(folder, rows_of(folder)), end="")  # noqa: T201 - the answer
    else:
        print_figures([read_run(folder_of(options, run)) for run in runs])
    return 0


def set_defaults(options: argparse.Namespace) -> None:
    """Fill in what the user left open, which depends on the benchmark."""
    of_a_day = options.benchmark == "order"
    if options.policy is None:
        options.policy = [(EXCLUSIVE, None)] if of_a_day else [(EXCLUSIVE, None), ("eaco", None)]
    if options.order is None:
        options.order = list(ORDERS_OF_A_DAY) if of_a_day else [BASELINE_ORDER]
    if options.accounting is None:
        options.accounting = [Accounting.ALWAYS_ON] if of_a_day else list(Accounting)


def folder_of(options: argparse.Namespace, run: Run) -> Path:
    """Return where the run's files go: under its seed where there are several."""
    variant, seed = run
    folder: Path = options.out / f"seed-{seed:03d}" if options.seeds else options.out
    return folder / variant.name


def seeds_of(text: str) -> tuple[int, ...]:
    """Return the seeds in ``0-19`` or ``1,2,5``, each once.

    :raises argparse.ArgumentTypeError: for anything else.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not (last.isdecimal() and int(first) <= int(last))):
            raise argparse.ArgumentTypeError(f"{text!r} is not as 0-19 or 1,2,5")
        found.update(dict.fromkeys(range(int(first), int(last if dash else first) + 1)))
    return tuple(found)


def policy_of(text: str) -> tuple[str, int | None]:
    """Return policy and number of residents from ``eaco`` or ``eaco:3``.

    :raises argparse.ArgumentTypeError: for a number that is none.
    """
    name, colon, residents = text.partition(":")
    if colon and not (residents.isdecimal() and int(residents) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not POLICY or POLICY:N, N at least 1")
    return name, int(residents) if colon else None


def variants_of(options: argparse.Namespace) -> list[Variant]:
    """Return every combination once, the baseline of each accounting first.

    :raises InvalidSettingError: for a policy that nobody offers, or an option that none of them uses.
    """
    levers = {policy: levers_by_name(policy) for policy, _ in options.policy}
    _check_used(levers.values(), Lever.MEAN_STRETCH, "--mean-stretch", options.mean_stretch != [None])
    _check_used(levers.values(), Lever.NODE_SLEEP, "--sleep policy", SleepBy.POLICY in options.sleep)
    found: dict[Variant, None] = {}
    for accounting in options.accounting:
        for baseline in _baselines_of(options, accounting):
            found[baseline] = None
        for (policy, residents), order in product(options.policy, options.order):
            stretches = options.mean_stretch if Lever.MEAN_STRETCH in levers[policy] else [None]
            sleeps = [
                sleep
                for sleep in options.sleep
                if sleep is SleepBy.RULE
                or (accounting is Accounting.SLEEP and Lever.NODE_SLEEP in levers[policy])
            ]
            for stretch, sleep in product(stretches, sleeps):
                found[Variant(policy, order, accounting, residents, stretch, sleep, _day_of(options))] = None
    return list(found)


def _day_of(options: argparse.Namespace) -> DayChoices:
    return DayChoices(options.scenario, options.demand, options.oversized)


def _baselines_of(options: argparse.Namespace, accounting: Accounting) -> list[Variant]:
    """Return FIFO exclusive; beside real-time inference with its peak kept all day, in both ways to queue."""
    day = _day_of(options)
    days = [day]
    if options.benchmark == "order" and day.kind is DayKind.MIXED:
        days = [replace(day, demand=DemandKept.PEAK, oversized=oversized) for oversized in Oversized]
    return [Variant(EXCLUSIVE, BASELINE_ORDER, accounting, day=each) for each in days]


def _check_used(levers: Iterable[frozenset[Lever]], lever: Lever, option: str, chosen: bool) -> None:
    if chosen and not any(lever in each for each in levers):
        raise InvalidSettingError(option, "none of the policies uses it; leave the option out")


def run_all(options: argparse.Namespace, runs: Sequence[Run]) -> None:
    """Make all runs, as many at one time as ``--processes`` says.

    :raises RunFailedError: with the first run that failed; those that have not begun are not made.
    """
    context = multiprocessing.get_context("spawn")
    workers = max(1, min(options.processes, len(runs)))
    with (
        _progress(len(runs)) as advance,
        ProcessPoolExecutor(workers, mp_context=context) as pool,
    ):
        waiting = {pool.submit(_run, _options_of(options, run)): run for run in runs}
        try:
            for done in as_completed(waiting):
                variant, _ = waiting[done]
                advance(variant.name)
                _raise_problem(done, variant)
        except RunFailedError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _raise_problem(done: Future[str], variant: Variant) -> None:
    try:
        problem = done.result()
    except BrokenProcessPool as error:
        raise RunFailedError(f"{variant.name}: its process was killed (memory?)") from error
    if problem:
        raise RunFailedError(f"{variant.name}: {problem}")


def _options_of(options: argparse.Namespace, run: Run) -> argparse.Namespace:
    variant, seed = run
    values = {
        **vars(options),
        "policy": variant.policy,
        "order": variant.order,
        "accounting": variant.accounting,
        "max_residents": variant.max_residents,
        "mean_stretch": variant.mean_stretch,
        "sleep": variant.sleep,
        "demand": variant.day.demand,
        "oversized": variant.day.oversized,
        "seed": seed,
        "out": folder_of(options, run),
        # One report shows all of them.
        "report": False,
    }
    return argparse.Namespace(**values)


def _run(options: argparse.Namespace) -> str:
    """Make one run in this process; return what is wrong with it, or nothing."""
    try:
        with redirect_stdout(StringIO()):
            run_command.carry_out(options)
    except EacoError as error:
        return str(error)
    return ""


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Give a function that moves a bar on by one; the bar is on standard error, and gone at the end."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=total)
        yield lambda name: progress.update(bar, advance=1, description=name)


def print_figures(runs: Sequence[RunResult]) -> None:
    """Print the table of the report, one line for each run."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if index < 2 else "right", overflow="fold")
    for row in table_rows(runs):
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        # A file or a pipe has no width that a table could be folded to.
        console.width = 200
    console.print(table)


def command_of(options: argparse.Namespace) -> str:
    """Return the command that makes these runs again, without the folder that they go to."""
    words = ["eaco-sim", "compare", options.benchmark or f"--trace {Path(options.trace).name}"]
    named = [policy if residents is None else f"{policy}:{residents}" for policy, residents in options.policy]
    words += ["--policy", *named, "--order", *options.order]
    for rule in options.rule or ():
        words += ["--rule", rule]
    if options.mean_stretch != [None]:
        words += ["--mean-stretch", *(f"{stretch:g}" for stretch in options.mean_stretch)]
    if SleepBy.POLICY in options.sleep:
        words += ["--sleep", *options.sleep]
    if options.power_levels:
        words += ["--power-levels"]
    for name in (
        "nodes",
        "gpus_per_node",
        "load",
        "jobs",
        "belief",
        "predictor",
        "belief_error",
        "duration_error",
        "gpus",
        "power_budget",
        "energy_budget",
    ):
        value = getattr(options, name)
        if value:
            words += [f"--{name.replace('_', '-')}", f"{value}"]
    if run_command.energy_budget_of(options) is not None:
        words += ["--over-budget", options.over_budget]
    if options.benchmark == "order":
        words += ["--scenario", options.scenario]
    words += (
        ["--seeds", ",".join(map(str, options.seeds))] if options.seeds else ["--seed", f"{options.seed}"]
    )
    return " ".join(words)
