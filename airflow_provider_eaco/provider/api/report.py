"""``/report``: what was used month by month, as ``airflow eaco report`` tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field

from airflow_provider_eaco.core.energy.records import month_of
from airflow_provider_eaco.provider.api.access import CanSee, User
from airflow_provider_eaco.provider.api.jobs_shown import HIDDEN, JobNames
from airflow_provider_eaco.provider.api.stored import the_store
from airflow_provider_eaco.provider.api.versions import answer_if_changed
from airflow_provider_eaco.provider.energy_report import (
    ALL_MONTHS,
    Line,
    MonthSums,
    Report,
    make_report,
    wrong_month,
)
from airflow_provider_eaco.provider.report_forms import as_csv, as_document, as_html
from airflow_provider_eaco.provider.settings import load_settings

router = APIRouter(tags=["energy"], dependencies=[CanSee])

_FORMS: dict[str, tuple[str, Callable[[Report], str]]] = {
    "csv": ("text/csv; charset=utf-8", as_csv),
    "html": ("text/html; charset=utf-8", as_html),
}
Month = Annotated[
    str | None, Query(description=f"such as 2026-12, or {ALL_MONTHS}; without it the present one, in UTC")
]


class ReportShown(BaseModel):
    """Energy of a month, or of all: ``months`` of all GPUs, ``lines`` by team, pool, DAG and family.

    Cost is in ``currency`` by the site's price, CO2e by its factor; without those it is ``null``.
    """

    now_s: float
    month: str = Field(description=f"the month that is told, or {ALL_MONTHS}")
    price_per_kwh: float | None
    currency: str
    carbon_g_per_kwh: float | None
    method: str = Field(description="how saved_j is found")
    months: list[MonthSums]
    lines: list[Line]


@router.get("/report", response_model=ReportShown)
def report(request: Request, user: User, month: Month = None) -> Response:
    """Return what all GPUs used in a month, and what teams, pools, DAGs and families did."""
    told, now_s, made = _made(user, month)
    return answer_if_changed(request, ReportShown(now_s=now_s, month=told, **as_document(made)))


@router.get(
    "/report/export",
    response_class=Response,
    responses={200: {"content": {kind.partition(";")[0]: {} for kind, _ in _FORMS.values()}}},
)
def export(
    user: User,
    file_format: Annotated[Literal["csv", "html"], Query(alias="format")] = "csv",
    month: Month = None,
) -> Response:
    """Return the report as the file that ``airflow eaco report --output csv`` or ``html`` writes."""
    told, _, made = _made(user, month)
    kind, form = _FORMS[file_format]
    name = f'attachment; filename="energy-{told}.{file_format}"'
    return Response(form(made), media_type=kind, headers={"Content-Disposition": name})


def _made(user: Any, month: str | None) -> tuple[str, float, Report]:
    """Return the month that is told, the instant and the report; 400 if there is no such month."""
    store = the_store()
    now_s = store.clock.now_s()
    told = month_of(now_s) if month is None else month
    if wrong := wrong_month(told):
        raise HTTPException(400, f"month: {wrong}")
    stored = store.energy_months.read(None if told == ALL_MONTHS else told)
    names = JobNames(user, (each.record for each in stored.jobs if each.record is not None))
    made = make_report(
        stored,
        store.profiles.book(),
        load_settings(),
        name_instead=lambda record: HIDDEN if names.is_hidden(record) else None,
    )
    return told, now_s, made
