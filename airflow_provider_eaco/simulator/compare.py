"""``eaco-sim compare``: policies, orderings and numbers of residents side by side, in both accountings.

Each run is a process of its own and leaves its files in a folder of its own; FIFO exclusive, against which
the others are held, is always among them. An option that only some policies use (``--mean-stretch``,
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
from dataclasses import dataclass
from io import StringIO
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from airflow_provider_eaco.core.model.errors import EacoError, InvalidSettingError
from airflow_provider_eaco.core.policy.base import Lever
from airflow_provider_eaco.simulator import run_command
from airflow_provider_eaco.simulator.report import write_report
from airflow_provider_eaco.simulator.report.page import COLUMNS, table_rows
from airflow_provider_eaco.simulator.report.results import RunResult, read_run
from airflow_provider_eaco.simulator.scenario import EXCLUSIVE, Accounting, SleepBy, levers_by_name

BASELINE_ORDER = "fifo"


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

    @property
    def name(self) -> str:
        """The folder of its files."""
        residents = "" if self.max_residents is None else f"-{self.max_residents}"
        stretch = "" if self.mean_stretch is None else f"-{self.mean_stretch:g}"
        by_policy = "-by-policy" if self.sleep is SleepBy.POLICY else ""
        return f"{self.policy}{residents}{stretch}_{self.order}_{self.accounting.value}{by_policy}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: those of ``run``, some of which take several values here."""
    run_command.add_scenario_arguments(parser)
    run_command.add_output_arguments(parser)
    parser.add_argument(
        "--policy",
        nargs="+",
        type=policy_of,
        default=[(EXCLUSIVE, None), ("eaco", None)],
        metavar="POLICY[:N]",
        help="policies, each with the number of jobs that may share GPUs (default: exclusive eaco)",
    )
    parser.add_argument("--order", nargs="+", default=[BASELINE_ORDER], help="orderings (default: fifo)")
    parser.add_argument(
        "--accounting",
        nargs="+",
        type=Accounting,
        choices=list(Accounting),
        default=list(Accounting),
        help="default: both",
    )
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
    parser.add_argument(
        "--processes",
        type=run_command.whole(1),
        default=len(os.sched_getaffinity(0)),
        help="runs at one time (default: the processors of this machine, %(default)s)",
    )


def execute(options: argparse.Namespace) -> int:
    """Make the runs, write their report, print the figures; return the exit code."""
    variants = variants_of(options)
    folder: Path = options.out
    run_all(options, variants)
    folders = [folder / variant.name for variant in variants]
    if options.report:
        write_report(folder, folders, command_of(options))
    print_figures([read_run(one) for one in folders])
    return 0


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
        found[Variant(EXCLUSIVE, BASELINE_ORDER, accounting)] = None
        for (policy, residents), order in product(options.policy, options.order):
            stretches = options.mean_stretch if Lever.MEAN_STRETCH in levers[policy] else [None]
            sleeps = [
                sleep
                for sleep in options.sleep
                if sleep is SleepBy.RULE
                or (accounting is Accounting.SLEEP and Lever.NODE_SLEEP in levers[policy])
            ]
            for stretch, sleep in product(stretches, sleeps):
                found[Variant(policy, order, accounting, residents, stretch, sleep)] = None
    return list(found)


def _check_used(levers: Iterable[frozenset[Lever]], lever: Lever, option: str, chosen: bool) -> None:
    if chosen and not any(lever in each for each in levers):
        raise InvalidSettingError(option, "none of the policies uses it; leave the option out")


def run_all(options: argparse.Namespace, variants: Sequence[Variant]) -> None:
    """Make all runs, as many at one time as ``--processes`` says.

    :raises RunFailedError: with the first run that failed; those that have not begun are not made.
    """
    context = multiprocessing.get_context("spawn")
    workers = max(1, min(options.processes, len(variants)))
    with (
        _progress(len(variants)) as advance,
        ProcessPoolExecutor(workers, mp_context=context) as pool,
    ):
        waiting = {pool.submit(_run, _options_of(options, variant)): variant for variant in variants}
        try:
            for done in as_completed(waiting):
                advance(waiting[done].name)
                _raise_problem(done, waiting[done])
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


def _options_of(options: argparse.Namespace, variant: Variant) -> argparse.Namespace:
    values = {
        **vars(options),
        "policy": variant.policy,
        "order": variant.order,
        "accounting": variant.accounting,
        "max_residents": variant.max_residents,
        "mean_stretch": variant.mean_stretch,
        "sleep": variant.sleep,
        "out": options.out / variant.name,
        # One report shows all of them.
        "report": False,
    }
    return argparse.Namespace(**values)


def _run(options: argparse.Namespace) -> str:
    """Make one run in this process; return what is wrong with it, or nothing."""
    try:
        with redirect_stdout(StringIO()):
            run_command.execute(options)
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
        "belief_error",
        "duration_error",
        "seed",
    ):
        value = getattr(options, name)
        if value:
            words += [f"--{name.replace('_', '-')}", f"{value}"]
    return " ".join(words)
