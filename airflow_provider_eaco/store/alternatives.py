"""Alternatives of a decision as JSON values, there and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_provider_eaco.core.model.alternative import Alternative, Way
from airflow_provider_eaco.core.model.placement import Placement


def plain_alternatives(alternatives: Iterable[Alternative]) -> list[dict[str, Any]]:
    """Return them as values that JSON has."""
    return [_plain(each) for each in alternatives]


def alternatives_of(stored: Iterable[dict[str, Any]]) -> tuple[Alternative, ...]:
    """Return what :func:`plain_alternatives` made these of."""
    return tuple(_read(each) for each in stored)


def _plain(each: Alternative) -> dict[str, Any]:
    placement = each.placement
    return {
        "way": each.way.value,
        "families": list(each.families),
        "node": None if placement is None else placement.node,
        "gpu_uuids": None if placement is None else list(placement.gpu_uuids),
        "slowdown": each.slowdown,
        "energy_j": each.energy_j,
        "per_unit": each.per_unit,
        "lost": each.lost,
    }


def _read(row: dict[str, Any]) -> Alternative:
    node = row["node"]
    return Alternative(
        Way(row["way"]),
        tuple(row["families"]),
        None if node is None else Placement(node, tuple(row["gpu_uuids"])),
        row["slowdown"],
        row["energy_j"],
        row["per_unit"],
        row["lost"],
    )
