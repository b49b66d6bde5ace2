"""The report of energy: groups, what was saved, prices, and sums that are the devices'."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_eaco.core.energy.accounting import (
    Consumer,
    DeviceLook,
    DeviceTotals,
    EnergyAccounts,
    EnergyMethod,
)
from airflow_provider_eaco.core.energy.records import NodeTotals
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.pool import FairShare, PoolSettings, TeamSource
from airflow_provider_eaco.core.model.profile import PowerScope, ProfileBook, SoloProfile
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.energy_report import Line, Report, make_report
from airflow_provider_eaco.provider.report_forms import as_csv, as_document, as_html, line_rows, month_rows
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.store.energy_months import EnergyMonths, JobMonth
from tests.builders import make_job

MONTH = "2026-12"
ALONE = SoloProfile("A", "V100", 1, unit_s=100.0, power_w=200.0, scope=PowerScope.BOARD, samples=3)
BOOK = ProfileBook({ALONE.key: ALONE})
PLAIN = EacoSettings()


def one_try(
    job_id: str, energy_j: float | None, phase: JobPhase = JobPhase.FINISHED, **changes: object
) -> JobMonth:
    """A try of family A that did ten units on one V100 in 1100 s."""
    progress = Progress(units_done=10, units_total=10, run_s=1100.0)
    job = make_job(job_id, "A", 1, queued_s=0.0, progress=progress, dag_id=str(changes.pop("dag", "d")))
    record = JobRecord(job, phase, "x", started_s=60.0, ended_s=2000.0)
    found = JobMonth(job_id, MONTH, record, [energy_j], 1100.0, methods={EnergyMethod.COUNTER})
    found.gpu_models.add("V100")
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def report_of(*tries: JobMonth, settings: EacoSettings = PLAIN, **sums: object) -> Report:
    stored = EnergyMonths(list(tries), [], [])
    return make_report(replace(stored, **sums), BOOK, settings)  # type: ignore[arg-type] # sums are its fields


def lines(report: Report, group: str) -> dict[str, Line]:
    return {line.name: line for line in report.lines if line.group == group}


def test_tries_are_summed_by_team_pool_dag_and_family() -> None:
    """Each group has all its tries, failed ones apart; families only those that finished."""
    report = report_of(
        one_try("a", 100.0),
        one_try("b", 50.0, dag="e"),
        one_try("c", 7.0, JobPhase.FAILED),
        one_try("d", 3.0, JobPhase.RUNNING),
    )
    (team,) = lines(report, "team").values()
    assert (team.tries, team.energy_j, team.failed_j) == (4, 160.0, 7.0)
    dags = lines(report, "dag")
    assert {name: line.energy_j for name, line in dags.items()} == {"d": 110.0, "e": 50.0}
    (family,) = lines(report, "family").values()
    assert (family.name, family.tries, family.energy_j) == ("A", 2, 150.0)
    assert family.gpu_h == pytest.approx(2 * 1100 / 3600)
    assert (family.wait_s, family.stretch) == (60.0, pytest.approx(1.1))
    (month,) = report.months
    assert (month.finished_j, month.failed_j, month.open_j, month.devices_j) == (150.0, 7.0, 3.0, None)


@pytest.mark.parametrize(
    ("changed", "compared"),
    [
        ({}, 1),
        ({"phase": JobPhase.FAILED}, 0),
        ({"partial": True}, 0),
        ({"parts_j": [150_000.0, None]}, 0),
        ({"is_whole": False}, 0),
        ({"gpu_models": {"T4"}}, 0),
        ({"methods": {EnergyMethod.MODEL}}, 0),
        ({"record": None}, 0),
    ],
)
def test_saved_is_named_only_where_the_work_alone_is_known(changed: dict[str, object], compared: int) -> None:
    """Ten units of 100 s at 200 W are 200 kJ alone; 150 kJ were used. Without profile, over the end of a
    month, partly measured, or of another scope: unknown, never 0.
    """
    report = report_of(one_try("a", 150_000.0, **changed))
    for line in report.lines:
        if line.group == "dag":
            assert line.compared == compared
            assert line.saved_j == (pytest.approx(50_000.0) if compared else None)


def test_unknown_energy_is_no_zero() -> None:
    """A group of which nothing was measured has no energy, no cost and no CO2e."""
    priced = replace(PLAIN, price_per_kwh=0.5, currency="EUR", carbon_g_per_kwh=400.0)
    report = report_of(one_try("a", None, partial=True), settings=priced)
    (line,) = lines(report, "dag").values()
    assert (line.energy_j, line.cost, line.co2e_g) == (None, None, None)
    row = next(row for row in line_rows(report) if row["group"] == "dag")
    assert (row["energy"], row["cost"], row["co2e"]) == ("unknown", "unknown", "unknown")


def test_c56_cost_and_co2_need_the_site_s_numbers() -> None:
    """With a price and a factor they are there, without them no column names them."""
    used = one_try("a", 7.2e6)
    assert {"cost", "co2e"}.isdisjoint(line_rows(report_of(used))[0])
    priced = replace(PLAIN, price_per_kwh=0.5, currency="EUR", carbon_g_per_kwh=400.0)
    row = line_rows(report_of(used, settings=priced))[0]
    assert (row["energy"], row["cost"], row["co2e"]) == ("2.000 kWh", "1.00 EUR", "0.800 kg")


def test_what_only_devices_tell_is_unknown_without_them() -> None:
    """Where no meter stored counters, idle energy and what is beyond the tries are unknown, never 0."""
    report = report_of(one_try("a", 100.0))
    (month,) = report.months
    assert {month.idle_j, month.strangers_j, month.unmatched_j, month.excess_j} == {None}
    row = month_rows(report)[0]
    assert (row["idle"], row["strangers"], row["unmatched"]) == ("unknown", "unknown", "unknown")


def test_a_try_that_is_not_to_be_named_is_summed_without_its_names() -> None:
    """Its joules are in every sum; team, pool, DAG and family are one word for all of those tries."""
    hidden = {"a", "b"}
    stored = EnergyMonths(
        [one_try("a", 1.0, dag="x"), one_try("b", 2.0, dag="y"), one_try("c", 4.0, dag="z")], [], []
    )
    report = make_report(
        stored, BOOK, PLAIN, name_instead=lambda record: "?" if record.job.job_id in hidden else None
    )
    assert {name: line.energy_j for name, line in lines(report, "dag").items()} == {"?": 3.0, "z": 4.0}
    for group in ("team", "pool", "family"):
        assert lines(report, group)["?"].energy_j == 3.0
    assert report.months[0].finished_j == 7.0


def test_the_team_is_that_of_the_page() -> None:
    """The bundle, which is unknown for a try without one; by DAG where the pool's fair_share goes by it."""
    tries = [one_try("a", 1.0, dag="x"), one_try("b", 2.0, dag="y")]
    first = tries[0].record
    assert first is not None
    tries[0].record = replace(first, job=replace(first.job, bundle="git"))
    assert set(lines(report_of(*tries), "team")) == {"git", "unknown"}
    by_dag = PoolSettings(rules=("fair_share",), fair_share=FairShare(by=TeamSource.DAG))
    assert set(lines(report_of(*tries, settings=EacoSettings(pools=(by_dag,))), "team")) == {"x", "y"}


