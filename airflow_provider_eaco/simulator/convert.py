"""``eaco-sim convert``: other projects' logs, an Airflow database, or measurements, in our own formats.

A log says when which job ran on how many GPUs, not what it trained: ``--families`` draws that, in the
convention of the benchmarks. What is left out is told on standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.simulator.importers import (
    IMPORTERS,
    ImportChoices,
    import_profiles,
    write_imported,
)
from airflow_provider_eaco.simulator.out_option import check_out_file, out_path, writing_to
from airflow_provider_eaco.simulator.readers import AUTO, READERS, read_trace
from airflow_provider_eaco.simulator.trace import Trace, TraceError, TraceJob, write_trace
from airflow_provider_eaco.simulator.trace_sources import HistoryChoices, airflow_trace

# Where Airflow itself looks for its database.
AIRFLOW_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
NO_LIMIT = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", nargs="?", type=Path, metavar="FILE", help="log or table to convert")
    what.add_argument(
        "--airflow",
        nargs="?",
        const="",
        metavar="URL",
        help=f"the task instances of an Airflow database (default: the one that {AIRFLOW_DATABASE} names)",
    )
    parser.add_argument(
        "--from",
        dest="file_format",
        default=AUTO,
        choices=[AUTO, *READERS, *IMPORTERS],
        help="format of FILE; gavel, zeus, eaco-profiles give profiles, the others a trace (default: auto)",
    )
    parser.add_argument("--out", type=out_path, required=True, metavar="FILE", help="what to write")
    _add_trace_arguments(parser.add_argument_group("traces"))
    _add_history_arguments(parser.add_argument_group("--airflow"))
    _add_profile_arguments(parser.add_argument_group("profiles"))


def _add_trace_arguments(traces: argparse._ArgumentGroup) -> None:
    traces.add_argument("--families", metavar="A,B,...", help="draw the family of every job from these")
    traces.add_argument(
        "--stretch-limits", metavar="A,B,...", help=f"draw the limit of every job from these ({NO_LIMIT}: no)"
    )
    traces.add_argument("--seed", type=int, default=1, help="seed of the draws (default: %(default)s)")
    traces.add_argument("--first", type=int, metavar="N", help="take only the first N jobs")
    traces.add_argument("--max-gpus", type=int, metavar="N", help="leave out jobs of more GPUs")


def _add_history_arguments(history: argparse._ArgumentGroup) -> None:
    history.add_argument(
        "--pool", action="append", help="only tasks of this pool; may be given several times"
    )
    history.add_argument("--dag", action="append", help="only tasks of this DAG; may be given several times")
    history.add_argument(
        "--since", metavar="TIME", help="only tasks that were queued from then on (ISO 8601)"
    )
    history.add_argument(
        "--gpus-per-slot", type=int, default=1, help="GPUs for each pool slot of a task (default: 1)"
    )


def _add_profile_arguments(profiles: argparse._ArgumentGroup) -> None:
    profiles.add_argument("--gpu-model", help="GPU model, as `airflow eaco nodes` shows it")
    profiles.add_argument(
        "--table", default="motivation", help="table of the Gavel CSV (default: %(default)s)"
    )
    profiles.add_argument("--power-limit", type=float, metavar="W", help="power limit of the Zeus rows")


def execute(options: argparse.Namespace) -> int:
    """Convert, tell what was left out; return the exit code."""
    check_out_file(options.out)
    if options.file_format in IMPORTERS and options.file is not None:
        choices = ImportChoices(options.gpu_model, options.table, options.power_limit)
        imported = import_profiles(options.file, options.file_format, choices)
        with writing_to(options.out):
            write_imported(options.out, imported)
        _tell(options.out, len(imported.profiles), "profiles", imported.skipped)
        return 0
    trace = _cut(_trace(options), options.first, options.max_gpus)
    jobs = drawn(
        trace.jobs,
        _listed("--families", options.families),
        [_limit(text) for text in _listed("--stretch-limits", options.stretch_limits)],
        options.seed,
    )
    with writing_to(options.out):
        write_trace(options.out, jobs)
    _tell(options.out, len(jobs), "jobs", trace.skipped)
    return 0


def _trace(options: argparse.Namespace) -> Trace:
    if options.airflow is None:
        return read_trace(options.file, options.file_format)
    url = options.airflow or os.environ.get(AIRFLOW_DATABASE, "")
    if not url:
        raise InvalidSettingError("--airflow", f"no database; give its URL or set {AIRFLOW_DATABASE}")
    choices = HistoryChoices.checked(options.pool, options.dag, options.since, options.gpus_per_slot)
    return airflow_trace(url, choices)


def _cut(trace: Trace, first: int | None, max_gpus: int | None) -> Trace:
    for name, value in (("--first", first), ("--max-gpus", max_gpus)):
        if value is not None and value < 1:
            raise InvalidSettingError(name, f"{value} must be at least 1")
    kept = [
        (job, place)
        for job, place in zip(trace.jobs, trace.places, strict=True)
        if max_gpus is None or job.gpus <= max_gpus
    ]
    wide = len(trace.jobs) - len(kept)
    skipped = {**trace.skipped, **({f"of more than {max_gpus} GPUs": wide} if wide else {})}
    kept = kept[:first]
    if not kept:
        raise TraceError(trace.source, f"no job is left ({_counts(skipped) or 'none was there'})")
    jobs, places = zip(*kept, strict=True)
    return Trace(trace.source, jobs, places, skipped).from_zero()


def drawn(
    jobs: Sequence[TraceJob], families: Sequence[str], limits: Sequence[float | None], seed: int
) -> list[TraceJob]:
    """Return the jobs with families and limits drawn as the benchmarks do it: all families first.

    An empty list leaves the jobs as they are.
    """
    draws = np.random.default_rng(seed)
    changed = list(jobs)
    if families:
        chosen = draws.integers(len(families), size=len(jobs))
        changed = [replace(job, family=families[index]) for job, index in zip(changed, chosen, strict=True)]
    if limits:
        chosen = draws.integers(len(limits), size=len(jobs))
        changed = [
            replace(job, stretch_limit=limits[index]) for job, index in zip(changed, chosen, strict=True)
        ]
    return changed


def _listed(name: str, text: str | None) -> list[str]:
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InvalidSettingError(name, f"{text!r} has an empty part; expected names separated by commas")
    return parts


def _limit(text: str) -> float | None:
    if text == NO_LIMIT:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 1 <= limit < float("inf"):
        raise InvalidSettingError(
            "--stretch-limits", f"{text!r} must be a number of at least 1, or {NO_LIMIT}"
        )
    return limit


def _counts(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in skipped.items())


def _tell(path: Path, count: int, what: str, skipped: Mapping[str, int]) -> None:
    left_out = f"; left out: {_counts(skipped)}" if skipped else ""
    print(f"{path}: {count} {what}{left_out}", file=sys.stderr)  # noqa: T201 - the command's answer
