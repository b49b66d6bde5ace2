"""Reports of tasks on their way into the ledger: what one task wrote never stands in the way of another."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.ports import Ledger, ProfileStore
from airflow_provider_eaco.engine.progress import Report, ingest

log = logging.getLogger(__name__)


def take_in(ledger: Ledger, profiles: ProfileStore, reports: Sequence[Report]) -> None:
    """Take in every report that can be taken; one that cannot is logged and left out.

    :raises StoreUnavailableError: if the ledger is out of reach; the reports can be taken in later.
    """
    try:
        ingest(ledger, profiles, reports)
    except StoreUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - a task may write anything into its state store
        for report in reports:
            _take_alone(ledger, profiles, report)


def _take_alone(ledger: Ledger, profiles: ProfileStore, report: Report) -> None:
    try:
        ingest(ledger, profiles, [report])
    except StoreUnavailableError:
        raise
    except Exception:
        log.exception("A progress report is left out: job_id=%s", report.job_id)
