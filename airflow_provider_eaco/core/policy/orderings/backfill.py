"""EASY backfill: fifo, but what does not delay the head may start before it."""

from __future__ import annotations

from airflow_provider_eaco.core.policy.agenda import Keeping
from airflow_provider_eaco.core.policy.ordering import FifoOrdering


class BackfillOrdering(FifoOrdering):
    """Fifo order; the first job that is held gets a reservation at its earliest predicted start.

    Later jobs may start at once on GPUs that are not reserved, and on reserved ones if they are predicted to
    be gone by then. Where the start cannot be told, the head of the line is kept as under ``fifo``.
    """

    keeping = Keeping.FIRST_RESERVED
