"""``eaco-profile``: measure training commands alone and together on one GPU and write their profiles."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_eaco import __version__
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.profile import FamilySet
from airflow_provider_eaco.data.profile_files import write_profiles
from airflow_provider_eaco.profiler.commands import STEP_PATTERN, Command
from airflow_provider_eaco.profiler.measuring import Limits, MeasuringError, SetMeasure, measure
from airflow_provider_eaco.profiler.nvml_gpu import NvmlGpu
from airflow_provider_eaco.profiler.profiles import Origin, predicted, profile_book, sets_of, slowdowns
from airflow_provider_eaco.profiler.workloads import workload_commands

BAD_INPUT, INCOMPLETE = 2, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 0, 1 if a set could not be measured, 2 for an input that cannot be used."""
    options = _parser().parse_args(arguments)
    try:
        commands = [*workload_commands(wanted=options.workloads), *map(_command, options.commands)]
        _check(commands, options)
        gpu = NvmlGpu(options.gpu)
    except EacoError as error:
        _say(f"error: {error}")
        return BAD_INPUT
    try:
        return _run(commands, gpu, options)
    finally:
        gpu.close()


def _run(commands: Sequence[Command], gpu: NvmlGpu, options: argparse.Namespace) -> int:
    limits = Limits(options.steps, options.warm_up, options.max_seconds, options.step_pattern)
    by_family = {command.family: command for command in commands}
    idle = gpu.look()
    _say(f"{gpu.model} {gpu.uuid}; idle {_shown(idle.power_w, 'W')}")
    measured: dict[FamilySet, SetMeasure] = {}
    failed = 0
    for families in sets_of(list(by_family), options.together):
        _say(f"measuring {' + '.join(families)} ...")
        try:
            measured[families] = measure([by_family[each] for each in families], gpu, limits)
        except MeasuringError as error:
            failed += 1
            _say(f"not measured: {error}")
            continue
        # Kept at once: what was measured for hours is not to be lost with what follows.
        _write(measured, gpu.model, options)
        _say(_told(families, measured))
    for line in _compared(measured, gpu.model, options):
        print(line)  # noqa: T201 - a command's answer
    return INCOMPLETE if failed or not measured else 0


def _write(measured: dict[FamilySet, SetMeasure], gpu_model: str, options: argparse.Namespace) -> None:
    book = profile_book(measured, Origin(gpu_model, options.reference, time.time()))
    form = "json" if options.out.suffix == ".json" else "csv"
    options.out.write_text(write_profiles(book, form), encoding="utf-8")


def _told(families: FamilySet, measured: dict[FamilySet, SetMeasure]) -> str:
    found = measured[families]
    steps = ", ".join(f"{each.family} {each.unit_s:.4f} s a step" for each in found.members)
    power, memory = _shown(found.power_w, "W"), _shown(found.memory_peak_mib, "MiB")
    return f"  {steps}; {power} ({found.method.value}), {memory} at most"


def _compared(
    measured: dict[FamilySet, SetMeasure], gpu_model: str, options: argparse.Namespace
) -> list[str]:
    """Return a line for each set: the slowdowns that its members alone promised, and the measured ones."""
    book = profile_book(measured, Origin(gpu_model, options.reference, 0.0))
    alone = {families[0]: found for families, found in measured.items() if len(families) == 1}
    lines = []
    for families, found in measured.items():
        if len(families) < 2 or not set(families) <= alone.keys():
            continue
        promised = predicted(book, families, gpu_model) or {}
        parts = [
            f"{family}: predicted {_shown(promised.get(family), '', 3)}, measured {value:.3f}"
            for family, value in slowdowns(found, alone).items()
        ]
        lines.append(f"{' + '.join(families)}: {'; '.join(parts)}")
    return lines


def _shown(value: float | None, unit: str, digits: int = 0) -> str:
    return "unknown" if value is None else f"{value:.{digits}f} {unit}".strip()


def _command(text: str) -> Command:
    family, equals, words = text.partition("=")
    parsed = tuple(shlex.split(words)) if equals else ()
    if not family.strip() or not parsed:
        raise EacoError(f"{text!r} must be FAMILY=COMMAND, such as resnet50='python train.py'")
    return Command(family.strip(), parsed)


def _check(commands: Sequence[Command], options: argparse.Namespace) -> None:
    families = [command.family for command in commands]
    if not families or len(set(families)) < len(families):
        raise EacoError("name at least one command, or --workloads, and each family once")
    if options.together < 1 or options.steps < 2 or options.warm_up < 0 or options.max_seconds <= 0:
        raise EacoError("--together must be at least 1, --steps 2, --warm-up 0, --max-seconds above 0")
    if options.out.suffix not in {".csv", ".json"} or not options.out.parent.is_dir():
        raise EacoError(f"--out: {options.out} must be a .csv or .json file in a folder that is there")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command's progress


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eaco-profile", description=__doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("commands", nargs="*", metavar="FAMILY=COMMAND", help="a training command")
    parser.add_argument("--out", type=Path, required=True, help="profile file to write (.csv or .json)")
    parser.add_argument("--gpu", help="index or UUID (default: the only one)")
    parser.add_argument("--together", type=int, default=2, help="largest set (default: 2)")
    parser.add_argument("--steps", type=int, default=30, help="steps of each to measure (default: 30)")
    parser.add_argument(
        "--warm-up", type=int, default=3, help="first steps of each not to count (default: 3)"
    )
    parser.add_argument("--max-seconds", type=float, default=600.0, help="per set (default: 600)")
    parser.add_argument("--step-pattern", default=STEP_PATTERN, help="how the line of a step begins")
    parser.add_argument("--reference", default="eaco-profile", help="where the numbers come from")
    parser.add_argument(
        "--workloads", action="store_true", help="also the built-in set: it needs the extra profiling (torch)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