def test_the_node_meter_stands_beside_its_gpus() -> None:
    """What whole machines took, and their GPUs in the same time."""
    nodes = [(MONTH, "n1", NodeTotals(900.0, 600.0, 60.0)), (MONTH, "n2", NodeTotals(100.0, 50.0, 60.0))]
    (month,) = report_of(nodes=nodes).months
    assert (month.node_j, month.node_gpus_j) == (1000.0, 650.0)


def test_every_form_says_the_same_and_names_do_no_harm() -> None:
    """CSV, HTML and documents have every line; a name is text there and nothing else."""
    report = report_of(one_try("a", 100.0, dag='=cmd()<script>"'))
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert [row["group"] for row in rows] == [*(line.group for line in report.lines), "month"]
    assert "'=cmd()<script>\"" in {row["name"] for row in rows}
    page = as_html(report)
    assert "<script>" not in page
    assert "=cmd()&lt;script&gt;" in page
    assert len(as_document(report)["lines"]) == len(report.lines)
    assert "no energy is recorded" in as_html(report_of())
    assert month_rows(report)[0]["all_gpus"] == "unknown"


POWERS = st.lists(st.tuples(st.floats(1, 700), st.integers(0, 7), st.booleans()), min_size=2, max_size=40)


@given(POWERS, st.integers(0, 3))
def test_c53_the_sums_of_a_report_are_the_devices(seconds: list[tuple[float, int, bool]], lost: int) -> None:
    """Finished + failed + open + idle + strangers + unmatched - excess is what the devices used, whoever was
    there, and also where parts of a try were not stored.
    """
    accounts, parts = EnergyAccounts(), []
    counter_j = 0.0
    for second, (power_w, who, strangers) in enumerate(seconds):
        counter_j += power_w
        there = [Consumer(name, 1, "GPU-1", sm_pct=10.0) for bit, name in enumerate("abc") if who >> bit & 1]
        look = DeviceLook("GPU-1", float(second), power_w, counter_j)
        parts += accounts.look([look], {"GPU-1": there}, {"GPU-1": 5.0} if strangers else {})
    phases = {"a": JobPhase.FINISHED, "b": JobPhase.FAILED, "c": JobPhase.RUNNING}
    tries = []
    for name, phase in phases.items():
        own = [part.energy_j for part in parts if part.job_id == name]
        tries.append(one_try(name, None, phase, parts_j=own[lost:]))
    totals = accounts.devices.get("GPU-1", DeviceTotals())
    (month,) = report_of(*tries, devices=[(MONTH, "GPU-1", totals)]).months
    assert month.idle_j is not None
    assert month.strangers_j is not None
    assert month.unmatched_j is not None
    assert month.excess_j is not None
    used_j = [month.finished_j, month.failed_j, month.open_j, month.idle_j, month.strangers_j]
    together_j = math.fsum([*used_j, month.unmatched_j, -month.excess_j])
    assert month.devices_j == pytest.approx(counter_j - seconds[0][0], rel=1e-6)
    assert together_j == pytest.approx(month.devices_j, rel=1e-6)
    assert min(*used_j, month.unmatched_j, month.excess_j) >= 0
    if not lost:
        assert month.unmatched_j == pytest.approx(0.0, abs=1e-6 * max(1.0, counter_j))
