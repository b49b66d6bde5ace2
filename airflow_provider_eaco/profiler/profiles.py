"""From measured sets to profiles, and what the predictor would have said of the same sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from airflow_provider_eaco.core.energy.learned import make_predictor
from airflow_provider_eaco.core.model.pool import PredictorName
from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    FamilySet,
    PowerScope,
    ProfileBook,
    ProfileSource,
    SoloProfile,
    family_set,
)
from airflow_provider_eaco.profiler.measuring import SetMeasure, StepTimes

# Of the conservative rule; the live default is the same.
ESTIMATE_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the numbers come from: on which GPU model, by whom, and when."""

    gpu_model: str
    reference: str
    now_s: float


def profile_book(measured: Mapping[FamilySet, SetMeasure], origin: Origin) -> ProfileBook:
    """Return what was measured as profiles; a set of which a member was not measured alone has none."""
    alone = {families[0]: found for families, found in measured.items() if len(families) == 1}
    solo = [_solo(family, found, origin) for family, found in alone.items()]
    together = [
        _together(families, found, alone, origin)
        for families, found in measured.items()
        if len(families) > 1 and set(families) <= alone.keys()
    ]
    return ProfileBook({each.key: each for each in solo}, {each.key: each for each in together})


def predicted(book: ProfileBook, families: FamilySet, gpu_model: str) -> Mapping[str, float] | None:
    """Return the slowdowns that the families' profiles alone would have promised, ``None`` for no answer."""
    alone = ProfileBook(book.solo)
    predictor = make_predictor(PredictorName.CONSERVATIVE, ESTIMATE_ERROR)
    prediction = predictor.predict(families, gpu_model, 1, alone)
    return None if prediction is None else prediction.slowdowns


def slowdowns(found: SetMeasure, alone: Mapping[str, SetMeasure]) -> dict[str, float]:
    """Return step time together / step time alone by family; of a family that is there twice, the mean."""
    by_family: dict[str, list[float]] = {}
    for member in found.members:
        alone_s = alone[member.family].members[0].unit_s
        by_family.setdefault(member.family, []).append(member.unit_s / alone_s)
    return {family: sum(values) / len(values) for family, values in by_family.items()}


def _solo(family: str, found: SetMeasure, origin: Origin) -> SoloProfile:
    (member,) = found.members
    return SoloProfile(
        family,
        origin.gpu_model,
        1,
        unit_s=member.unit_s,
        spread_s=member.spread_s,
        samples=member.samples,
        power_w=found.power_w,
        utilisation_pct=found.utilisation_pct,
        utilisation_max_pct=found.utilisation_max_pct,
        memory_utilisation_pct=found.memory_utilisation_pct,
        memory_peak_mib=found.memory_peak_mib,
        scope=PowerScope.BOARD,
        source=ProfileSource.MEASURED,
        updated_s=origin.now_s,
        reference=origin.reference,
    )


def _together(
    families: FamilySet, found: SetMeasure, alone: Mapping[str, SetMeasure], origin: Origin
) -> CoallocationProfile:
    return CoallocationProfile(
        families,
        origin.gpu_model,
        1,
        slowdowns(found, alone),
        power_w=found.power_w,
        utilisation_pct=found.utilisation_pct,
        utilisation_max_pct=found.utilisation_max_pct,
        memory_utilisation_pct=found.memory_utilisation_pct,
        samples=min(member.samples for member in found.members),
        spread=_spread(found.members, alone),
        scope=PowerScope.BOARD,
        source=ProfileSource.MEASURED,
        updated_s=origin.now_s,
        reference=origin.reference,
    )


def _spread(members: Iterable[StepTimes], alone: Mapping[str, SetMeasure]) -> float | None:
    spreads = [
        member.spread_s / alone[member.family].members[0].unit_s
        for member in members
        if member.spread_s is not None
    ]
    return sum(spreads) / len(spreads) if spreads else None


def sets_of(families: Sequence[str], together: int) -> list[FamilySet]:
    """Return every family alone, then every set of two and more different ones, up to ``together``."""
    return [family_set(each) for size in range(1, together + 1) for each in combinations(families, size)]
