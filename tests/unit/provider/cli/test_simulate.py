"""``airflow eaco simulate``: no side effect, and the truth about the next decision (case C65)."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.job import Share
from airflow_provider_eaco.core.model.pool import PoolSettings, Prices
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop, CycleReport
from airflow_provider_eaco.provider.whatif.carry_on import CarryOn
from airflow_provider_eaco.provider.wiring import present_pools, read_present
from airflow_provider_eaco.store import schema
from tests.builders import make_job, make_pair, make_progress, make_solo
from tests.unit.provider.cli.rig import OWNER, Cli, Cluster


def content(engine: Engine) -> str:
    """Return a digest of every row of every table of ours and of Airflow's pools."""
    digest = sha256()
    with engine.connect() as connection:
        for table in schema.metadata.sorted_tables:
            rows = sorted(map(repr, connection.execute(sa.select(table))))
            digest.update(f"{table.name}: {rows}\n".encode())
        digest.update(repr(connection.execute(sa.text("SELECT * FROM slot_pool")).all()).encode())
    return digest.hexdigest()


def crowd(cluster: Cluster) -> None:
    """Two nodes: a pair on trial, one alone, one free GPU; nine tasks of three families wait."""
    pair = make_pair({"A": 1.05, "B": 1.05}, power_w=50.0)
    solo = {name: make_solo(name, units_total=4, spread_s=5.0) for name in ("A", "B")}
    cluster.store.profiles.save_all([*solo.values(), pair])
    cluster.add_node("n1", 2)
    now_s = cluster.store.clock.now_s()
    for number, family in enumerate(["A", "B", "C"]):
        cluster.add(make_job(f"held-{family}", family, 1, queued_s=now_s, run_after_s=float(number)))
    cluster.plan()
    cluster.start(*(lease.job_id for lease in cluster.store.ledger.view().leases))
    cluster.store.ledger.save_progress("held-A", make_progress(2, 4), None)
    cluster.add_node("n2", 1)
    for number in range(9):
        family = "ABC"[number % 3]
        cluster.add(
            make_job(
                f"job-{number}",
                family,
                1 + number % 2,
                queued_s=now_s,
                run_after_s=10.0 + number,
                dag_id=f"dag-{number % 2}",
                max_stretch=1.2,
            )
        )
    cluster.store.ledger.set_hold("job-3", True)


OPTIONS = [
    (),
    ("--policy", "exclusive", "--order", "sjf"),
    ("--gpus", "6", "--max-residents", "2", "--max-stretch", "none"),
]


def test_c65_a_simulation_changes_nothing(cluster: Cluster, cli: Cli, engine: Engine) -> None:
    """Whatever is simulated and printed, every row of the store is as it was (C65)."""
    crowd(cluster)
    before = content(engine)
    for options in OPTIONS:
        for output in ("json", "table"):
            assert cli("simulate", *options, "--output", output).code == 0
    assert content(engine) == before
    # The digest tells a change: what the simulation has left alone, the planner now changes.
    cluster.plan()
    assert content(engine) != before


@pytest.mark.parametrize(
    "settings",
    [
        PoolSettings(),
        PoolSettings(policy="exclusive", ordering="horizon"),
        PoolSettings(policy="lucid", ordering="backfill", rules=("reserve",)),
        PoolSettings(policy="frontier", ordering="sjf", rules=("fair_share",), prices=Prices.GREEDY),
    ],
    ids=lambda settings: f"{settings.policy}-{settings.ordering}",
)
def test_c65_the_first_decision_is_the_live_one(cluster: Cluster, settings: PoolSettings) -> None:
    """Of the same snapshot the live loop then grants the same GPUs to the same tasks, and says the same."""
    crowd(cluster)
    pools = tuple(PoolState(settings, state.airflow_pools) for state in present_pools())
    simulated = CarryOn(replace(read_present(), pools=pools))
    simulated.run()
    store = cluster.store
    live = AdmissionLoop(
        store.ledger,
        store.profiles,
        store.decisions,
        store.planner,
        pools=lambda: pools,
        owner=OWNER,
    ).run_once()
    assert live.planned
    assert live.granted, "a case in which nothing starts shows little"
    assert done(simulated.first) == done(live)


