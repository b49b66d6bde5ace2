"""The verb ``simulate``: the present queue and running set under other settings, with no side effect."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import dataclass

from airflow_provider_eaco.provider.cli.console import (
    CommandError,
    print_document,
    print_line,
    print_rows,
    print_section,
    reading,
)
from airflow_provider_eaco.provider.cli.rows import columns, shown_gpus
from airflow_provider_eaco.provider.shown import UNKNOWN, shown_duration, shown_energy, shown_instant
from airflow_provider_eaco.provider.whatif.carry_on import CarryOn
from airflow_provider_eaco.provider.whatif.outcome import JobOutcome, Outcome
from airflow_provider_eaco.provider.whatif.present import Changes, Present, changed

AS_IT_IS = "as it is"
WHAT_IF = "what if"
NOTHING = "no task waits or runs"
_FOR_PEOPLE = frozenset({"table", "plain"})


@dataclass(frozen=True, slots=True)
class TotalRow:
    """One simulation. ``mean_wait`` is from now, of the waiting tasks that start."""

    settings: str
    waiting: str
    start: str
    mean_wait: str
    all_through: str
    energy: str


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task under the simulated settings, with its start as it is now beside it."""

    pool: str
    task: str
    now: str
    start_as_it_is: str
    start: str
    end: str
    node: str
    gpus: str
    why: str
    job: str


@reading
def simulate(args: Namespace) -> None:
    """Carry the present on under the given settings and as it is; say what was assumed."""
    from airflow_provider_eaco.provider.wiring import read_present

    changes = changes_of(args)
    present = read_present()
    pool = _pool(args.pool, present, changes)
    other = changed(present, pool, changes)
    as_it_is = CarryOn(present).run()
    what_if = CarryOn(other).run() if changes.are_any else as_it_is
    totals = [total_row(AS_IT_IS, as_it_is)]
    if changes.are_any:
        totals.append(total_row(WHAT_IF, what_if))
    tasks = task_rows(what_if, as_it_is, _index_of(present, other))
    if args.output not in _FOR_PEOPLE:
        print_document(
            {
                "at": shown_instant(what_if.now_s),
                "pool": pool,
                "changes": shown_changes(changes),
                "totals": [columns(row) for row in totals],
                "tasks": [columns(row) for row in tasks],
                "assumptions": list(what_if.assumptions),
            },
            args.output,
        )
        return
    told = ", ".join(f"{name} {value}" for name, value in shown_changes(changes).items())
    print_line(f"Simulated from {shown_instant(what_if.now_s)} on; pool {pool}: {told or 'unchanged'}")
    print_rows([columns(row) for row in totals], args.output)
    print_section("Tasks", [columns(row) for row in tasks], args.output, empty=NOTHING)
    print_line("Assumed:")
    for sentence in what_if.assumptions:
        print_line(f"  - {sentence}")


def changes_of(args: Namespace) -> Changes:
    """Return what the options ask for.

    :raises CommandError: for a stretch that is no number.
    """
    stretch: float | None = None
    if args.max_stretch is not None:
        try:
            stretch = math.inf if args.max_stretch == "none" else float(args.max_stretch)
        except ValueError as error:
            raise CommandError(
                f"--max-stretch: is {args.max_stretch!r}, must be 1 or more, or none"
            ) from error
    return Changes(args.policy, args.order, args.gpus, args.max_residents, stretch)


def shown_changes(changes: Changes) -> dict[str, str]:
    """Return what is to be otherwise, by the name of its option."""
    values = {
        "policy": changes.policy,
        "order": changes.order,
        "gpus": changes.gpus,
        "max-residents": changes.max_residents,
        "max-stretch": "none" if changes.max_stretch == math.inf else changes.max_stretch,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _pool(asked: str | None, present: Present, changes: Changes) -> str:
    names = [state.settings.name for state in present.pools]
    if asked is None and changes.are_any and len(names) > 1:
        raise CommandError(f"--pool: name the GPU pool that the changes are for: {', '.join(names)}")
    return names[0] if asked is None else asked


def total_row(settings: str, outcome: Outcome) -> TotalRow:
    """Return the totals of one simulation."""
    return TotalRow(
        settings=settings,
        waiting=str(outcome.waiting),
        start=str(outcome.started),
        mean_wait=shown_duration(outcome.mean_wait_s),
        all_through=shown_instant(outcome.end_s),
        energy=shown_energy(outcome.energy_j, partial=outcome.is_energy_partial),
    )


def task_rows(what_if: Outcome, as_it_is: Outcome, index_of: dict[str, int]) -> list[TaskRow]:
    """Return every task, those that hold GPUs first, then by start.

    :param index_of: the index of each GPU on its node, by UUID.
    """
    before = {job.job_id: job for job in as_it_is.jobs}
    return [_task_row(job, before.get(job.job_id), index_of) for job in what_if.jobs]


def _task_row(job: JobOutcome, before: JobOutcome | None, index_of: dict[str, int]) -> TaskRow:
    place = job.placement
    return TaskRow(
        pool=job.pool,
        task=job.task,
        now="waits" if job.waits else "holds GPUs",
        start_as_it_is=shown_instant(None if before is None else before.start_s),
        start=shown_instant(job.start_s),
        end=shown_instant(job.end_s),
        node=UNKNOWN if place is None else place.node,
        gpus=UNKNOWN if place is None else shown_gpus(place.gpu_uuids, index_of),
        why=job.why,
        job=job.job_id,
    )


def _index_of(*presents: Present) -> dict[str, int]:
    nodes = [node for present in presents for node in present.view.nodes]
    return {gpu.uuid: gpu.index for node in nodes for gpu in node.gpus}
