"""Profiles as rows: in short for a list, whole for one family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_eaco.core.model.profile import CoallocationProfile, SoloProfile
from airflow_provider_eaco.core.model.units import format_memory_mib
from airflow_provider_eaco.data.profile_files import Profile
from airflow_provider_eaco.provider.shown import (
    UNKNOWN,
    shown_count,
    shown_duration,
    shown_number,
    shown_percent,
)

NONE = "-"


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One profile in short. ``pace`` is the unit time of one family, the slowdowns of a set."""

    families: str
    gpu_model: str
    gpus: str
    pace: str
    power: str
    utilisation: str
    samples: str
    source: str
    age: str


@dataclass(frozen=True, slots=True)
class ProfileDetails:
    """All that is known of one profile; ``-`` where a field has no meaning for it."""

    families: str
    gpu_model: str
    gpus: str
    pace: str
    spread: str
    samples: str
    power: str
    power_of: str
    utilisation: str
    utilisation_max: str
    memory_utilisation: str
    memory_peak: str
    units_total: str
    checkpoints: str
    undone: str
    source: str
    age: str
    stale: str
    reference: str


def profile_rows(profiles: Sequence[Profile], now_s: float) -> list[ProfileRow]:
    """Return one short row per profile."""
    return [
        ProfileRow(
            families=_families(profile),
            gpu_model=profile.gpu_model,
            gpus=str(profile.gpu_count),
            pace=_pace(profile),
            power=shown_number(profile.power_w, 0, "W"),
            utilisation=shown_percent(profile.utilisation_pct),
            samples=shown_count(profile.samples),
            source=_source(profile),
            age=_age(profile, now_s),
        )
        for profile in profiles
    ]


def profile_details(profile: Profile, now_s: float) -> ProfileDetails:
    """Return everything that is known of a profile."""
    solo = profile if isinstance(profile, SoloProfile) else None
    shared = profile if isinstance(profile, CoallocationProfile) else None
    return ProfileDetails(
        families=_families(profile),
        gpu_model=profile.gpu_model,
        gpus=str(profile.gpu_count),
        pace=_pace(profile),
        spread=_spread(profile),
        samples=shown_count(profile.samples),
        power=shown_number(profile.power_w, 0, "W"),
        power_of=str(profile.scope.value),
        utilisation=shown_percent(profile.utilisation_pct),
        utilisation_max=shown_percent(profile.utilisation_max_pct),
        memory_utilisation=shown_percent(profile.memory_utilisation_pct),
        memory_peak=NONE if solo is None else format_memory_mib(solo.memory_peak_mib),
        units_total=NONE if solo is None else shown_count(solo.units_total),
        checkpoints=NONE if solo is None else _yes_or_no(solo.checkpoints),
        undone=NONE if shared is None else shown_count(shared.undone),
        source=_source(profile),
        age=_age(profile, now_s),
        stale=_yes_or_no(profile.stale),
        reference=profile.reference or UNKNOWN,
    )


def _families(profile: Profile) -> str:
    return " + ".join(profile.key.families)


def _pace(profile: Profile) -> str:
    if isinstance(profile, SoloProfile):
        return shown_number(profile.unit_s, 2, "s per unit")
    slowdowns = [
        f"{family} x {shown_number(profile.slowdowns[family], 3)}" for family in sorted(profile.slowdowns)
    ]
    return ", ".join(slowdowns)


def _spread(profile: Profile) -> str:
    if isinstance(profile, SoloProfile):
        return shown_number(profile.spread_s, 2, "s")
    return shown_number(profile.spread, 3)


def _source(profile: Profile) -> str:
    source = profile.source.value.replace("_", "-")
    return f"{source}, stale" if profile.stale else source


def _age(profile: Profile, now_s: float) -> str:
    return shown_duration(None if profile.updated_s is None else max(0.0, now_s - profile.updated_s))


def _yes_or_no(value: bool | None) -> str:
    return UNKNOWN if value is None else "yes" if value else "no"
