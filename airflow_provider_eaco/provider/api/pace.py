"""How fast a job runs against alone: its own units alone, else what is believed of its family. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.energy_record import stretch_of


@dataclass(frozen=True, slots=True)
class Pace:
    """``slowdown``: unit time under the present set / alone. ``stretch``: run time so far / alone.

    ``None`` where one of the two times is not known.
    """

    slowdown: float | None
    stretch: float | None


def pace_of(
    record: JobRecord, placement: Placement | None, model_of: Mapping[str, str], book: ProfileBook
) -> Pace:
    """Return the pace of a job on these GPUs.

    :param model_of: the model of each GPU by UUID.
    """
    alone_s = record.job.progress.solo_unit_s or _believed_s(record, placement, model_of, book)
    shared_s = None if record.observation is None else record.observation.unit_s
    slowdown = shared_s / alone_s if shared_s and alone_s else None
    return Pace(slowdown, stretch_of(record.job.progress, alone_s))


def _believed_s(
    record: JobRecord, placement: Placement | None, model_of: Mapping[str, str], book: ProfileBook
) -> float | None:
    if placement is None:
        return None
    models = {model_of.get(uuid) for uuid in placement.gpu_uuids}
    model = models.pop() if len(models) == 1 else None
    if model is None:
        return None
    solo = book.solo_of(record.job.request.family, model, len(placement.gpu_uuids))
    return None if solo is None else solo.unit_s
