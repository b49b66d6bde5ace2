"""How much slowdown the residents of a held set bear, found when somebody asks.

Residents report by the thousand while nobody comes, and whom nobody meets is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_eaco.core.energy.outlook import (
    slowdown_within_deadline,
    slowdown_within_stretch,
    units_left,
    units_total_of,
)
from airflow_provider_eaco.core.model.profile import SoloProfile
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.model.snapshot import GpuSet, Resident
from airflow_provider_eaco.core.policy.trial import resident_unit_s


@quick_init
@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much slowdown one resident bears.

    ``stretch`` credits what the run has saved so far; ``plain`` is the bare stretch limit, which counts for a
    set that was undone before. ``left_s`` device seconds are to be done by the deadline.
    """

    family: str
    who: str
    stretch: float
    plain: float
    deadline_at_s: float | None
    left_s: float | None
    time_scale: float

    def slowdown(self, now_s: float, *, undone: bool) -> float | None:
        """Return the largest that it bears from now on, ``None`` when that cannot be told."""
        until = slowdown_within_deadline(self.left_s, self.deadline_at_s, now_s, self.time_scale)
        if until is None:
            return None
        return min(self.stretch, until, self.plain) if undone else min(self.stretch, until)


class Bearing:
    """What the residents of a set bear.

    Two are equal if they were made of the same set and equal profiles, and where nobody has a limit.

    :param solos: what is freshly believed of each resident's family on these GPUs.
    :param time_scale: the node's.
    """

    def __init__(self, held: GpuSet, solos: Sequence[SoloProfile | None], time_scale: float) -> None:
        self._held = held
        self._solos = tuple(solos)
        self._time_scale = time_scale
        self._boundless = not any(map(_has_limit, held.residents))

    @cached_property
    def tolerances(self) -> tuple[Tolerance, ...]:
        """What those bear who have a limit, by name, so that of several it is always the same that breaks."""
        if self._boundless:
            return ()
        found = map(self._tolerance, self._held.residents, self._solos)
        return tuple(sorted(found, key=lambda tolerance: (tolerance.who, tolerance.family)))

    def after_reports(self, held: GpuSet) -> Bearing:
        """Return what is borne by the same residents on the same GPUs, with what they have reported since."""
        return self if self._boundless else Bearing(held, self._solos, self._time_scale)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bearing):
            return NotImplemented
        if self._boundless and other._boundless:
            return True
        return (
            self._held is other._held
            and self._solos == other._solos
            and self._time_scale == other._time_scale
        )

    __hash__ = None  # type: ignore[assignment]

    def _tolerance(self, resident: Resident, solo: SoloProfile | None) -> Tolerance:
        request, progress = resident.job.request, resident.job.progress
        plain = math.inf if request.max_stretch is None else request.max_stretch
        unit_s = resident_unit_s(resident, solo)
        total, left = units_total_of(progress, solo), units_left(progress, solo)
        return Tolerance(
            request.family,
            resident.job.label,
            slowdown_within_stretch(progress, total, unit_s, request.max_stretch),
            plain,
            resident.job.deadline_at_s,
            None if left is None or unit_s is None else left * unit_s,
            self._time_scale,
        )


def _has_limit(resident: Resident) -> bool:
    request = resident.job.request
    return request.max_stretch is not None or request.deadline_s is not None
