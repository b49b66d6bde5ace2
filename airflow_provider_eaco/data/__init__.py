"""Built-in measured profiles, each with its source: the sets of the EaCO paper on nodes with 8 V100.

``eaco_v100_exclusive.csv`` and ``eaco_v100_shared.csv`` hold the published numbers unchanged, with units in
the names of their columns; ``energy_saved_pct`` and ``jct_rise_pct`` are derived against exclusive runs. An
empty field was not published. Power and energy cover the whole server (``scope = node``). Memory utilisation
is that of the memory's bandwidth, as NVML reports it; how much memory was occupied is not known.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    FamilySet,
    PowerScope,
    ProfileBook,
    ProfileSource,
    SoloProfile,
    family_set,
)

# Derived: JCT / epoch time is 89.1 to 90.3 in every published row (34.76 h / 0.39 h, 38.28 h / 0.425 h ...),
# the usual 90 epochs on ImageNet. Epoch times are published with two or three digits, JCT with four: a unit's
# time is taken from the JCT.
EPOCHS = 90

Row = Mapping[str, str]


@cache
def exclusive_rows() -> tuple[Row, ...]:
    """Return the published rows of the four jobs alone, as text."""
    return _rows("eaco_v100_exclusive.csv")


@cache
def shared_rows() -> tuple[Row, ...]:
    """Return the published rows of the six sets that shared a node, as text."""
    return _rows("eaco_v100_shared.csv")


@cache
def built_in_book() -> ProfileBook:
    """Return the built-in profiles of the families ``J1`` to ``J4`` and of their measured sets.

    Unit is the epoch: ``unit_s`` = JCT / 90. How many epochs a run has is its author's choice, so
    ``units_total`` stays unknown; so do memory peak and checkpoints. Every member of a set has one slowdown:
    the set's mean JCT / the mean exclusive JCT of its members.
    """
    jct_h = {row["family"]: float(row["jct_h"]) for row in exclusive_rows()}
    solo = [_solo(row) for row in exclusive_rows()]
    shared = [_coallocation(row, jct_h) for row in shared_rows()]
    return ProfileBook(
        {profile.key: profile for profile in solo},
        {profile.key: profile for profile in shared},
    )


def families_of(row: Row) -> FamilySet:
    """Return the families of a row of :func:`shared_rows`."""
    return family_set(row["families"].split())


def _solo(row: Row) -> SoloProfile:
    return SoloProfile(
        row["family"],
        row["gpu_model"],
        int(row["gpu_count"]),
        unit_s=float(row["jct_h"]) * 3600 / EPOCHS,
        samples=EPOCHS,
        power_w=float(row["power_w"]),
        utilisation_pct=float(row["utilisation_pct"]),
        utilisation_max_pct=float(row["utilisation_max_pct"]),
        memory_utilisation_pct=float(row["memory_utilisation_pct"]),
        scope=PowerScope.NODE,
        source=ProfileSource.BUILT_IN,
        reference=f"{row['model_name']} on ImageNet; {row['source']}",
    )


def _coallocation(row: Row, jct_h: Mapping[str, float]) -> CoallocationProfile:
    families = families_of(row)
    alone_h = sum(jct_h[family] for family in families) / len(families)
    return CoallocationProfile(
        families,
        row["gpu_model"],
        int(row["gpu_count"]),
        slowdowns=dict.fromkeys(families, float(row["jct_mean_h"]) / alone_h),
        power_w=float(row["power_w"]),
        utilisation_pct=float(row["utilisation_pct"]),
        utilisation_max_pct=float(row["utilisation_max_pct"]),
        memory_utilisation_pct=float(row["memory_utilisation_pct"]),
        samples=EPOCHS,
        scope=PowerScope.NODE,
        source=ProfileSource.BUILT_IN,
        reference=row["source"],
    )


def _rows(name: str) -> tuple[Row, ...]:
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
