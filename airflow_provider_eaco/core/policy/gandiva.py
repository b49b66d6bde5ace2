"""Gandiva as Gavel has it: under shortage any partner is tried, and a pair that does not pay is undone."""

from __future__ import annotations

import zlib

from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.pairing import PairingPolicy, Partner

# Below this two jobs do less together than one after the other.
WORTH_KEEPING = 1.0


class GandivaPolicy(PairingPolicy):
    """Joins a partner at random. Pairs that were measured below 1 are not tried again.

    A decision is a function of its snapshot: the choice is drawn from a checksum of the instant, the family
    and the place, which is as good as chance to the jobs and the same in every run.
    """

    least_combined = WORTH_KEEPING

    def choose(self, job: Job, partners: list[Partner], snapshot: ClusterSnapshot) -> Partner | None:
        def lot(partner: Partner) -> tuple[int, str, tuple[str, ...]]:
            place = partner.facts.placement
            text = f"{snapshot.now_s!r} {job.request.family} {place.node} {' '.join(place.gpu_uuids)}"
            return zlib.crc32(text.encode()), place.node, place.gpu_uuids

        return min((partner for partner in partners if not _was_bad(partner)), key=lot, default=None)


def _was_bad(partner: Partner) -> bool:
    prediction, combined = partner.prediction, partner.combined
    return (
        prediction is not None and prediction.measured and combined is not None and combined < WORTH_KEEPING
    )
