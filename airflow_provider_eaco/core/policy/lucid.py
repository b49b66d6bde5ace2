"""A scorer like Lucid's (ASPLOS 2023): jobs are sorted into three share scores, and pairs may sum to two."""

from __future__ import annotations

import math

from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.facts import SetKind
from airflow_provider_eaco.core.policy.pairing import PairingPolicy, Partner

MOST_TOGETHER = 2
# Lucid learns its classes from profiles of one GPU type. Ours follow from its published RTX 3090 pairs, where
# speed falls once both utilisations sum to more than 85 %: two medium jobs stay below that, and a tiny one
# takes from a full GPU no more than is lost anyway.
_TINY_UP_TO_PCT = 15.0
_MEDIUM_UP_TO_PCT = 42.5


class LucidPolicy(PairingPolicy):
    """Under shortage joins the partner with the least sum of scores, the least busy of several.

    Scores: 0 tiny, 1 medium, 2 jumbo, by the mean GPU utilisation of the solo profile. A job whose
    utilisation is not known is never paired.
    """

    def choose(self, job: Job, partners: list[Partner], snapshot: ClusterSnapshot) -> Partner | None:
        ranked = []
        for partner in partners:
            kind = partner.facts.kind
            busy_pct = [_busy_pct(family, kind, snapshot) for family in (job.request.family, *kind.families)]
            known_pct = [busy for busy in busy_pct if busy is not None]
            total = math.fsum(map(share_score, known_pct))
            if len(known_pct) == len(busy_pct) and total <= MOST_TOGETHER:
                place = partner.facts.placement
                ranked.append(((total, math.fsum(known_pct), place.node, place.gpu_uuids), partner))
        return min(ranked, key=lambda pair: pair[0], default=(None, None))[1]


def share_score(busy_pct: float) -> int:
    """Return 0 for a tiny job, 1 for a medium one, 2 for a jumbo, by its mean GPU utilisation alone."""
    if busy_pct <= _TINY_UP_TO_PCT:
        return 0
    return 1 if busy_pct <= _MEDIUM_UP_TO_PCT else 2


def _busy_pct(family: str, kind: SetKind, snapshot: ClusterSnapshot) -> float | None:
    solo = snapshot.profiles.fresh_solo_of(family, kind.model, kind.gpus)
    return None if solo is None else solo.utilisation_pct
