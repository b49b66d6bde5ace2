"""Zeus' power tables (NSDI 2023): seconds and board power of an epoch at each power limit of the GPU.

``summary_power_<gpu>.csv`` has ``dataset,network,batch_size,optimizer,power_limit,time_per_epoch,
average_power``. A family is written ``dataset/network/optimizer:batch``; the unit of work is the epoch. One
profile describes one power limit: the highest, or the one that is asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from airflow_provider_eaco.core.model.profile import PowerScope, ProfileSource, SoloProfile
from airflow_provider_eaco.simulator.importers.choices import ImportChoices, Imported
from airflow_provider_eaco.simulator.readers.table import Row, rows_of
from airflow_provider_eaco.simulator.trace import TraceError

_COLUMNS = (
    "dataset",
    "network",
    "batch_size",
    "optimizer",
    "power_limit",
    "time_per_epoch",
    "average_power",
)
_FILE = re.compile(r"summary_power_(?P<gpu>[a-z0-9]+)")


def read_csv(path: Path, text: str, choices: ImportChoices) -> Imported:
    """Return one solo profile for each family that was measured at the power limit.

    :raises TraceError: if neither the choices nor the file's name say which GPU it was.
    """
    named = _FILE.fullmatch(path.stem)
    gpu_model = choices.gpu_model or (named["gpu"].upper() if named else None)
    if gpu_model is None:
        raise TraceError(
            str(path), "which GPU was it? expected summary_power_<gpu>.csv as the name, or --gpu-model"
        )
    rows = list(rows_of(str(path), text, _COLUMNS))
    limits_w = [row.number("power_limit", 0, "W", above=True) for row in rows]
    wanted_w = max(limits_w) if choices.power_limit_w is None else choices.power_limit_w
    chosen = [row for row, limit_w in zip(rows, limits_w, strict=True) if limit_w == wanted_w]
    profiles = {}
    for row in chosen:
        profile = _solo(row, gpu_model, wanted_w)
        if profile.key in profiles:
            raise row.error("network", f"one row for {profile.family!r} at {wanted_w:g} W")
        profiles[profile.key] = profile
    skipped = Counter({"at other power limits": len(rows) - len(chosen)})
    return Imported(tuple(profiles.values()), +skipped)


def _solo(row: Row, gpu_model: str, limit_w: float) -> SoloProfile:
    family = (
        f"{row.name('dataset')}/{row.name('network')}/{row.name('optimizer')}:{row.whole('batch_size', 1)}"
    )
    return SoloProfile(
        family,
        gpu_model,
        1,
        unit_s=row.number("time_per_epoch", 0, "seconds", above=True),
        samples=1,
        power_w=row.number("average_power", 0, "W", above=True),
        scope=PowerScope.BOARD,
        source=ProfileSource.IMPORTED,
        reference=f"Zeus (NSDI 2023), power limit {limit_w:g} W",
    )
