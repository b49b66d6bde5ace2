"""``airflow eaco report`` through Airflow's own parser, on the real store."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.utils import yaml

from airflow_provider_eaco.core.energy.accounting import DeviceTotals
from airflow_provider_eaco.core.energy.records import MachineEnergy, month_of
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.provider.settings import load_settings
from tests.builders import make_job, make_solo
from tests.unit.provider.cli.rig import Cli, Cluster


def used(cluster: Cluster) -> str:
    """Let a task of DAG d.x use 1 kWh, and its GPU 1.5 kWh in all; return the month."""
    cluster.store.profiles.save_all([make_solo("A")])
    cluster.add_node()
    now_s = cluster.store.clock.now_s()
    cluster.add(make_job("first", "A", 1, gpu_models=("T4",), queued_s=now_s, dag_id="d.x"))
    cluster.plan()
    cluster.start("first")
    energy, token = cluster.store.energy, cluster.lease("first").token
    energy.add(EnergyPart("first", token, "n1-gpu00", 3.6e6, 3600.0, EnergyMethod.COUNTER))
    devices = {"n1-gpu00": DeviceTotals(5.4e6, 3.6e6, 1.8e6)}
    assert energy.add_machine(MachineEnergy("n1", "meter", now_s, now_s, devices))
    cluster.end("first")
    return month_of(now_s)


def test_the_report_shows_months_and_groups(cluster: Cluster, cli: Cli) -> None:
    """For people: all GPUs, then each group, then how savings are found."""
    month = used(cluster)
    shown = cli("report").out
    assert all(title in shown for title in ("All GPUs", "By team", "By pool", "By dag", "By family"))
    assert "1.500 kWh" in shown
    assert "Saved is what" in shown
    assert cli("report", "--month", month).out == shown
    assert cli("report", "--month", "all").out == shown


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_joules(output: str, read: Callable[[str], Any], cluster: Cluster, cli: Cli) -> None:
    """One document with months and lines: numbers are numbers, what is not known is null."""
    used(cluster)
    (document,) = read(cli("report", "-o", output).out)
    (month,) = document["months"]
    assert (month["devices_j"], month["cost"]) == (5.4e6, None)
    assert {line["group"] for line in document["lines"]} == {"team", "pool", "dag", "family"}
    for line in document["lines"]:
        assert (line["energy_j"], line["gpu_h"], line["compared"]) == (3.6e6, 1.0, 0)
        assert (type(line["energy_j"]), type(line["tries"]), line["partial"]) == (float, int, False)


def test_csv_and_html_are_whole_files(cluster: Cluster, cli: Cli) -> None:
    """Both go to standard output and nothing else with them."""
    month = used(cluster)
    rows = list(csv.DictReader(io.StringIO(cli("report", "-o", "csv").out)))
    of_month = next(row for row in rows if row["group"] == "month")
    assert (of_month["name"], float(of_month["idle_j"])) == (month, 1.8e6)
    page = cli("report", "-o", "html").out
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n")


def test_a_time_of_which_nothing_is_known_makes_the_sum_of_all_gpus_a_lower_bound(
    cluster: Cluster, cli: Cli
) -> None:
    """A meter that counts anew begins later than the last one ended."""
    used(cluster)
    assert "at least" not in cli("report").out
    began_s = cluster.store.clock.now_s() + 60
    assert cluster.store.energy.add_machine(MachineEnergy("n1", "another", began_s, began_s, {}))
    assert "at least 1.500 kWh" in cli("report").out


def test_prices_come_from_the_configuration(
    cluster: Cluster, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cost and CO2e by the site's numbers."""
    used(cluster)
    assert "co2e" not in cli("report").out
    for option, value in {"PRICE_PER_KWH": "0.5", "CURRENCY": "EUR", "CARBON_G_PER_KWH": "100"}.items():
        monkeypatch.setenv(f"AIRFLOW__EACO__{option}", value)
    load_settings.cache_clear()
    rows = list(csv.DictReader(io.StringIO(cli("report", "-o", "csv").out)))
    of_month = next(row for row in rows if row["group"] == "month")
    assert (float(of_month["cost"]), float(of_month["co2e_g"])) == (0.75, 150.0)
    assert load_settings().currency == "EUR"


def test_a_month_without_energy_says_so(cluster: Cluster, cli: Cli) -> None:
    """An empty month is one sentence; a wrong one is refused with what is allowed."""
    assert cli("report", "--month", "1999-01").out.strip() == "no energy is recorded for 1999-01"
    refused = cli("report", "--month", "December")
    assert refused.code == 1
    assert "--month: 'December' must be a month such as 2026-12, or all" in refused.err
