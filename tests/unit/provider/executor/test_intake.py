"""Reports on their way into the ledger."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.provider import intake


@pytest.fixture
def taken(monkeypatch):
    done = []

    def ingest(ledger, profiles, reports):
        for report in reports:
            if isinstance(report.job_id, Exception):
                raise report.job_id
            done.append(report.job_id)

    monkeypatch.setattr(intake, "ingest", ingest)
    return done


def test_one_report_that_fails_stops_no_other(taken, caplog):
    """Every other report is taken in, and the one that failed is named in the log."""
    bad = SimpleNamespace(job_id=OverflowError("too large"))
    intake.take_in(None, None, [bad, SimpleNamespace(job_id="b")])
    assert taken == ["b"]
    assert "left out" in caplog.text


def test_a_lost_store_is_told_to_the_caller(taken):
    """A store that is out of reach is no fault of a report: the caller tries again later."""
    lost = SimpleNamespace(job_id=StoreUnavailableError("gone"))
    with pytest.raises(StoreUnavailableError):
        intake.take_in(None, None, [lost])
