"""Which jobs a user means: by job id, by task, or by task and run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_eaco.core.lifecycle import FINAL_PHASES
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.cli.console import CommandError

if TYPE_CHECKING:
    from airflow_provider_eaco.store.read_model import ReadModel

USAGE = "name it by its job id, as DAG_ID.TASK_ID, or as DAG_ID RUN_ID TASK_ID [MAP_INDEX]"
_WITH_INDEX = re.compile(r"(?P<task>.+)\[(?P<index>[0-9]+)\]")


def find_jobs(words: Sequence[str], stored: ReadModel) -> list[JobRecord]:
    """Return the jobs that the words name, at least one, the newest first.

    ``DAG_ID.TASK_ID`` (``DAG_ID.TASK_ID[3]`` for one mapped task) means all its jobs that have not ended, or
    the last one that has.

    :raises CommandError: if the words name no job; it says what is known of the task instead.
    """
    if len(words) == 1:
        return _by_name(words[0], stored)
    if len(words) in {3, 4}:
        return _by_run(words, stored)
    raise CommandError(f"{' '.join(words)!r} names no task; {USAGE}")


def _by_name(text: str, stored: ReadModel) -> list[JobRecord]:
    by_id = stored.job(text)
    if by_id is not None:
        return [by_id]
    with_index = _WITH_INDEX.fullmatch(text)
    name, map_index = (with_index["task"], int(with_index["index"])) if with_index else (text, None)
    found: list[JobRecord] = []
    # DAG and task ids may both have dots in them: every way to split the name is looked up.
    ways = [(name[: dot.start()], name[dot.end() :]) for dot in re.finditer(r"\.", name)]
    for dag_id, task_id in ways:
        found += stored.jobs_of_task(dag_id, task_id)
    if map_index is not None:
        found = [record for record in found if record.job.order.map_index == map_index]
    if not found:
        from airflow_provider_eaco.provider.cli.airflow_facts import last_told

        said = [told for dag_id, task_id in ways if (told := last_told(dag_id, None, task_id, map_index))]
        known_of_it = USAGE if not said else f"last told: {said[0]}"
        raise CommandError(f"no job of a task {text!r} is known; {known_of_it}")
    living = [record for record in found if record.phase not in FINAL_PHASES]
    return living or [max(found, key=lambda record: record.job.queued_s)]


def _by_run(words: Sequence[str], stored: ReadModel) -> list[JobRecord]:
    from airflow_provider_eaco.provider.cli.airflow_facts import last_told, tries_of

    dag_id, run_id, task_id = words[:3]
    map_index = _index(words[3]) if len(words) == 4 else None
    named = f"task {dag_id}.{task_id}" + ("" if map_index is None else f"[{map_index}]")
    tasks = tries_of(dag_id, run_id, task_id, map_index)
    if not tasks:
        raise CommandError(f"Airflow has no {named} in run {run_id!r}")
    # Of each mapped task the newest try that asked for GPUs.
    found = [stored.newest_job(task.job_ids) for task in tasks]
    known = [record for record in found if record is not None]
    if not known:
        state = ", ".join(sorted({task.state or "none" for task in tasks}))
        told = last_told(dag_id, run_id, task_id, map_index)
        known_of_it = "never asked for GPUs here" if told is None else f"has no job here; last told: {told}"
        raise CommandError(f"{named} in run {run_id!r} {known_of_it}; Airflow's state of it: {state}")
    return known


def _index(text: str) -> int:
    if not re.fullmatch(r"-1|[0-9]+", text):
        raise CommandError(
            f"MAP_INDEX is {text!r}; it must be a whole number, -1 for a task that is not mapped"
        )
    return int(text)
