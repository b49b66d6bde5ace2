"""Gavel's throughputs (OSDI 2020): steps per second of jobs alone and of two jobs on the same GPUs.

JSON as upstream has it: GPU model, then ``('ResNet-18 (batch size 16)', 1)``, then ``null`` for alone or the
partner. CSV as ``isolated.csv`` and ``pairs.csv`` have it. The unit of work is the step; a family is written
``Model:batch``. Gavel measured no power, memory or utilisation.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    PowerScope,
    ProfileSource,
    SoloProfile,
    family_set,
)
from airflow_provider_eaco.data.profile_files import Profile
from airflow_provider_eaco.simulator.importers.choices import ImportChoices, Imported
from airflow_provider_eaco.simulator.readers.json_text import json_of
from airflow_provider_eaco.simulator.readers.table import Row, rows_of
from airflow_provider_eaco.simulator.trace import TraceError

_REFERENCE = "Gavel (OSDI 2020)"
_NAME = re.compile(r"(?P<model>[^()]+?)(?: \(batch size (?P<batch>[0-9]+)\))?")
_SPREAD_OVER_SERVERS = "_unconsolidated"
_ISOLATED = ("table", "gpu", "consolidated", "model", "batch_size", "scale_factor", "steps_per_s")
_PAIRS = (
    "table",
    "gpu",
    "model_a",
    "batch_a",
    "model_b",
    "batch_b",
    "scale_factor",
    "norm_a",
    "norm_b",
    "not_runnable",
)
NOT_RUNNABLE = "pairs that did not run together"
OTHER_GPUS = "on other GPUs"

# Alone or in a pair: GPU model, number of GPUs, families with the shares that they keep of their speed alone.
_Norms = tuple[tuple[str, float], tuple[str, float]]


def read_json(path: Path, text: str, choices: ImportChoices) -> Imported:
    """Return the profiles of one of Gavel's ``*throughputs.json``."""
    source = str(path)
    document = json_of(source, text, "throughputs by GPU model")
    profiles, skipped = dict[Any, Profile](), Counter[str]()
    for gpu, jobs in _items(source, "", document):
        if gpu.endswith(_SPREAD_OVER_SERVERS):
            skipped["over several servers"] += len(jobs)
        elif choices.gpu_model not in {None, gpu.upper()}:
            skipped[OTHER_GPUS] += len(jobs)
        else:
            for profile in _profiles_of_gpu(source, gpu, jobs, skipped):
                profiles.setdefault(profile.key, profile)
    return Imported(tuple(profiles.values()), skipped)


def _profiles_of_gpu(source: str, gpu: str, jobs: Any, skipped: Counter[str]) -> Iterator[Profile]:
    alone: dict[tuple[str, int], float] = {}
    for name, partners in _items(source, gpu, jobs):
        rate: Any = partners.get("null") if isinstance(partners, Mapping) else None
        if not _is_rate(rate):
            raise TraceError(source, f"{rate!r}; expected steps per second alone", f"{gpu}, {name}", "null")
        family, gpus = _job(source, gpu, name)
        if rate > 0:
            alone[family, gpus] = float(rate)
            yield _solo(family, gpu, gpus, float(rate))
        else:
            skipped["that did not run alone"] += 1
    for name, partners in jobs.items():
        first = _job(source, gpu, name)
        for partner, rates in partners.items():
            if partner == "null":
                continue
            second = _job(source, gpu, partner)
            if not (isinstance(rates, list) and len(rates) == 2 and all(map(_is_rate, rates))):
                problem = f"{rates!r}; expected two numbers of steps per second"
                raise TraceError(source, problem, f"{gpu}, {name}", partner)
            if first[1] != second[1] or min(rates) == 0 or not {first, second} <= alone.keys():
                skipped[NOT_RUNNABLE] += 1
            else:
                norms = (first[0], rates[0] / alone[first]), (second[0], rates[1] / alone[second])
                yield _pair(norms, gpu, first[1])


def read_csv(path: Path, text: str, choices: ImportChoices) -> Imported:
    """Return the profiles of ``isolated.csv`` or of ``pairs.csv``, as the header says."""
    pairs = "norm_a" in text.partition("\n")[0]
    profiles, skipped = list[Profile](), Counter[str]()
    for row in rows_of(str(path), text, _PAIRS if pairs else _ISOLATED):
        gpu = row.name("gpu")
        if row.name("table") != choices.table:
            skipped["of other tables"] += 1
        elif choices.gpu_model not in {None, gpu.upper()}:
            skipped[OTHER_GPUS] += 1
        elif pairs:
            _take_pair(row, gpu, profiles, skipped)
        else:
            _take_alone(row, gpu, profiles, skipped)
    return Imported(tuple(profiles), skipped)


def _take_pair(row: Row, gpu: str, profiles: list[Profile], skipped: Counter[str]) -> None:
    if row.text("not_runnable") == "1":
        skipped[NOT_RUNNABLE] += 1
        return
    first, second = (
        (
            f"{row.name(f'model_{side}')}:{row.text(f'batch_{side}')}",
            row.number(f"norm_{side}", 0, "speed alone", above=True),
        )
        for side in "ab"
    )
    profiles.append(_pair((first, second), gpu, row.whole("scale_factor", 1)))


def _take_alone(row: Row, gpu: str, profiles: list[Profile], skipped: Counter[str]) -> None:
    rate = row.number("steps_per_s", 0, "steps per second")
    if row.text("consolidated") == "0":
        skipped["over several servers"] += 1
    elif rate == 0:
        skipped["that did not run alone"] += 1
    else:
        family = f"{row.name('model')}:{row.text('batch_size')}"
        profiles.append(_solo(family, gpu, row.whole("scale_factor", 1), rate))


def _solo(family: str, gpu: str, gpus: int, steps_per_s: float) -> SoloProfile:
    return SoloProfile(
        family,
        gpu.upper(),
        gpus,
        unit_s=1 / steps_per_s,
        samples=1,
        scope=PowerScope.BOARD,
        source=ProfileSource.IMPORTED,
        reference=_REFERENCE,
    )


def _pair(norms: _Norms, gpu: str, gpus: int) -> CoallocationProfile:
    (first, norm_a), (second, norm_b) = norms
    slowdowns = {first: 1 / norm_a, second: 1 / norm_b}
    if first == second:
        # A family has one slowdown in a set: that of the mean speed of its two members.
        slowdowns = {first: 2 / (norm_a + norm_b)}
    return CoallocationProfile(
        family_set([first, second]),
        gpu.upper(),
        gpus,
        slowdowns,
        samples=1,
        scope=PowerScope.BOARD,
        source=ProfileSource.IMPORTED,
        reference=_REFERENCE,
    )


def _job(source: str, gpu: str, name: str) -> tuple[str, int]:
    expected = "a name such as ('ResNet-18 (batch size 16)', 1)"
    try:
        model, gpus = ast.literal_eval(name)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise TraceError(source, f"{name!r}; expected {expected}", gpu) from None
    match = _NAME.fullmatch(model) if isinstance(model, str) else None
    if match is None or not isinstance(gpus, int) or gpus < 1:
        raise TraceError(source, f"{name!r}; expected {expected}", gpu)
    return f"{match['model']}:{match['batch'] or ''}", gpus


def _items(source: str, place: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise TraceError(source, f"a JSON {type(value).__name__}; expected an object", place)
    return list(value.items())


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
