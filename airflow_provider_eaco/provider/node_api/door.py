"""What the API for nodes leads to; apart from the application, which only the API server loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim
from airflow_provider_eaco.core.observed import ObservedReport


def _nobody(report: ObservedReport) -> frozenset[str]:
    """Observe nothing."""
    return frozenset(task.job_id for task in report.tasks)


@dataclass(frozen=True, slots=True)
class NodeDoor:
    """``accepts`` checks a credential for a node; ``take`` and ``claim`` may refuse what it asks; ``observe``
    takes in what a sampler tells, and returns the job ids that are not to be told of any more.

    ``interval_s``: how often nodes are to report.
    """

    accepts: Callable[[str, str], bool]
    take: Callable[[NodeReport], NodeAnswer]
    claim: Callable[[str, str, int, str], RunClaim | None]
    interval_s: float
    observe: Callable[[ObservedReport], frozenset[str]] = field(default=_nobody)
