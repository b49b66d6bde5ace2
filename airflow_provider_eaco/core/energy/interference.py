"""How much the members of a set slow each other down: as measured, else estimated from each one alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from airflow_provider_eaco.core.energy.power_model import V100, largest_joint_power_w, v100_power_w
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    FamilySet,
    PowerScope,
    ProfileBook,
    SoloProfile,
    family_set,
)

# What the measured sets of 2, 3 and 4 jobs on 8 V100 suggest for others (EaCO, Tables 3 and 4: pairs +3.0 to
# 3.9 %, triples +8.3 and 8.4 %, all four +24.5 %). Nothing is known about larger sets.
_V100_SLOWDOWN = {2: 1.035, 3: 1.083, 4: 1.245}

# RTX 3090 pairs (published with Lucid, ASPLOS 2023): mean relative speed falls by 0.31 % for each per cent of
# summed utilisation above 85; RMSE 0.068. No estimate is better than its own residual.
_LINE_START_PCT = 85.0
_LINE_PER_PCT = 0.0031
_LINE_RMSE = 0.068


def predict(
    families: Sequence[str], gpu_model: str, gpu_count: int, book: ProfileBook, estimate_error: float
) -> SetPrediction | None:
    """Return what is expected of these families on the same GPUs, ``None`` where nothing can be said.

    A measured set answers with its own numbers. Every other set of two and more is estimated from its
    members' solo profiles, with a relative ``estimate_error`` added to the slowdowns. ``None`` when a member
    has no fresh solo profile with unit time and utilisation. Power is ``None`` when a member's is, or when
    the figures do not cover the same thing (node and board).
    """
    members = family_set(tuple(families))
    solos = _fresh_solos(members, gpu_model, gpu_count, book)
    if len(members) == 1:
        return None if solos is None else _alone(solos[0])
    measured = book.coallocation_of(members, gpu_model, gpu_count)
    estimated = None if solos is None else _estimated(members, solos, gpu_model, gpu_count, estimate_error)
    if measured is not None and not measured.stale:
        return _as_measured(measured, solos, estimated)
    return estimated


def _fresh_solos(
    members: FamilySet, gpu_model: str, gpu_count: int, book: ProfileBook
) -> list[SoloProfile] | None:
    solos = [book.solo_of(family, gpu_model, gpu_count) for family in members]
    fresh = [
        solo
        for solo in solos
        if solo is not None
        and not solo.stale
        and solo.unit_s is not None
        and solo.utilisation_pct is not None
    ]
    return fresh if len(fresh) == len(members) else None


def _alone(solo: SoloProfile) -> SetPrediction:
    return SetPrediction({solo.family: 1.0}, solo.power_w, solo.utilisation_pct, measured=True)


def _as_measured(
    measured: CoallocationProfile, solos: list[SoloProfile] | None, estimated: SetPrediction | None
) -> SetPrediction:
    same_scope = solos is not None and all(solo.scope is measured.scope for solo in solos)
    utilisation = measured.utilisation_pct
    if utilisation is None and solos is not None:
        utilisation = _summed_utilisation(solos)
    power_w = measured.power_w if same_scope else None
    if measured.power_w is None and estimated is not None:
        # A trial measures times. What the set draws is still what its members' draws say of it.
        power_w = estimated.power_w
    return SetPrediction(
        measured.slowdowns,
        power_w,
        utilisation,
        measured=True,
        undone=measured.undone,
    )


def _estimated(
    members: FamilySet, solos: list[SoloProfile], gpu_model: str, gpu_count: int, estimate_error: float
) -> SetPrediction | None:
    utilisation = _summed_utilisation(solos)
    scopes = {solo.scope for solo in solos}
    slowdown = rule_slowdown(len(members), utilisation, gpu_model, scopes)
    if slowdown is None:
        return None
    powers = [solo.power_w for solo in solos if solo.power_w is not None]
    comparable = len(powers) == len(solos) and len(scopes) == 1
    power_w = _rule_power_w(powers, utilisation, gpu_model, gpu_count, scopes) if comparable else None
    error = estimate_error if _is_paper_node(gpu_model, scopes) else max(estimate_error, _LINE_RMSE)
    slowdown *= 1 + error
    return SetPrediction(dict.fromkeys(members, slowdown), power_w, utilisation, measured=False, error=error)


def rule_slowdown(
    size: int, utilisation_pct: float, gpu_model: str, scopes: AbstractSet[PowerScope]
) -> float | None:
    """Return the slowdown of each member by the published rules, without any error added.

    :param utilisation_pct: sum of the members' mean GPU utilisation alone.
    :param scopes: what the members' power figures cover; a whole V100 node is the one of the EaCO paper.
    """
    if not _is_paper_node(gpu_model, scopes):
        return _line_slowdown(utilisation_pct, size)
    slowdown = _V100_SLOWDOWN.get(size)
    return None if slowdown is None else slowdown * max(1.0, utilisation_pct / 100)


def _rule_power_w(
    powers: Sequence[float],
    utilisation_pct: float,
    gpu_model: str,
    gpu_count: int,
    scopes: AbstractSet[PowerScope],
) -> float | None:
    if _is_paper_node(gpu_model, scopes):
        return max(*powers, v100_power_w(utilisation_pct, gpu_count))
    return largest_joint_power_w(powers, gpu_model, gpu_count)


def _is_paper_node(gpu_model: str, scopes: AbstractSet[PowerScope]) -> bool:
    return gpu_model == V100 and scopes == {PowerScope.NODE}


def _line_slowdown(utilisation_pct: float, size: int) -> float:
    speed = 1 - _LINE_PER_PCT * max(0.0, utilisation_pct - _LINE_START_PCT)
    if size > 2 and utilisation_pct > 100:
        # The line was measured on pairs; more than two cannot do better than to share full GPUs.
        speed = min(speed, 100 / utilisation_pct)
    return 1 / speed


def _summed_utilisation(solos: Sequence[SoloProfile]) -> float:
    return math.fsum(solo.utilisation_pct or 0.0 for solo in solos)
