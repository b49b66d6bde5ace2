"""What the API for nodes leads to; apart from the application, which only the API server loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim


@dataclass(frozen=True, slots=True)
class NodeDoor:
    """``accepts`` checks a credential for a node; ``take`` and ``claim`` may refuse what it asks.

    ``interval_s``: how often nodes are to report.
    """

    accepts: Callable[[str, str], bool]
    take: Callable[[NodeReport], NodeAnswer]
    claim: Callable[[str, str, int, str], RunClaim | None]
    interval_s: float
