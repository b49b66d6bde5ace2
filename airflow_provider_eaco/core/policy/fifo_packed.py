"""Gavel's FIFO with packing: under shortage the pair that progresses fastest together, if it is worth it."""

from __future__ import annotations

from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.pairing import PairingPolicy, Partner

# Gavel (OSDI 2020) packs only pairs whose normalised throughputs add up to more than this.
WORTH_PACKING = 1.5


class FifoPackedPolicy(PairingPolicy):
    """Joins the partner with the highest combined progress above 1.5; names decide between equals."""

    def choose(self, job: Job, partners: list[Partner], snapshot: ClusterSnapshot) -> Partner | None:
        def rank(partner: Partner) -> tuple[float, str, tuple[str, ...]]:
            place = partner.facts.placement
            return -(partner.combined or 0.0), place.node, place.gpu_uuids

        worth = [partner for partner in partners if (partner.combined or 0.0) > WORTH_PACKING]
        return min(worth, key=rank, default=None)
