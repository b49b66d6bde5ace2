"""Metrics: what is sent, that document and dashboard know every name, and that unknown is not sent."""

from __future__ import annotations

import json
import re
from pathlib import Path

from airflow_provider_eaco.core.model.decision import Finding, Reason, hold
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.instruction import KindDecision
from airflow_provider_eaco.engine.admission_loop import CycleReport
from airflow_provider_eaco.provider.compat import metrics_client
from airflow_provider_eaco.provider.metrics import METRICS, Metrics, patterns
from airflow_provider_eaco.provider.reference import metrics_reference
from tests.builders import make_job
from tests.unit.engine.rig import Rig, unlimited

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference"


class Sent:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.times: dict[str, float] = {}

    def gauge(self, stat: str, value: float) -> None:
        self.gauges[stat] = value

    def incr(self, stat: str, count: int) -> None:
        self.counts[stat] = self.counts.get(stat, 0) + count

    def timing(self, stat: str, dt: float) -> None:
        self.times[stat] = dt


class Planner:
    """An admission loop whose reports are given."""

    def __init__(self, *reports: CycleReport) -> None:
        self.reports = list(reports)

    def run_once(self, readings: object) -> CycleReport:
        return self.reports.pop(0)


def test_gauges_tell_the_ledger() -> None:
    """Queue and leases by pool, GPUs by state, watts of nodes and joules by Airflow pool."""
    rig, sent = Rig(gpus=2), Sent()
    for job_id, family in (("a", "A"), ("b", "C"), ("c", "C")):
        rig.ledger.add_waiting(make_job(job_id, family, 1, gpu_models=("T4",)), "x")
    rig.loop.run_once(())
    readings = {f"n1-gpu0{index}": GpuReading(f"n1-gpu0{index}", 0.0, power_w=50.0) for index in (0, 1)}
    Metrics(sent).tell(rig.ledger.view(), rig.pools, readings, {"my pool": 5.0})
    assert sent.gauges["eaco.waiting.eaco"] == 1
    assert sent.gauges["eaco.running.eaco"] == 2
    assert (sent.gauges["eaco.gpus.held"], sent.gauges["eaco.gpus.free"]) == (2, 0)
    assert sent.gauges["eaco.power_w.n1"] == 100.0
    assert sent.gauges["eaco.energy_j.my_pool"] == 5.0


def test_what_is_unknown_is_not_sent() -> None:
    """A node of which one GPU's draw is unknown has no draw."""
    rig, sent = Rig(gpus=2), Sent()
    readings = {
        "n1-gpu00": GpuReading("n1-gpu00", 0.0, power_w=50.0),
        "n1-gpu01": GpuReading("n1-gpu01", 0.0),
    }
    Metrics(sent).tell(rig.ledger.view(), unlimited(), readings, {})
    assert not [name for name in sent.gauges if "power" in name or "energy" in name]


def test_decisions_are_counted_where_they_are_made() -> None:
    """Time, grants and trials of a cycle that planned; reasons by pool, and 0 once nobody has one."""
    kind = make_job("a").kind
    held = KindDecision(kind, ("a", "b"), hold(Finding(Reason.ON_HOLD)))
    busy = CycleReport(planned=True, decided=(held,), yielding=("c",))
    sent, now = Sent(), iter([1.0, 1.25, 2.0, 2.5, 3.0])
    metrics = Metrics(sent, lambda: next(now))
    loop = metrics.metered(Planner(busy, CycleReport(planned=True), CycleReport(planned=False)), str)
    view = Rig().ledger.view()
    loop.run_once(())
    metrics.tell(view, unlimited(), {}, {})
    assert sent.times == {"eaco.decision_time": 250.0}
    assert sent.counts == {"eaco.trials.undone": 1}
    assert sent.gauges["eaco.held.eaco.on_hold"] == 2
    loop.run_once(())
    metrics.tell(view, unlimited(), {}, {})
    assert sent.gauges["eaco.held.eaco.on_hold"] == 0
    loop.run_once(())
    assert sent.times == {"eaco.decision_time": 500.0}


def test_the_document_is_made_from_the_list() -> None:
    """docs/reference/metrics.md is what the code writes, so it cannot drift."""
    assert (DOCS / "metrics.md").read_text() == metrics_reference()


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    """Every query of the Grafana dashboard finds a metric, and every metric is on it."""
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = [re.search(r'__name__=~"([^"]+)"', text) for text in expressions]
    queries = [match.group(1) for match in asked if match]
    assert len(queries) == len(expressions)
    names = [pattern.replace(".+", "some_name") for pattern in patterns()]
    assert [name for name in names if not any(re.fullmatch(query, name) for query in queries)] == []
    assert [query for query in queries if not any(re.fullmatch(query, name) for name in names)] == []
    assert len(names) == len(METRICS) == len(set(names))


def test_airflow_takes_them() -> None:
    """Airflow's own metrics have what is called, and need no configuration for it."""
    client = metrics_client()
    client.gauge("eaco.gpus.held", 1)
    client.incr("eaco.granted", 2)
    client.timing("eaco.decision_time", 1.5)