def done(report: CycleReport) -> Any:
    """Return what a cycle did and said, without the numbers that the store gives."""
    granted = sorted((lease.job_id, lease.placement, lease.state) for lease in report.granted)
    decided = {
        (job_id, item.decision.verdict, tuple(finding.reason for finding in item.decision.findings))
        for item in report.decided
        for job_id in item.job_ids
    }
    return granted, decided, report.confirmed, report.unconfirmed, report.yielding, report.failures


def test_simulate_tells_totals_tasks_and_assumptions(cluster: Cluster, cli: Cli) -> None:
    """JSON has both totals, every task with both starts, and what was assumed, the unknown included."""
    crowd(cluster)
    (told,) = cli("simulate", "--gpus", "6", "--output", "json").json()
    assert (told["pool"], told["changes"]) == ("eaco", {"gpus": "6"})
    assert [row["settings"] for row in told["totals"]] == ["as it is", "what if"]
    assert {row["waiting"] for row in told["totals"]} == {"9"}
    tasks = {row["job"]: row for row in told["tasks"]}
    assert len(tasks) == 12
    assert tasks["held-A"]["end"] != "unknown"
    assert tasks["held-C"]["end"] == "unknown"
    assert (tasks["job-3"]["start"], tasks["job-3"]["why"]) == ("unknown", "held by a user")
    assert any("unknown (families B, C)" in sentence for sentence in told["assumptions"])
    assert any("profiles as they are now" in sentence for sentence in told["assumptions"])


def test_simulate_in_words(cluster: Cluster, cli: Cli) -> None:
    """The table form names the change, and unchanged settings are one simulation."""
    crowd(cluster)
    shown = cli("simulate", "--policy", "exclusive").out
    assert "pool eaco: policy exclusive" in shown
    assert "what if" in shown
    assert "Assumed:" in shown
    unchanged = cli("simulate").out
    assert "pool eaco: unchanged" in unchanged
    assert "what if" not in unchanged


def test_the_queue_tells_expected_starts(cluster: Cluster, cli: Cli) -> None:
    """Who waits for a known end has an instant with its error, who waits for an unknown one has none."""
    cluster.store.profiles.save_all([make_solo("A", units_total=4, spread_s=5.0)])
    cluster.add_node("n1", 2)
    now_s = cluster.store.clock.now_s()
    for job_id, family in (("a", "A"), ("c", "C"), ("next", "A"), ("last", "A")):
        cluster.add(make_job(job_id, family, 1, queued_s=now_s, run_after_s=now_s, share=Share.NEVER))
    cluster.plan()
    cluster.start("a", "c")
    rows = {row["job"]: row["expected_start"] for row in cli("queue", "-o", "json").json()}
    assert set(rows) == {"last", "next"}
    first, second = sorted(rows.values())
    assert first.endswith("UTC ± 15 s")
    assert second.endswith("UTC ± 30 s")
    # Of the resident that nobody knows nothing is expected: with it alone nobody's start is known.
    cluster.end("a")
    cluster.store.ledger.set_draining("n1", True)
    cluster.plan()
    assert {row["expected_start"] for row in cli("queue", "-o", "json").json()} == {"unknown"}


REFUSED = {
    ("--policy", "none-such"): "--policy: 'none-such' is not known; allowed are eaco",
    ("--order", "none-such"): "--order: 'none-such' is not known; allowed are backfill",
    ("--gpus", "0"): "--gpus: is 0, must be from 1 to",
    ("--max-residents", "0"): "--max-residents: is 0, must be from 1 to 64",
    ("--max-stretch", "0.5"): "--max-stretch: is 0.5, must be 1 or more, or none",
    ("--max-stretch", "much"): "--max-stretch: is 'much', must be 1 or more, or none",
    ("--pool", "none-such"): "--pool: no GPU pool is named 'none-such'; [eaco] pools has eaco",
}


def test_simulate_refuses_what_cannot_be(cluster: Cluster, cli: Cli) -> None:
    """A wrong option ends with one line that names it and what is allowed."""
    cluster.add_node()
    for options, told in REFUSED.items():
        outcome = cli("simulate", *options)
        assert outcome.code == 1, options
        assert outcome.err.startswith(told)
        assert len(outcome.err.splitlines()) == 1, options
